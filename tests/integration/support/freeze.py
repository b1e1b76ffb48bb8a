"""Stops a process, or one thread of it while the others go on (ptrace): a duck that answers pings and never a step."""
import contextlib
import ctypes
import os
import signal
import time

PTRACE_DETACH, PTRACE_SEIZE, PTRACE_INTERRUPT = 17, 0x4206, 0x4207
WALL = 0x40000000

libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
libc.ptrace.restype = ctypes.c_long


def ptrace(request, thread):
    if libc.ptrace(request, thread, None, None) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def stop_process(pid, seconds=10):
    """Returns when none of its threads runs any more: SIGSTOP by itself lets those on other CPUs go on for a moment, a step's length."""
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + seconds
    while True:
        states = set()
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/stat", encoding="utf-8", errors="replace") as file:
                states.add(file.read().rpartition(")")[2].split()[0])
        if states <= set("TtZX"):
            return
        assert time.monotonic() < deadline, f"threads of {pid} are {states}"
        time.sleep(0.0005)


@contextlib.contextmanager
def stopped(*pids):
    """with stopped(pid): ... Steps in flight stay there meanwhile; keep it shorter than heartbeats would notice."""
    try:
        for pid in pids:
            stop_process(pid)
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


class Frozen:
    """with Frozen(thread): ... May only be used by one thread of this process."""

    def __init__(self, thread):
        self.thread = thread

    def __enter__(self):
        ptrace(PTRACE_SEIZE, self.thread)
        ptrace(PTRACE_INTERRUPT, self.thread)
        os.waitpid(self.thread, WALL)
        return self

    def __exit__(self, *_):
        ptrace(PTRACE_DETACH, self.thread)


def busiest_thread(pid, work):
    """The thread of `pid`, not its first, that used most CPU time while `work` ran: the one with the kernels."""
    def times():
        found = {}
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/schedstat", encoding="ascii") as file:
                found[int(thread)] = int(file.read().split()[0])
        return found

    before = times()
    work()
    time.sleep(0.01)
    after = times()
    return max((t for t in after if t != pid), key=lambda t: after[t] - before.get(t, 0))
