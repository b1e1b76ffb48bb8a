#!/usr/bin/python3
"""fp9-bench as a program: usage, refusals, FP9_CPU, the keys of its JSON, that a wrong variant is not measured. Arguments: the program."""
import json
import os
import subprocess
import sys

KEYS = {"case", "variant", "chosen", "cache", "threads", "isa", "gparam_s", "gb_s", "read_gb_s", "of_read", "of_limit", "spread"}
PREFILL_KEYS = {"case", "tokens", "threads", "gflops", "of_peak", "vs_openblas"}
SMP_KEYS = {"case", "experts", "threads", "of_limit", "speedup", "imbalance"}
HOT = ("--cache", "hot", "--rounds", "1")
failures = 0
VARIANTS = set()  # those that run here


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
    expect_refused(2, "gemv, mlp, moe, smp or prefill, not gemm", "gemm")
    expect_refused(2, "hot or cold", "gemv", "--cache", "warm")
    expect_refused(2, "--threads is a number", "gemv", "--threads", "0")
    expect_refused(2, "--threads is a number", "gemv", "--threads", "two")
    expect_refused(2, "--rounds is a number", "gemv", "--rounds", "100")
    expect_refused(2, "--subnormals is a number", "gemv", "--subnormals", "1.5")
    expect_refused(2, "--subnormals is a number", "gemv", "--subnormals", "nan")
    expect_refused(2, "--pool is a size", "gemv", "--pool", "2T")
    expect_refused(1, "--pool 1.0 TiB", "gemv", "--case", "64x256", "--pool", "1T")
    expect_refused(2, "memfd-huge, not swap", "gemv", "--memory", "swap")
    expect_refused(2, "is unknown", "gemv", "--case", "12")
    expect_refused(2, "is unknown", "gemv", "--case", "12x-3")
    expect_refused(2, "is unknown", "gemv", "--case", "99999999999999999999x1")
    expect_refused(2, "hidden size 0", "gemv", "--case", "0x16")
    expect_refused(2, "qwen3-30b-tp12", "moe", "--case", "nonsense")
    expect_refused(2, "v3.2-tp32-down", "gemv", "--case", "v3.2-tp32")
    expect_refused(2, "is unknown", "moe", "--case", "qwen3-0.6b")  # a dense model
    expect_refused(2, "this build has: ref", "gemv", "--variant", "nonsense")
    expect_refused(2, "this build has: ref", "gemv", "--variant", "ref,")
    expect_refused(2, "unexpected argument extra", "gemv", "extra")
    expect_refused(2, "", "gemv", "--nonsense")
    expect_refused(2, "is unknown", "prefill", "--case", "12")
    expect_refused(2, "at most 64 for smp", "smp", "--threads", "65")
    expect_refused(2, "--experts is a number from 1 to 16", "smp", "--experts", "17")
    for what, option in (("gemv", "--experts"), ("mlp", "--experts"), ("moe", "--experts"), ("prefill", "--experts"), ("gemv", "--tokens"),
                         ("mlp", "--tokens"), ("moe", "--tokens"), ("prefill", "--tokens")):
        expect_refused(2, f"{option} is not for {what}\n", what, option, "3", "--case", "64x256")
    expect_refused(2, "--variant is not for smp\n", "smp", "--variant", "ref")
    expect_refused(2, "--corrupt is not for smp\n", "smp", "--corrupt", "ref")
    for option, value in (("--experts", "3"), ("--cache", "hot"), ("--pool", "4M")):  # --tokens last
        expect_refused(2, f"{option} is not for smp --tokens\n", "smp", option, value, "--tokens", "5")
    expect("--case" in run("--help").stdout, "--help")


def check_dispatch():
    small = ("gemv", "--case", "64x256", *HOT)
    expect_refused(1, "FP9_CPU=nonsense is unknown", *small, cpu="nonsense")
    here = figures(*small)
    VARIANTS.update(row["variant"] for row in here)
    expect(sum(row["chosen"] for row in here) == 1, "one variant is chosen", here)
    isas = {row["isa"] for row in here}
    for cpu in ("ref", "avx2"):
        if cpu == "ref" or cpu in isas:
            chosen = [row["isa"] for row in figures(*small, cpu=cpu) if row["chosen"]]
            expect(chosen == [cpu], "FP9_CPU", cpu, "chose", chosen)
        else:
            expect_refused(1, "lacks", *small, cpu=cpu)


def check_figures():
    """Odd shapes of each kind, with every variant there is: none may be wrong."""
    for arguments in (("gemv", "--case", "100x130"), ("mlp", "--case", "48x100"), ("moe", "--case", "32x64", "--threads", "2"),
                      ("gemv", "--case", "qwen3-30b-tp24-down", "--subnormals", "0.5")):
        rows = figures(*arguments, *HOT)
        expect(rows, arguments, "gives figures")
        seed = {row["variant"]: row for row in rows}.get("seed")
        for row in rows:
            expect(KEYS <= row.keys(), "keys", row.keys())
            expect(row["case"] == arguments[2] and row["cache"] == "hot" and row["threads"] == (2 if "--threads" in arguments else 1), row)
            expect(row["gparam_s"] > 0 and row["read_gb_s"] > 0 and row["spread"] >= 0 and row["imbalance"] >= 1, row)
            expect(row["verified"] == ("tolerance" if row["variant"] in ("seed", "openblas") else "bits"), row)
            if seed:  # one round: the ratio is that of the rates
                expect(abs(row["of_seed"] - row["gparam_s"] / seed["gparam_s"]) < 1e-2 * row["of_seed"], row)


def check_the_check():
    """A variant whose result is not the reference's is named and nothing is measured."""
    small = ("mlp", "--case", "48x100", *HOT)
    failed = run(*small, "--json", "--corrupt", "seed")
    expect(failed.returncode == 1 and json.loads(failed.stdout) == [], "JSON stays an array", failed.stdout, failed.stderr)
    for variant in {row["variant"] for row in figures(*small)}:
        expect_refused(1, f"{variant} computes 48x100 wrong: row 99 is ", *small, "--corrupt", variant)


def check_smp():
    """Both splits give the bits of one core (the program checks), whatever the number of experts and threads."""
    for threads in ("1", "2", "3"):  # also more than there are CPUs
        rows = figures("smp", "--case", "40x100", *HOT, "--threads", threads)
        expect([row["experts"] for row in rows] == [1, 2, 3, 5, 8], rows)
        for row in rows:
            expect(SMP_KEYS <= row.keys() and row["case"] == "40x100" and row["threads"] == int(threads), row)
            expect(row["imbalance"] >= 1 and row["of_limit"] > 0 and row["gparam_s"] > 0, row)


def check_smp_pool():
    """Tables of scratch are as large as the pool: here thousands of experts."""
    rows = figures("smp", "--case", "32x64", "--rounds", "1", "--threads", "2", "--cache", "cold", "--pool", "64M", "--experts", "8")
    expect(len(rows) == 1 and rows[0]["experts"] == 8 and rows[0]["cache"] == "cold" and rows[0]["gparam_s"] > 0, rows)


def check_prefill():
    """Batches of every variant there is are each token's bits (the program checks), divided or not; a wrong one is not measured."""
    small = ("prefill", "--case", "100x130", "--rounds", "1")
    for threads in ("1", "3"):
        for more in ((), ("--variant", "ref,avx2:rm"), ("--cache", "cold", "--pool", "4M")):
            if "ref,avx2:rm" in more and "avx2:rm" not in VARIANTS:
                continue
            rows = figures(*small, "--threads", threads, *more)
            expect([row["tokens"] for row in rows[:11]] == [1, 2, 4, 5, 8, 16, 32, 64, 128, 256, 512], rows)
            for row in rows:
                expect(PREFILL_KEYS <= row.keys() and row["case"] == "100x130" and row["threads"] == int(threads), row)
                expect(row["gflops"] > 0 and row["over_decodes"] > 0 and (row["of_peak"] is None) == (row["variant"] == "ref"), row)
    chosen = rows[0]["variant"]
    expect_refused(1, f"{chosen} computes 100x130 wrong: token 0 of 1, row 99 is ", *small, "--variant", chosen, "--corrupt",
                   chosen)  # named: the next timing may choose another
    expect_refused(1, "--corrupt ref: it is not among what was measured", *small, "--variant", chosen, "--corrupt", "ref")
    if rows[0]["vs_openblas"] is not None:
        expect_refused(1, "openblas computes 100x130 wrong: token 0 of 1, row 99 is ", *small, "--corrupt", "openblas")


def check_smp_tokens():
    for row in figures("smp", "--case", "40x100", "--rounds", "1", "--threads", "2", "--tokens", "200"):
        expect(row["tokens"] == 200 and row["gflops"] > 0 and row["imbalance"] >= 1 and row["over_decodes"] > 0, row)
        expect(row["tiles"] * row["avg_tile_batch"] == 1600 or abs(row["tiles"] * row["avg_tile_batch"] - 1600) < 1, row)


def check_memory():
    for kind in ("anon", "anon-huge", "memfd", "memfd-huge"):
        for row in figures("gemv", "--case", "64x256", "--rounds", "1", "--pool", "4M", "--variant", "ref", "--memory", kind):
            expect(row["memory"] == kind and row["cache"] == "cold" and row["pool_bytes"] >= 4 << 20, kind, row)
            expect(row["huge_bytes"] == 0 or kind.endswith("huge"), kind, row)


check_usage()
check_dispatch()
check_figures()
check_the_check()
check_smp()
check_smp_pool()
check_smp_tokens()
check_prefill()
check_memory()
print(failures, "failures")
sys.exit(1 if failures else 0)
