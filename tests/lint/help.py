"""Every program says what it takes.  help.py ROOT BUILD"""
import re
import subprocess
import sys

import tree

# program -> (folder that has its sources, options and words its usage must name)
PROGRAMS = {
    "fp9d": ("daemon/head", ["--config", "--socket", "--state-dir", "--local-ducks", "--check-config", "--version", "--help"]),
    "fp9-duck": ("daemon/duck", ["--config", "--listen", "--key-file", "--memory", "--cores", "--members", "--check-config", "--version",
                                 "--help"]),
    "fp9ctl": ("ctl", ["--socket", "--json", "--version", "--help", "status", "duck", "plan", "load", "unload", "model", "cache",
                       "invalidate-cache", "prepare", "decode", "prefill", "bench", "job"]),
    "fp9-mkckpt": ("tests/tools", ["--like", "--layers", "--experts", "--seed", "--out", "--help"]),
    "fp9-bench": ("tests/bench", ["gemv", "mlp", "moe", "--case", "--cache", "--threads", "--variant", "--json", "--version", "--help"]),
}


def run(program, *args):
    return subprocess.run([program, *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=20)


def main():
    root, build = sys.argv[1:3]
    verdict = tree.Verdict("help")
    for name, (folder, words) in PROGRAMS.items():
        path = tree.program(build, name)
        if not path:
            has_main = any(re.search(r"^int main\(", tree.read(root, p), re.M) and name in tree.read(root, folder + "/meson.build")
                           for p in tree.files(root, ".c", under=(folder,)))
            verdict.check(not has_main, f"{name}: has a main() but was not built")
            print(f"help: {name} is not there yet")
            continue
        shown = run(path, "--help")
        verdict.check(shown.returncode == 0, f"{name} --help: exit status {shown.returncode}, expected 0")
        verdict.check(name in shown.stdout, f"{name} --help: does not name the program on standard output")
        verdict.check(not shown.stderr, f"{name} --help: writes to standard error")
        for word in words:
            named = re.search(r"(?<![\w-])" + re.escape(word) + r"(?![\w-])", shown.stdout)
            verdict.check(named is not None, f"{name} --help: does not name {word}")
        if "--version" in words:
            version = run(path, "--version")
            verdict.check(version.returncode == 0 and re.search(r"\d+\.\d+", version.stdout) is not None,
                          f"{name} --version: exit status {version.returncode}, output {version.stdout!r}")
        for bad in (["--no-such-option"], ["--no-such-option=3"]):
            refused = run(path, *bad)
            verdict.check(refused.returncode == 2, f"{name} {bad[0]}: exit status {refused.returncode}, expected 2")
            verdict.check("no-such-option" in refused.stderr, f"{name} {bad[0]}: standard error does not name it: {refused.stderr!r}")
            verdict.check(not refused.stdout or name == "fp9ctl", f"{name} {bad[0]}: writes to standard output")
    verdict.exit()


main()
