"""How fast weights load: a cold load beside its parts measured alone, warm loads, a load and a verify beside a running decode.

    /usr/bin/python3 tests/tools/bench_load.py --build build [--config CONFIG.json] [--layers N] [--ducks N]

Writes a synthetic checkpoint (4 GB of expert weights and more by default) into a temporary folder and removes it. `./run bench` runs it.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "integration"))
sys.dont_write_bytecode = True

from support.daemon import Daemon, program  # noqa: E402

# The shapes of Qwen3-30B-A3B.
CONFIG = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144,
    "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48, "decoder_sparse_step": 1,
    "mlp_only_layers": [], "norm_topk_prob": True, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
    "hidden_act": "silu", "vocab_size": 151936, "torch_dtype": "bfloat16",
}
WARM_LAYERS = 48


def make(build, folder, name, **options):
    config, out = os.path.join(folder, "config.json"), os.path.join(folder, name)
    with open(config, "w", encoding="utf-8") as file:
        json.dump(CONFIG, file)
    words = [word for key, value in options.items() for word in (f"--{key.replace('_', '-')}", str(value))]
    subprocess.run([program(build, "fp9-mkckpt"), "--like", config, "--out", out, *words], check=True, stdin=subprocess.DEVNULL,
                   stdout=subprocess.DEVNULL)
    return out


def size_of(folder):
    return sum(entry.stat().st_size for entry in os.scandir(folder) if entry.name.endswith(".safetensors"))


def peak_memory(pid):
    with open(f"/proc/{pid}/status", encoding="utf-8") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))


def load(daemon, path, name, tp, *more):
    """Seconds and the job's result."""
    begin = time.monotonic()
    done = daemon.ok("load", path, "--name", name, "--tp", tp, "--multiple-of", 64, *more)
    return time.monotonic() - begin, done


def cpu_seconds(pids):
    def of(pid):
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return sum(map(of, pids))


def cold(build, path, daemon, tp):
    parts = json.loads(subprocess.run([program(build, "fp9-loadparts"), path, str(tp), "64"], check=True, stdout=subprocess.PIPE,
                                      stdin=subprocess.DEVNULL).stdout)
    size = size_of(path)
    for name in ("read", "digest", "digest_all", "convert_one", "convert", "memory"):
        print(f"  {name:14} alone {parts[name] / 1e9:6.2f} GB/s")
    pids = [pid for pid, _ in daemon.group_members(daemon.process.pid)]
    # The second time the system has the memory at hand that the first one had to get; both read, digest, send and convert everything.
    for what in ("cold load", "and again"):
        before = cpu_seconds(pids)
        seconds, _ = load(daemon, path, "big", tp, "--force")
        rate, slowest = size / seconds, min(parts["read"], parts["digest"], parts["convert"])
        print(f"  {what:14} {rate / 1e9:6.2f} GB/s: {size / 1e9:.2f} GB in {seconds:.2f} s, {rate / slowest:.0%} of the slowest of read, "
              "digest and conversion; "
              f"{(cpu_seconds(pids) - before) / seconds:.2f} CPUs busy of {parts['threads']}; fp9d's memory at most "
              f"{peak_memory(daemon.process.pid) / 1e6:.0f} MB", flush=True)
        daemon.ok("unload", "big", "--drop-cache")


def warm(daemon, path, name, tp, rounds=5):
    load(daemon, path, name, tp)
    times = []
    for _ in range(rounds):
        daemon.ok("unload", name)
        seconds, done = load(daemon, path, name, tp)
        assert done["cache"] == "hit" and done["bytes_sent"] == 0 and done["bytes_read"] == 0, done
        times.append(seconds)
    daemon.ok("unload", name, "--drop-cache")
    print(f"  warm load      {sorted(times)[len(times) // 2] * 1e3:6.1f} ms (best {min(times) * 1e3:.1f}), {WARM_LAYERS} MoE layers, "
          f"{size_of(path) / 1e6:.0f} MB: hit, no byte read or sent", flush=True)


def decode(daemon, label, name, tokens):
    told = daemon.ok("bench", name, "--tokens", tokens)
    wait = told["judge_wait_us"]
    print(f"  decode {label:20} judge_wait p50 {wait['p50']:7.1f} us, p99 {wait['p99']:7.1f} us, {told['tokens_per_second']:.1f} tok/s",
          flush=True)
    return wait["p99"]


def decode_beside(daemon, what, work):
    """The p99 of a decode alone and while work, which returns seconds, is done again and again."""
    alone = min(decode(daemon, "alone", "decode", 300) for _ in range(2))
    stop = threading.Event()
    times = []

    def keep_working():
        while not stop.is_set():
            times.append(work())
    thread = threading.Thread(target=keep_working)
    thread.start()
    time.sleep(0.3)
    busy = decode(daemon, f"beside {what}", "decode", 300)
    during = len(times)
    stop.set()
    thread.join()
    print(f"  p99 beside {what}: {busy / alone - 1:+.0%}; ended meanwhile: {during}, the last one in {times[-1]:.1f} s", flush=True)


def beside(daemon, path, tp):
    """A large checkpoint is prepared anew."""
    decode_beside(daemon, "a load", lambda: load(daemon, path, "big", tp, "--force")[0])


def beside_verify(daemon, path, tp):
    """Checksums of a large model are computed again; then its checkpoint is read and packed again as well."""
    load(daemon, path, "big", tp)

    def verify(*more):
        begin = time.monotonic()
        assert not daemon.ok("cache", "verify", "big", *more)["bad"]
        return time.monotonic() - begin
    decode_beside(daemon, "verify", verify)
    decode_beside(daemon, "verify --full", lambda: verify("--full"))


def main():
    parser = argparse.ArgumentParser(description="measure cold and warm loads")
    parser.add_argument("--build", default="build", help="meson build directory")
    parser.add_argument("--layers", type=int, default=8, help="MoE layers of the cold load, 0.6 GB each")
    parser.add_argument("--ducks", type=int, default=4, help="local ducks, each one a rank")
    parser.add_argument("--folder", help="where the checkpoints go (default: a temporary folder)")
    parser.add_argument("--checkpoint", help="a checkpoint that is there already, for the cold load")
    parser.add_argument("--prealloc", action="store_true", help="let the ducks take all of their memory before anything is measured")
    parser.add_argument("--only", choices=("cold", "warm", "beside", "verify"))
    args = parser.parse_args()
    build = os.path.abspath(args.build)
    with tempfile.TemporaryDirectory(prefix="fp9-load-", dir=args.folder) as folder:
        path = args.checkpoint or make(build, folder, "big", layers=args.layers)
        memory = size_of(path) * 9 // 8 // args.ducks + (512 << 20)
        daemon = Daemon(build, folder, ducks=args.ducks, memory=f"{memory >> 20}M", conf=os.environ.get("FP9_BENCH_CONF", ""),
                        fleet="local_prealloc = yes" if args.prealloc else "")
        try:
            daemon.start()
            if args.prealloc:
                daemon.wait_for("their memory", lambda: daemon.log().count("prealloc: the buffer") == args.ducks, 120)
            if args.only in (None, "cold"):
                cold(build, path, daemon, args.ducks)
            if args.only in (None, "beside", "verify"):
                load(daemon, make(build, folder, "small", layers=4, experts=16), "decode", args.ducks)
            if args.only in (None, "beside"):
                beside(daemon, path, args.ducks)
            if args.only in (None, "verify"):
                beside_verify(daemon, path, args.ducks)
            if args.only in (None, "warm"):
                for name, experts in (("warm", 2), ("twice", 4)):
                    warm(daemon, make(build, folder, name, layers=WARM_LAYERS, experts=experts), name, args.ducks)
        except AssertionError as error:
            print(f"bench: {error}", file=sys.stderr)
            return 1
        finally:
            daemon.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
