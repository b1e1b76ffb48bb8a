"""What a weight buffer knows beside its slots: keys that were revoked while a duck was away, and in which pieces its room lies."""
import glob
import os

import pytest
from support.daemon import Daemon
from support.model import MODEL, make_checkpoint
from support.service import DuckService, Proxy


@pytest.fixture
def fleet(build, tmp_path):
    """fleet(count, ...) -> (daemon, ducks); every link leads through duck.proxy."""
    made = []

    def make(count, **more):
        ducks = [DuckService(build, tmp_path, f"d{i}", **more).start() for i in range(count)]
        made.extend(ducks)
        for duck in ducks:
            duck.proxy = Proxy(duck.port)
        daemon = Daemon(build, tmp_path, ducks=0, remote=[(d.name, d.proxy.address) for d in ducks], fleet="heartbeat_s = 1")
        made.insert(0, daemon)
        return daemon.start(), ducks

    yield make
    for one in made:
        one.stop()
    for one in made[1:]:
        one.proxy.close()
        one.end()


def load(daemon, path, *more, name="m", tp=2):
    return daemon.ok("load", path, "--name", name, "--tp", tp, "--multiple-of", 32, *more)


def held(daemon, key, duck=None):
    return sorted((s["duck"], s["layer"]) for s in daemon.ok("cache", "list")["slots"]
                  if s["model_key"] == key and duck in (None, s["duck"]))


def states(daemon):
    return {d["name"]: d["state"] for d in daemon.ok("duck", "list")["ducks"]}


def away(daemon, duck):
    """Nobody can reach it; it lives."""
    duck.proxy.to = 1  # where nothing listens
    duck.proxy.cut(True)
    daemon.wait_for(f"{duck.name} to be lost", lambda: states(daemon)[duck.name] != "up")


def back(daemon, duck):
    duck.proxy.to = duck.port
    daemon.wait_for(f"{duck.name} to be back", lambda: states(daemon)[duck.name] == "up", 30)


def begin_anew(daemon, meanwhile=lambda: None):
    """fp9d is killed and started again; it has forgotten everything."""
    daemon.kill()
    for path in glob.glob(os.path.join(daemon.state, "*")):
        os.unlink(path)
    meanwhile()
    daemon.spawn()
    daemon.wait_for("the control socket", daemon.answers)


@pytest.mark.parametrize("first", ["absent", "witness"])
def test_lost_database_and_absent_duck(fleet, first):
    """A duck was away when its key was revoked, and fp9d's database is lost: a duck that was there remembers, whoever is back first."""
    daemon, (absent, witness) = fleet(2)
    key = load(daemon, MODEL)["model_key"]
    assert len(held(daemon, key)) == 8
    away(daemon, absent)
    gone = daemon.ok("invalidate-cache", "--model", "m")
    assert gone["pending"] == ["d0"] and gone["freed_bytes"] > 0
    early, late = (absent, witness) if first == "absent" else (witness, absent)

    def only_one():
        early.proxy.to, late.proxy.to = early.port, 1

    begin_anew(daemon, only_one)
    daemon.wait_for("one duck", lambda: states(daemon)[early.name] == "up", 30)
    if first == "absent":
        assert len(held(daemon, key, "d0")) == 4  # nobody is there who knows better
    back(daemon, late)
    daemon.wait_for("the slots to be dropped", lambda: held(daemon, key) == [] and set(states(daemon).values()) == {"up"}, 30)
    again = load(daemon, MODEL)
    assert again["cache"] == "miss" and again["model_key"] == key
    assert len(held(daemon, key)) == 8


def test_what_was_prepared_again_later_stays(fleet):
    """The witness of a revocation was away when the key was prepared again: what it remembers is older than these slots."""
    daemon, (one, witness) = fleet(2)
    key = load(daemon, MODEL, tp=1)["model_key"]
    holder = held(daemon, key)[0][0]
    if holder != one.name:
        one, witness = witness, one
    daemon.ok("invalidate-cache", "--model", "m")
    away(daemon, witness)
    assert load(daemon, MODEL, tp=1)["cache"] == "miss"
    begin_anew(daemon)
    back(daemon, one)
    back(daemon, witness)
    found = load(daemon, MODEL, tp=1)
    assert (found["cache"], found["bytes_sent"]) == ("hit", 0)
    assert held(daemon, key) == [(one.name, layer) for layer in range(4)]
    # and over another link, which has told it what the witness remembers, and its own end, after which it reads its own list again
    one.proxy.cut(True)
    daemon.wait_for("the other link", lambda: daemon.log().count(f"{one.name}: up") >= 2 and states(daemon)[one.name] == "up", 30)
    one.kill()
    one.start()
    back(daemon, one)
    assert load(daemon, MODEL, tp=1)["bytes_sent"] == 0
    assert "attached: 4 finished slots, 0 unfinished ones dropped" in one.log() and "revoked" not in one.log(), one.log()


def test_one_ducks_revocation_is_its_own(fleet):
    daemon, (one, other) = fleet(2)
    key = load(daemon, MODEL)["model_key"]
    away(daemon, one)
    assert daemon.ok("invalidate-cache", "--duck", one.name)["pending"] == [one.name]
    begin_anew(daemon)
    back(daemon, one)
    back(daemon, other)
    daemon.wait_for("its slots to be dropped", lambda: held(daemon, key, one.name) == [] and set(states(daemon).values()) == {"up"}, 30)
    assert len(held(daemon, key, other.name)) == 4
    assert load(daemon, MODEL)["cache"] == "partial"


def test_a_witness_while_a_duck_lists_its_slots(fleet):
    """What it remembers comes after the other was told all that was known, and before the other is up."""
    daemon, (one, other) = fleet(2)
    key = load(daemon, MODEL)["model_key"]
    away(daemon, one)
    assert daemon.ok("invalidate-cache", "--duck", one.name)["pending"] == [one.name]

    def hold():
        other.proxy.to = 1
        one.proxy.gate.clear()

    begin_anew(daemon, hold)
    one.proxy.to = one.port
    daemon.wait_for("its list to be on the way", one.proxy.waits.is_set, 30)
    back(daemon, other)
    assert states(daemon)[one.name] != "up"
    one.proxy.gate.set()
    daemon.wait_for("its slots to be dropped", lambda: held(daemon, key, one.name) == [] and set(states(daemon).values()) == {"up"}, 30)
    assert "remembers an invalidation of slots that it has" in daemon.log()
    assert len(held(daemon, key, other.name)) == 4


def test_room_in_pieces_is_known_before_a_byte_moves(build, fleet, tmp_path):
    """Small models side by side, every other one dropped: what is free in sum does not hold one large slot, and that is said before a byte
    moves; what fits in the pieces is loaded."""
    shape = dict(num_hidden_layers=1, hidden_size=256, num_experts=8, num_experts_per_tok=2, mlp_only_layers=[])
    small = [make_checkpoint(build, tmp_path / f"s{i}", seed=i + 1, moe_intermediate_size=384, **shape) for i in range(5)]
    large = make_checkpoint(build, tmp_path / "large", seed=9, moe_intermediate_size=1024, **shape)
    daemon, _ = fleet(1, memory="16M")
    size = 0
    for i, path in enumerate(small):
        load(daemon, path, name=f"s{i}", tp=1)
        size = size or daemon.ok("duck", "list")["ducks"][0]["used_bytes"]
    # and more behind them, so that no piece at the end is larger than theirs
    left, count = daemon.ok("duck", "list")["ducks"][0], 0
    while left["capacity_bytes"] - left["used_bytes"] > size + 4096 and count < 12:
        path = make_checkpoint(build, tmp_path / f"f{count}", seed=50 + count, moe_intermediate_size=384, **shape)
        load(daemon, path, name=f"f{count}", tp=1)
        count += 1
        left = daemon.ok("duck", "list")["ducks"][0]
    for i in (0, 2, 4):
        daemon.ok("unload", f"s{i}", "--drop-cache")
    duck = daemon.ok("duck", "list")["ducks"][0]
    free = duck["capacity_bytes"] - duck["used_bytes"]
    assert free > 3 * size
    error = daemon.refused("load", large, "--name", "large", "--tp", 1, name="NO_MEMORY", words=["in one piece", "pieces of at most", "s1"])
    assert error["largest"] < error["needs"] <= error["has"], error
    job = [j for j in daemon.ok("job", "list")["jobs"] if j["model"] == "large"][-1]
    assert job["state"] == "failed"
    assert "layer 0 of rank 0" in error["message"]
    assert load(daemon, small[0], name="again", tp=1)["cache"] == "miss"  # fits into a piece
    daemon.ok("unload", "again", "--drop-cache")
    daemon.ok("unload", "s1", "--drop-cache")  # which joins two pieces, and its own
    assert load(daemon, large, name="large", tp=1)["cache"] == "miss"
