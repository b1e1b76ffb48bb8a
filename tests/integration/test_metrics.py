"""What fp9d counts: the method, fp9ctl's views of it, the text for Prometheus, the log line of a forward."""
import base64
import math
import os
import pty
import re
import signal
import subprocess
import time

import pytest

from support.daemon import SLOW, program
from support.model import HIDDEN, LAYERS, MODEL
from support.prometheus import Metrics
from support.rpc import Rpc, RpcError

WORDS = ("judge_wait_us", "duck_max_us", "judge_gap_us", "judge_ratio")
TOKENS = 5


@pytest.fixture
def served(make_daemon):
    """A daemon of its own, since its counts are looked at."""
    daemon = make_daemon(ducks=3, conf="log_level = debug\n")
    daemon.ok("load", MODEL, "--name", "shakespeare", "--tp", 3, "--multiple-of", 64)
    return daemon


def text_of(daemon):
    done = subprocess.run([program(daemon.build, "fp9ctl"), "--socket", daemon.socket, "metrics"], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=30 * SLOW, env=daemon.env)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return done.stdout


def shown(daemon, *args):
    return subprocess.run([program(daemon.build, "fp9ctl"), "--socket", daemon.socket, *args], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, text=True, timeout=30 * SLOW, env=daemon.env, check=True).stdout


def test_steps_are_counted_where_they_belong(served):
    before = served.ok("metrics")
    assert before["steps"] == {"straggler": None} and before["cache"] == {"hit": 0, "partial": 0, "miss": 1}, before
    assert before["jobs"]["done"] == 1 and before["bytes_read"] > 0 and before["bytes_sent"] > 0, before
    served.ok("cache", "verify")
    verified = served.ok("metrics")
    assert verified["jobs"]["done"] == 2 and verified["bytes_read"] == before["bytes_read"], verified
    assert 'fp9_jobs_ended_total{state="done"} 2' in text_of(served)
    served.ok("bench", "shakespeare", "--tokens", TOKENS)
    served.ok("bench", "shakespeare", "--prefill", 64, "--tokens", 2)
    after = served.ok("metrics")
    # One token more than was asked for warms up.
    assert after["steps"]["decode"]["steps"] == (TOKENS + 1) * LAYERS, after["steps"]["decode"]
    assert after["steps"]["decode"]["tokens"] == (TOKENS + 1) * LAYERS
    assert after["steps"]["prefill"]["steps"] == 3 * LAYERS and after["steps"]["prefill"]["tokens"] == 3 * LAYERS * 64
    for kind in ("decode", "prefill"):
        for word in WORDS:
            one = after["steps"][kind][word]
            assert one["count"] == after["steps"][kind]["steps"], (kind, word, one)
            # A quantile may be off by 1.6 %, or by 4 ns.
            assert 0 <= one["p50"] <= one["p90"] <= one["p99"] <= one["max"] * 1.001, (kind, word, one)
            assert one["sum"] >= one["max"] * 0.999, (kind, word, one)
        assert after["steps"][kind]["judge_ratio"]["p50"] >= 1
        wait, most, gap = (after["steps"][kind][word]["sum"] for word in WORDS[:3])
        assert abs(wait - most - gap) <= 1e-6 * wait, (wait, most, gap)
    assert after["steps"]["decode"]["gparam_per_s"] > 0 and after["steps"]["prefill"]["gflops"] > 0, after["steps"]
    assert after["steps"]["prefill"]["tiles"] > 0 and after["steps"]["prefill"]["avg_tile_batch"] > 1, after["steps"]
    layers = after["models"][0]["layers"]
    assert [layer["layer"] for layer in layers] == list(range(LAYERS)), layers
    for layer in layers:
        assert layer["decode"]["steps"] == TOKENS + 1 and layer["prefill"]["steps"] == 3, layer
    assert sum(layer["decode"]["judge_wait_us"]["sum"] for layer in layers) == pytest.approx(
        after["steps"]["decode"]["judge_wait_us"]["sum"], rel=1e-6)
    ducks = {duck["name"]: duck for duck in after["ducks"]}
    assert set(ducks) == {"local0", "local1", "local2"}
    for duck in ducks.values():
        assert duck["decode"]["duck_time_us"]["count"] == (TOKENS + 1) * LAYERS, duck
        assert duck["reconnects"] == 0 and duck["losses"] == 0, duck
    # In each step of three ranks one duck was last, and nobody was waited for longer than the step took.
    steps = (TOKENS + 1 + 3) * LAYERS
    assert sum(duck.get("last", {}).get("steps", 0) for duck in ducks.values()) == steps, ducks
    straggler = after["steps"]["straggler"]
    assert straggler["duck"] in ducks and 1 / 3 <= straggler["share"] <= 1 and straggler["late_us"] >= 0, straggler
    assert straggler["duck"] == max(ducks.values(), key=lambda duck: duck.get("last", {}).get("recent", 0))["name"], (straggler, ducks)
    assert after["memory"]["resident_bytes"] > 1 << 20 and after["memory"]["used_bytes"] > 0
    assert after["sessions"] == [] and after["open_sessions"] == 0, after["sessions"]


def test_sessions_and_status(served):
    with Rpc(served.socket, 30 * SLOW) as rpc:
        assert rpc.call("status")["timing"] is None
        session = rpc.call("session.open", model="shakespeare", max_tokens=4)["session"]
        x = {"b64": base64.b64encode(bytes(2 * HIDDEN)).decode()}
        for _ in range(7):
            rpc.call("decode", session=session, layer=0, tokens=1, x=x)
        told = rpc.call("status")["timing"]
        assert told["kind"] == "decode" and told["steps"] == 7, told
        assert 0 < told["judge_wait_us"]["p50"] <= told["judge_wait_us"]["p99"] and told["straggler"]["duck"].startswith("local"), told
        listed = rpc.call("session.list")["sessions"]
        assert [entry["timing"]["steps"] for entry in listed] == [7], listed
        metrics = rpc.call("metrics")
        assert metrics["sessions"][0]["session"] == session and metrics["sessions"][0]["decode"]["steps"] == 7, metrics["sessions"]
        assert metrics["sessions"][0]["straggler"]["share"] <= 1 and metrics["open_sessions"] == 1
        line = next(line for line in shown(served, "status").splitlines() if line.startswith("decode of late"))
        assert re.fullmatch(r"decode of late: steps 7, judge_wait [\d.]+ / [\d.]+ us, judge_gap [\d.]+ / [\d.]+ us \(p50 / p99\), "
                            r"judge_ratio [\d.]+, last mostly local\d \d+ % by [\d.]+ us", line), line
        assert re.search(r"local\d \d+ % by [\d.]+ us", shown(served, "session", "list")), shown(served, "session", "list")
        # A session that is closed is counted no more by itself, its steps are.
        rpc.call("session.close", session=session)
        metrics = rpc.call("metrics")
        assert metrics["sessions"] == [] and metrics["steps"]["decode"]["steps"] == 7, metrics


def test_what_goes_wrong_is_counted(served):
    with Rpc(served.socket, 30 * SLOW) as rpc:
        for layer in (5000, -1):
            with pytest.raises(RpcError):
                rpc.call("decode", session=1, layer=layer, tokens=1, x={"b64": ""})
        with pytest.raises(RpcError):
            rpc.call("session.open", model="nobody", max_tokens=1)
        errors = rpc.call("metrics")["errors"]
        assert errors["BAD_REQUEST"] == 2 and errors["NO_SUCH"] == 1 and errors["INTERNAL"] == 0, errors
    pid = served.duck_pids()[0]
    name = served.duck_name(pid)
    os.kill(pid, 9)
    served.wait_for("the duck's return", lambda: {d["name"]: d for d in served.ok("metrics")["ducks"]}[name]["reconnects"] == 1)
    metrics = served.ok("metrics")
    assert metrics["reconnects"] == 1 and {d["name"]: d["losses"] for d in metrics["ducks"]}[name] == 1, metrics["ducks"]
    assert metrics["duck_states"] == {"connecting": 0, "up": 3, "lost": 0}, metrics["duck_states"]


def test_prometheus_text(served):
    served.ok("bench", "shakespeare", "--tokens", TOKENS)
    served.refused("decode", "nobody", "--layer", 0, "--input", os.path.join(MODEL, "reference.safetensors"), "--prefix",
                   "layers.0.mlp.", "--output", os.path.join(served.folder, "out"), name="NO_SUCH")
    metrics, counted = Metrics(text_of(served)), served.ok("metrics")
    assert all(name.startswith("fp9_") for name in metrics.type), sorted(metrics.type)
    steps = (TOKENS + 1) * LAYERS
    assert metrics.get("fp9_steps_total", kind="decode") == steps and metrics.get("fp9_steps_total", kind="prefill") == 0
    assert metrics.get("fp9_errors_total", name="NO_SUCH") == 1
    assert metrics.get("fp9_loads_total", cache="miss") == 1 and metrics.get("fp9_sent_bytes_total") == counted["bytes_sent"]
    assert metrics.get("fp9_state", state="ready") == 1 and metrics.get("fp9_model_ready", model="shakespeare") == 1
    assert metrics.type["fp9_judge_wait_seconds"] == "summary"
    assert metrics.get("fp9_judge_wait_seconds_count", kind="decode") == steps
    assert metrics.get("fp9_judge_wait_seconds_sum", kind="decode") == pytest.approx(
        counted["steps"]["decode"]["judge_wait_us"]["sum"] / 1e6, rel=1e-6)
    assert metrics.get("fp9_judge_wait_seconds", kind="decode", quantile="0.5") == pytest.approx(
        counted["steps"]["decode"]["judge_wait_us"]["p50"] / 1e6, rel=1e-6)
    assert math.isnan(metrics.get("fp9_judge_wait_seconds", kind="prefill", quantile="0.5"))
    assert metrics.get("fp9_judge_ratio", kind="decode", quantile="0.5") >= 1
    for layer in range(LAYERS):
        assert metrics.get("fp9_layer_judge_gap_seconds_count", model="shakespeare", layer=str(layer), kind="decode") == TOKENS + 1
    ducks = {labels["duck"] for labels, value in metrics.of("fp9_duck_up") if value == 1}
    assert ducks == {"local0", "local1", "local2"}
    assert sum(value for _, value in metrics.of("fp9_duck_last_steps_total")) == steps
    assert metrics.get("fp9_duck_time_seconds_count", duck="local1", kind="decode") == steps
    assert metrics.get("fp9_series_left_out") == 0


def test_names_are_escaped(served):
    name = 'say"quack"\\twice'
    served.ok("load", MODEL, "--name", name, "--tp", 3, "--multiple-of", 64)
    served.ok("bench", name, "--tokens", 1)
    metrics = Metrics(text_of(served))
    assert metrics.get("fp9_model_ready", model=name) == 1
    assert metrics.get("fp9_layer_judge_wait_seconds_count", model=name, layer="1", kind="decode") == 2


def test_a_line_for_each_forward(served):
    def lines():
        return re.findall(r"forward: session \d+, shakespeare: (.*)", served.log())

    assert not lines()
    served.ok("bench", "shakespeare", "--tokens", TOKENS)
    told = lines()
    assert len(told) == TOKENS + 1, told
    for line in told:
        match = re.fullmatch(rf"decode of 1 token through layers 0 to {LAYERS - 1}, steps {LAYERS}: judge_wait ([\d.]+) us, "
                             r"duck_max ([\d.]+) us, judge_gap ([\d.]+) us, judge_ratio [\d.]+, [\d.]+ Gparam/s, "
                             r"waited for local\d alone for up to [\d.]+ us", line)
        assert match, line
        wait, most, gap = (float(part) for part in match.groups())
        assert wait > most > 0 and abs(wait - most - gap) < 0.2, line
    # Layers that do not rise: a forward each, the last one told when its session ends.
    served.run("decode", "shakespeare", 1, os.path.join(MODEL, "reference.safetensors"), os.path.join(served.folder, "out"),
               "layers.1.mlp.")
    told = lines()[TOKENS + 1:]
    assert len(told) == 64 and all("layers 1 to 1, steps 1" in line for line in told), (len(told), told[:2])


def test_top(served):
    """Once where nobody looks, again and again on a terminal; the rates are those of what ran between two looks."""
    bench = subprocess.Popen([program(served.build, "fp9ctl"), "--socket", served.socket, "bench", "shakespeare", "--tokens", "1000000"],
                             stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=served.env)
    try:
        served.wait_for("the first steps", lambda: "decode" in served.ok("metrics")["steps"])
        begun, before = time.monotonic(), served.ok("metrics")["steps"]["decode"]["tokens"]
        said = served.ok("top")
        rate = (served.ok("metrics")["steps"]["decode"]["tokens"] - before) / (time.monotonic() - begun)
        assert said["state"] == "ready" and [duck["name"] for duck in said["ducks"]] == ["local0", "local1", "local2"], said
        # Looked at for another second than ours; the machine may have been busy in one of them.
        assert rate / 3 < said["layer_tokens_per_second"] < rate * 3, (rate, said)
        for duck in said["ducks"]:
            assert duck["steps_per_second"] == pytest.approx(said["layer_tokens_per_second"], rel=0.05), said
            assert 0 < duck["busy"] < 1 and 0 <= duck["last_share"] <= 1, duck
            assert 0 < duck["duck_time_us"]["p50"] <= duck["duck_time_us"]["p99"], duck
            assert {key for key, value in duck.items() if isinstance(value, str)} == {"name", "state"}, duck
        (session,) = said["sessions"]
        assert session["model"] == "shakespeare" and session["steps_per_second"] > 0, said
        timing = session["timing"]
        assert timing["judge_ratio"] >= 1 and timing["straggler"]["late_us"] >= 0 and 0 < timing["straggler"]["share"] <= 1, timing
        for word in ("judge_wait_us", "judge_gap_us"):
            assert 0 < timing[word]["p50"] <= timing[word]["p99"], timing
        (listed,) = served.ok("session", "list")["sessions"]
        assert set(session) == set(listed) | {"steps_per_second"}, session
        text = shown(served, "top", "--interval", "1")
        assert text.startswith("fp9d is ready, ") and "DUCK" in text and "SESSION" in text and "\033" not in text, text
        pair = r"\d+\.\d+ / \d+\.\d+"
        assert re.search(rf"^local0 +up +\d.* {pair} .*%", text, re.M), text
        assert re.search(rf"^ *\d+ +shakespeare .* {pair} +{pair} .* local\d \d+ % by \d", text, re.M), text
        ours, theirs = pty.openpty()
        top = subprocess.Popen([program(served.build, "fp9ctl"), "--socket", served.socket, "top"], stdin=subprocess.DEVNULL, stdout=theirs,
                               env=served.env)
        os.close(theirs)
        seen, deadline = b"", time.monotonic() + 20 * SLOW
        while seen.count(b"\033[H\033[J") < 2:
            assert time.monotonic() < deadline and top.poll() is None, seen
            seen += os.read(ours, 4096)
        top.send_signal(signal.SIGINT)
        assert top.wait(10 * SLOW) == -signal.SIGINT
        os.close(ours)
        assert b"local1" in seen and b"shakespeare" in seen, seen
    finally:
        bench.kill()
        bench.wait()


def test_top_of_an_idle_fleet(make_daemon):
    """What is not defined is null."""
    daemon = make_daemon(ducks=1)
    said = daemon.ok("top")
    (duck,) = said["ducks"]
    assert duck["duck_time_us"] == {"p50": None, "p99": None} and duck["last_share"] is None, duck
    assert duck["steps_per_second"] == 0 and duck["busy"] == 0 and said["layer_tokens_per_second"] == 0 and said["sessions"] == [], said
    assert " - / - " in shown(daemon, "top")
