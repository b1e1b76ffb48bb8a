"""libfp9 exports what fp9.h declares and nothing else.  symbols.py ROOT BUILD"""
import glob
import os
import re
import subprocess
import sys

import tree


def declared(text):
    code = tree.without_comments(text)
    code = re.sub(r"^\s*#.*?(?<!\\)$", "", code, flags=re.M | re.S)
    code = re.sub(r"__attribute__\s*\(\(.*?\)\)", "", code)
    names = set()
    for statement in re.split(r"[;{}]", code):
        if "typedef" in statement or re.search(r"\bstatic\b", statement):
            continue
        match = re.search(r"\b(fp9_\w+)\s*\(", statement)
        if match and not re.search(r"\(\s*\*", statement[:match.start()]):
            names.add(match.group(1))
    return names


def main():
    root, build = sys.argv[1:3]
    verdict = tree.Verdict("symbols")
    header = os.path.join(root, "proto/client/fp9.h")
    if not os.path.exists(header):
        verdict.skip("proto/client/fp9.h is not there yet")
    libraries = [p for p in glob.glob(os.path.join(build, "**/libfp9.so*"), recursive=True)
                 if os.path.isfile(p) and not p.endswith(".symbols")]
    if not verdict.check(bool(libraries), "fp9.h is there but no libfp9.so was built"):
        verdict.exit()
    out = subprocess.run(["nm", "-D", "--defined-only", libraries[0]], check=True, stdout=subprocess.PIPE, text=True).stdout
    exported = {line.split()[-1].split("@")[0] for line in out.splitlines() if len(line.split()) == 3 and line.split()[1] != "A"}
    # What a sanitizer's instrumentation adds is not ours.
    exported = {name for name in exported if not name.startswith(("__asan", "__ubsan", "__odr_asan"))}
    names = declared(tree.read(root, "proto/client/fp9.h"))
    verdict.check(len(names) > 0, "fp9.h declares no function that this lint recognises")
    for name in sorted(exported | names):
        verdict.check(name.startswith("fp9_"), f"{name} is exported; only fp9_ names may be")
        verdict.check(name in names, f"{name} is exported but fp9.h does not declare it")
        verdict.check(name in exported, f"{name} is declared in fp9.h but libfp9 does not export it")
    # The prefix belongs to the exports: no other object may define it with outside linkage.
    for path in tree.files(root, ".c", under=("proto/base", "proto/wire", "proto/control", "kernels", "daemon", "ctl")):
        code = tree.without_comments(tree.read(root, path))
        for match in re.finditer(r"^(?!static)(?:\w[\w \t*]*?[ \t*])(fp9_\w+)\s*\([^;{}]*\)\s*\{", code, re.M):
            verdict.check(False, f"{path}: {match.group(1)}: the prefix fp9_ is for libfp9's exports only")
    verdict.exit()


main()
