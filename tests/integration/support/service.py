"""What systemd does for a service that keeps descriptors with it, in a few lines, so that restarts can be tried in milliseconds and without
root; a test under a real systemd stands beside every use (test_systemd.py). And a fp9-duck that is such a service."""
import array
import errno
import fcntl
import os
import random
import signal
import socket
import struct
import subprocess
import threading
import time

from .daemon import SLOW, program

FIRST_FD = 3


class Process:
    """A child started by posix_spawn, with the part of subprocess.Popen that tests use."""

    def __init__(self, pid):
        self.pid = pid
        self.returncode = None

    def poll(self):
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout=None):
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(0.001)
        return self.returncode

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)


class Manager:
    """One service: its notify socket and its store of descriptors, which lasts while the service is started again."""

    def __init__(self, folder, name):
        self.path = os.path.join(str(folder), name + ".notify")
        self.store = []  # (name, fd)
        self.ready = threading.Event()
        self.lock = threading.Lock()
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self.socket.bind(self.path)
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self):
        while True:
            try:
                data, ancillary, _, _ = self.socket.recvmsg(65536, socket.CMSG_SPACE(64 * 4))
            except OSError:
                return
            fds = array.array("i")
            for level, kind, content in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    fds.frombytes(content[:len(content) - len(content) % 4])
            if not data:
                return
            with self.lock:
                self.take(dict(line.split("=", 1) for line in data.decode().splitlines() if "=" in line), list(fds))

    def take(self, words, fds):
        if "FDSTOREREMOVE" in words:
            for name, fd in self.store:
                if name == words.get("FDNAME"):
                    os.close(fd)
            self.store = [(name, fd) for name, fd in self.store if name != words.get("FDNAME")]
        if "FDSTORE" in words:
            for fd in fds:
                os.set_inheritable(fd, False)
            self.store += [(words.get("FDNAME", "stored"), fd) for fd in fds]
            fds = []
        if words.get("READY") == "1":
            self.ready.set()
        for fd in fds:  # those of BARRIER=1: closing them is the answer
            os.close(fd)

    def spawn(self, args, log, env):
        self.ready.clear()
        with self.lock:
            store = list(self.store)
        env = dict(env, NOTIFY_SOCKET=self.path)
        for name in ("LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"):
            env.pop(name, None)
        actions = [(os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0), (os.POSIX_SPAWN_DUP2, log, 1), (os.POSIX_SPAWN_DUP2, log, 2)]
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 256) for _, fd in store]
        if store:
            env.update(LISTEN_FDS=str(len(store)), LISTEN_FDNAMES=":".join(name for name, _ in store))
            actions += [(os.POSIX_SPAWN_DUP2, fd, FIRST_FD + i) for i, fd in enumerate(high)]
        try:
            # LISTEN_PID must be the program's own, which only the child knows.
            pid = os.posix_spawn("/bin/sh", ["sh", "-c", '[ -z "$LISTEN_FDS" ] || export LISTEN_PID=$$; exec "$@"', "sh", *args], env,
                                 file_actions=actions, setsid=True, setsigdef=[signal.SIGPIPE])
        finally:
            for fd in high:
                os.close(fd)
        return Process(pid)

    def forget(self):
        """What a full stop or a reboot does to the store."""
        with self.lock:
            for _, fd in self.store:
                os.close(fd)
            self.store = []

    def close(self):
        self.forget()
        try:
            self.socket.shutdown(socket.SHUT_RDWR)  # wakes the thread
        except OSError as error:
            if error.errno != errno.ENOTCONN:
                raise
        self.socket.close()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class DuckService:
    """fp9-duck on a TCP port of the loopback, with its store."""

    def __init__(self, build, folder, name, memory="64M", conf="plaintext = yes", manager=True, more=()):
        self.build, self.name, self.more = build, name, more
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.manager = Manager(folder, name) if manager else None
        self.log_path = os.path.join(str(folder), name + ".log")
        self.conf_path = os.path.join(str(folder), name + ".conf")
        self.configure(memory, conf)
        self.env = {k: v for k, v in os.environ.items() if k not in ("NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_PID", "FP9_SOCKET")}
        self.process = None

    def configure(self, memory="64M", conf="plaintext = yes"):
        with open(self.conf_path, "w", encoding="utf-8") as file:
            file.write(f"[duck]\nlisten = {self.address}\nmemory = {memory}\nname = {self.name}\n{conf}\n")

    def spawn(self):
        args = [program(self.build, "fp9-duck"), "--config", self.conf_path, *self.more]
        with open(self.log_path, "ab") as log:
            if self.manager:
                self.process = self.manager.spawn(args, log.fileno(), self.env)
            else:
                self.process = subprocess.Popen(args, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.env,
                                                start_new_session=True)
        return self

    def start(self):
        self.spawn()
        deadline = time.monotonic() + 10 * SLOW
        while not (self.manager.ready.wait(0.01) if self.manager else self.answers()):
            assert self.process.poll() is None, f"fp9-duck ended with {self.process.returncode}:\n{self.log()}"
            assert time.monotonic() < deadline, f"fp9-duck is not ready:\n{self.log()}"
        return self

    def answers(self):
        try:
            socket.create_connection(("127.0.0.1", self.port), 0.1).close()
            return True
        except OSError:
            time.sleep(0.01)
            return False

    def log(self):
        with open(self.log_path, encoding="utf-8", errors="replace") as file:
            return file.read()

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        """SIGTERM; exit status 0 and no sanitizer report."""
        if self.process:
            self.process.send_signal(signal.SIGTERM)
            status = self.process.wait(10 * SLOW)
            self.process = None
            log = self.log()
            assert "Sanitizer" not in log and "runtime error:" not in log, f"sanitizer report:\n{log}"
            assert status == 0, f"fp9-duck's exit status is {status}:\n{log}"

    def end(self):
        """After a test: whatever state it is in."""
        try:
            self.stop()
        finally:
            if self.process and self.process.poll() is None:
                self.kill()
            if self.manager:
                self.manager.close()


class Proxy:
    """A TCP port that leads to a duck's, and can be cut. While `gate` is cleared a duck is heard once on each connection and not again."""

    def __init__(self, port):
        self.to = port
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        self.lock = threading.Lock()
        self.pairs = []
        self.gate = threading.Event()
        self.gate.set()
        self.waits = threading.Event()
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                one, _ = self.listener.accept()
            except OSError:
                return
            try:
                two = socket.create_connection(("127.0.0.1", self.to), 2)
                two.settimeout(None)
            except OSError:
                one.close()
                continue
            for end in (one, two):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self.lock:
                self.pairs.append((one, two))
            for source, target in ((one, two), (two, one)):
                threading.Thread(target=self.move, args=(source, target), daemon=True).start()

    def move(self, source, target):
        buffer = bytearray(1 << 18)
        from_duck, heard = any(source is two for _, two in self.pairs), False
        try:
            while True:
                count = source.recv_into(buffer)
                if not count:
                    break
                if from_duck and heard and not self.gate.is_set():
                    self.waits.set()
                    self.gate.wait()
                target.sendall(memoryview(buffer)[:count])
                heard = True
        except OSError:
            pass
        for end in (source, target):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def cut(self, reset):
        """Every connection ends now, by FIN or by RST."""
        with self.lock:
            pairs, self.pairs = self.pairs, []
        for pair in pairs:
            for end in pair:
                try:
                    if reset:
                        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    end.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
                end.close()

    def close(self):
        self.listener.close()
        self.gate.set()
        self.cut(False)


def seed_of(name):
    """A random seed, or FP9_SEED; printed, so that a failure can be tried again."""
    seed = int(os.environ.get("FP9_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"{name}: FP9_SEED={seed}")
    return seed
