"""Loads that wait for another hold no checkpoint: fp9d's memory is that of the one that runs and of one that is opened."""
import json
import os
import subprocess
import time

import pytest
from support.daemon import SANITIZED, SLOW, program
from support.freeze import stopped
from support.model import MODEL, ROOT, make_checkpoint, output
from support.rpc import Rpc, RpcError


def memory(daemon, what):
    with open(f"/proc/{daemon.process.pid}/status", encoding="utf-8") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(what))


@pytest.fixture
def v32(build, tmp_path):
    path = tmp_path / "v32"
    subprocess.run([program(build, "fp9-mkckpt"), "--like", os.path.join(ROOT, "tests", "data", "configs", "deepseek-v3.2.json"),
                    "--mtp", "--sparse", "--scale-dtype", "f32", "--shard-bytes", "3925M", "--out", str(path)], check=True,
                   stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, timeout=60 * SLOW)
    return str(path)


def busy(daemon):
    """The one local duck takes nothing meanwhile, so that a load that runs goes on running."""
    return stopped(*daemon.duck_pids())


def standing(rpc, jobs):
    """By job: its state; "planned" when it runs, and was opened and planned."""
    planned = {model["name"] for model in rpc.call("model.list")["models"] if model["model_key"]}
    found = {job["id"]: "planned" if job["state"] == "running" and job["model"] in planned else job["state"]
             for job in rpc.call("job.list")["jobs"]}
    return [found[job] for job in jobs]


def start(rpc, path, name, **options):
    return rpc.call("model.load", path=str(path), name=name, tp=1, **options)["job"]


@pytest.mark.skipif(SANITIZED, reason="a sanitizer's own memory is not fp9d's")
def test_many_loads_of_v32(make_daemon, v32):
    daemon = make_daemon(ducks=1, memory="900G", fleet="heartbeat_s = 60")
    with busy(daemon), Rpc(daemon.socket) as rpc:
        jobs, most = [], []
        for unit, mtp in [(unit, mtp) for mtp in (False, True) for unit in (128, 64, 32, 16)]:
            jobs.append(start(rpc, v32, f"m{len(jobs)}", multiple_of=unit, mtp=mtp))
            daemon.wait_for("a plan", lambda: standing(rpc, jobs) == ["planned"] * len(jobs), seconds=60)
            most.append(memory(daemon, "VmHWM"))
        print("fp9d's memory at most, with each load more:", *(f"{peak / 1e6:.0f}" for peak in most), "MB")
        # An open one takes 44 MB, the pieces of the one that runs 80 MiB in all.
        assert len(jobs) == 8 and most[-1] < 256 << 20, most
        for job in jobs[1:]:
            rpc.call("job.cancel", job=job)
        assert standing(rpc, jobs) == ["planned"] + ["cancelled"] * (len(jobs) - 1)
        rpc.call("job.cancel", job=jobs[0])


def test_what_waits_is_told_its_faults_at_once_and_then_runs(make_daemon, build, reference, tmp_path):
    big = make_checkpoint(build, tmp_path / "big", num_hidden_layers=4, hidden_size=2048, moe_intermediate_size=768, num_experts=24,
                          mlp_only_layers=[])
    daemon, twin = make_daemon(ducks=1, memory="1G", fleet="heartbeat_s = 60"), make_daemon(ducks=1)
    broken = tmp_path / "broken"
    broken.mkdir()
    with open(os.path.join(MODEL, "config.json"), encoding="utf-8") as source:
        (broken / "config.json").write_text(source.read())
    (broken / "model.safetensors").write_bytes(b"\0" * 8)
    changes = tmp_path / "changes"
    subprocess.run(["cp", "-r", MODEL, str(changes)], check=True, timeout=60)
    with Rpc(daemon.socket) as rpc:
        with busy(daemon):
            first = start(rpc, big, "big")
            daemon.wait_for("the first", lambda: standing(rpc, [first]) == ["planned"])
            waiting = [start(rpc, MODEL, "m", multiple_of=64), start(rpc, changes, "changed", multiple_of=32),
                       start(rpc, MODEL, "other", multiple_of=16), start(rpc, MODEL, "last", multiple_of=8)]
            daemon.wait_for("their plans", lambda: standing(rpc, waiting) == ["planned"] * 4)
            with pytest.raises(RpcError) as refused:
                rpc.call("job.wait", job=start(rpc, broken, "broken"))
            assert refused.value.name == "BAD_CHECKPOINT" and "model.safetensors" in refused.value.message
            rpc.call("job.cancel", job=waiting[2])
            assert standing(rpc, [first, *waiting]) == ["planned", "planned", "planned", "cancelled", "planned"]
            time.sleep(0.01)
            config = json.loads((changes / "config.json").read_text())
            (changes / "config.json").write_text(json.dumps(config, indent=3))
        rpc.call("job.wait", job=first)
        assert rpc.call("job.wait", job=waiting[0])["cache"] == "miss"
        with pytest.raises(RpcError) as refused:
            rpc.call("job.wait", job=waiting[1])
        assert refused.value.name == "BAD_CHECKPOINT" and "changed while" in refused.value.message and str(changes) in refused.value.message
        rpc.call("job.wait", job=waiting[3])
    keys = {m["name"]: m["model_key"] for m in daemon.ok("model", "list")["models"] if m["state"] == "ready"}
    assert sorted(keys) == ["big", "last", "m"]
    for name, unit in (("m", 64), ("last", 8)):
        assert twin.ok("load", MODEL, "--name", name, "--tp", 1, "--multiple-of", unit)["model_key"] == keys[name]
        found = []
        for who in (daemon, twin):
            who.run("decode", name, 1, reference.path, tmp_path / "out", reference.prefix(1))
            found.append(output(tmp_path / "out")[1])
        assert found[0] == found[1]
