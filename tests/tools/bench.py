"""What a step costs here: the kernels alone, then whole steps through fp9d.

    ./run bench [--tokens T] [--ducks N]
"""
import argparse
import os
import subprocess
import sys
import tempfile
import time

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [os.path.join(ROOT, "tests", "integration"), os.path.join(ROOT, "proto", "client", "python")]
sys.dont_write_bytecode = True

from support.daemon import Daemon, program  # noqa: E402
from support.model import MODEL  # noqa: E402
from support.rpc import Rpc, Session  # noqa: E402

LENGTHS = (*range(2, 17), 32, 64, 129)
LENGTH_TOKENS = 48  # at least, of each measurement
LENGTH_ROUNDS = 5


def show(label, told):
    wait, gap, duck = told["judge_wait_us"], told["judge_gap_us"], told["duck_max_us"]
    print(f"{label:22} {told['tokens_per_second']:9.1f} tok/s  tpot {told['tpot_us']:8.1f} us  "
          f"judge_wait {wait['p50']:7.1f} / {wait['p99']:7.1f}  duck_max {duck['p50']:7.1f}  gap {gap['p50']:6.1f}  "
          f"ratio {told['judge_ratio']:.2f}", flush=True)


def kernel_runs(cpus):
    """Arguments of fp9-bench: cold with one thread and with all, hot, then whole experts and layers, all threads at one token, prompts."""
    everyone = [[]] if cpus == 1 else [[], ["--threads", str(cpus)]]
    yield from (["gemv", *threads] for threads in everyone)
    yield ["gemv", "--cache", "hot"]
    yield from (["moe", "--rounds", "5", *threads] for threads in everyone)
    yield ["mlp", "--rounds", "5"]
    for cache in ("cold", "hot"):
        yield ["smp", "--cache", cache, "--case", "qwen3-30b"]
    for case in ("768x2048", "1536x4096"):
        yield ["prefill", "--case", case, "--rounds", "5"]
    yield ["smp", "--tokens", "512", "--case", "qwen3-30b", "--rounds", "5"]


def lengths(daemon, model):
    """Prompts of so many tokens, against as many tokens one by one, in turn: whole steps through fp9d."""
    worst = None
    for tokens in LENGTHS:
        over = []
        for _ in range(LENGTH_ROUNDS):
            repeats = max(1, LENGTH_TOKENS // tokens)
            prompt = daemon.ok("bench", model, "--prefill", tokens, "--tokens", repeats)
            single = daemon.ok("bench", model, "--tokens", max(LENGTH_TOKENS, tokens))
            over.append(single["tpot_us"] / prompt["tpot_us"])
        over.sort()
        median = over[len(over) // 2]
        worst = min(worst or median, median)
        print(f"{tokens:5} tokens {prompt['tpot_us'] * tokens / 1e3:9.2f} ms  {median:6.2f} times as fast as one by one  "
              f"{prompt['gflops']:7.1f} GFLOP/s  weights {prompt['weight_stream_gb_per_s']:5.1f} GB/s  "
              f"{prompt['tiles']:6} tiles of {prompt['avg_tile_batch']:5.1f}  {', '.join(prompt['mode_names'])}", flush=True)
    print(f"the worst is {worst:.2f} (less than 1: that many tokens would be faster one by one)", flush=True)


def waiting(daemon, model):
    """A token's step alone, and beside prefills of 4096 tokens one after another."""
    alone, beside = step_times(daemon, model, False), step_times(daemon, model, True)
    for what, told in (("alone", alone), ("beside a prefill", beside)):
        print(f"a step {what:17} {told[len(told) // 2] * 1e6:8.0f} us median  {told[int(len(told) * 0.99)] * 1e6:8.0f} us p99  "
              f"({len(told)} steps)", flush=True)


def step_times(daemon, model, busy):
    random = np.random.default_rng(1)
    info = next(m for m in daemon.ok("model", "list")["models"] if m["name"] == model)
    layer = info["layer_kinds"].index("m")

    x = (random.standard_normal((1, info["hidden_size"])).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    ids = random.permutation(info["experts"])[:info["top_k"]].astype(np.int32)[None]
    weights = random.random(ids.shape).astype(np.float32)
    prefills = None
    if busy:
        prefills = subprocess.Popen([program(daemon.build, "fp9ctl"), "--socket", daemon.socket, "bench", model, "--prefill", "4096",
                                     "--tokens", "1000"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        time.sleep(1)
    times = []
    try:
        with Rpc(daemon.socket, 120) as rpc:
            session = Session(rpc, model, 1)
            end = time.monotonic() + 3
            while time.monotonic() < end:
                begin = time.monotonic()
                session.run("decode", layer, x, ids, weights)
                times.append(time.monotonic() - begin)
                time.sleep(0.001)
            session.close()
    finally:
        if prefills:
            prefills.kill()
            prefills.wait()
    return sorted(times)


def judges(daemon, tp, tokens):
    """A process for each step against threads that wait for it."""
    persistent = daemon.ok("bench", "shakespeare", "--tokens", tokens)
    show(f"tp {tp}", persistent)
    one_shot = daemon.ok("bench", "shakespeare", "--tokens", max(tokens // 10, 1), "--one-shot")
    show(f"tp {tp} one-shot", one_shot)
    parts = ", ".join(f"{name} {value:.0f}" for name, value in one_shot["one_shot_us"].items())
    ratio = one_shot["judge_gap_us"]["p50"] / persistent["judge_gap_us"]["p50"]
    print(f"tp {tp}: one-shot gap / persistent gap {ratio:.1f}; where a one-shot step's time goes, us: {parts}", flush=True)


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
    print("\nfp9-handoff", flush=True)
    subprocess.run([program(build, "fp9-handoff")], check=True, stdin=subprocess.DEVNULL)
    print("\nwhole steps through fp9d", flush=True)
    with tempfile.TemporaryDirectory(prefix="fp9-bench-") as folder:
        daemon = Daemon(build, folder, ducks=args.ducks)
        try:
            daemon.start()
            for tp in sorted({1, args.ducks}):
                daemon.ok("load", MODEL, "--name", "shakespeare", "--tp", tp, "--multiple-of", 32)
                judges(daemon, tp, args.tokens)
            daemon.ok("unload", "shakespeare", "--drop-cache")
            print("\nprompts through fp9d: a layer of Qwen3-30B with 64 experts, one duck with all cores", flush=True)
            subprocess.run([program(build, "fp9-mkckpt"), "--like", os.path.join(ROOT, "tests/data/configs/qwen3-30b-a3b-fp8.json"),
                            "--layers", "1", "--experts", "64", "--out", os.path.join(folder, "layer")], check=True,
                           stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
            daemon.stop()
            daemon = Daemon(build, os.path.join(folder, "one"), ducks=1, memory="600M")
            daemon.start()
            daemon.ok("load", os.path.join(folder, "layer"), "--name", "layer", "--tp", 1)
            lengths(daemon, "layer")
            waiting(daemon, "layer")
        except AssertionError as error:
            print(f"bench: {error}", file=sys.stderr)
            return 1
        finally:
            daemon.stop()
    print("\nthe step path beside the machine's own hand-offs", flush=True)
    subprocess.run([sys.executable, os.path.join(HERE, "bench_step.py"), "--build", build], check=False)
    print("\nloads", flush=True)
    return subprocess.run([sys.executable, os.path.join(HERE, "bench_load.py"), "--build", build], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
