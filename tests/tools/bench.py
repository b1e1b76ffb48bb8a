"""What a step costs here: the kernels alone, then whole steps through fp9d.

    ./run bench [--tokens T] [--ducks N]
"""
import argparse
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "integration"))
sys.dont_write_bytecode = True

from support.daemon import Daemon, program  # noqa: E402
from support.model import MODEL  # noqa: E402


def show(label, told):
    wait, gap, duck = told["judge_wait_us"], told["judge_gap_us"], told["duck_max_us"]
    print(f"{label:22} {told['tokens_per_second']:9.1f} tok/s  tpot {told['tpot_us']:8.1f} us  "
          f"judge_wait {wait['p50']:7.1f} / {wait['p99']:7.1f}  duck_max {duck['p50']:7.1f}  gap {gap['p50']:6.1f}  "
          f"ratio {told['judge_ratio']:.2f}", flush=True)


def kernel_runs(cpus):
    """Arguments of fp9-bench: cold with one thread and with all, hot, then whole experts and layers."""
    everyone = [[]] if cpus == 1 else [[], ["--threads", str(cpus)]]
    yield from (["gemv", *threads] for threads in everyone)
    yield ["gemv", "--cache", "hot"]
    yield from (["moe", "--rounds", "5", *threads] for threads in everyone)
    yield ["mlp", "--rounds", "5"]


def main():
    parser = argparse.ArgumentParser(prog="./run bench", description="measure kernels and whole steps on this machine")
    parser.add_argument("--build", default="build", help="meson build directory")
    parser.add_argument("--tokens", type=int, default=200, help="tokens of each run")
    parser.add_argument("--ducks", type=int, default=2, help="local ducks, each one a rank")
    args = parser.parse_args()
    build = os.path.abspath(args.build)
    for arguments in kernel_runs(len(os.sched_getaffinity(0))):
        print(f"\nfp9-bench {' '.join(arguments)}", flush=True)
        subprocess.run([program(build, "fp9-bench"), *arguments], check=True, stdin=subprocess.DEVNULL)
    print("\nwhole steps through fp9d", flush=True)
    with tempfile.TemporaryDirectory(prefix="fp9-bench-") as folder:
        daemon = Daemon(build, folder, ducks=args.ducks)
        try:
            daemon.start()
            for tp in sorted({1, args.ducks}):
                daemon.ok("load", MODEL, "--name", "shakespeare", "--tp", tp, "--multiple-of", 32)
                show(f"tp {tp}", daemon.ok("bench", "shakespeare", "--tokens", args.tokens))
                show(f"tp {tp} one-shot", daemon.ok("bench", "shakespeare", "--tokens", max(args.tokens // 10, 1), "--one-shot"))
        except AssertionError as error:
            print(f"bench: {error}", file=sys.stderr)
            return 1
        finally:
            daemon.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
