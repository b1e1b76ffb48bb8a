#!/usr/bin/python3
"""fp9-bench as a program: usage, refusals, FP9_CPU, the keys of its JSON. Arguments: the program."""
import json
import os
import subprocess
import sys

KEYS = {"case", "variant", "chosen", "cache", "threads", "isa", "gparam_s", "gb_s", "read_gb_s", "of_read", "of_limit", "spread"}
failures = 0


def run(*arguments, cpu=None):
    environment = {k: v for k, v in os.environ.items() if k != "FP9_CPU"}
    if cpu is not None:
        environment["FP9_CPU"] = cpu
    return subprocess.run([sys.argv[1], *arguments], env=environment, capture_output=True, text=True, timeout=120)


def expect(true, *what):
    global failures
    if not true:
        failures += 1
        print("FAIL", *what)


def expect_refused(status, sentence, *arguments, cpu=None):
    done = run(*arguments, cpu=cpu)
    expect(done.returncode == status, arguments, cpu, "exit", done.returncode, "not", status)
    expect(sentence in done.stderr, arguments, cpu, "says", repr(done.stderr), "not", sentence)


def figures(*arguments, cpu=None):
    done = run(*arguments, "--json", cpu=cpu)
    expect(done.returncode == 0, arguments, done.stderr)
    return json.loads(done.stdout) if done.returncode == 0 else []


def check_usage():
    expect_refused(2, "Usage")
    expect_refused(2, "gemv, mlp or moe, not gemm", "gemm")
    expect_refused(2, "hot or cold", "gemv", "--cache", "warm")
    expect_refused(2, "--threads is a number", "gemv", "--threads", "0")
    expect_refused(2, "--threads is a number", "gemv", "--threads", "two")
    expect_refused(2, "is unknown", "gemv", "--case", "12")
    expect_refused(2, "is unknown", "gemv", "--case", "12x-3")
    expect_refused(2, "is unknown", "gemv", "--case", "99999999999999999999x1")
    expect_refused(2, "hidden size 0", "gemv", "--case", "0x16")
    expect_refused(2, "qwen3-30b", "moe", "--case", "nonsense")
    expect_refused(2, "this build has: ref", "gemv", "--variant", "nonsense")
    expect_refused(2, "unexpected argument extra", "gemv", "extra")
    expect_refused(2, "", "gemv", "--nonsense")
    expect_refused(1, "there are gemv, mlp and moe", "smp")
    expect_refused(1, "there are gemv, mlp and moe", "prefill", "--json")
    expect("--case" in run("--help").stdout, "--help")


def check_dispatch():
    small = ("gemv", "--case", "64x256", "--cache", "hot")
    expect_refused(1, "FP9_CPU=nonsense is unknown", *small, cpu="nonsense")
    expect_refused(1, "no avx512 kernels", *small, cpu="avx512")
    here = figures(*small)
    expect(sum(row["chosen"] for row in here) == 1, "one variant is chosen", here)
    isas = {row["isa"] for row in here}
    expect("ref" in isas, "the reference is always there", here)
    for cpu in ("ref", "avx2"):
        if cpu in isas:
            chosen = [row["isa"] for row in figures(*small, cpu=cpu) if row["chosen"]]
            expect(chosen == [cpu], "FP9_CPU", cpu, "chose", chosen)
        else:
            expect_refused(1, "lacks", *small, cpu=cpu)


def check_figures():
    for arguments in (("gemv", "--case", "100x130"), ("mlp", "--case", "48x100"), ("moe", "--case", "32x64", "--threads", "2")):
        for row in figures(*arguments, "--cache", "hot", "--variant", "ref"):
            expect(KEYS <= row.keys(), "keys", row.keys())
            expect(row["case"] == arguments[2] and row["cache"] == "hot" and row["variant"] == "ref", row)
            expect(row["gparam_s"] > 0 and row["read_gb_s"] > 0 and row["spread"] >= 0, row)
            # of_limit counts 9/8 byte a weight and no padding, of_read all bytes there are.
            expect(0 < row["of_limit"] <= row["of_read"] * 1.1, row)


check_usage()
check_dispatch()
check_figures()
print(failures, "failures")
sys.exit(1 if failures else 0)
