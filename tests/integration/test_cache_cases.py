"""CASES of caches and of loading that no other test has: swapped and doubled ducks, quick restarts, many models, slow links and disks."""
import queue
import threading
import time

import pytest
from support.daemon import SANITIZED, SLOW, Daemon
from support.model import MODEL, make_checkpoint, output
from support.service import DuckService, Proxy
from support.strace import CALLS, Seen, Strace, weights_of


@pytest.fixture
def ducks(build, tmp_path):
    made = [DuckService(build, tmp_path, f"d{i}").start() for i in range(2)]
    yield made
    for duck in made:
        duck.end()


def load(daemon, path=MODEL, *more, name="m", tp=2):
    return daemon.ok("load", path, "--name", name, "--tp", tp, "--multiple-of", 32, *more)


def bits(daemon, reference, folder, layer=2):
    daemon.run("decode", "m", layer, reference.path, folder / "out", reference.prefix(layer))
    return output(folder / "out")[1]


def states(daemon):
    return {d["name"]: d for d in daemon.ok("duck", "list")["ducks"]}


def configure(daemon, addresses):
    with open(daemon.conf_path, encoding="utf-8") as file:
        text = file.read().split('[duck "')[0]
    with open(daemon.conf_path, "w", encoding="utf-8") as file:
        file.write(text + "".join(f'[duck "{name}"]\naddress = {address}\nplaintext = yes\n' for name, address in addresses))


def test_c09_addresses_swapped(ducks, build, tmp_path, reference):
    """Each of two names leads to the other's duck now: the ranks are where the ducks' headers say, not where the names were."""
    daemon = Daemon(build, tmp_path, ducks=0, remote=[(d.name, d.address) for d in ducks]).start()
    first = load(daemon)
    true = bits(daemon, reference, tmp_path)
    held = {s["duck"]: s["rank"] for s in daemon.ok("cache", "list")["slots"]}
    daemon.stop()
    configure(daemon, [("d0", ducks[1].address), ("d1", ducks[0].address)])
    daemon.start()
    again = load(daemon)
    assert (again["model_key"], again["bytes_sent"]) == (first["model_key"], 0)
    assert {s["duck"]: s["rank"] for s in daemon.ok("cache", "list")["slots"]} == {"d0": held["d1"], "d1": held["d0"]}
    assert bits(daemon, reference, tmp_path) == true
    daemon.stop()


def test_c09_two_names_for_one_duck(ducks, build, tmp_path, reference):
    """A duck that stands twice in the configuration serves one of the names; the other is refused, and nothing is loaded twice over it."""
    daemon = Daemon(build, tmp_path, ducks=0, remote=[("one", ducks[0].address), ("two", ducks[0].address)])
    assert daemon.spawn().process.wait(20 * SLOW) == 1
    assert 'is that of duck "one" already' in daemon.log()
    configure(daemon, [("one", ducks[0].address), ("two", ducks[0].address.replace("127.0.0.1", "127.0.0.2"))])  # spelled otherwise
    with open(ducks[0].conf_path, encoding="utf-8") as file:
        text = file.read()
    with open(ducks[0].conf_path, "w", encoding="utf-8") as file:
        file.write(text.replace("127.0.0.1", "0.0.0.0"))
    ducks[0].kill()
    ducks[0].start()
    daemon.spawn()

    def told():
        found = states(daemon)
        return sorted(d["state"] == "up" for d in found.values()) == [False, True] and \
            any("busy with fp9d" in d.get("reason", "") for d in found.values())
    daemon.wait_for("the socket", daemon.answers)
    daemon.wait_for("one of the names to be refused", told)
    daemon.refused("load", MODEL, "--name", "m", "--tp", 2, name="NOT_READY", words=["1 of 2"])
    load(daemon, tp=1)
    assert len(bits(daemon, reference, tmp_path)) > 0
    daemon.stop()


def test_c06_restarted_between_heartbeats(ducks, build, tmp_path, reference):
    """A duck that lost its memory and is back at once, without any heartbeat missed: noticed before its slots are used."""
    daemon = Daemon(build, tmp_path, ducks=0, remote=[(d.name, d.address) for d in ducks], fleet="heartbeat_s = 30").start()
    load(daemon)
    true = bits(daemon, reference, tmp_path)
    boot_id = states(daemon)["d0"]["boot_id"]
    ducks[0].kill()
    ducks[0].manager.forget()
    ducks[0].start()
    deadline = time.monotonic() + 30 * SLOW
    while True:
        done = daemon.ctl("decode", "m", "--layer", 2, "--input", reference.path, "--prefix", reference.prefix(2), "--output",
                          tmp_path / "now")
        if done.status == 0:
            break
        assert done.error["name"] in ("DUCK_LOST", "NOT_READY"), done.json
        assert time.monotonic() < deadline, daemon.log()
        time.sleep(0.05)
    assert output(tmp_path / "now")[1] == true
    assert states(daemon)["d0"]["boot_id"] != boot_id
    daemon.stop()


def test_c10_many_models_in_turn(make_daemon, build, tmp_path):
    """Ten models one after the other: the buffer stays within its size, what does not fit is refused, invalidation frees all of it."""
    shape = dict(num_hidden_layers=1, hidden_size=256, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=384, mlp_only_layers=[])
    daemon = make_daemon(ducks=1, memory="12M")
    refused = 0
    for i in range(10):
        path = make_checkpoint(build, tmp_path / f"c{i}", seed=i, **shape)
        done = daemon.ctl("load", path, "--name", f"c{i}", "--tp", 1)
        refused += done.status == 1 and done.error["name"] == "NO_MEMORY"
        assert done.status == 0 or refused, done.json
        (duck,) = states(daemon).values()
        assert 0 < duck["used_bytes"] <= duck["capacity_bytes"]
        if done.status == 0:
            daemon.ok("unload", f"c{i}")  # which keeps its slots
    assert refused
    used = duck["used_bytes"]
    assert daemon.ok("invalidate-cache", "--all")["freed_bytes"] >= used
    (duck,) = states(daemon).values()
    assert duck["used_bytes"] == 0


def test_c13_unknown_key(make_daemon):
    daemon = make_daemon(ducks=1)
    for what in ("nothing", "0123456789ab"):
        daemon.refused("invalidate-cache", "--model", what, name="NO_SUCH", words=[what])
    daemon.refused("invalidate-cache", "--duck", "d99", name="NO_SUCH", words=["d99"])


@pytest.mark.skipif(SANITIZED, reason="the sanitizer's own threads cannot be followed quickly")
def test_g03_cold_load_reads_in_large_pieces(make_daemon, build, tmp_path):
    """Every byte of weights is read once, in pieces of 256 KiB but for the ends of matrices, and no file is mapped."""
    path = make_checkpoint(build, tmp_path, num_hidden_layers=2, hidden_size=1024, moe_intermediate_size=768, num_experts=8,
                           mlp_only_layers=[])
    daemon = make_daemon(ducks=2)
    ranges = weights_of(path)
    total = sum(end - first for pairs in ranges.values() for first, end in pairs)
    with Strace(daemon.process.pid, tmp_path, "-e", "trace=" + CALLS) as trace:
        assert load(daemon, path)["cache"] == "miss"
    seen = Seen(trace.calls, path)
    assert not seen.unknown and total <= seen.weights < 1.05 * total, vars(seen)
    reads = [result for name, arguments, result in trace.calls
             if name in ("read", "pread64") and any(f"<{shard}>" in arguments for shard in ranges) and result > 64 * 1024]
    assert sum(reads) > 0.9 * total and sum(reads) / len(reads) >= 192 * 1024, (len(reads), sum(reads), total)


class Slow(Proxy):
    """Every byte takes `delay` seconds longer, however many are under way."""
    delay = 0.03

    def move(self, source, target):
        line = queue.Queue()

        def deliver():
            while (item := line.get())[1]:
                time.sleep(max(0, item[0] + self.delay - time.monotonic()))
                try:
                    target.sendall(item[1])
                except OSError:
                    break
            for end in (source, target):
                try:
                    end.shutdown(2)
                except OSError:
                    pass
        threading.Thread(target=deliver, daemon=True).start()
        data = b"x"
        while data:
            try:
                data = source.recv(1 << 18)
            except OSError:
                data = b""
            line.put((time.monotonic(), data))


def test_g07_a_long_way_to_the_ducks(ducks, build, tmp_path):
    """60 ms there and back: a cold load takes some round trips and not one a tensor."""
    proxies = [Slow(duck.port) for duck in ducks]
    daemon = Daemon(build, tmp_path, ducks=0, remote=[(d.name, p.address) for d, p in zip(ducks, proxies)]).start()
    tensors = sum(len(pairs) for pairs in weights_of(MODEL).values())
    begin = time.monotonic()
    assert load(daemon)["cache"] == "miss"
    seconds = time.monotonic() - begin
    trips = seconds / (2 * Slow.delay)
    assert trips < tensors / 2 * SLOW, f"{seconds:.2f} s are {trips:.0f} round trips for {tensors} tensors"
    daemon.stop()
    for proxy in proxies:
        proxy.close()
