"""The control socket through the Python module fp9, in the words of these tests; and Raw, for what the module never sends."""
import json
import socket

import fp9  # conftest.py says where

RpcError = fp9.Error


class Rpc(fp9.Connection):
    """A connection that keeps the notifications."""

    def __init__(self, path, timeout=30):
        with fp9.connect(path) as one:
            super().__init__(one.socket.dup(), timeout)
        self.notifications = []
        self.on_notification = lambda method, params: self.notifications.append({"method": method, "params": params})

    def send(self, method, params=None, fds=()):
        return self.request_fds(method, fds, **(params or {}))

    def answer(self, number):
        return self.wait(number)


class Session(fp9.Session):
    def place(self, x, ids=None, weights=None):
        """Writes the inputs into the arena; gives the call's params."""
        return self.put(x, ids, weights)

    def run(self, method, layer, x, ids=None, weights=None):
        """The output's bytes; fp9d's own answer is in self.result."""
        step = self.start(method, layer, x, ids, weights).wait()
        self.result = step.timing
        return bytes(step.y)


class Raw:
    """Bytes as the test wants them, and lines as they come."""

    def __init__(self, path, timeout=30):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self.socket.settimeout(timeout)
        self.socket.connect(path)
        self.pending = b""

    def send_raw(self, data):
        self.socket.sendall(data)

    def read_message(self):
        """The next line, parsed. None when the daemon has closed."""
        while b"\n" not in self.pending:
            data = self.socket.recv(1 << 16)
            if not data:
                return None
            self.pending += data
        line, self.pending = self.pending.split(b"\n", 1)
        return json.loads(line)

    def close(self):
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
