"""Loading again what is loaded: nothing that works is lost by a load that does not."""
import os
import shutil
import time

from support.model import MODEL, output
from support.safetensors import read_header


def bits(daemon, name, reference, folder, layer=2):
    daemon.run("decode", name, layer, reference.path, folder / "out", reference.prefix(layer))
    return output(folder / "out")[1]


def load(daemon, path, name, *more, tp=3):
    return daemon.ok("load", path, "--name", name, "--tp", tp, "--multiple-of", 64, *more)


def poison(checkpoint):
    """One NaN code in the last expert of the last layer: found only when most of the load is done."""
    tensor = "model.layers.3.mlp.experts.7.down_proj.weight"
    for name in sorted(os.listdir(checkpoint)):
        if not name.startswith("model-"):
            continue
        path = os.path.join(checkpoint, name)
        header, start = read_header(path)
        if tensor in header:
            with open(path, "r+b") as file:
                file.seek(start + header[tensor]["data_offsets"][0] + 1000)
                file.write(b"\x7f")
            return
    raise AssertionError(f"no {tensor} in {checkpoint}")


def test_a_load_that_fails_half_way_leaves_the_model(make_daemon, reference, tmp_path):
    daemon = make_daemon()
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(MODEL, checkpoint)
    for name in os.listdir(checkpoint):
        os.chmod(checkpoint / name, 0o644)
    load(daemon, checkpoint, "m")
    before = bits(daemon, "m", reference, tmp_path)
    time.sleep(0.01)  # the shard's times must differ
    poison(checkpoint)
    for more in ([], ["--force"]):
        daemon.refused("load", checkpoint, "--name", "m", "--tp", 3, "--multiple-of", 64, *more, name="BAD_CHECKPOINT",
                       words=["experts.7.down_proj", "NaN"])
        assert {m["name"]: m["state"] for m in daemon.ok("model", "list")["models"]} == {"m": "ready"}
        assert bits(daemon, "m", reference, tmp_path) == before


def test_two_names_share_slots(make_daemon, reference, tmp_path):
    daemon = make_daemon()
    load(daemon, MODEL, "one")
    before = bits(daemon, "one", reference, tmp_path)
    assert load(daemon, MODEL, "two")["bytes_sent"] == 0
    daemon.refused("load", MODEL, "--name", "two", "--tp", 3, "--multiple-of", 64, "--force", name="BUSY", words=["one"])
    assert daemon.ok("unload", "two", "--drop-cache")["freed_bytes"] == 0
    assert bits(daemon, "one", reference, tmp_path) == before
    load(daemon, MODEL, "two")
    assert daemon.ok("invalidate-cache", "--model", "two")["freed_bytes"] > 0
    assert {m["name"]: m["state"] for m in daemon.ok("model", "list")["models"]} == {"one": "unloaded", "two": "unloaded"}
    load(daemon, MODEL, "one")
    assert bits(daemon, "one", reference, tmp_path) == before


def test_output_is_never_renamed_over_a_fifo(make_daemon, reference, tmp_path):
    daemon = make_daemon()
    load(daemon, MODEL, "m")
    os.mkfifo(tmp_path / "fifo")
    args = ["decode", "m", "--layer", 2, "--input", reference.path, "--prefix", reference.prefix(2), "--output"]
    daemon.refused(*args, tmp_path / "fifo", name="BAD_REQUEST", words=["no regular file"])
    target = tmp_path / "target"
    target.write_bytes(b"old")
    os.symlink(target, tmp_path / "link")
    daemon.ok(*args, tmp_path / "link")
    assert os.path.islink(tmp_path / "link") and len(target.read_bytes()) > 1000
