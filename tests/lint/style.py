"""What a reviewer should not have to look for.  style.py ROOT"""
import os
import re
import statistics
import sys

import tree

LINES_MAX = 600
COLUMNS_MAX = 140
TEXT = (".c", ".h", ".inc", ".py", ".build", ".sh", ".md", ".conf", ".service", ".socket", ".8", ".5", ".1", ".7", "/run")

BANNED = {
    r"\bassert\s*\(\s*(0|false)\s*\)": "assert(0): make the state impossible or return an error",
    r"\b(strcpy|strcat|sprintf|vsprintf|gets|strtok|atoi|atol|atof|strncpy|alloca|system|tmpnam|mktemp)\s*\(":
        "a function the tree does not use",
    r"\b(printf|puts|putchar)\s*\(": "libraries and daemons return errors or log; only programs for people print",
}
PRINTS = ("ctl/", "tests/", "daemon/head/main", "daemon/head/conf", "daemon/duck/main", "daemon/duck/options", "proto/client/examples/")

# Files whose functions carry the module's name and not the file's.
MODULE_PREFIX = {
    "kernels/": ("kernels_", "ref_", "avx2_", "avx512_", "cpu_", "tier_", "x86_"),
    "proto/client/": ("fp9_", "client_"),
    "proto/wire/": ("wire_",),
}


def functions(code):
    """Names of functions defined with outside linkage: the definition begins in column 0 and a brace follows its parameters."""
    for match in re.finditer(r"^(?!static\b|\w+_INLINE\b|typedef\b|struct\s+\w+\s*\{|#|else\b|return\b)"
                             r"((?:[A-Za-z_][\w]*[ \t*]+)+)([A-Za-z_]\w*)\(([^;{}]*)\)\s*\n?\{", code, re.M):
        if "static" not in match.group(1).split() and match.group(2) not in ("if", "for", "while", "switch"):
            yield match.group(2)


def prefixes(path):
    stem = os.path.basename(path).rsplit(".", 1)[0]
    own = [stem + "_", "fp9_"]
    # A file that goes on with another's idea (conf_duck.c, checkpoint_read.c) may keep that one's prefix.
    parts = stem.split("_")
    own += ["_".join(parts[:n]) + "_" for n in range(1, len(parts))]
    for folder, more in MODULE_PREFIX.items():
        if path.startswith(folder):
            own += more
    own.append(stem + "s_")  # of all of them: fills_new() in fill.c
    return tuple(own), stem


def main():
    root = sys.argv[1]
    verdict = tree.Verdict("style")
    lengths = {}
    for path in tree.files(root):
        if not (path.endswith(TEXT) or path == "run") or path.startswith("tests/data/") or path == "LICENSE":
            continue
        text = tree.read(root, path)
        lines = text.splitlines()
        verdict.check(text.endswith("\n") and not text.endswith("\n\n"), f"{path}: does not end in exactly one newline")
        for number, line in enumerate(lines, 1):
            where = f"{path}:{number}"
            verdict.check("\t" not in line, f"{where}: a tab")
            verdict.check(line == line.rstrip(), f"{where}: trailing space")
            if path.endswith((".c", ".h", ".py", ".inc", ".build")):
                verdict.check(len(line) <= COLUMNS_MAX, f"{where}: {len(line)} columns, at most {COLUMNS_MAX}")
        if not path.endswith((".c", ".h", ".inc")):
            continue
        lengths.setdefault(os.path.splitext(path)[1], []).append((len(lines), path))
        verdict.check(len(lines) <= LINES_MAX, f"{path}: {len(lines)} lines, at most {LINES_MAX}: which second idea is in it?")
        code = tree.without_comments(text)
        for number, line in enumerate(code.splitlines(), 1):
            for pattern, why in BANNED.items():
                allowed = path.startswith(PRINTS if "puts" in pattern else "tests/") and "assert" not in pattern
                if re.search(pattern, line) and not allowed:
                    verdict.check(False, f"{path}:{number}: {line.strip()[:60]}: {why}")
        if path.endswith(".h"):
            guard = re.search(r"^#ifndef (\w+)\n#define (\w+)", code, re.M)
            verdict.check(guard is not None and guard.group(1) == guard.group(2), f"{path}: no include guard")
        if path.endswith(".c") and not path.startswith("tests/"):
            allowed, stem = prefixes(path)
            for name in functions(code):
                verdict.check(name == "main" or name == stem or name.startswith(allowed),
                              f"{path}: {name}(): functions seen from outside begin with {stem}_")
    for suffix, found in sorted(lengths.items()):
        print(f"style: {len(found)} {suffix} files, median {statistics.median(n for n, _ in found):.0f} lines, "
              f"longest {max(found)[0]} ({max(found)[1]})")
    verdict.exit()


main()
