"""[daemon] metrics_listen: what Prometheus gets, and what peers that mean no good do not."""
import http.client
import os
import socket
import time

import pytest

from support.daemon import SLOW
from support.model import LAYERS, MODEL
from support.prometheus import Metrics
from support.rpc import Rpc

PATIENCE = 5  # METRICS_HTTP_PATIENCE
PLACES = 16  # METRICS_HTTP_CLIENTS


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@pytest.fixture
def served(make_daemon):
    port = free_port()
    daemon = make_daemon(ducks=2, conf=f"metrics_listen = 127.0.0.1:{port}\n")
    daemon.port = port
    return daemon


def ask(daemon, method="GET", path="/metrics", timeout=10):
    """(status, headers, body)"""
    conn = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=timeout * SLOW)
    try:
        conn.request(method, path)
        answer = conn.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        conn.close()


def connect(daemon, data=b""):
    one = socket.create_connection(("127.0.0.1", daemon.port), timeout=10 * SLOW)
    one.sendall(data)
    return one


def descriptors(daemon):
    return len(os.listdir(f"/proc/{daemon.process.pid}/fd"))


def test_scrape(served):
    served.ok("load", MODEL, "--name", "shakespeare", "--tp", 2, "--multiple-of", 64)
    served.ok("bench", "shakespeare", "--tokens", 3)
    status, headers, body = ask(served)
    assert status == 200 and headers["Content-Type"].startswith("text/plain; version=0.0.4"), (status, headers)
    assert int(headers["Content-Length"]) == len(body) and headers["Connection"] == "close"
    metrics = Metrics(body.decode())
    assert metrics.get("fp9_steps_total", kind="decode") == 4 * LAYERS
    assert metrics.get("fp9_layer_judge_wait_seconds_count", model="shakespeare", layer="1", kind="decode") == 4
    status, headers, body = ask(served, "HEAD")
    assert status == 200 and body == b"", (status, body)
    assert ask(served, path="/")[0] == 404 and ask(served, path="/metrics?a=b")[0] == 200
    status, headers, _ = ask(served, "POST")
    assert status == 405 and headers["Allow"] == "GET, HEAD"
    # The text is written once a second at most, and anew after that.
    served.ok("bench", "shakespeare", "--tokens", 1)
    time.sleep(1.1)
    assert Metrics(ask(served)[2].decode()).get("fp9_steps_total", kind="decode") == 6 * LAYERS


@pytest.mark.parametrize("data,status", [(b"\x16\x03\x01\x00", b"400"), (b"GET /metrics HTTP/1.1\r\nX: " + b"a" * 9000, b"431"),
                                         (b"GET /metrics HTTP/3\r\n\r\n", b"505"), (b"\r\n\r\n", b"400")])
def test_what_is_no_request(served, data, status):
    with connect(served, data) as one:
        answer = b""
        while part := one.recv(4096):
            answer += part
    assert answer.startswith(b"HTTP/1.1 " + status), answer
    assert ask(served)[0] == 200


def test_peers_that_hold_on(served):
    """Half requests, requests whose answer nobody reads, and silence take every place: fp9d serves its clients as ever, the next scrape
    waits until their time is over, and nothing is left of them."""
    ask(served)
    before = descriptors(served)
    begun = time.monotonic()
    held = [connect(served, data) for data in (b"", b"GET /metr", b"GET /metrics HTTP/1.1\r\n\r\n") * PLACES]
    with Rpc(served.socket, 30 * SLOW) as rpc:
        slowest = 0.0
        while time.monotonic() - begun < 2:
            asked = time.monotonic()
            rpc.call("status")
            slowest = max(slowest, time.monotonic() - asked)
            held[1].send(b"i")  # a byte now and then does not win it more time
            time.sleep(0.05)
    assert slowest < 0.1 * SLOW, slowest
    assert descriptors(served) <= before + PLACES + 1, (descriptors(served), before)  # and the client's
    # 48 peers in places for 16, each for five seconds at most.
    assert ask(served, timeout=4 * PATIENCE)[0] == 200
    assert time.monotonic() - begun < (3 * PATIENCE + 3) * SLOW
    for one in held:
        one.close()
    served.wait_for("the descriptors", lambda: descriptors(served) <= before)


def test_no_place_to_listen(make_daemon):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        daemon = make_daemon(start=False, ducks=0, conf=f"metrics_listen = 127.0.0.1:{port}\n").spawn()
        assert daemon.process.wait(20 * SLOW) == 1
        assert f"[daemon] metrics_listen: 127.0.0.1:{port}: Address already in use" in daemon.log(), daemon.log()
    daemon.process = None
