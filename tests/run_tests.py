"""Every suite, one after another; the last line is "N passed, N failed[, N skipped]".

    ./run test [STEP ...]      steps: gcc clang san lint integration integration-san (all of them when none is named)

gcc               compile with -Werror; unit suites, checkkern
clang             the same with clang
san               the same with gcc's address and undefined-behaviour sanitizers
lint              the lint suite (looks at what gcc built)
integration       real processes, the gcc build
integration-san   the same against sanitized programs

A suite that ran no test is a failure, and so is a step that could not be built.
"""
import json
import os
import re
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as xml

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
STEPS = ["gcc", "clang", "san", "lint", "integration", "integration-san"]
DIRS = {"gcc": "build", "clang": "build-clang", "san": "build-san"}
NEEDS = {"gcc": "gcc", "clang": "clang", "san": "san", "lint": "gcc", "integration": "gcc", "integration-san": "san"}
# Seconds after which a step is taken for hung and ended.
LIMITS = {"compile": 900, "meson": 1200, "pytest": 1500}
SANITIZED = {
    "ASAN_OPTIONS": "detect_leaks=1:halt_on_error=1:abort_on_error=0:exitcode=99:quarantine_size_mb=8",
    "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
    "LSAN_OPTIONS": "exitcode=99",
}
TAIL_LINES = 60


class Tally:
    def __init__(self):
        self.passed = self.failed = self.skipped = 0
        self.failures = []

    def fail(self, what, why=""):
        self.failed += 1
        self.failures.append(what)
        print(f"FAILED {what}{': ' if why else ''}{why}", flush=True)

    def line(self):
        return f"{self.passed} passed, {self.failed} failed" + (f", {self.skipped} skipped" if self.skipped else "")


def run(args, limit, log=None, **more):
    """Exit status; None when the time was up. The whole process group is ended then."""
    out = open(log, "w", encoding="utf-8") if log else None
    process = subprocess.Popen(args, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT if out else None,
                               start_new_session=True, **more)
    try:
        return process.wait(limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return None
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    finally:
        if out:
            out.close()


def tail(path, lines=TAIL_LINES):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            for line in file.read().splitlines()[-lines:]:
                print("  | " + line)
    except OSError as error:
        print(f"  | {error}")


def compile_step(which, tally, logs):
    log = os.path.join(logs, f"compile-{which}.log")
    print(f"== building with {which}; its log is {os.path.relpath(log, ROOT)}", flush=True)
    status = run(["./run", "compile", which], LIMITS["compile"], log)
    if status == 0:
        return True
    tally.fail(f"build with {which}", "took too long" if status is None else "")
    tail(log)
    return False


def suites_of(directory):
    """Suite -> names of the meson tests that are registered for it."""
    with open(os.path.join(ROOT, directory, "meson-info", "intro-tests.json"), encoding="utf-8") as file:
        tests = json.load(file)
    suites = {}
    for test in tests:
        for suite in test["suite"]:
            suites.setdefault(suite.split(":")[-1], []).append(test["name"])
    return suites


def expected_suites():
    """Each folder of unit tests is a suite, and the fleet in virtual time: none may fall silent."""
    unit = os.path.join(ROOT, "tests", "unit")
    return sorted(name for name in os.listdir(unit) if os.path.exists(os.path.join(unit, name, "meson.build"))) + ["sim"]


def meson_step(step, directory, tally, lint):
    suites = suites_of(directory)
    if lint:
        expected, choice = ["lint"], ["--suite", "lint"]
    else:
        expected, choice = expected_suites(), ["--no-suite", "lint"]
    for suite in expected:
        if not suites.get(suite):
            tally.fail(f"{step}: suite {suite}", "has no test")
    if not lint and not any("checkkern" in names for names in suites.values()):
        tally.fail(f"{step}: checkkern", "is not there")
    env = dict(os.environ, **SANITIZED) if step == "san" else dict(os.environ)
    env.pop("MESON_TESTTHREADS", None)
    base = "testlog-" + ("lint" if lint else "unit")
    log = os.path.join(ROOT, directory, "meson-logs", base + ".junit.xml")
    if os.path.exists(log):
        os.remove(log)
    scale = "4" if step == "san" else "2"
    status = run(["meson", "test", "-C", directory, "--no-rebuild", "--print-errorlogs", "--logbase", base, "-t", scale, *choice],
                 LIMITS["meson"], env=env)
    if status is None:
        tally.fail(f"{step}: meson test", "took too long")
        return
    before = tally.failed
    ran = count_junit(log, step, tally)
    if not ran:
        tally.fail(f"{step}: meson test", "ran no test")
    if status != 0 and tally.failed == before:
        tally.fail(f"{step}: meson test", f"exit status {status} though no test failed")


def count_junit(path, step, tally):
    """Adds one junit file; gives the number of test cases in it."""
    try:
        tree = xml.parse(path)
    except (OSError, xml.ParseError) as error:
        tally.fail(f"{step}: {os.path.basename(path)}", str(error))
        return 0
    ran = 0
    for suite in tree.iter("testsuite"):
        cases = suite.findall("testcase")
        if not cases:
            tally.fail(f"{step}: suite {suite.get('name')}", "ran no test")
        for case in cases:
            ran += 1
            name = f"{step}: {suite.get('name')}: {case.get('classname') or ''} {case.get('name')}"
            bad = [mark for mark in case if mark.tag in ("failure", "error")]
            if bad:
                first = (bad[0].get("message") or "").splitlines()[:1]
                tally.fail(name, first[0] if first else "")
            elif re.search(r"Running 0 test\(s\)", case.findtext("system-out") or ""):
                tally.fail(name, "ran no test")
            elif case.find("skipped") is not None:
                tally.skipped += 1
                print(f"skipped {name}: {case.find('skipped').get('message') or ''}")
            else:
                tally.passed += 1
    return ran


def pytest_step(step, directory, tally, logs):
    report = os.path.join(logs, f"{step}.xml")
    env = dict(os.environ, FP9_BUILD=os.path.join(ROOT, directory), PYTHONDONTWRITEBYTECODE="1")
    args = ["/usr/bin/python3", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short", "--durations=8", "-ra",
            f"--junitxml={report}"]
    if step == "integration-san":
        env.update(SANITIZED, FP9_SANITIZED="1")
    status = run([*args, "tests/integration"], LIMITS["pytest"], env=env)
    if status is None:
        tally.fail(step, "took too long")
        return
    before = tally.failed
    ran = count_junit(report, step, tally)
    if not ran:
        tally.fail(step, "ran no test")
    if status != 0 and tally.failed == before:
        tally.fail(step, f"pytest's exit status is {status} though no test failed")


def main():
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(__doc__)
        return 0
    steps = sys.argv[1:] or STEPS
    unknown = [step for step in steps if step not in STEPS]
    if unknown:
        print(__doc__)
        print(f"run test: no step \"{unknown[0]}\"", file=sys.stderr)
        return 2
    logs = os.path.join(ROOT, "build-logs")
    os.makedirs(logs, exist_ok=True)
    tally = Tally()
    started = time.monotonic()
    built = {}
    for step in [s for s in STEPS if s in steps]:
        needs = NEEDS[step]
        begun = time.monotonic()
        print(f"== {step}", flush=True)
        if needs not in built:
            built[needs] = compile_step(needs, tally, logs)
        if not built[needs]:
            if needs != step:
                tally.fail(step, f"the {needs} build is not there")
            continue
        if step.startswith("integration"):
            pytest_step(step, DIRS[needs], tally, logs)
        else:
            meson_step(step, DIRS[needs], tally, step == "lint")
        print(f"== {step}: {time.monotonic() - begun:.0f} s", flush=True)
    print(f"== all steps: {time.monotonic() - started:.0f} s")
    for failure in tally.failures:
        print(f"FAILED {failure}")
    if not tally.passed and not tally.failed:
        tally.fail("run test", "no test ran")
    print(tally.line())
    return 1 if tally.failed else 0


if __name__ == "__main__":
    sys.exit(main())
