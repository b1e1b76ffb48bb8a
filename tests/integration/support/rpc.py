"""The control socket from outside libfp9: a JSON-RPC client on a bare socket, so that the protocol is tested and not the library."""
import json
import mmap
import os
import socket


class RpcError(Exception):
    def __init__(self, error):
        super().__init__(f"{error.get('data', {}).get('name')}: {error.get('message')}")
        self.error = error
        self.name = error.get("data", {}).get("name")
        self.message = error.get("message", "")
        self.data = error.get("data", {})


class Rpc:
    def __init__(self, path, timeout=30):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self.socket.settimeout(timeout)
        self.socket.connect(path)
        self.pending = b""
        self.fds = []
        self.next_id = 1
        self.notifications = []

    def send_raw(self, data):
        self.socket.sendall(data)

    def read_message(self):
        """The next line, parsed; file descriptors that came are kept in self.fds. None when the daemon has closed."""
        while b"\n" not in self.pending:
            data, fds, _, _ = socket.recv_fds(self.socket, 1 << 16, 16)
            self.fds += fds
            if not data:
                return None
            self.pending += data
        line, self.pending = self.pending.split(b"\n", 1)
        return json.loads(line, parse_constant=lambda word: (_ for _ in ()).throw(ValueError(f"{word} is no JSON")))

    def send(self, method, params=None):
        number = self.next_id
        self.next_id += 1
        self.send_raw(json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params or {}}).encode() + b"\n")
        return number

    def answer(self, number):
        while True:
            message = self.read_message()
            if message is None:
                raise ConnectionError("fp9d closed the connection")
            if "id" not in message:
                self.notifications.append(message)
                continue
            assert message["id"] == number, message
            if "error" in message:
                raise RpcError(message["error"])
            return message["result"]

    def call(self, method, **params):
        return self.answer(self.send(method, params))

    def close(self):
        for fd in self.fds:
            os.close(fd)
        self.fds = []
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Session:
    """session.open with its arena mapped; tensors are placed by decode() and prefill()."""

    def __init__(self, rpc, model, max_tokens, **more):
        self.rpc = rpc
        before = len(rpc.fds)
        self.info = rpc.call("session.open", model=model, max_tokens=max_tokens, **more)
        assert len(rpc.fds) == before + 1, "no arena came with the answer"
        self.fd = rpc.fds[-1]
        self.arena = mmap.mmap(self.fd, self.info["arena_bytes"])
        self.output = more.get("output_dtype", "bf16").upper()

    def place(self, x, ids=None, weights=None):
        """Writes the inputs into the arena; gives the call's params."""
        at, params = 0, {"session": self.info["session"], "tokens": len(x)}
        for key, array in (("x", x), ("topk_ids", ids), ("topk_weights", weights)):
            if array is not None:
                raw = array.tobytes()
                self.arena[at:at + len(raw)] = raw
                params[key] = {"offset": at, **({"dtype": "BF16"} if key == "x" else {})}
                at += -(-len(raw) // 64) * 64
        params["y"] = {"offset": at, "dtype": self.output}
        self.y_at, self.y_bytes = at, len(x) * self.info["hidden_size"] * (4 if self.output == "F32" else 2)
        return params

    def run(self, method, layer, x, ids=None, weights=None):
        self.result = self.rpc.call(method, layer=layer, **self.place(x, ids, weights))
        return bytes(self.arena[self.y_at:self.y_at + self.y_bytes])

    def close(self):
        self.rpc.call("session.close", session=self.info["session"])
        self.arena.close()
