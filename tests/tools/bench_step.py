"""The step path beside the machine's own hand-offs, in one run.

    bench_step.py [--build BUILD] [--rounds N]

One duck on CPU 1, fp9d and its client on CPU 0; steps whose expert ids are all -1 (fp9ctl bench --null); in every round bare ping-pongs
of the same kinds (fp9-pingpong). Then the cost of one more local duck, a layer of Qwen3-30B's shape against the kernels alone, and what
happens without CPUs to spare. Ratios are medians over rounds.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [os.path.join(ROOT, "tests", "integration"), os.path.join(ROOT, "proto", "client", "python")]
sys.dont_write_bytecode = True

from support.daemon import Daemon, program  # noqa: E402
from support.model import MODEL  # noqa: E402
from support.smaps import mapped_weights  # noqa: E402

QWEN = os.path.join(ROOT, "tests/data/configs/qwen3-30b-a3b-fp8.json")
FRAMES = 592  # bytes of a STEP of the trained checkpoint
DUCKS = (1, 2, 4, 8, 16, 32)


def tool(build, *args, cpu=None):
    pinned = ["taskset", "-c", str(cpu)] if cpu is not None else []
    done = subprocess.run([*pinned, *map(str, args)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          timeout=300, check=False)
    if done.returncode:
        raise AssertionError(f"{args}: exit status {done.returncode}: {done.stderr}")
    return json.loads(done.stdout)


def bench(daemon, model, *more, cpu=0):
    return tool(daemon.build, program(daemon.build, "fp9ctl"), "--socket", daemon.socket, "--json", "bench", model, *more, cpu=cpu)


def pingpong(build, rounds=1):
    return tool(build, program(build, "fp9-pingpong"), "--bytes", FRAMES, "--rounds", rounds, 0, 1)


class Fleet:
    """fp9d with ducks on CPU 1 (or as `fleet` says), while the block lasts."""

    def __init__(self, build, folder, ducks=1, fleet="local_cores = 1", memory="64M"):
        self.daemon = Daemon(build, os.path.join(folder, f"f{len(os.listdir(folder))}"), ducks=ducks, fleet=fleet, memory=memory)

    def __enter__(self):
        return self.daemon.start()

    def __exit__(self, *_):
        self.daemon.stop(check=False)


def line(what, us, floor_name, ratios):
    print(f"{what:42} {us:9.2f} us   {statistics.median(ratios):6.2f} x {floor_name} ({min(ratios):.2f} to {max(ratios):.2f})", flush=True)


def gaps(build, folder, rounds):
    """judge_gap by each way of waiting."""
    ways = {"spinning": "local_cores = 1\nspin_us = 20000", "parked": "local_cores = 1\nspin_us = 0",
            "socket": "local_cores = 1\nlocal_link = socket"}
    told = {way: [] for way in ways}
    floors = []
    for _ in range(rounds):
        floors.append(pingpong(build))
        for way, fleet in ways.items():
            with Fleet(build, folder, fleet=fleet) as daemon:
                daemon.ok("load", MODEL, "--name", "m", "--tp", 1)
                told[way].append(bench(daemon, "m", "--null", "--tokens", 400 if way == "spinning" else 150))
    print("bare ping-pong there and back, us: " + ", ".join(
        f"{name} {statistics.median(f[name] for f in floors):.2f}" for name in floors[0] if name != "bytes"), flush=True)
    for way, floor in (("spinning", "spin"), ("spinning", "spin_bytes"), ("parked", "futex"), ("parked", "futex_eventfd"),
                       ("socket", "socket")):
        gap = [t["judge_gap_us"]["p50"] for t in told[way]]
        line(f"judge_gap, {way}", statistics.median(gap), floor, [g / f[floor] for g, f in zip(gap, floors)])
    for way in ways:
        outer = [t["job_time_us"]["p50"] - t["judge_wait_us"]["p50"] for t in told[way]]
        print(f"job_time - judge_wait, {way:19} {statistics.median(outer):9.2f} us", flush=True)


def slope(build, folder, checkpoint):
    """judge_wait of null steps by the number of ducks, all of them on CPU 1."""
    waits, floors = {}, []
    for ducks in DUCKS:
        floors.append(pingpong(build))
        with Fleet(build, folder, ducks=ducks, memory=f"{max(16, 128 // ducks)}M") as daemon:
            daemon.ok("load", checkpoint, "--name", "m", "--tp", ducks, "--multiple-of", 8)
            waits[ducks] = bench(daemon, "m", "--null", "--tokens", 200)["judge_wait_us"]["p50"]
            print(f"{ducks:3} local ducks on one CPU: judge_wait {waits[ducks]:8.1f} us", flush=True)
    per_duck = (waits[DUCKS[-1]] - waits[DUCKS[0]]) / (DUCKS[-1] - DUCKS[0])
    handoff = statistics.median(f["socket"] for f in floors) / 2
    print(f"one more local duck: {per_duck:.2f} us, {per_duck / handoff:.2f} x a socket hand-off one way ({handoff:.1f} us)", flush=True)


def whole_layer(build, folder, checkpoint, rounds):
    """Gparam/s of a client's whole steps, of the ducks in them, and of fp9-bench alone on the same CPU, with weights in the kind of
    pages that the duck has them in; what the two kinds give is told beside."""
    ratios, inner, small = [], [], []
    with Fleet(build, folder, memory="600M") as daemon:
        daemon.ok("load", checkpoint, "--name", "m", "--tp", 1)
        bench(daemon, "m", "--tokens", 20)
        mapped, in_huge = mapped_weights(daemon.duck_pids()[0])
        part = in_huge / max(mapped, 1)
        print(f"{part * 100:.0f} % of the duck's weights are in huge pages", flush=True)
        params = 8 * 3 * 768 * 2048
        for _ in range(rounds):
            huge, plain = (
                max(case["gparam_s"] for case in tool(build, program(build, "fp9-bench"), "moe", "--json", "--threads", 1, "--case",
                                                      "qwen3-30b", "--rounds", 3, "--pool", "340M",  # as many bytes as the layer has
                                                      "--memory", memory, cpu=1) if case["chosen"])
                for memory in ("memfd-huge", "memfd"))
            alone = huge if part > 0.5 else plain
            told = bench(daemon, "m", "--tokens", 200)
            ratios.append(params / told["job_time_us"]["p50"] / 1e3 / alone)
            inner.append(params / told["judge_wait_us"]["p50"] / 1e3 / alone)
            small.append(plain / huge)
            print(f"Qwen3-30B layer, one core: fp9-bench {alone:.2f} Gparam/s, judge_wait {told['judge_wait_us']['p50']:.0f} us, job_time "
                  f"{told['job_time_us']['p50']:.0f} us, duck_max {told['duck_max_us']['p50']:.0f} us", flush=True)
    print(f"Gparam/s through fp9d over fp9-bench alone: {statistics.median(ratios):.3f} by job_time, {statistics.median(inner):.3f} by "
          f"judge_wait; fp9-bench in small pages over huge ones: {statistics.median(small):.3f}", flush=True)


def crowded(build, folder, rounds):
    """Steps through memory against steps through the socket where no CPU is to spare: more ducks than CPUs, and others at work."""
    for what, ducks, hogs in (("4 ducks on all CPUs", 4, 0), ("1 duck on all CPUs", 1, 0), ("1 duck on CPU 1, two busy loops", 1, 2)):
        ratios = []
        for _ in range(rounds):
            busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"], stdin=subprocess.DEVNULL) for _ in range(hogs)]
            try:
                times = []
                for fleet in ("", "local_link = socket"):
                    with Fleet(build, folder, ducks=ducks, fleet=fleet + ("\nlocal_cores = 1" if hogs else "")) as daemon:
                        daemon.ok("load", MODEL, "--name", "m", "--tp", min(ducks, 4), "--multiple-of", 32)
                        told = tool(build, program(build, "fp9ctl"), "--socket", daemon.socket, "--json", "bench", "m", "--tokens", 150)
                        times.append(told["tpot_us"])
                ratios.append(times[0] / times[1])
            finally:
                for process in busy:
                    process.kill()
                    process.wait()
        print(f"{what:34} a token takes {statistics.median(ratios):5.2f} x what it takes through the socket "
              f"({min(ratios):.2f} to {max(ratios):.2f})", flush=True)


def main():
    parser = argparse.ArgumentParser(prog="bench_step.py", description="measure the step path beside bare hand-offs")
    parser.add_argument("--build", default="build", help="meson build directory")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=("gaps", "slope", "layer", "crowded"))
    args = parser.parse_args()
    build = os.path.abspath(args.build)
    if not {0, 1} <= os.sched_getaffinity(0):
        print("bench_step: CPUs 0 and 1 are needed", file=sys.stderr)
        return 0
    with tempfile.TemporaryDirectory(prefix="fp9-step-") as folder:
        fleets = os.path.join(folder, "fleets")
        os.mkdir(fleets)
        checkpoints = {}
        for name, experts in (("small", 8), ("large", 64)):
            if args.only in (None, "slope" if name == "small" else "layer"):
                checkpoints[name] = os.path.join(folder, name)
                subprocess.run([program(build, "fp9-mkckpt"), "--like", QWEN, "--layers", "1", "--experts", str(experts), "--out",
                                checkpoints[name]], check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        try:
            if args.only in (None, "gaps"):
                gaps(build, fleets, args.rounds)
            if args.only in (None, "slope"):
                slope(build, fleets, checkpoints["small"])
            if args.only in (None, "layer"):
                whole_layer(build, fleets, checkpoints["large"], max(args.rounds // 2, 1))
            if args.only in (None, "crowded"):
                crowded(build, fleets, max(args.rounds // 2, 1))
        except AssertionError as error:
            print(f"bench_step: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
