"""What every lint needs: the files of the tree, C without comments, and a verdict that cannot pass by checking nothing."""
import os
import re
import sys

SKIPPED = 77  # meson's exit status for a test that could not run

LEFT_OUT = {".git", "__pycache__", ".pytest_cache", ".cache", "subprojects"}


def files(root, *suffixes, under=("",)):
    """Paths relative to root, sorted, of the files that end in one of the suffixes (all when none is given)."""
    found = []
    for part in under:
        for folder, names, entries in os.walk(os.path.join(root, part)):
            names[:] = [n for n in names if n not in LEFT_OUT and not os.path.exists(os.path.join(folder, n, "build.ninja"))
                        and not (folder.rstrip("/") == root.rstrip("/") and n.startswith("build"))]
            for name in entries:
                if not suffixes or name.endswith(suffixes):
                    found.append(os.path.relpath(os.path.join(folder, name), root))
    return sorted(set(found))


def read(root, path):
    with open(os.path.join(root, path), encoding="utf-8", errors="replace") as file:
        return file.read()


def without_comments(text):
    """C with comments and the insides of strings blanked; line numbers stay."""
    def blank(match):
        found = match.group(0)
        if found.startswith("/"):
            return re.sub(r"[^\n]", " ", found)
        return found[0] + found[0]
    return re.sub(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', blank, text, flags=re.S)


def program(build, name):
    """The built program (or library) of that name in a meson build directory; None when there is none."""
    for folder, names, entries in os.walk(build):
        names[:] = [n for n in names if not n.endswith(".p") and n not in ("meson-private", "meson-info", "meson-logs")]
        if name in entries:
            return os.path.join(folder, name)
    return None


class Verdict:
    """Counts what was checked and what was wrong; exit() is the last call of every lint."""

    def __init__(self, what):
        self.what = what
        self.checked = 0
        self.wrong = []

    def check(self, good, text):
        self.checked += 1
        if not good:
            self.wrong.append(text)
        return good

    def skip(self, why):
        print(f"{self.what}: skipped: {why}")
        sys.exit(SKIPPED)

    def exit(self):
        for text in self.wrong:
            print(f"{self.what}: {text}")
        if not self.checked:
            print(f"{self.what}: found nothing to check")
            sys.exit(1)
        print(f"{self.what}: {self.checked} checks, {len(self.wrong)} wrong")
        sys.exit(1 if self.wrong else 0)
