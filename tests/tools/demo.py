"""A trained mixture-of-experts checkpoint through fp9d and four local ducks, each layer compared with float64.

    ./run demo          (or: demo.py --build BUILDDIR)

Leaves nothing behind. Exit status 1 when a layer is further from the reference than 2^-8 (relative L2).
"""
import argparse
import os
import subprocess
import sys
import tempfile
import time

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "integration"))
sys.dont_write_bytecode = True

from support.daemon import Daemon, program  # noqa: E402
from support.model import LAYERS, MODEL, Reference, output  # noqa: E402

BOUND = 2.0 ** -8
TP, MULTIPLE_OF, DUCKS = 3, 64, 4


def ulp_of(values):
    """The distance of neighbouring BF16 numbers at each value."""
    _, exponent = np.frexp(np.maximum(np.abs(values), 2.0 ** -126))
    return np.ldexp(1.0, exponent - 8)


def errors(exact, got):
    """Largest error in BF16 ulp of the largest element of its row, in ulp of the element itself, and relative L2."""
    difference = np.abs(got - exact)
    rows = np.max(np.abs(exact), axis=1, keepdims=True)
    return (float(np.max(difference / ulp_of(rows))), float(np.max(difference / ulp_of(exact))),
            float(np.linalg.norm(got - exact) / np.linalg.norm(exact)))


def main():
    parser = argparse.ArgumentParser(prog="./run demo", description="run a trained checkpoint through fp9d and four local ducks")
    parser.add_argument("--build", default="build", help="meson build directory")
    args = parser.parse_args()
    build = os.path.abspath(args.build)
    reference = Reference()
    wrong = []
    with tempfile.TemporaryDirectory(prefix="fp9-demo-") as folder:
        daemon = Daemon(build, folder, ducks=DUCKS)
        begun = time.monotonic()
        try:
            daemon.start()
            isa = daemon.ok("status")["ducks"][0]["isa"]
            print(f"fp9d is up with {DUCKS} local ducks, kernels for {isa} ({time.monotonic() - begun:.2f} s)")
            told = daemon.ok("load", MODEL, "--name", "shakespeare", "--tp", TP, "--multiple-of", MULTIPLE_OF)
            print(f"loaded {os.path.basename(MODEL)}: tp {told['tp']}, multiple_of {told['multiple_of']}, cache {told['cache']}, "
                  f"{told['bytes_read'] / 1e6:.1f} MB read, {told['bytes_sent'] / 1e6:.1f} MB sent in {told['seconds']:.2f} s; "
                  f"the fourth duck holds no rank\n")
            print("                       largest error, BF16 ulp       relative      judge_wait  duck_max     gap   ratio")
            print("layer         tokens   at row's max  of the element  L2                    us        us      us")
            for layer in range(LAYERS):
                exact = reference.get(layer, "output")
                kind_of_layer = "dense" if reference.get(layer, "topk_ids") is None else "MoE"
                for kind in ("decode", "prefill"):
                    target = os.path.join(folder, "out.safetensors")
                    step = daemon.run(kind, "shakespeare", layer, reference.path, target, reference.prefix(layer))
                    at_row, at_element, relative = errors(exact, output(target)[0])
                    good = relative < BOUND
                    if not good:
                        wrong.append(f"{kind} of layer {layer}")
                    print(f"{layer} {kind_of_layer:5} {kind:7} {step['tokens']:3}   {at_row:12.2f}  {at_element:14.1f}  "
                          f"2^{np.log2(relative):6.2f} {'ok ' if good else 'BAD'}  {step['judge_wait_us']:10.1f} "
                          f"{step['duck_max_us']:9.1f} {step['judge_gap_us']:7.1f} {step['judge_ratio']:7.2f}")
            print("\nallowed: relative L2 below 2^-8. Small elements are sums in which large ones cancel, hence their many ulp.")
            print("\n$ fp9ctl status")
            sys.stdout.flush()
            subprocess.run([program(build, "fp9ctl"), "--socket", daemon.socket, "status"], check=True, stdin=subprocess.DEVNULL,
                           env=daemon.env)
        except AssertionError as error:
            print(f"demo: {error}", file=sys.stderr)
            wrong.append("the run itself")
        finally:
            try:
                daemon.stop()
            except AssertionError as error:
                print(f"demo: {error}", file=sys.stderr)
                wrong.append("the stop")
    if wrong:
        print(f"\ndemo: wrong: {', '.join(wrong)}", file=sys.stderr)
        return 1
    print(f"\nall {2 * LAYERS} runs agree with float64; {time.monotonic() - begun:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
