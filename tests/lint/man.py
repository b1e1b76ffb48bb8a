"""Manual pages: mandoc finds nothing wrong, and every option of --help is described.  man.py ROOT BUILD"""
import os
import re
import shutil
import subprocess
import sys

import tree

PAGES = {"man/fp9d.8": "fp9d", "man/fp9-duck.8": "fp9-duck", "man/fp9ctl.1": "fp9ctl", "man/fp9-bench.1": "fp9-bench",
         "man/fp9-control.7": None, "man/fp9d.conf.5": None}


def options(text):
    return sorted(set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", text)))


def main():
    root, build = sys.argv[1:3]
    verdict = tree.Verdict("man")
    pages = [p for p in tree.files(root, ".1", ".5", ".7", ".8", under=("man",))]
    for path in pages:
        text = tree.read(root, path)
        if shutil.which("mandoc"):
            found = subprocess.run(["mandoc", "-T", "lint", "-W", "warning", os.path.join(root, path)], stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True)
            # A page without a date is reproducible and no fault.
            wrong = [line for line in found.stdout.splitlines()
                     if re.search(r": (WARNING|ERROR|UNSUPP)", line) and "missing date" not in line]
            for line in wrong:
                verdict.check(False, line.replace(root + "/", ""))
        else:
            print("man: mandoc is not installed, syntax not checked")
        verdict.check(re.search(r"^\.(Sh|SH) ", text, re.M) is not None, f"{path}: has no section")
        verdict.check(os.path.basename(path) in tree.read(root, "man/meson.build"), f"{path}: is not installed by man/meson.build")
        name = PAGES.get(path)
        program = tree.program(build, name) if name else None
        if program:
            shown = subprocess.run([program, "--help"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, timeout=20).stdout
            plain = text.replace("\\-", "-").replace("\\&", "")
            # mdoc writes ".Fl -config"
            plain += "\n" + re.sub(r"\bFl -", "--", plain)
            known = set(options(plain))
            for option in options(shown):
                verdict.check(option in known, f"{path}: does not describe {option}")
    for path, name in PAGES.items():
        if name and tree.program(build, name):
            verdict.check(path in pages, f"{path}: {name} is built but has no manual page")
    verdict.exit()


main()
