"""A checkpoint of DeepSeek-V3.2's size as far as its files tell before weights are read: 163 shards, 90,000 tensors, all data holes."""
import json
import os
import subprocess
import time

import pytest

from support.daemon import SANITIZED, program
from support.model import ROOT

LIMIT_S, LIMIT_BYTES = 3, 100 << 20  # its scales alone are 167 MB: they are not all held at once
pytestmark = pytest.mark.skipif(SANITIZED, reason="a sanitizer's own memory and time are not fp9d's")


def peak(daemon):
    with open(f"/proc/{daemon.process.pid}/status", encoding="utf-8") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))


def waited(daemon):
    """Seconds that each of fp9d's threads was ready to run and had no CPU: other programs' doing."""
    folder = f"/proc/{daemon.process.pid}/task"
    found = {}
    for task in os.listdir(folder):
        with open(f"{folder}/{task}/schedstat", encoding="utf-8") as file:
            found[task] = int(file.read().split()[1]) / 1e9
    return found


def test_headers_of_v32(build, make_daemon, tmp_path):
    """A load opens and checks the whole of it, scales included, and is then refused: no duck here holds a rank of that size."""
    path = tmp_path / "v32"
    subprocess.run([program(build, "fp9-mkckpt"), "--like", os.path.join(ROOT, "tests", "data", "configs", "deepseek-v3.2.json"), "--mtp",
                    "--sparse", "--scale-dtype", "f32", "--shard-bytes", "3925M", "--out", str(path)], check=True,
                   stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, timeout=60)
    with open(path / "model.safetensors.index.json", encoding="utf-8") as file:
        places = json.load(file)["weight_map"]
    assert len(places) >= 90_000 and len(set(places.values())) == 163, (len(places), len(set(places.values())))
    daemon = make_daemon(ducks=1)
    before, idle, start = peak(daemon), waited(daemon), time.monotonic()
    daemon.refused("load", path, "--name", "v32", "--tp", 1, "--mtp", name="NO_MEMORY", words=["tp 1"])
    wall, most = time.monotonic() - start, peak(daemon)
    seconds = wall - max(wait - idle.get(task, 0) for task, wait in waited(daemon).items())
    print(f"{len(places)} tensors in {seconds:.2f} s ({wall:.2f} s with waits for a CPU), fp9d's memory {before / 1e6:.0f} -> "
          f"{most / 1e6:.0f} MB")
    assert seconds < LIMIT_S and most < LIMIT_BYTES, f"{seconds:.2f} s, {most / 1e6:.0f} MB"
    # It did look at all of it: without the last tensor's shard nothing is planned.
    os.remove(path / "model-00163-of-00163.safetensors")
    daemon.refused("load", path, "--name", "v32", "--tp", 1, "--mtp", name="BAD_CHECKPOINT", words=["model-00163-of-00163.safetensors"])
