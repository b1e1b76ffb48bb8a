"""No path of a developer's machine stands in the tree.  paths.py ROOT"""
import re
import sys

import tree

# Written in pieces so that this file passes its own check.
MACHINE = re.compile(r"(?<![\w.$}/~-])(/" + r"work/|/" + r"root/|/home/(?!u/|\*)[a-z][\w-]*/|/" + r"tmp/bash|/" + r"mnt/)")


def main():
    root = sys.argv[1]
    verdict = tree.Verdict("paths")
    for path in tree.files(root):
        if path.endswith((".safetensors", ".bin", ".pyc")):
            continue
        for number, line in enumerate(tree.read(root, path).splitlines(), 1):
            found = MACHINE.search(line)
            verdict.check(not found, f"{path}:{number}: {found.group(0) if found else ''} is a path of some machine")
    verdict.exit()


main()
