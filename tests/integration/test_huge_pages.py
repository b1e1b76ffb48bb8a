"""Huge pages of real ducks: weights lie in them, over kills and restarts too, and all of that memory goes back."""
import ctypes
import mmap
import os

import pytest

from support.model import make_checkpoint, random_input
from support.service import DuckService
from support.smaps import mapped_weights

HUGE = 2 << 20
COLLAPSE = 25  # MADV_COLLAPSE


def kernel_gives_them():
    """Asked as fp9-duck asks: for a block whose address and place in the file are multiples of 2 MiB."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    fd = os.memfd_create("probe")
    os.write(fd, bytes(HUGE))
    with mmap.mmap(-1, 2 * HUGE) as room:  # MAP_FIXED into it; it goes back with it
        view = ctypes.c_char.from_buffer(room)
        at = -(-ctypes.addressof(view) // HUGE) * HUGE
        assert libc.mmap(at, HUGE, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | 0x10, fd, 0) == at
        answer = libc.madvise(at, HUGE, COLLAPSE)
        del view
    os.close(fd)
    return answer == 0


needs_them = pytest.mark.skipif(not kernel_gives_them(), reason="this kernel gives shared memory no huge pages")


@pytest.fixture(scope="module")
def checkpoint(build, tmp_path_factory):
    """Two MoE layers of 14 MB at tp 1."""
    return make_checkpoint(build, tmp_path_factory.mktemp("huge"), num_hidden_layers=2, hidden_size=512, moe_intermediate_size=256,
                           num_experts=32, num_experts_per_tok=4, mlp_only_layers=[])


def weights_of(pid):
    """Bytes of the buffer that are mapped, those by huge pages, those of its file that take memory."""
    taken = {os.stat(f"/proc/{pid}/fd/{fd}").st_blocks * 512 for fd in os.listdir(f"/proc/{pid}/fd")
             if "fp9-weights" in os.readlink(f"/proc/{pid}/fd/{fd}")}
    assert len(taken) == 1
    return *mapped_weights(pid), taken.pop()


def decoded(daemon, source, folder):
    daemon.run("decode", "m", 1, source, folder / "out")
    return (folder / "out").read_bytes()


@needs_them
def test_local(make_daemon, checkpoint, tmp_path):
    daemon = make_daemon(ducks=1, memory="64M")
    source = random_input(str(tmp_path / "in"), 1, 512, 32, 4)
    daemon.ok("load", checkpoint, "--name", "m", "--tp", 1)
    first = decoded(daemon, source, tmp_path)
    pid, = daemon.duck_pids()
    mapped, huge, taken = weights_of(pid)
    assert taken > 24 << 20
    assert huge >= HUGE, f"{huge} of {taken} bytes"  # most, unless this is a virtual machine whose host is slow to give memory
    os.kill(pid, 9)
    daemon.wait_for("another process", lambda: daemon.duck_pids() and daemon.duck_pids() != [pid])
    daemon.wait_up(1)
    assert daemon.ok("load", checkpoint, "--name", "m", "--tp", 1)["cache"] == "hit"
    assert decoded(daemon, source, tmp_path) == first
    after = weights_of(daemon.duck_pids()[0])
    assert after[2] == taken and (after[1] > 0.8 * after[0] > 0 or huge < 0.8 * taken), after
    daemon.ok("unload", "m", "--drop-cache")
    daemon.wait_for("the memory to go back", lambda: weights_of(daemon.duck_pids()[0])[2] <= 1 << 20)


@needs_them
@pytest.mark.parametrize("setting", ["yes", "no"])
def test_setting(build, make_daemon, checkpoint, tmp_path, setting):
    service = DuckService(build, tmp_path, "far", conf=f"plaintext = yes\nhuge_pages = {setting}")
    service.start()
    try:
        daemon = make_daemon(ducks=0, remote=[("far", service.address)])
        daemon.ok("load", checkpoint, "--name", "m", "--tp", 1)
        decoded(daemon, random_input(str(tmp_path / "in"), 1, 512, 32, 4), tmp_path)
        _, huge, taken = weights_of(service.process.pid)
        assert (huge > 0.8 * taken) if setting == "yes" else huge == 0, f"{huge} of {taken} bytes"
    finally:
        service.end()
