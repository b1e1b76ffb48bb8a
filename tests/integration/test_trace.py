"""When what happened to a step: the trace of an answer, and fp9ctl's timeline of a token."""
import base64
import json
import subprocess
import time

import pytest

from support.daemon import SLOW, Daemon, program
from support.model import HIDDEN, LAYERS, MODEL
from support.rpc import Rpc

DUCKS = 3
PARTS = ["receive and parse", "check and copy", "encode", "send", "wait", "sum", "answer"]


@pytest.fixture(scope="module")
def served(build, tmp_path_factory):
    one = Daemon(build, tmp_path_factory.mktemp("daemon"), ducks=DUCKS)
    one.start()
    one.ok("load", MODEL, "--name", "shakespeare", "--tp", DUCKS, "--multiple-of", 64)
    yield one
    one.stop()


def in_order(*times):
    assert list(times) == sorted(times), times


def check_chunk(chunk, trace):
    in_order(0, trace["parsed_ns"], chunk["begun_ns"], chunk["encoded_ns"], *(rank["sent_ns"] for rank in chunk["ranks"]))
    assert [rank["rank"] for rank in chunk["ranks"]] == list(range(DUCKS)), chunk
    assert {rank["duck"] for rank in chunk["ranks"]} == {f"local{i}" for i in range(DUCKS)}, chunk
    for rank in chunk["ranks"]:
        in_order(rank["sent_ns"], rank["answered_ns"], chunk["summed_ns"], trace["answered_ns"])
        assert 0 < rank["duck_time_ns"] <= rank["answered_ns"] - chunk["begun_ns"], chunk


def test_trace_of_a_step(served):
    with Rpc(served.socket, 30 * SLOW) as rpc:
        session = rpc.call("session.open", model="shakespeare", max_tokens=4)["session"]
        step = {"session": session, "layer": 0, "tokens": 1, "x": {"b64": base64.b64encode(b"\x80\x3f" * HIDDEN).decode()}}
        assert "trace" not in rpc.call("decode", **step) and "trace" not in rpc.call("decode", trace=False, **step)
        before = time.monotonic_ns()
        answer = rpc.call("decode", trace=True, **step)
        after = time.monotonic_ns()
        trace = answer["trace"]
        assert before < trace["received_ns"] and trace["received_ns"] + trace["answered_ns"] < after, (before, trace, after)
        assert len(trace["chunks"]) == 1 and trace["chunks_left_out"] == 0, trace
        chunk = trace["chunks"][0]
        assert chunk["first_token"] == 0 and chunk["tokens"] == 1
        check_chunk(chunk, trace)
        # The words of the answer are of the same stamps.
        assert answer["judge_wait_us"] * 1e3 == pytest.approx(max(r["answered_ns"] for r in chunk["ranks"]) - chunk["begun_ns"], abs=1)
        assert answer["duck_max_us"] * 1e3 == pytest.approx(max(r["duck_time_ns"] for r in chunk["ranks"]), abs=1)
        last = sorted(chunk["ranks"], key=lambda r: r["answered_ns"])
        assert answer["straggler_us"] * 1e3 == pytest.approx(last[-1]["answered_ns"] - last[-2]["answered_ns"], abs=1)
        assert {d["id"]: d["name"] for d in rpc.call("duck.list")["ducks"]}[answer["straggler"]] == last[-1]["duck"], (answer, last)
        # Of no tokens: nothing was sent.
        none = rpc.call("decode", trace=True, session=session, layer=0, tokens=0, x={"b64": ""})
        assert none["trace"]["chunks"] == [] and "straggler" not in none, none


def test_trace_of_chunks(served):
    """More tokens than ducks take at once."""
    tokens, at_once = 1200, 512
    with Rpc(served.socket, 60 * SLOW) as rpc, rpc.session_open("shakespeare", max_tokens=tokens) as session:
        step = session.prefill(0, bytes(2 * HIDDEN * tokens), trace=True)
        chunks = step.timing["trace"]["chunks"]
        assert [(c["first_token"], c["tokens"]) for c in chunks] == [(0, 512), (512, 512), (1024, tokens - 2 * at_once)], chunks
        for one, following in zip(chunks, chunks[1:]):
            in_order(one["summed_ns"], following["begun_ns"])
        for chunk in chunks:
            check_chunk(chunk, step.timing["trace"])


def test_a_trace_that_ends_badly(served):
    """It is freed (the sanitized run looks), and the session goes on."""
    with Rpc(served.socket, 30 * SLOW) as rpc:
        session = rpc.call("session.open", model="shakespeare", max_tokens=1)["session"]
        x = {"b64": base64.b64encode(bytes(2 * HIDDEN)).decode()}
        ids, weights = base64.b64encode(b"\x7f" * 8).decode(), base64.b64encode(bytes(8)).decode()
        with pytest.raises(Exception, match="experts are 0 to"):
            rpc.call("decode", trace=True, session=session, layer=1, tokens=1, x=x, topk_ids={"b64": ids}, topk_weights={"b64": weights})
        assert rpc.call("decode", trace=True, session=session, layer=0, tokens=1, x=x)["trace"]["chunks"]


def check_picture(picture):
    events = picture["traceEvents"]
    rows = {}
    for event in events:
        assert {"name", "ph", "pid", "tid"} <= set(event), event
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name") and event["args"]["name"], event
            continue
        assert event["ph"] == "X" and event["ts"] >= 0 and event["dur"] >= 0, event
        rows.setdefault((event["pid"], event["tid"]), []).append(event)
    named = {(e["pid"], e["tid"]) for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    assert named == set(rows), (named, set(rows))
    # No two spans of a row overlap (a nanosecond of rounding aside).
    for spans in rows.values():
        spans.sort(key=lambda e: e["ts"])
        for one, following in zip(spans, spans[1:]):
            assert one["ts"] + one["dur"] <= following["ts"] + 0.0021, (one, following)
    return rows, {e["args"]["name"]: e["pid"] for e in events if e["ph"] == "M" and e["name"] == "process_name"}


def test_timeline(served, tmp_path):
    path = tmp_path / "trace.json"
    said = served.ok("trace", "shakespeare", "--output", path)
    assert said["layers"] == LAYERS and said["output"] == str(path) and said["job_time_us"] > 0, said
    picture = json.loads(path.read_text())
    assert len(picture["traceEvents"]) == said["events"] and list(tmp_path.iterdir()) == [path]
    rows, processes = check_picture(picture)
    assert len(processes) == 2 + DUCKS, processes
    calls = rows[(processes["fp9ctl"], 1)]
    assert [c["name"] for c in calls] == [f"layer {i}" for i in range(LAYERS)], calls
    assert sum(c["dur"] for c in calls) == pytest.approx(said["job_time_us"], abs=0.01)
    steps = rows[(processes["fp9d"], 1)]
    assert [s["name"] for s in steps] == PARTS * LAYERS, [s["name"] for s in steps]
    for call in calls:
        mine = [s for s in steps if s["args"]["layer"] == call["args"]["layer"]]
        assert call["ts"] <= mine[0]["ts"] and mine[-1]["ts"] + mine[-1]["dur"] <= call["ts"] + call["dur"], (call, mine)
        wait = next(s for s in mine if s["name"] == "wait")
        for name, pid in processes.items():
            if not name.startswith("duck "):
                continue
            kernel = [k for k in rows[(pid, 1)] if k["args"]["layer"] == call["args"]["layer"]]
            assert len(kernel) == 1 and kernel[0]["dur"] > 0, kernel
            encoded = next(s for s in mine if s["name"] == "encode")
            assert encoded["ts"] + encoded["dur"] <= kernel[0]["ts"] + 0.0021, (encoded, kernel)
            assert kernel[0]["ts"] + kernel[0]["dur"] <= wait["ts"] + wait["dur"] + 0.0021, (kernel, wait)
    # To standard output it is the picture itself, with --json or without.
    for flag in ([], ["--json"]):
        done = subprocess.run([program(served.build, "fp9ctl"), "--socket", served.socket, *flag, "trace", "shakespeare", "--seed", "7"],
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, timeout=60 * SLOW, env=served.env, check=True)
        check_picture(json.loads(done.stdout))
    served.refused("trace", "nobody", name="NO_SUCH", words=["nobody"])
    served.refused("trace", "shakespeare", "--output", "/no/such/folder/trace.json", name="BAD_REQUEST", words=["/no/such/folder"])


def test_bench_names_the_straggler(served):
    said = served.ok("bench", "shakespeare", "--tokens", 10)["straggler"]
    assert said["duck"] in {f"local{i}" for i in range(DUCKS)} and 1 / DUCKS <= said["share"] <= 1 and said["late_us"] >= 0, said
    served.ok("load", MODEL, "--name", "alone", "--tp", 1)
    assert served.ok("bench", "alone", "--tokens", 2)["straggler"] is None
