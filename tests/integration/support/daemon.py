"""One real fp9d on a private socket and state directory, and fp9ctl beside it."""
import glob
import json
import os
import signal
import socket
import subprocess
import time

SANITIZED = os.environ.get("FP9_SANITIZED") == "1"
SLOW = 6 if SANITIZED else 1  # sanitized programs get this much more time


def program(build, name):
    for folder in ("daemon/head", "daemon/duck", "ctl", "tests/tools", "tests/bench", "bin"):
        path = os.path.join(build, folder, name)
        if os.path.exists(path):
            return path
    raise FileNotFoundError(f"{name} was not built in {build}")


class Ctl:
    """What one fp9ctl --json said."""

    def __init__(self, done):
        self.status = done.returncode
        self.stdout, self.stderr = done.stdout, done.stderr
        try:
            self.json = json.loads(done.stdout) if done.stdout.strip() else None
        except ValueError as error:
            raise AssertionError(f"fp9ctl --json printed no JSON ({error}): {done.stdout!r}; stderr {done.stderr!r}") from error

    @property
    def error(self):
        return (self.json or {}).get("error") or {}


class Daemon:
    def __init__(self, build, folder, ducks=4, conf="", fleet="", env=None, memory="128M", remote=(), manager=None):
        """remote: (name, address) of ducks that are services; manager: whoever starts fp9d and keeps its descriptors."""
        self.build, self.folder = build, str(folder)
        self.manager = manager
        self.wrap = []  # words before fp9d's, as in strace
        self.socket = os.path.join(self.folder, "control.sock")
        self.state = os.path.join(self.folder, "state")
        self.log_path = os.path.join(self.folder, "fp9d.log")
        self.conf_path = os.path.join(self.folder, "fp9d.conf")
        self.local_ducks = ducks
        self.ducks = ducks + len(remote)
        self.env = dict(os.environ, **(env or {}))
        for name in ("NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_PID", "FP9_SOCKET"):
            self.env.pop(name, None)
        # Sanitizers write into files of their own, so that no report is lost with a process's standard error.
        self.reports = os.path.join(self.folder, "sanitizer")
        for name in ("ASAN_OPTIONS", "UBSAN_OPTIONS"):
            if SANITIZED:
                self.env[name] = self.env.get(name, "") + f":log_path={self.reports}"
        os.makedirs(self.state, exist_ok=True)
        with open(self.conf_path, "w", encoding="utf-8") as file:
            file.write(f"[daemon]\nsocket = {self.socket}\nstate_dir = {self.state}\n{conf}\n"
                       f"[fleet]\nlocal_ducks = {ducks}\nlocal_memory = {memory}\n{fleet}\n")
            for name, address in remote:
                file.write(f'[duck "{name}"]\naddress = {address}\nplaintext = yes\n')
        self.process = None

    # ---- life

    def spawn(self, *more, **popen):
        log = open(self.log_path, "ab")
        args = [*self.wrap, program(self.build, "fp9d"), "--config", self.conf_path, *more]
        try:
            if self.manager:
                self.process = self.manager.spawn(args, log.fileno(), self.env)
                return self
            self.process = subprocess.Popen(args, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.env,
                                            start_new_session=True, **popen)
        finally:
            log.close()
        return self

    def start(self, *more):
        self.spawn(*more)
        self.wait_up()
        return self

    def log(self):
        with open(self.log_path, encoding="utf-8", errors="replace") as file:
            return file.read()

    def wait_for(self, what, condition, seconds=20):
        deadline = time.monotonic() + seconds * SLOW
        while True:
            value = condition()
            if value:
                return value
            assert self.process.poll() is None, f"fp9d ended with {self.process.returncode} while waiting for {what}:\n{self.log()}"
            assert time.monotonic() < deadline, f"waited {seconds * SLOW} s for {what}; fp9d's log:\n{self.log()}"
            time.sleep(0.02)

    def answers(self):
        try:
            with socket.socket(socket.AF_UNIX) as s:
                s.connect(self.socket)
            return True
        except OSError:
            return False

    def wait_up(self, count=None):
        """Until the socket is served and `count` ducks (all) are up."""
        self.wait_for("the control socket", self.answers)
        wanted = self.ducks if count is None else count
        self.wait_for(f"{wanted} ducks", lambda: sum(d["state"] == "up" for d in self.ctl("duck", "list").json["ducks"]) >= wanted)

    def stop(self, check=True):
        """SIGTERM; exit status 0, nothing left behind, no sanitizer report."""
        if self.process is None:
            return
        group = self.process.pid
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait((20 + self.local_ducks) * SLOW)  # a busy kernel takes half a second to end a duck
        except subprocess.TimeoutExpired:
            os.killpg(group, signal.SIGKILL)
            self.process.wait()
            status = "none: it had to be killed"
        self.process = None
        left = self.group_members(group)
        deadline = time.monotonic() + 3 * SLOW
        while left and time.monotonic() < deadline:
            time.sleep(0.02)
            left = self.group_members(group)
        for pid, _ in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        if check:
            self.check_reports()
            assert status == 0, f"fp9d's exit status is {status}:\n{self.log()}"
            assert not left, f"processes left behind by fp9d: {left}"

    def kill(self):
        """kill -9 of fp9d alone; its ducks see the link close."""
        group = self.process.pid
        self.process.kill()
        self.process.wait()
        self.process = None
        return group

    def check_reports(self):
        reports = [open(p, encoding="utf-8", errors="replace").read() for p in glob.glob(self.reports + "*")]
        assert not reports, "sanitizer reports:\n" + "\n".join(reports)
        log = self.log()
        for sign in ("AddressSanitizer", "LeakSanitizer", "runtime error:"):
            assert sign not in log, f"sanitizer report in the log:\n{log}"

    # ---- processes

    @staticmethod
    def group_members(group):
        """(pid, name) of the live processes of a process group or session."""
        found = []
        for stat in glob.glob("/proc/[0-9]*/stat"):
            try:
                with open(stat, encoding="utf-8", errors="replace") as file:
                    text = file.read()
            except OSError:
                continue
            name = text[text.index("(") + 1:text.rindex(")")]
            rest = text[text.rindex(")") + 2:].split()
            if group in (int(rest[2]), int(rest[3])) and rest[0] not in "ZX":
                found.append((int(text.split()[0]), name))
        return found

    def duck_pids(self):
        """fp9d's own ducks (a one-shot judge is a child of a duck)."""
        return sorted(pid for pid, name in self.group_members(self.process.pid)
                      if name.startswith("fp9-duck") and self.parent(pid) == self.process.pid)

    @staticmethod
    def parent(pid):
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                text = file.read()
            return int(text[text.rindex(")") + 2:].split()[1])
        except OSError:
            return None

    def duck_name(self, pid):
        """The name that fp9d gave to a local duck."""
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read().decode().split("\0")
        return words[words.index("--name") + 1]

    # ---- fp9ctl

    def ctl(self, *args, timeout=120, cwd=None):
        done = subprocess.run([program(self.build, "fp9ctl"), "--socket", self.socket, "--json", *map(str, args)], stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=timeout * SLOW, env=self.env, cwd=cwd)
        return Ctl(done)

    def ok(self, *args, **more):
        done = self.ctl(*args, **more)
        assert done.status == 0, (f"fp9ctl {' '.join(map(str, args))}: exit status {done.status}: {done.stderr}\n{done.stdout}\n"
                                  f"fp9d's log:\n{self.log()[-4000:]}")
        return done.json

    def refused(self, *args, name, words=(), **more):
        """fp9ctl exits 1, with that error name, the same sentence on stderr, and every word in it."""
        done = self.ctl(*args, **more)
        assert done.status == 1, f"fp9ctl {' '.join(map(str, args))}: exit status {done.status}, expected 1: {done.stdout} {done.stderr}"
        assert done.error.get("name") == name, done.json
        message = done.error.get("message", "")
        assert message and message in done.stderr, (message, done.stderr)
        for word in words:
            assert word in message, f"the sentence does not say {word!r}: {message}"
        return done.error

    def run(self, kind, model, layer, source, target, prefix="", *more):
        names = ["--prefix", prefix] if prefix else []
        return self.ok(kind, model, "--layer", layer, "--input", source, *names, "--output", target, *more)
