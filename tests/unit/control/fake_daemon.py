"""A small fp9d for fp9ctl's tests: answers what a test tells it to, with a real arena for sessions."""
import fcntl
import json
import os
import socket
import threading

import numpy as np

HIDDEN, TOP_K_MAX = 64, 8


def align(size):
    return (size + 63) // 64 * 64


class FakeDaemon:
    """answers: method -> result, or a function of the params; a result with "error" is an error object."""

    def __init__(self, path, answers):
        self.path, self.answers, self.requests, self.lock = path, answers, [], threading.Lock()
        self.stragglers = {}  # by layer: (duck, us)
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        self.listener.listen(64)
        threading.Thread(target=self.accept, daemon=True).start()

    def close(self):
        self.listener.shutdown(socket.SHUT_RDWR)  # a close() alone would leave accept() waiting, and serving one more
        self.listener.close()

    def accept(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def seen(self, method):
        with self.lock:
            return [params for name, params in self.requests if name == method]

    def serve(self, connection):
        arenas = {}
        with connection, connection.makefile("rb") as lines:
            for line in lines:
                request = json.loads(line)
                method, params = request["method"], request["params"]
                with self.lock:
                    self.requests.append((method, params))
                result, fds = self.answer(connection, method, params, arenas)
                member = "error" if isinstance(result, dict) and "error" in result else "result"
                reply = {"jsonrpc": "2.0", "id": request["id"], member: result.get("error", result)}
                try:
                    socket.send_fds(connection, [json.dumps(reply).encode() + b"\n"], fds)
                except OSError:
                    return
                for fd in fds:
                    os.close(fd)

    def answer(self, connection, method, params, arenas):
        if method in self.answers:
            given = self.answers[method]
            if callable(given):
                given = given(params, lambda method, params: connection.sendall(
                    json.dumps({"jsonrpc": "2.0", "method": method, "params": params}).encode() + b"\n"))
            return given, []
        if method == "session.open":
            tokens = params["max_tokens"]
            size = align(tokens * HIDDEN * 2) + 2 * align(tokens * TOP_K_MAX * 4) + align(tokens * HIDDEN * 4)
            fd = os.memfd_create("arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(fd, size)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
            number = len(arenas) + 1
            arenas[number] = np.memmap(os.fdopen(os.dup(fd), "r+b"), np.uint8, "r+", shape=(size,)), params
            return {"session": number, "arena_bytes": size, "hidden_size": HIDDEN, "top_k_max": TOP_K_MAX}, [fd]
        if method in ("decode", "prefill"):
            return self.step(params, *arenas[params["session"]]), []
        if method == "session.close":
            return {}, []
        return {"error": {"code": -32601, "message": f"no method {method}", "data": {"name": "BAD_REQUEST"}}}, []

    def step(self, params, arena, session):
        """y = x + the sum of id x weight, so that every tensor counts."""
        tokens = params["tokens"]
        assert tokens <= session["max_tokens"]
        at = params["x"]["offset"]
        bits = arena[at:at + tokens * HIDDEN * 2].view(np.uint16).astype(np.uint32) << 16
        y = bits.view(np.float32).reshape(tokens, HIDDEN).copy()
        active = 0
        if "topk_ids" in params:
            k = params["top_k"]
            ids = arena[params["topk_ids"]["offset"]:][:tokens * k * 4].view(np.int32).reshape(tokens, k)
            weights = arena[params["topk_weights"]["offset"]:][:tokens * k * 4].view(np.float32).reshape(tokens, k)
            y += (ids * weights).sum(axis=1, dtype=np.float32)[:, None]
            active = int((ids >= 0).sum())
        f32 = params["y"]["dtype"] == "F32"
        out = y if f32 else (y.view(np.uint32) >> 16).astype(np.uint16)
        arena[params["y"]["offset"]:][:out.nbytes] = np.ascontiguousarray(out).view(np.uint8).ravel()
        duck = 20.0 if active or "topk_ids" not in params else 0.0
        return {"judge_wait_us": 30.0, "duck_max_us": duck, "judge_gap_us": 30.0 - duck, "judge_ratio": 30.0 / duck if duck else None,
                "params": 1000 * tokens, "weight_bytes": 1125 * tokens, "tiles": 2 * tokens, "avg_tile_batch": 1.0,
                **dict(zip(("straggler", "straggler_us"), self.stragglers.get(params["layer"], ()))),
                **({"one_shot_us": {"spawn": 5.0, "map": 1.0, "team": 2.0, "run": duck, "exit": 3.0}} if session.get("one_shot") else {}),
                "mode": (0 if "topk_ids" not in params else 4) if tokens <= 4 else 6 if "topk_ids" in params else 5}
