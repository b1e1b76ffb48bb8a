"""Weights that a client holds in memory: prepare from a sealed memfd."""
import fcntl
import json
import os
import shutil
import socket
import subprocess

import numpy as np
import pytest
from support import safetensors
from support.daemon import SLOW, program
from support.model import LAYERS, MODEL, mlp_tensors, output
from support.rpc import Raw, Rpc, RpcError

SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
FUTURE_WRITE = 0x10  # F_SEAL_FUTURE_WRITE


@pytest.fixture(scope="module")
def weights():
    return mlp_tensors()


@pytest.fixture
def bare(tmp_path):
    """A directory with a config.json and no weights."""
    folder = tmp_path / "bare"
    folder.mkdir()
    shutil.copy(os.path.join(MODEL, "config.json"), folder)
    return str(folder)


@pytest.fixture
def write(tmp_path):
    """write(tensors, ...) -> path of a safetensors file"""
    def make(*tables, name="weights.safetensors"):
        path = str(tmp_path / name)
        safetensors.write(path, {key: value for table in tables for key, value in table.items()})
        return path

    return make


def memfd(data, seals=SEALS):
    fd = os.memfd_create("weights", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(fd, data)
    if seals:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def send_prepare(rpc, fds, **params):
    return rpc.send("prepare", params, fds)


def bits(daemon, reference, folder, name, layer):
    daemon.run("decode", name, layer, reference.path, folder / "out", reference.prefix(layer))
    return output(folder / "out")[1]


def checksums(daemon, key):
    return {(s["layer"], s["rank"]): s["checksum"] for s in daemon.ok("cache", "list")["slots"] if s["model_key"] == key}


def test_layers_one_by_one_make_the_same_model_as_a_load(make_daemon, weights, bare, write, reference, tmp_path):
    daemon, twin = make_daemon(), make_daemon()
    for layer in range(LAYERS):
        first = ["--path", bare, "--tp", 3, "--multiple-of", 64] if layer == 0 else []
        done = daemon.ok("prepare", "m", "--from", write(weights[layer]), *first)
        assert done["cache"] == "miss" and done["bytes_sent"] > 0
        assert "cut" not in done["reason"], done
        (model,) = daemon.ok("model", "list")["models"]
        if layer < LAYERS - 1:
            assert model["state"] == "degraded"
            left = LAYERS - 1 - layer
            assert (f"{left} of {LAYERS} layers {'is' if left == 1 else 'are'} not prepared, the first is layer {layer + 1}"
                    in model["error"]["message"])
            daemon.refused("decode", "m", "--layer", layer, "--input", reference.path, "--prefix", reference.prefix(layer), "--output",
                           tmp_path / "no", name="NOT_READY", words=[f"layer {layer + 1}"])
    assert model["state"] == "ready"
    loaded = twin.ok("load", MODEL, "--name", "m", "--tp", 3, "--multiple-of", 64)
    assert model["model_key"] == loaded["model_key"]
    assert checksums(daemon, model["model_key"]) == checksums(twin, loaded["model_key"])
    for layer in range(LAYERS):
        assert bits(daemon, reference, tmp_path, "m", layer) == bits(twin, reference, tmp_path, "m", layer)
    # a load of the same weights is a hit, and so is a prepare of what a load has prepared
    hit = daemon.ok("load", MODEL, "--name", "disk", "--tp", 3, "--multiple-of", 64)
    assert (hit["cache"], hit["bytes_sent"], hit["model_key"]) == ("hit", 0, model["model_key"])
    hit = twin.ok("prepare", "mine", "--path", bare, "--tp", 3, "--multiple-of", 64, "--from", write(*weights.values()))
    assert (hit["cache"], hit["bytes_sent"], hit["model_key"]) == ("hit", 0, model["model_key"])


def test_restart_keeps_a_model_from_memory(make_daemon, weights, bare, write, reference, tmp_path):
    daemon = make_daemon()
    done = daemon.ok("prepare", "m", "--path", bare, "--tp", 2, "--from", write(*weights.values()))
    before = bits(daemon, reference, tmp_path, "m", 1)
    again = daemon.ok("load", bare, "--name", "m", "--tp", 2)
    assert (again["cache"], again["bytes_read"]) == ("hit", 0)
    # its slots are gone with its memory: nobody can bring them back but who has the weights
    daemon.ok("invalidate-cache", "--model", "m")
    daemon.refused("load", bare, "--name", "m", "--tp", 2, name="NOT_READY", words=["layer 0 has no slot", "prepare it again"])
    daemon.refused("prepare", "m", "--layer", 2, name="NOT_READY", words=["layer 2 has no slot"])
    anew = daemon.ok("prepare", "m", "--from", write(*weights.values()))
    assert anew["model_key"] == done["model_key"] and anew["cache"] == "miss"
    assert bits(daemon, reference, tmp_path, "m", 1) == before
    # unload forgets what they were
    daemon.ok("unload", "m")
    daemon.refused("load", bare, "--name", "m", name="BAD_CHECKPOINT", words=["weights from memory come by prepare"])


def test_another_layer_takes_the_place_of_the_old_one(make_daemon, weights, bare, write, reference, tmp_path):
    daemon, twin = make_daemon(), make_daemon()
    first = daemon.ok("prepare", "m", "--path", bare, "--tp", 3, "--multiple-of", 64, "--from", write(*weights.values()))
    name = "model.layers.2.mlp.experts.3.up_proj.weight"
    array = weights[2][name].array.copy()
    array[0, 100] ^= 0x01
    changed = {**weights[2], name: safetensors.Tensor("F8_E4M3", array)}
    second = daemon.ok("prepare", "m", "--from", write(changed))
    assert second["model_key"] != first["model_key"]
    whole = twin.ok("prepare", "m", "--path", bare, "--tp", 3, "--multiple-of", 64, "--from",
                    write(weights[0], weights[1], changed, weights[3]))
    assert whole["model_key"] == second["model_key"]
    assert bits(daemon, reference, tmp_path, "m", 2) == bits(twin, reference, tmp_path, "m", 2)


def test_missing_slots_of_a_checkpoint_from_memory(make_daemon, weights, write):
    daemon = make_daemon()
    first = daemon.ok("load", MODEL, "--name", "m", "--tp", 3, "--multiple-of", 64)
    before = checksums(daemon, first["model_key"])
    daemon.ok("invalidate-cache", "--model", "m")
    one = daemon.ok("prepare", "m", "--layer", 2)  # from disk
    assert one["cache"] == "miss" and one["bytes_sent"] > 0
    assert sorted(checksums(daemon, first["model_key"])) == [(2, rank) for rank in range(3)]
    (model,) = daemon.ok("model", "list")["models"]
    assert model["state"] == "degraded" and "3 of 4 layers are not prepared" in model["error"]["message"]
    two = daemon.ok("prepare", "m", "--from", write(weights[0], weights[1]), "--layer", 1)
    assert two["cache"] == "miss"
    assert sorted({layer for layer, _ in checksums(daemon, first["model_key"])}) == [1, 2]
    daemon.ok("prepare", "m")
    assert checksums(daemon, first["model_key"]) == before
    assert daemon.ok("model", "list")["models"][0]["state"] == "ready"
    # and only its own weights
    name = "model.layers.1.mlp.experts.0.gate_proj.weight"
    array = weights[1][name].array.copy()
    array[3, 7] ^= 0x01
    daemon.refused("prepare", "m", "--from", write({**weights[1], name: safetensors.Tensor("F8_E4M3", array)}), name="CACHE_STALE",
                   words=["layer 1", "not those of the checkpoint"])
    assert daemon.ok("model", "list")["models"][0]["state"] == "ready"


def test_everything_is_checked_as_on_disk(make_daemon, weights, bare, write, tmp_path):
    daemon = make_daemon()

    def refused(change, words, name="BAD_CHECKPOINT"):
        tensors = dict(weights[1])
        change(tensors)
        daemon.refused("prepare", "m", "--path", bare, "--tp", 2, "--from", write(tensors), name=name, words=words)
        assert daemon.ok("cache", "list")["slots"] == []
        for model in daemon.ok("model", "list")["models"]:
            assert model["state"] == "failed"

    gate, scale = "model.layers.1.mlp.experts.2.gate_proj.weight", "model.layers.1.mlp.experts.2.down_proj.weight_scale_inv"

    def nan(tensors):
        array = tensors[gate].array.copy()
        array[5, 9] = 0xFF
        tensors[gate] = safetensors.Tensor("F8_E4M3", array)

    def infinite(tensors):
        dtype, array = tensors[scale].dtype, tensors[scale].array.copy()
        array[0, 0] = {"F32": np.inf, "BF16": 0x7F80, "F16": np.inf}[dtype]
        tensors[scale] = safetensors.Tensor(dtype, array)

    def turned(tensors):
        tensors[gate] = safetensors.Tensor("F8_E4M3", tensors[gate].array.T)

    refused(nan, [gate, "row 5, column 9", "NaN"])
    refused(infinite, [scale])
    refused(lambda tensors: tensors.pop(scale), ["missing scale tensor", scale])
    refused(lambda tensors: tensors.pop(gate), ["missing weight tensor", gate])
    refused(turned, [gate, "shape"])
    refused(lambda tensors: tensors.clear(), ["no tensor of a layer"])
    path = write(weights[1])
    os.truncate(path, os.path.getsize(path) - 1)
    daemon.refused("prepare", "m", "--path", bare, "--from", path, name="BAD_CHECKPOINT", words=["the memfd"])
    daemon.refused("prepare", "m", "--path", bare, "--from", write(weights[1]), "--layer", 2, name="BAD_CHECKPOINT", words=["that layer"])
    daemon.refused("prepare", "m", "--path", bare, "--from", write(weights[1]), "--layer", 9, name="BAD_SHAPE", words=["layer 9"])
    daemon.refused("prepare", "new", "--from", write(weights[1]), name="NO_SUCH", words=["needs a path"])
    done = daemon.ctl("prepare", "m", "--path", bare)  # which fp9ctl knows, and fp9d of other clients
    assert done.status == 2 and "--path goes only with --from" in done.error["message"], done.error
    with Rpc(daemon.socket) as rpc, pytest.raises(RpcError, match="path: goes only with memory") as caught:
        rpc.call("prepare", model="m", path=str(bare))
    assert caught.value.name == "BAD_REQUEST"
    daemon.refused("prepare", "m", "--from", tmp_path / "nothing", name="NO_SUCH", words=["nothing"])
    good = daemon.ok("prepare", "m", "--path", bare, "--tp", 2, "--from", write(*weights.values()))
    assert good["cache"] == "miss"
    daemon.refused("prepare", "m", "--from", write(weights[1]), "--tp", 3, name="BAD_REQUEST", words=["tp 2"])


@pytest.mark.parametrize("seals,words", [(0, "shrinking and writing"), (fcntl.F_SEAL_SHRINK, "writing"), (fcntl.F_SEAL_WRITE, "shrinking"),
                                         (fcntl.F_SEAL_SHRINK | FUTURE_WRITE, "writing")])
def test_unsealed_memory_is_refused(daemon, weights, bare, seals, words):
    with Rpc(daemon.socket) as rpc:
        fd = memfd(b"x" * 100, seals)
        with pytest.raises(RpcError) as error:
            rpc.answer(send_prepare(rpc, [fd], model="m", path=bare, memory=True))
        assert error.value.name == "BAD_REQUEST" and f"not sealed against {words}:" in error.value.message
        os.close(fd)


def test_what_is_no_memfd_is_refused(daemon, bare):
    with Rpc(daemon.socket) as rpc:
        for fd in (os.open(os.path.join(bare, "config.json"), os.O_RDONLY), os.pipe()[0], os.open("/dev/zero", os.O_RDONLY)):
            with pytest.raises(RpcError, match="is no memfd"):
                rpc.answer(send_prepare(rpc, [fd], model="m", path=bare, memory=True))
        with pytest.raises(RpcError, match="no descriptor came"):
            rpc.call("prepare", model="m", path=bare, memory=True)


def test_each_descriptor_goes_with_its_own_request(make_daemon, weights, bare, write):
    """Two requests with a descriptor each in one burst, one byte at a time, one refused before the other: none gets the other's."""
    daemon = make_daemon()
    fds = []
    for layer in range(LAYERS):
        with open(write(weights[layer]), "rb") as file:
            fds.append(memfd(file.read()))
    with Rpc(daemon.socket) as rpc:
        first = send_prepare(rpc, [fds[0]], model="a", path=bare, tp=2, memory=True)
        second = send_prepare(rpc, [fds[1]], model="b", path=bare, tp=2, memory=True)
        jobs = [rpc.answer(first)["job"], rpc.answer(second)["job"]]
        for job in jobs:
            rpc.call("job.wait", job=job)
        layers = {m["name"]: m["model_key"] for m in rpc.call("model.list")["models"]}
        found = {s["model_key"]: s["layer"] for s in rpc.call("cache.list")["slots"]}
        assert (found[layers["a"]], found[layers["b"]]) == (0, 1)
        # a refused request's descriptor is not left for the next
        wrong = send_prepare(rpc, [fds[2]], model="a", nonsense=1, memory=True)
        right = send_prepare(rpc, [fds[3]], model="a", memory=True)
        with pytest.raises(RpcError, match="nonsense"):
            rpc.answer(wrong)
        rpc.call("job.wait", job=rpc.answer(right)["job"])
        assert sorted({s["layer"] for s in rpc.call("cache.list")["slots"] if s["model_key"] == layers["a"]}) == [0, 3]
        # byte by byte
        line = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "prepare", "params": {"model": "a", "memory": True}}).encode() + b"\n"
        with Raw(daemon.socket) as one:
            socket.send_fds(one.socket, [line[:1]], [fds[2]])
            for at in range(1, len(line)):
                one.send_raw(line[at:at + 1])
            rpc.call("job.wait", job=one.read_message()["result"]["job"])
        assert sorted({s["layer"] for s in rpc.call("cache.list")["slots"] if s["model_key"] == layers["a"]}) == [0, 2, 3]
    for fd in fds:
        os.close(fd)


def test_descriptors_are_not_kept(daemon, bare):
    """CASES E13: thousands of refused requests with descriptors leave none open."""
    count = lambda: len(os.listdir(f"/proc/{daemon.process.pid}/fd"))  # noqa: E731
    with Rpc(daemon.socket) as rpc:
        rpc.call("status")
        before = count()
        fd = memfd(b"{}")
        for _ in range(500):
            number = send_prepare(rpc, [fd] * 3, model="m", path=bare, memory=True)
            with pytest.raises(RpcError):
                job = rpc.answer(number)["job"]
                rpc.call("job.wait", job=job)
        os.close(fd)
        assert count() <= before + 1


def test_the_python_module_sends_bytes(make_daemon, build, weights, bare, write, monkeypatch):
    monkeypatch.syspath_prepend(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "proto", "client", "python"))
    import fp9
    daemon = make_daemon()
    with open(write(*weights.values()), "rb") as file:
        data = file.read()
    with fp9.connect(daemon.socket) as conn:
        done = conn.prepare("m", path=bare, tp=2, memory=data)
        assert done["cache"] == "miss" and conn.model_list()[0]["state"] == "ready"
        with pytest.raises(fp9.Error, match="sealed"):
            fd = memfd(data, 0)
            conn.prepare("m", memory=fd)


def test_full_verify_without_a_checkpoint(make_daemon, weights, bare, write):
    """There is nothing to compare with, which is said once and is no fault of a slot; the others are compared, and a wrong bit is found."""
    daemon = make_daemon()
    first = daemon.ok("prepare", "m", "--path", bare, "--tp", 2, "--multiple-of", 32, "--from", write(*weights.values()))
    daemon.ok("load", MODEL, "--name", "disk", "--tp", 2, "--multiple-of", 64)
    done = daemon.ok("cache", "verify", "--full")
    assert (done["checked"], done["compared"], done["bad"]) == (2 * 2 * LAYERS, 2 * LAYERS, []), done
    (one,) = done["uncompared"]
    assert one["model"] == "m" and "came from memory: there is no checkpoint to compare with" in one["reason"]
    assert daemon.ok("cache", "verify")["uncompared"] == []
    shown = subprocess.run([program(daemon.build, "fp9ctl"), "--socket", daemon.socket, "cache", "verify", "m", "--full"],
                           stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, timeout=60 * SLOW)
    assert shown.returncode == 0 and "m: its weights came from memory" in shown.stdout
    flip_in_memory(daemon, next(s for s in daemon.ok("cache", "list")["slots"] if s["model_key"] == first["model_key"]))
    (bad,) = daemon.ok("cache", "verify", "m", "--full")["bad"]
    assert bad["model"] == "m" and "checksum wrong" in bad["reason"]


def flip_in_memory(daemon, slot):
    """One bit of the first slot in a duck's weight buffer, which this is."""
    pid = next(d["pid"] for d in daemon.ok("duck", "list")["ducks"] if d["name"] == slot["duck"])
    for name in os.listdir(f"/proc/{pid}/fd"):
        target = os.readlink(f"/proc/{pid}/fd/{name}")
        if "memfd" in target and f"fp9-{slot['duck']}" in target or "fp9-weights" in target:
            with open(f"/proc/{pid}/fd/{name}", "r+b") as file:
                file.seek((1 << 20) + 100)
                byte = file.read(1)[0]
                file.seek(-1, 1)
                file.write(bytes([byte ^ 1]))
            return
    raise AssertionError("no weight buffer")
