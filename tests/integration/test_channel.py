"""Steps of local ducks through shared memory: used, nothing on the socket, the same bits, and ended when it is spoiled."""
import contextlib
import ctypes
import mmap
import os
import platform
import signal
import struct
import threading
import time

import numpy as np
import pytest

from support.daemon import SANITIZED, SLOW
from support.freeze import stop_process
from support.model import MODEL
from support.rpc import Rpc, RpcError, Session
from support.strace import Strace

LAYER = 2
WORDS, RING, LINE = 4096, 256 * 1024, 64  # proto/wire/channel.h
TO_DUCK_MODE = 256
SYS_FUTEX, FUTEX_WAKE = 202, 1


def load(daemon, tp=2):
    daemon.ok("load", MODEL, "--name", "shakespeare", "--tp", tp, "--multiple-of", 32)


@contextlib.contextmanager
def stepping(make_daemon, reference, ducks, **more):
    """A fleet and a session on it; step() sends the same token each time and returns its bits."""
    daemon = make_daemon(ducks=ducks, **more)
    load(daemon, ducks)
    x, ids, weights = reference.inputs(LAYER, 1)
    with Rpc(daemon.socket, 30 * SLOW) as rpc:
        session = Session(rpc, "shakespeare", 1)
        yield daemon, lambda: session.run("decode", LAYER, x, ids, weights)


def counts(daemon):
    ducks = daemon.ok("duck", "list")["ducks"]
    return sum(d["channel_steps"] for d in ducks), sum(d["socket_steps"] for d in ducks)


def everything(daemon, reference):
    """Bits of decodes and prefills of every kind of session."""
    x, ids, weights = reference.inputs(LAYER, 4)
    many = tuple(np.concatenate([part] * 64) for part in (x, ids, weights))
    found = []
    with Rpc(daemon.socket, 60 * SLOW) as rpc:
        for options in ({}, {"priority": "batch"}, {"one_shot": True}, {"partials": "f32"}):
            session = Session(rpc, "shakespeare", len(many[0]), **options)
            found.append([session.run("decode", LAYER, x[i:i + 1], ids[i:i + 1], weights[i:i + 1]) for i in range(4)])
            found.append([session.run("prefill", LAYER, *many), session.run("decode", LAYER, x, ids, weights)])
            session.close()
    return found


def test_both_ways_give_equal_bits(make_daemon, reference):
    by_memory, by_socket = make_daemon(ducks=2), make_daemon(ducks=2, fleet="local_link = socket")
    spinning = make_daemon(ducks=1, fleet="local_cores = 1\nspin_us = 500") if len(os.sched_getaffinity(0)) > 1 and \
        1 in os.sched_getaffinity(0) else None
    found = []
    for daemon in filter(None, (by_memory, by_socket, spinning)):
        load(daemon, 1 if daemon is spinning else 2)
        before = counts(daemon)
        found.append(everything(daemon, reference))
        through, beside = (after - b for after, b in zip(counts(daemon), before))
        uses = [d["channel"] for d in daemon.ok("duck", "list")["ducks"]]
        if daemon is by_socket:
            assert not any(uses) and through == 0 and beside > 0
        else:
            assert all(uses) and through >= 16, (through, beside)  # prefills are too long for it
    assert found[0] == found[1]
    if spinning:
        load(by_socket, 1)
        assert everything(by_socket, reference) == found[2]


def test_no_socket_traffic_for_a_step(make_daemon, reference, tmp_path):
    with stepping(make_daemon, reference, 1, fleet="heartbeat_s = 600") as (daemon, step):
        expected = step()
        duck = daemon.duck_pids()[0]
        before = counts(daemon)
        with Strace(duck, tmp_path, "-e", "trace=read,readv,recvfrom,recvmsg,write,writev,sendto,sendmsg") as trace:
            for _ in range(50):
                assert step() == expected
        through, beside = (after - b for after, b in zip(counts(daemon), before))
    assert through == 50 and beside == 0
    # A duck writes to the bell at most; nothing is read, and nothing goes over a socket.
    calls = [(name, args) for name, args, _ in trace.calls if "eventfd" not in args]
    assert not calls, calls[:5]


def channel_of(pid):
    """The duck's channel, mapped."""
    for fd in os.listdir(f"/proc/{pid}/fd"):
        if os.readlink(f"/proc/{pid}/fd/{fd}").startswith("/memfd:fp9-channel"):
            with open(f"/proc/{pid}/fd/{fd}", "r+b") as file:
                return mmap.mmap(file.fileno(), 0)
    raise AssertionError("the duck has no channel")


def wake(memory, offset):
    """FUTEX_WAKE on a word of the mapping."""
    word = ctypes.c_uint32.from_buffer(memory, offset)
    ctypes.CDLL(None, use_errno=True).syscall(SYS_FUTEX, ctypes.byref(word), FUTEX_WAKE, 1, None, None, 0)
    del word


def replaced(daemon, victim, count):
    daemon.wait_for("the duck to be replaced", lambda: victim not in daemon.duck_pids() and len(daemon.duck_pids()) == count)


def spoil_answers(memory):
    """As a duck that has gone mad would fill its ring: noise."""
    memory[WORDS + RING:WORDS + 2 * RING] = os.urandom(RING)


def spoil_headers(memory):
    """Each line with the stamp of a short frame that begins there, as long as the ring is in its first round, and noise behind it."""
    for at in range(0, RING, LINE):
        memory[WORDS + RING + at:WORDS + RING + at + LINE] = struct.pack("<Q", at + LINE) + os.urandom(LINE - 8)


@pytest.mark.parametrize("spoil", [spoil_answers, spoil_headers])
def test_a_spoiled_channel_ends_the_link(make_daemon, reference, spoil):
    """The duck is named with what is wrong, started again with a new channel, and gives the same bits."""
    with stepping(make_daemon, reference, 2) as (daemon, step):
        expected = step()
        victim = daemon.duck_pids()[0]
        memory = channel_of(victim)
        stop_process(victim)  # it would put its position right
        spoil(memory)
        with pytest.raises(RpcError) as caught:
            step()
        assert caught.value.name in ("DUCK_LOST", "NOT_READY"), str(caught.value)
        memory.close()
        replaced(daemon, victim, 2)
        assert "channel: " in daemon.log()
        deadline = time.monotonic() + 20 * SLOW
        while True:
            try:
                assert step() == expected
                break
            except RpcError as error:
                assert error.name in ("DUCK_LOST", "NOT_READY") and time.monotonic() < deadline, str(error)
                time.sleep(0.05)


@pytest.mark.parametrize("mode", [0, 2, 77])
def test_a_spoiled_mode_costs_a_second(make_daemon, reference, mode):
    """The duck's reader sleeps and its word does not say so any more: nobody wakes it, so it looks by itself."""
    with stepping(make_daemon, reference, 2) as (daemon, step):
        expected = step()
        memory = channel_of(daemon.duck_pids()[0])
        asleep = struct.pack("<I", 1)
        daemon.wait_for("the duck to sleep", lambda: memory[TO_DUCK_MODE:TO_DUCK_MODE + 4] == asleep)
        memory[TO_DUCK_MODE:TO_DUCK_MODE + 4] = struct.pack("<I", mode)
        for _ in range(3):
            assert step() == expected
        memory.close()
    assert len(daemon.duck_pids()) == 2


def test_a_duck_refuses_a_spoiled_channel(make_daemon, reference):
    """What the head writes is checked likewise: the duck says why and is started again."""
    if platform.machine() != "x86_64":
        pytest.skip("the number of futex() is another here")
    with stepping(make_daemon, reference, 1) as (daemon, step):
        step()
        victim = daemon.duck_pids()[0]
        memory = channel_of(victim)
        memory[WORDS:WORDS + RING] = os.urandom(RING)
        memory[TO_DUCK_MODE:TO_DUCK_MODE + 4] = bytes(4)
        wake(memory, TO_DUCK_MODE)
        memory.close()
        replaced(daemon, victim, 1)
    assert "its writer says that it has written" in daemon.log()


def test_killed_at_any_moment(make_daemon, reference):
    """kill -9 of ducks under a flood of steps from several clients: every step ends, with the right bits or by name."""
    daemon = make_daemon(ducks=2)
    load(daemon)
    x, ids, weights = reference.inputs(LAYER, 4)
    many = tuple(np.concatenate([part] * 32) for part in (x, ids, weights))
    with Rpc(daemon.socket, 30 * SLOW) as rpc:
        session = Session(rpc, "shakespeare", 128)
        expected = {"decode": session.run("decode", LAYER, x, ids, weights), "prefill": session.run("prefill", LAYER, *many)}
    stop, wrong, ended = threading.Event(), [], [0, 0]

    def client(kind, options):
        try:
            with Rpc(daemon.socket, 60 * SLOW) as rpc:
                mine = Session(rpc, "shakespeare", 128, **options)
                while not stop.is_set():
                    try:
                        told = mine.run(kind, LAYER, *((x, ids, weights) if kind == "decode" else many))
                        ended[0] += 1
                        if told != expected[kind]:
                            wrong.append(kind)
                    except RpcError as error:
                        ended[1] += 1
                        if error.name not in ("DUCK_LOST", "NOT_READY"):
                            wrong.append(str(error))
                        time.sleep(0.01)
        except Exception as error:  # told to the test below
            wrong.append(repr(error))

    kinds = [("decode", {}), ("decode", {}), ("prefill", {"priority": "batch"}), ("decode", {"priority": "batch"})]
    threads = [threading.Thread(target=client, args=kind) for kind in kinds]
    for thread in threads:
        thread.start()
    try:
        for i in range(3 if SANITIZED else 8):
            time.sleep(0.1 + 0.05 * i)
            os.kill(daemon.duck_pids()[i % 2], signal.SIGKILL)
            daemon.wait_for("two ducks", lambda: len(daemon.duck_pids()) == 2 and
                            all(d["state"] == "up" for d in daemon.ok("duck", "list")["ducks"]))
        at = ended[0]
        daemon.wait_for("steps after it", lambda: ended[0] > at + 20)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not wrong, wrong[:5]
    assert ended[1] > 0


def test_a_wrong_switch_is_refused(make_daemon):
    daemon = make_daemon(ducks=1, fleet="spin_us = often", start=False)
    daemon.spawn()
    assert daemon.process.wait(10 * SLOW) == 1
    daemon.process = None
    assert "spin_us" in daemon.log() and "often" in daemon.log()
