"""clang-format agrees with every C file.  format.py ROOT; skipped where clang-format is not installed."""
import os
import shutil
import subprocess
import sys

import tree


def main():
    root = sys.argv[1]
    verdict = tree.Verdict("format")
    if not shutil.which("clang-format"):
        verdict.skip("clang-format is not installed")
    for path in tree.files(root, ".c", ".h"):
        done = subprocess.run(["clang-format", "--style=file", "--dry-run", "-Werror", os.path.join(root, path)], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True)
        verdict.check(done.returncode == 0, "\n".join(done.stdout.replace(root + "/", "").splitlines()[:3]))
    verdict.exit()


main()
