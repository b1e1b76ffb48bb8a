"""Warm loads: what they read and send does not grow with the model."""
import re

import pytest
from support.daemon import SANITIZED
from support.model import make_checkpoint
from support.strace import CALLS, Seen, Strace

LAYERS = 48
SHAPE = dict(num_hidden_layers=LAYERS, hidden_size=256, moe_intermediate_size=128, num_experts_per_tok=2, mlp_only_layers=[])


def warm(daemon, folder, path, name):
    """(answer, what was seen, reads of files) of a load whose slots are all there."""
    assert daemon.ok("load", path, "--name", name, "--tp", 2, "--multiple-of", 64)["cache"] == "miss"
    daemon.ok("unload", name)
    with Strace(daemon.process.pid, folder, "-e", "trace=" + CALLS) as trace:
        done = daemon.ok("load", path, "--name", name, "--tp", 2, "--multiple-of", 64)
    # Of the database it may be a page more or less.
    reads = sum("read" in name and re.match(r"\d+</", arguments) is not None and "fp9d.db" not in arguments and result > 0
                for name, arguments, result in trace.calls)
    return done, Seen(trace.calls, path), reads


@pytest.mark.skipif(SANITIZED, reason="the sanitizer's own threads cannot be followed quickly")
def test_48_layers_and_twice_their_bytes(make_daemon, build, tmp_path):
    """Not a byte of a shard is read, headers and scales included, and the links carry nothing to speak of; with twice the experts, the same
    reads."""
    daemon = make_daemon(ducks=2)
    seen = {}
    for experts in (4, 8):
        path = make_checkpoint(build, tmp_path / f"c{experts}", num_experts=experts, **SHAPE)
        done, what, reads = warm(daemon, tmp_path, path, f"m{experts}")
        assert (done["cache"], done["bytes_read"], done["bytes_sent"]) == ("hit", 0, 0), done
        assert f"all {2 * LAYERS} slots are finished" in done["reason"]
        assert what.shards == 0 and not what.unknown and what.sent < 16 * 1024, vars(what)
        seen[experts] = reads
    assert seen[8] == seen[4], f"reads: {seen}"
    # A load that is a hit once is one after fp9d came back, too: by itself, and when it is asked for.
    daemon.kill()
    daemon.start()
    for experts in (4, 8):
        daemon.wait_for("the models", lambda: all(m["state"] == "ready" for m in daemon.ok("model", "list")["models"]))
        again = daemon.ok("load", tmp_path / f"c{experts}" / "checkpoint", "--name", f"m{experts}", "--tp", 2, "--multiple-of", 64)
        assert (again["cache"], again["bytes_read"], again["bytes_sent"]) == ("hit", 0, 0), again


def test_a_slot_that_is_missing_is_prepared_from_the_whole(make_daemon, build, tmp_path):
    """A glance at unchanged files is not enough when weights are needed."""
    path = make_checkpoint(build, tmp_path, **{**SHAPE, "num_hidden_layers": 3, "num_experts": 4})
    daemon = make_daemon(ducks=2)
    first = daemon.ok("load", path, "--name", "m", "--tp", 2)
    before = {(s["duck"], s["layer"]): s["checksum"] for s in daemon.ok("cache", "list")["slots"]}
    daemon.ok("invalidate-cache", "--model", "m", "--duck", "local1")
    again = daemon.ok("load", path, "--name", "m", "--tp", 2)
    assert again["cache"] == "partial" and again["model_key"] == first["model_key"] and again["bytes_sent"] > 0
    assert {(s["duck"], s["layer"]): s["checksum"] for s in daemon.ok("cache", "list")["slots"]} == before
    other = daemon.ok("load", path, "--name", "m", "--tp", 1)
    assert other["cache"] == "miss" and "tp 2 -> 1" in other["reason"]
