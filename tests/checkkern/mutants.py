#!/usr/bin/python3
"""Runs checkkern with sound kernels and with each fault of mutant.c and mutant_phases.c: it must
pass once and find every fault. Argument: the program."""
import os
import subprocess
import sys

FAULTS = {
    "down-last-row": "avx2:rm",
    "down-company": "avx2:rp differs",
    "half-group": "avx2:rp differs",
    "half-panel": "differs",
    "h-padding": "differs",
    "pack-sign": "pack: avx2",
    "split-drops-unit": "phases",
    "split-place": "phases",
    "phases-experts-order": "phases",
    "phases-slots-order": "phases",
}
SKIPPED = 77


def run(program, fault):
    env = dict(os.environ)
    env.pop("FP9_MUTANT", None)
    if fault:
        env["FP9_MUTANT"] = fault
    done = subprocess.run([program, "--stop", "--seed", "1"], env=env, capture_output=True, text=True)
    return done.returncode, done.stdout


def main(program):
    status, out = run(program, None)
    if status == SKIPPED:
        return SKIPPED
    if status != 0:
        print(f"without a fault checkkern exits with {status}:\n{out}")
        return 1
    missed = 0
    for fault, words in FAULTS.items():
        status, out = run(program, fault)
        failures = [line for line in out.splitlines() if line.startswith("FAIL")]
        found = status == 1 and any(words in line for line in failures)
        print(f"{fault}: {failures[0] if found else f'NOT FOUND, exit status {status}, {failures}'}")
        missed += not found
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
