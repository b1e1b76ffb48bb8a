"""The weight cache over a life: what is kept, what is prepared anew, and what is said about it."""
import mmap
import os
import re
import signal
import sqlite3
import subprocess
import threading
import time

import pytest
from support.daemon import program
from support.model import MODEL, output
from support.safetensors import Tensor, read, read_header, write


def load(daemon, path, *more, name="m", tp=3, multiple_of=64):
    return daemon.ok("load", path, "--name", name, "--tp", tp, "--multiple-of", multiple_of, *more)


def bits(daemon, reference, folder, name="m", layer=2):
    daemon.run("decode", name, layer, reference.path, folder / "out", reference.prefix(layer))
    return output(folder / "out")[1]


def shard_of(checkpoint, tensor):
    for name in sorted(os.listdir(checkpoint)):
        if not name.endswith(".safetensors") or not name.startswith("model"):
            continue
        header, start = read_header(os.path.join(checkpoint, name))
        if tensor in header:
            return name, start + header[tensor]["data_offsets"][0]
    raise AssertionError(tensor)


def flip(checkpoint, tensor, at=100):
    """Another finite weight in place of one; the name of its shard."""
    name, offset = shard_of(checkpoint, tensor)
    with open(os.path.join(checkpoint, name), "r+b") as file:
        file.seek(offset + at)
        byte = file.read(1)[0]
        file.seek(offset + at)
        file.write(bytes([byte ^ 0x01 if byte & 0x7e != 0x7e else byte ^ 0x40]))
    return name


def slots(daemon):
    return {(s["layer"], s["rank"]): s["checksum"] for s in daemon.ok("cache", "list")["slots"]}


def test_touched_files_are_digested_and_hit(make_daemon, checkpoint):
    daemon = make_daemon()
    first = load(daemon, checkpoint)
    assert first["cache"] == "miss" and first["bytes_read"] > 0
    again = load(daemon, checkpoint)
    assert (again["cache"], again["bytes_read"], again["bytes_sent"]) == ("hit", 0, 0)
    assert "12 slots" in again["reason"]
    name = next(n for n in sorted(os.listdir(checkpoint)) if n.startswith("model-"))
    os.utime(os.path.join(checkpoint, name))
    touched = load(daemon, checkpoint)
    assert touched["cache"] == "hit" and touched["bytes_sent"] == 0
    assert 0 < touched["bytes_read"] < first["bytes_read"]
    assert touched["model_key"] == first["model_key"]
    assert load(daemon, checkpoint)["bytes_read"] == 0


def test_the_same_weights_elsewhere_have_the_same_key(make_daemon, checkpoint):
    daemon = make_daemon()
    first = load(daemon, checkpoint)
    other = load(daemon, MODEL, name="copy")
    assert (other["cache"], other["bytes_sent"], other["model_key"]) == ("hit", 0, first["model_key"])


@pytest.mark.parametrize("restore_time", [False, True])
def test_changed_weights_prepare_only_their_layer(make_daemon, checkpoint, reference, tmp_path, restore_time):
    daemon, twin = make_daemon(), make_daemon()
    first = load(daemon, checkpoint)
    before = slots(daemon)
    tensor = "model.layers.2.mlp.experts.3.up_proj.weight"
    name, _ = shard_of(checkpoint, tensor)
    path = os.path.join(checkpoint, name)
    stat = os.stat(path)
    flip(checkpoint, tensor)
    if restore_time:
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    changed = load(daemon, checkpoint)
    assert changed["cache"] == "partial"
    assert f"weights changed: {name}" in changed["reason"] and "3 of 12 slots were missing" in changed["reason"]
    assert changed["model_key"] != first["model_key"]
    mine = {(s["layer"], s["rank"]): s["checksum"] for s in daemon.ok("cache", "list")["slots"] if s["model_key"] == changed["model_key"]}
    assert [place for place in sorted(mine) if mine[place] != before[place]] == [(2, 0)]  # the row is one of rank 0's
    fresh = load(twin, checkpoint)
    assert fresh["model_key"] == changed["model_key"]
    assert mine == slots(twin)
    assert bits(daemon, reference, tmp_path) == bits(twin, reference, tmp_path)


def test_changed_scales_name_their_own_file_and_once(make_daemon, checkpoint):
    """Scales in a file of their own, the weights stay: the reason names that file, and no longer once the load is done."""
    daemon = make_daemon()
    tensor = "model.layers.2.mlp.experts.3.up_proj.weight_scale_inv"
    shard, _ = shard_of(checkpoint, tensor)
    tensors = read(os.path.join(checkpoint, shard))
    scales = tensors.pop(tensor)
    write(os.path.join(checkpoint, shard), tensors)
    write(os.path.join(checkpoint, "scales.safetensors"), {tensor: scales})
    index = os.path.join(checkpoint, "model.safetensors.index.json")
    text = open(index).read()
    with open(index, "w") as file:
        file.write(text.replace(f'"{tensor}": "{shard}"', f'"{tensor}": "scales.safetensors"'))
    first = load(daemon, checkpoint)
    other = scales.array.copy()
    other[0, 0] ^= 1
    write(os.path.join(checkpoint, "scales.safetensors"), {tensor: Tensor(scales.dtype, other)})
    changed = load(daemon, checkpoint)
    assert changed["reason"] == "weights changed: scales.safetensors; 3 of 12 slots were missing", changed
    assert changed["cache"] == "partial" and changed["model_key"] != first["model_key"]
    # Another change later names its own file alone.
    name = flip(checkpoint, "model.layers.0.mlp.up_proj.weight")
    assert name != shard
    later = load(daemon, checkpoint)
    assert later["reason"] == f"weights changed: {name}; 3 of 12 slots were missing", later


def test_config_edit_is_another_key_and_sends_nothing(make_daemon, checkpoint):
    daemon = make_daemon()
    first = load(daemon, checkpoint)
    path = os.path.join(checkpoint, "config.json")
    text = open(path).read()
    assert '"num_experts_per_tok": 2' in text
    with open(path, "w") as file:
        file.write(text.replace('"num_experts_per_tok": 2', '"num_experts_per_tok": 3'))
    again = load(daemon, checkpoint)
    assert again["model_key"] != first["model_key"] and again["bytes_sent"] == 0 and again["cache"] == "hit"


def test_plan_changes_are_named(make_daemon, checkpoint):
    daemon = make_daemon()
    load(daemon, checkpoint)
    assert load(daemon, checkpoint, tp=2)["reason"] == "tp 3 -> 2"
    both = load(daemon, checkpoint, tp=4, multiple_of=32)
    assert both["cache"] == "miss" and both["reason"] == "tp 2 -> 4, multiple_of 64 -> 32"
    back = load(daemon, checkpoint)
    assert back["cache"] == "hit"
    history = daemon.ok("cache", "list")["history"]
    assert [h["cache"] for h in history] == ["miss", "miss", "miss", "hit"]
    assert history[1]["reason"] == "tp 3 -> 2" and history[1]["model"] == "m"


def test_invalidation_is_named_by_whom_and_when(make_daemon, checkpoint):
    daemon = make_daemon()
    load(daemon, checkpoint)
    assert daemon.ok("invalidate-cache", "--model", "m", "--duck", "local1")["freed_bytes"] > 0
    lost = daemon.ok("cache", "list")["lost"]
    assert len(lost) == 1 and lost[0]["duck"] == "local1" and f"invalidated by uid {os.getuid()} at 20" in lost[0]["reason"]
    again = load(daemon, checkpoint)
    assert again["cache"] == "partial"
    assert f"invalidated by uid {os.getuid()} at 20" in again["reason"] and "(4 slots)" in again["reason"]
    assert daemon.ok("cache", "list")["lost"] == []
    status = daemon.ok("status")["models"][0]
    assert status["reason"] == again["reason"]


def test_database_is_only_a_mirror(make_daemon, checkpoint):
    """C08: rows that say too much or too little change nothing but a line in the log."""
    daemon = make_daemon()
    first = load(daemon, checkpoint)
    deadline = time.monotonic() + 10
    path = os.path.join(daemon.state, "fp9d.db")
    while time.monotonic() < deadline:
        with sqlite3.connect(path) as db:
            if db.execute("SELECT count(*) FROM slot").fetchone()[0] == 12:
                break
        time.sleep(0.1)
    daemon.stop()
    with sqlite3.connect(path) as db:
        rows = db.execute("SELECT * FROM slot ORDER BY duck, layer").fetchall()
        assert len(rows) == 12 and all(row[1] == first["model_key"] for row in rows)
        db.execute("DELETE FROM slot WHERE duck = 'local0' AND layer = 1")
        db.execute("INSERT INTO slot SELECT 'local3', model_key, layer, tp, rank, multiple_of, kind, bytes, checksum, sources FROM slot"
                   " WHERE duck = 'local1'")
    daemon.start()
    again = load(daemon, checkpoint)
    assert again["model_key"] == first["model_key"]
    gone = dict(re.findall(r"cache: (local\d): .* ended with it: (\d+) slots? (?:is|are) gone", daemon.log()))
    assert sum(map(int, gone.values())) == 11 + 4, "what the rows said, right or wrong"
    assert len(daemon.ok("cache", "list")["slots"]) >= 12


def test_a_load_cut_by_a_killed_duck_goes_on(make_daemon, checkpoint, reference, tmp_path):
    daemon, twin = make_daemon(), make_daemon()
    load(twin, checkpoint)
    job = daemon.ok("load", checkpoint, "--name", "m", "--tp", 3, "--multiple-of", 64, "--no-wait")["job"]
    pid = next(d["pid"] for d in daemon.ok("duck", "list")["ducks"] if d["name"] == "local1")
    os.kill(pid, signal.SIGKILL)
    daemon.ctl("job", "wait", job)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and daemon.ok("status")["state"] != "ready":
        time.sleep(0.1)
    load(daemon, checkpoint)
    assert bits(daemon, reference, tmp_path) == bits(twin, reference, tmp_path)
    key = lambda s: (s["layer"], s["rank"], s["checksum"], s["model_key"])  # noqa: E731
    assert sorted(map(key, daemon.ok("cache", "list")["slots"])) == sorted(map(key, twin.ok("cache", "list")["slots"]))


def flip_unseen(checkpoint, tensor):
    """Through a mapping that was written before: the file's times stay as they are."""
    name, offset = shard_of(checkpoint, tensor)
    path = os.path.join(checkpoint, name)
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as view:
        view[offset] = view[offset]
        times = os.stat(path).st_mtime_ns, os.stat(path).st_ctime_ns
        yield
        for at in range(offset, offset + 512):
            view[at] ^= 0x80
        assert (os.stat(path).st_mtime_ns, os.stat(path).st_ctime_ns) == times
        yield


def test_force_replaces_what_was_known_of_the_weights(make_daemon, checkpoint, reference, tmp_path):
    """Bytes that changed behind the file's times: a load does not see them, --force does, and it is not forgotten afterwards."""
    daemon = make_daemon()
    change = flip_unseen(checkpoint, "model.layers.1.mlp.experts.0.up_proj.weight")
    next(change)
    first = load(daemon, checkpoint)
    before = bits(daemon, reference, tmp_path, layer=1)
    next(change)
    assert load(daemon, checkpoint)["model_key"] == first["model_key"]
    forced = load(daemon, checkpoint, "--force")
    assert forced["model_key"] != first["model_key"]
    after = bits(daemon, reference, tmp_path, layer=1)
    assert after != before
    again = load(daemon, checkpoint)
    assert (again["cache"], again["model_key"]) == ("hit", forced["model_key"])
    assert bits(daemon, reference, tmp_path, layer=1) == after
    assert daemon.ok("cache", "verify", "m", "--full")["bad"] == []


def memfd_of(daemon, duck):
    pid = next(d["pid"] for d in daemon.ok("duck", "list")["ducks"] if d["name"] == duck)
    name = next(n for n in os.listdir(f"/proc/{pid}/fd") if "memfd:fp9-" in os.readlink(f"/proc/{pid}/fd/{n}"))
    return f"/proc/{pid}/fd/{name}"


def write_over(daemon, duck, offset, value):
    with open(memfd_of(daemon, duck), "r+b", buffering=0) as file:
        file.seek(offset)
        file.write(value)


def second_slot(daemon, duck):
    """Where in the header the second slot's description begins, and how long it is."""
    with open(memfd_of(daemon, duck), "rb") as file:
        header = file.read(8192)
    key = bytes.fromhex(daemon.ok("model", "list")["models"][0]["model_key"])
    first = header.index(key)
    second = header.index(key, first + 1)
    return second - 8, second - first


@pytest.mark.parametrize("field", ["offset", "state", "key"])
@pytest.mark.parametrize("first", ["decode", "verify"])
def test_a_slot_that_was_written_over(make_daemon, checkpoint, reference, tmp_path, field, first):
    """In a live duck's header: the duck lives, the first one who asks is told, and the next load prepares that slot alone."""
    daemon = make_daemon()
    load(daemon, checkpoint)
    before = bits(daemon, reference, tmp_path, layer=1)
    at, size = second_slot(daemon, "local0")
    place, value = {"offset": (size - 32, 1 << 40), "state": (0, 0), "key": (8, 0x5a5a5a5a5a5a5a5a)}[field]
    write_over(daemon, "local0", at + place, value.to_bytes(4 if field == "state" else 8, "little"))
    if first == "decode":
        daemon.refused("decode", "m", "--layer", 1, "--input", reference.path, "--prefix", reference.prefix(1), "--output",
                       tmp_path / "none", name="CACHE_STALE", words=["local0", "layer 1"])
        why = "the duck has lost the slot (decode at"
    else:
        bad = daemon.ok("cache", "verify")["bad"]
        assert [(b["duck"], b["layer"]) for b in bad] == [("local0", 1)]
        why = "its description in the weight buffer is wrong" if field == "offset" else "the duck has lost the slot (cache verify at"
    assert daemon.ok("model", "list")["models"][0]["state"] == "degraded"
    again = load(daemon, checkpoint)
    assert again["cache"] == "partial" and why in again["reason"] and "(1 slot)" in again["reason"], again
    assert bits(daemon, reference, tmp_path, layer=1) == before
    assert daemon.ok("cache", "verify", "m", "--full")["bad"] == []


def poke(daemon, duck, slot_bytes):
    """Flips one bit in the middle of the weights of a duck's memfd: of its process, as any stray write would."""
    pid = next(d["pid"] for d in daemon.ok("duck", "list")["ducks"] if d["name"] == duck)
    for name in os.listdir(f"/proc/{pid}/fd"):
        if "fp9-" in os.readlink(f"/proc/{pid}/fd/{name}") and "memfd" in os.readlink(f"/proc/{pid}/fd/{name}"):
            with open(f"/proc/{pid}/fd/{name}", "r+b") as file:
                file.seek((1 << 20) + slot_bytes // 2)
                byte = file.read(1)[0]
                file.seek((1 << 20) + slot_bytes // 2)
                file.write(bytes([byte ^ 0x04]))
            return
    raise AssertionError("no memfd")


def test_verify_finds_a_flipped_bit(make_daemon, checkpoint, reference, tmp_path):
    daemon = make_daemon()
    load(daemon, checkpoint)
    before, all_slots = bits(daemon, reference, tmp_path), daemon.ok("cache", "list")["slots"]
    good = daemon.ok("cache", "verify")
    assert (good["checked"], good["bad"], good["unreached"]) == (12, [], [])
    full = daemon.ok("cache", "verify", "m", "--full")
    assert (full["checked"], full["bad"], full["compared"]) == (12, [], 12)
    # A checkpoint that is not there is no fault of the slots.
    os.rename(checkpoint, checkpoint + ".away")
    away = daemon.ok("cache", "verify", "m", "--full")
    os.rename(checkpoint + ".away", checkpoint)
    assert (away["checked"], away["bad"], away["compared"]) == (12, [], 0), away
    (one,) = away["uncompared"]
    assert one["model"] == "m" and "No such file" in one["reason"] and daemon.ok("model", "list")["models"][0]["state"] == "ready"
    first = [s for s in all_slots if s["duck"] == "local1"][0]  # the first slot in the buffer
    poke(daemon, "local1", first["bytes"])
    found = daemon.ok("cache", "verify")
    assert found["checked"] == 12 and len(found["bad"]) == 1
    bad = found["bad"][0]
    assert (bad["duck"], bad["model"], bad["layer"]) == ("local1", "m", 0)
    assert "slot checksum wrong" in bad["reason"]
    model = daemon.ok("model", "list")["models"][0]
    assert model["state"] == "degraded" and "layer 0" in model["error"]["message"]
    again = load(daemon, checkpoint)
    assert again["cache"] == "partial" and "checksum wrong" in again["reason"] and "(1 slot)" in again["reason"]
    assert daemon.ok("cache", "verify", "m", "--full")["bad"] == []
    assert bits(daemon, reference, tmp_path) == before


def test_verify_names_the_expert(make_daemon, checkpoint):
    daemon = make_daemon(ducks=1, memory="256M")
    load(daemon, checkpoint, tp=1)
    rows = sorted((s for s in daemon.ok("cache", "list")["slots"]), key=lambda s: s["layer"])
    dense, moe = rows[0], rows[1]
    pages = (dense["bytes"] + 8 + 4095) // 4096 * 4096
    poke(daemon, "local0", 2 * (pages + moe["bytes"] * 5 // 8 + 64))
    bad = daemon.ok("cache", "verify", dense["model_key"][:10])["bad"]
    assert [(b["layer"], b["expert"]) for b in bad] == [(1, "5")]
    assert "expert 5" in bad[0]["reason"]


def test_full_verify_sees_other_weights(make_daemon, checkpoint):
    daemon = make_daemon()
    load(daemon, checkpoint)
    flip(checkpoint, "model.layers.3.mlp.experts.6.down_proj.weight")
    assert daemon.ok("cache", "verify")["bad"] == []
    bad = daemon.ok("cache", "verify", "--full")["bad"]
    assert {(b["layer"], b["reason"].split(" (")[0]) for b in bad} == {(3, "not what the checkpoint gives now")}
    daemon.refused("cache", "verify", "nobody", name="NO_SUCH", words=["nobody"])


def test_side_by_side_capacity_and_keys(make_daemon, checkpoint, reference, tmp_path):
    daemon = make_daemon(memory="4M")
    first = load(daemon, checkpoint)
    flip(checkpoint, "model.layers.1.mlp.experts.0.gate_proj.weight")
    second = load(daemon, checkpoint)
    assert second["cache"] == "partial"
    daemon.refused("load", checkpoint, "--name", "m2", "--tp", 2, "--multiple-of", 64, name="NO_MEMORY",
                   words=["needs", "free of", "invalidate-cache --model could drop", "m (", first["model_key"][:12], "not in use"])
    assert daemon.ok("model", "list")["models"][0]["state"] == "ready"
    before = bits(daemon, reference, tmp_path)
    daemon.refused("invalidate-cache", "--model", "0123456789ab", name="NO_SUCH", words=["0123456789ab", "begins so"])
    daemon.refused("invalidate-cache", "--model", "e25b", name="NO_SUCH", words=["e25b", "give 6 or more digits"])
    assert daemon.ok("invalidate-cache", "--model", first["model_key"][:12])["freed_bytes"] > 0
    assert first["model_key"] not in {s["model_key"] for s in daemon.ok("cache", "list")["slots"]}
    assert bits(daemon, reference, tmp_path) == before


def test_invalidation_reaches_an_absent_duck_when_it_returns(make_daemon, checkpoint):
    daemon = make_daemon()
    first = load(daemon, checkpoint)
    pid = next(d["pid"] for d in daemon.ok("duck", "list")["ducks"] if d["name"] == "local1")
    os.kill(pid, signal.SIGKILL)
    daemon.wait_for("the loss", lambda: any(d["state"] != "up" for d in daemon.ok("duck", "list")["ducks"]))
    gone = daemon.ok("invalidate-cache", "--model", "m")
    if gone["pending"]:  # else it was back already
        assert gone["pending"] == ["local1"]
    daemon.wait_up()
    daemon.wait_for("its slots to go", lambda: not daemon.ok("cache", "list")["slots"])
    again = load(daemon, checkpoint)
    assert again["cache"] == "miss" and again["model_key"] == first["model_key"] and "invalidated by uid" in again["reason"]


def test_invalidation_while_steps_run(make_daemon, checkpoint, reference, tmp_path):
    """C13: what runs ends or fails by name, memory is freed, nothing answers from slots that are gone."""
    daemon = make_daemon()
    load(daemon, checkpoint)
    before, said = bits(daemon, reference, tmp_path), []
    bench = threading.Thread(target=lambda: said.append(daemon.ctl("bench", "m", "--tokens", 100000)))
    bench.start()
    daemon.wait_for("the bench's session", lambda: daemon.ok("session", "list")["sessions"])
    freed = daemon.ok("invalidate-cache", "--all")
    assert freed["freed_bytes"] > 0 and freed["pending"] == []
    bench.join(60)
    assert said and said[0].status == 1 and "invalidated" in said[0].error["message"]
    assert daemon.ok("cache", "list")["slots"] == []
    assert all(d["used_bytes"] == 0 for d in daemon.ok("duck", "list")["ducks"])
    daemon.refused("decode", "m", "--layer", 2, "--input", reference.path, "--prefix", reference.prefix(2), "--output", tmp_path / "no",
                   name="NOT_READY", words=["invalidated"])
    load(daemon, checkpoint)
    assert bits(daemon, reference, tmp_path) == before


def test_an_invalidated_model_in_words(make_daemon, checkpoint):
    """What its last load found is no more; and no sentence says twice whom it is about."""
    daemon = make_daemon()
    load(daemon, checkpoint)
    load(daemon, checkpoint)
    assert daemon.ok("model", "list")["models"][0]["cache"] == "hit"
    daemon.ok("invalidate-cache", "--model", "m")
    (model,) = daemon.ok("model", "list")["models"]
    assert (model["state"], model["cache"], model["reason"]) == ("unloaded", "", "")
    shown = subprocess.run([program(daemon.build, "fp9ctl"), "--socket", daemon.socket, "status"], stdin=subprocess.DEVNULL,
                           stdout=subprocess.PIPE, text=True, timeout=60).stdout
    assert "\nmodel m: its cache was invalidated" in shown and "m: model m" not in shown and "hit" not in shown.lower(), shown


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_an_invalidated_model_stays_unloaded(make_daemon, checkpoint, reference, tmp_path, how):
    """Whoever frees its memory does not want it filled again by a restart; a load ends that."""
    daemon = make_daemon()
    load(daemon, checkpoint)
    before = bits(daemon, reference, tmp_path)
    words = f"its cache was invalidated by uid {os.getuid()} at 20"
    for what in (["--model", "m"], ["--model", "m", "--duck", "local1"], ["--all"]):
        daemon.ok("invalidate-cache", *what)
        loads = len([j for j in daemon.ok("job", "list")["jobs"] if j["kind"] == "load"])
        for _ in range(2):
            (daemon.kill if how == "kill" else daemon.stop)()
            daemon.start()
            assert daemon.ok("status")["state"] == "ready"
            (model,) = daemon.ok("model", "list")["models"]
            assert model["state"] == "unloaded" and words in model["error"]["message"], model
            assert daemon.ok("status")["jobs"] == 0 and len([j for j in daemon.ok("job", "list")["jobs"] if j["kind"] == "load"]) == loads
            daemon.refused("decode", "m", "--layer", 2, "--input", reference.path, "--prefix", reference.prefix(2), "--output",
                           tmp_path / "no", name="NOT_READY", words=[words, "load it again"])
        load(daemon, checkpoint)
        assert bits(daemon, reference, tmp_path) == before
        (daemon.kill if how == "kill" else daemon.stop)()
        daemon.start()
        daemon.wait_for("the model", lambda: daemon.ok("model", "list")["models"][0]["state"] == "ready")


def test_buffers_that_end_with_fp9d(make_daemon, checkpoint):
    """Without a manager that keeps them, a restart of fp9d is why slots of local ducks are gone, and no reboot."""
    daemon = make_daemon()
    load(daemon, checkpoint)
    for _ in range(2):
        daemon.stop()  # a kill might come before the database has been told of the slots
        daemon.start()
        daemon.wait_for("the model", lambda: daemon.ok("model", "list")["models"][0]["state"] == "ready")
        (model,) = daemon.ok("model", "list")["models"]
        words = "fp9d was restarted and its local ducks' weight buffers ended with it"
        assert model["cache"] == "miss" and words in model["reason"], model
        assert f"local0: {words}: " in daemon.log() and "header holds" not in daemon.log(), daemon.log()
        assert "rebooted" not in model["reason"], model


def test_another_layout_is_named(make_daemon, checkpoint):
    """What was prepared by an fp9d of another slot layout is prepared anew, and the reason says so."""
    daemon = make_daemon()
    load(daemon, checkpoint)
    daemon.stop()
    with sqlite3.connect(os.path.join(daemon.state, "fp9d.db")) as db:
        (layout,) = db.execute("SELECT layout FROM model").fetchone()
        db.execute("UPDATE model SET layout = ?", (layout + 6,))
    db.close()
    daemon.start()
    daemon.wait_for("the model", lambda: daemon.ok("model", "list")["models"][0]["state"] == "ready")
    (model,) = daemon.ok("model", "list")["models"]
    assert model["cache"] == "miss" and f"layout {layout + 6} -> {layout}" in model["reason"], model


def test_the_history_of_loads_is_bounded(make_daemon, checkpoint):
    daemon = make_daemon()
    load(daemon, checkpoint)
    daemon.stop()
    path = os.path.join(daemon.state, "fp9d.db")
    with sqlite3.connect(path) as db:
        columns = [row[1] for row in db.execute("PRAGMA table_info(history)") if row[1] != "id"]
        names = ", ".join(columns)
        db.executemany(f"INSERT INTO history ({names}) SELECT {names} FROM history ORDER BY id LIMIT 1", [()] * 700)
    db.close()
    daemon.start()
    # A load before that would be the one by which it comes back.
    daemon.wait_for("the model", lambda: daemon.ok("model", "list")["models"][0]["state"] == "ready")
    load(daemon, checkpoint)
    shown = daemon.ok("cache", "list")["history"]
    assert len(shown) == 50 and shown[-1]["cache"] == "hit"
    daemon.stop()
    with sqlite3.connect(path) as db:
        (count,) = db.execute("SELECT count(*) FROM history").fetchone()
    db.close()
    assert count == 500
