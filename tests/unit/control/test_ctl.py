"""fp9ctl, the real program, without a daemon and with one that says what the test wants."""
import json
import math
import os
import socket
import subprocess
import sys

import numpy as np
import pytest

sys.path.insert(0, os.path.dirname(__file__))
from fake_daemon import HIDDEN, FakeDaemon

FP9CTL = os.environ["FP9CTL"]
DTYPES = {"BF16": np.uint16, "F32": np.float32, "I32": np.int32}


def run(*args, cwd=None, **env):
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("FP9_", "NO_COLOR"))}
    return subprocess.run([FP9CTL, *map(str, args)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          timeout=60, cwd=cwd, env={**kept, **env})


def write_tensors(path, **tensors):
    table, data = {}, b""
    for name, (dtype, array) in tensors.items():
        raw = np.ascontiguousarray(array, DTYPES[dtype]).tobytes()
        table[name] = {"dtype": dtype, "shape": list(np.shape(array)), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    header = json.dumps(table).encode()
    with open(path, "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header + data)


def read_tensors(path):
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        data = file.read()
    return {name: (entry["dtype"], np.frombuffer(data[slice(*entry["data_offsets"])], DTYPES[entry["dtype"]]).reshape(entry["shape"]))
            for name, entry in header.items() if name != "__metadata__"}


def bf16(array):
    return (np.ascontiguousarray(array, np.float32).view(np.uint32) >> 16).astype(np.uint16)


@pytest.fixture
def fake(tmp_path):
    started = []

    def start(**answers):
        daemon = FakeDaemon(str(tmp_path / "sock"), {name.replace("__", "."): given for name, given in answers.items()})
        started.append(daemon)
        return daemon

    yield start
    for daemon in started:
        daemon.close()


def ctl(daemon, *args, status=0, **more):
    done = run("--socket", daemon.path, "--json", *args, **more)
    assert done.returncode == status, (done.stdout, done.stderr)
    return json.loads(done.stdout)


WRONG = [["load", "a", "--multiple-of", "7"], ["load", "a", "--multiple-of", "24"],
         [], ["nonsense"], ["model"], ["duck", "lose"], ["status", "more"], ["status", "--nonsense"], ["status", "--tp", "1"], ["load"],
         ["load", "a", "b"], ["load", ""], ["load", "a", "--tp"], ["load", "a", "--tp", "0"], ["load", "a", "--tp", "1025"],
         ["load", "a", "--tp", "1.5"], ["load", "a", "--tp", "-1"], ["load", "a", "--tp", "4294967297"], ["load", "a", "--force=1"],
         ["load", "a", "--name="], ["load", "a", "--mtpp"], ["plan", "a", "--memory", "1X"], ["plan", "a", "--memory", "9999999999T"],
         ["job", "wait"], ["job", "wait", "x"], ["job", "wait", "0"], ["invalidate-cache"], ["duck", "ad", "a"], ["decode", "m"],
         ["decode", "m", "--layer", "1", "--input", "i"], ["decode", "m", "--layer", "-1", "--input", "i", "--output", "o"],
         ["decode", "m", "--layer", "1", "--input", "i", "--output", "o", "--partials", "f16"], ["bench"], ["bench", "m", "--tokens", "0"],
         ["bench", "m", "--rings"], ["bench", "m", "--ring", "--json-path"], ["invalidate-cache", "--all", "--duck", "d"],
         ["invalidate-cache", "--model", "m", "--all"], ["prepare", "m", "--layer", "2", "--tp", "4"], ["prepare", "m", "--path", "/d"],
         ["prepare", "m", "--multiple-of", "64"], ["prepare", "m", "--strategy", "tp"], ["completion", "zsh"], ["--socket"], ["--json"]]


@pytest.mark.parametrize("args", WRONG, ids=" ".join)
def test_wrong_usage(args):
    done = run(*args, FP9_SOCKET="/nonexistent/socket")
    assert (done.returncode, done.stdout if "--json" not in args else "") == (2, ""), done.stderr
    assert done.stderr.startswith("fp9ctl: ")
    told = run("--json", *args, FP9_SOCKET="/nonexistent/socket") if "--socket" not in args else None
    if told:
        error = json.loads(told.stdout)["error"]
        assert told.returncode == 2 and error["name"] == "BAD_REQUEST" and error["message"] in told.stderr


def test_no_daemon(tmp_path):
    stale = tmp_path / "stale"
    with socket.socket(socket.AF_UNIX) as gone:
        gone.bind(str(stale))
        gone.listen()
    for path in ("/nonexistent/socket", stale):
        for args in (["status"], ["duck", "list"], ["load", "."], ["job", "wait", "3"], ["bench", "m"]):
            done = run("--json", *args, FP9_SOCKET=str(path))
            error = json.loads(done.stdout)["error"]
            assert done.returncode == 3 and str(path) in error["message"] and error["message"] in done.stderr, done.stderr
    assert run("--socket", "x" * 200, "status").returncode == 1


def test_help_and_completion():
    done = run("--help")
    assert done.returncode == 0 and not done.stderr
    for word in ("status", "duck list", "model show", "invalidate-cache", "--socket", "--json"):
        assert word in done.stdout
    assert "--multiple-of" in run("load", "--help").stdout
    assert run("decode", "--help").returncode == 0
    for group, words in (("cache", ("list", "verify")), ("job", ("list", "show", "wait", "cancel")), ("model", ("list", "show"))):
        shown = run(group, "--help")
        assert shown.returncode == 0 and all(f"  {group} {word}" in shown.stdout for word in words), shown.stdout
        assert "  load DIR" not in shown.stdout
        alone = run(group)
        assert alone.returncode == 2 and f"{group} needs " in alone.stderr and all(word in alone.stderr for word in words), alone.stderr
        assert f"fp9ctl {group} --help" in alone.stderr
    script = run("completion", "bash").stdout
    said = subprocess.run(["bash", "-c", script + 'COMP_WORDS=(fp9ctl --socket x model s); COMP_CWORD=4; _fp9ctl; echo "${COMPREPLY[@]}"\n'
                           'COMP_WORDS=(fp9ctl load --t); COMP_CWORD=2; _fp9ctl; echo "${COMPREPLY[@]}"\n'
                           'COMP_WORDS=(fp9ctl inv); COMP_CWORD=1; _fp9ctl; echo "${COMPREPLY[@]}"'],
                          stdout=subprocess.PIPE, text=True, check=True)
    assert said.stdout.splitlines() == ["show", "--tp", "invalidate-cache"]
    assert run("completion", "fish").returncode == 2


def test_paths_are_absolute(fake, tmp_path):
    daemon = fake(plan={"tp": 1, "legal": [], "ranks": []})
    (tmp_path / "a" / "b").mkdir(parents=True)
    for given, sent in [("m", "a/b/m"), (".", "a/b"), ("./m//", "a/b/m"), ("..", "a"), ("../x/..", "a/x/..")]:
        ctl(daemon, "plan", given, "--memory", "2G", cwd=tmp_path / "a" / "b")
        assert daemon.seen("plan")[-1] == {"path": str(tmp_path / sent if given != "../x/.." else tmp_path / "a" / "b" / "../x/.."),
                                           "memory": 2 << 30}
    ctl(daemon, "plan", "--tp=3", "--multiple-of", "64", "/x/y", "--ducks", "5", "--strategy", "tp")
    assert daemon.seen("plan")[-1] == {"path": "/x/y", "tp": 3, "multiple_of": 64, "ducks": 5, "strategy": "tp"}


def test_load_waits(fake):
    def wait(params, notify):
        for done in (0, 5):
            notify("job.progress", {"job": params["job"], "phase": "send", "done_bytes": done, "total_bytes": 10, "rate": 1e6,
                                    "eta_s": None})
        return {"model": "m", "bytes_sent": 2048, "reason": "first load"}

    daemon = fake(model__load={"job": 7}, job__wait=wait)
    assert ctl(daemon, "load", "/m", "--name", "n", "--force") == {"model": "m", "bytes_sent": 2048, "reason": "first load"}
    assert daemon.seen("model.load") == [{"path": "/m", "name": "n", "force": True}] and daemon.seen("job.wait") == [{"job": 7}]
    assert ctl(daemon, "load", "/m", "--no-wait") == {"job": 7}
    assert len(daemon.seen("job.wait")) == 1
    done = run("--socket", daemon.path, "load", "/m")
    assert done.returncode == 0 and "bytes_sent: 2.0 KiB\n" in done.stdout and "send: 0 B of 10 B" in done.stderr
    assert "\033" not in done.stderr and "nan" not in done.stderr.lower()


def test_failures_are_told(fake):
    error = {"code": -32001, "message": 'tensor "x" of\x1b[2J file é', "data": {"name": "BAD_CHECKPOINT", "tensor": "x", "rows": 3}}
    daemon = fake(model__load={"job": 7}, job__wait={"error": error})
    done = run("--socket", daemon.path, "--json", "load", "/m")
    assert done.returncode == 1
    assert json.loads(done.stdout) == {"error": {"name": "BAD_CHECKPOINT", "message": error["message"], "tensor": "x", "rows": 3}}
    assert done.stderr == 'fp9ctl: tensor "x" of?[2J file é\n'
    plain = run("--socket", daemon.path, "load", "/m")
    assert (plain.returncode, plain.stdout) == (1, "")


DUCK = {"id": "d1", "name": "local0", "address": "", "state": "up", "spare": False, "isa": "avx2", "cores": 2, "capacity_bytes": 3 << 30,
        "used_bytes": 0, "boot_id": "b", "version": "0.1.0", "rtt_us": None}
MODEL = {"name": "m", "path": "/m", "family": "qwen3_moe", "state": "ready", "tp": 3, "multiple_of": 64, "strategy": "tp",
         "model_key": "ab" * 32, "layers": 3, "hidden_size": HIDDEN, "experts": 8, "cache": "hit", "layer_kinds": "dmm", "top_k": 2}


def test_verify_in_words(fake):
    daemon = fake(cache__verify={"checked": 12, "bad": [], "unreached": [], "uncompared": [], "compared": 8})
    for more, words in (([], "12 slots checked, 0 bad\n"), (["--full"], "12 slots checked, 8 compared with the checkpoint, 0 bad\n")):
        assert run("--socket", daemon.path, "cache", "verify", *more).stdout == words
    daemon.answers["cache.verify"]["checked"] = 1
    assert run("--socket", daemon.path, "cache", "verify").stdout == "1 slot checked, 0 bad\n"


LONG = "x" + "é" * 200  # as a cell it is cut, between characters


def test_tables(fake):
    status = {"state": "ready", "version": "0.1.0", "uptime_s": 3.5, "ducks": [DUCK], "models": [MODEL], "sessions": 1, "jobs": 2}
    daemon = fake(status=status, duck__list={"ducks": [DUCK]}, model__list={"models": [MODEL]}, cache__list={"slots": []},
                  job__list={"jobs": [{"id": 4, "kind": "load", "model": "m", "layer": None, "state": "failed", "progress": 0.25,
                                       "error": {"name": "BAD_CHECKPOINT", "message": LONG, "rows": 3}}]}, session__list={"sessions": []})
    assert ctl(daemon, "status") == status
    text = run("--socket", daemon.path, "status").stdout
    assert "fp9d 0.1.0 is ready, up 4 s, 1 session, 2 jobs\n" in text and "3.0 GiB" in text and "\033" not in text
    rows = [line for line in text.splitlines() if line.startswith(("ID", "d1"))]
    assert len(rows) == 2 and rows[0].index("STATE") == rows[1].index("up")
    assert ctl(daemon, "duck", "show", "local0") == DUCK == ctl(daemon, "duck", "show", "d1")
    assert ctl(daemon, "model", "show", "m") == MODEL
    assert ctl(daemon, "job", "show", "4")["state"] == "failed"
    assert ctl(daemon, "model", "show", "n", status=1)["error"]["name"] == "NO_SUCH"
    assert run("--socket", daemon.path, "cache", "list").stdout == "no slots\n"
    jobs = run("--socket", daemon.path, "job", "list").stdout.splitlines()
    before = ["4", "load", "m", "-", "failed", "25", "%", "-", "-"]
    words = jobs[1].split()
    assert words[:len(before)] == before and words[len(before)].startswith("xé") and words[len(before)].endswith("é...")
    assert len(words[len(before)].encode()) in (126, 127) and LONG.startswith(words[len(before)][:-3])
    shown = run("--socket", daemon.path, "job", "show", "4").stdout
    assert f"error: BAD_CHECKPOINT: {LONG}\n" in shown and "rows" not in shown
    for words in (["duck", "list"], ["model", "list"], ["session", "list"]):
        assert run("--socket", daemon.path, *words).returncode == 0


def test_sizes_of_a_plan(fake):
    """For people alike, whatever they are of; what is no size stays a number."""
    plan = {"tp": 2, "bytes_total": 3 << 30, "padding": 512, "bytes_per_param": 1.125, "send_bytes": 4613735, "link_bytes_per_token": 1536,
            "head_link_bytes_per_token": 4613735, "legal": [], "ranks": []}
    daemon = fake(plan=plan)
    assert ctl(daemon, "plan", "/m") == plan
    text = run("--socket", daemon.path, "plan", "/m").stdout.splitlines()
    assert text[:7] == ["tp: 2", "bytes_total: 3.0 GiB", "padding: 512 B", "bytes_per_param: 1.125", "send_bytes: 4.4 MiB",
                        "link_bytes_per_token: 1.5 KiB", "head_link_bytes_per_token: 4.4 MiB"], text


@pytest.mark.parametrize("kind,tokens", [("decode", 3), ("prefill", 3), ("prefill", 5000), ("decode", 0), ("prefill", 0)])
@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_steps(fake, tmp_path, kind, tokens, dtype):
    seed = int.from_bytes(os.urandom(4), "little")
    print("seed", seed)
    rng = np.random.default_rng(seed)
    daemon = fake()
    x = rng.integers(-8, 8, (tokens, HIDDEN)).astype(np.float32)
    ids, weights = rng.integers(-1, 8, (tokens, 2)), rng.integers(0, 4, (tokens, 2)).astype(np.float32)
    write_tensors(tmp_path / "in", **{"a.input": ("BF16", bf16(x)), "a.topk_ids": ("I32", ids), "a.topk_weights": ("F32", weights),
                                      "b.input": ("BF16", bf16(x))})
    for prefix, expected in (("a.", x + (ids * weights).sum(axis=1)[:, None]), ("b.", x)):
        said = ctl(daemon, kind, "m", "--layer", 2, "--input", "in", "--prefix", prefix, "--output", "out", "--output-dtype", dtype,
                   "--partials", "f32", cwd=tmp_path)
        got = read_tensors(tmp_path / "out")
        assert list(got) == ["output"] and got["output"][0] == dtype.upper() and got["output"][1].shape == (tokens, HIDDEN)
        values = got["output"][1] if dtype == "f32" else (got["output"][1].astype(np.uint32) << 16).view(np.float32)
        assert np.array_equal(values, expected.astype(np.float32))
        keys = {"tokens", "seconds", "job_time_us", "judge_wait_us", "duck_max_us", "judge_gap_us", "judge_ratio", "mode", "mode_name"}
        assert set(said) == keys | ({"gflops", "weight_stream_gb_per_s", "tiles", "avg_tile_batch"} if kind == "prefill" else set())
        assert said["tokens"] == tokens
        names = {"a.": {False: (4, "MoE forward SMP"), True: (6, "MoE prefill")},
                 "b.": {False: (0, "dense forward"), True: (5, "dense prefill")}}
        assert (said["mode"], said["mode_name"]) == (names[prefix][kind == "prefill" and tokens > 4] if tokens else (None, None))
        if tokens and kind == "decode":
            assert said["judge_wait_us"] == 30
    calls = daemon.seen(kind)
    assert sum(call["tokens"] for call in calls) == 2 * tokens
    assert max((call["tokens"] for call in calls), default=0) == (min(tokens, 1) if kind == "decode" else min(tokens, 4096))
    opened = daemon.seen("session.open")[0]
    assert opened["partials"] == "f32" and opened["output_dtype"] == dtype and "one_shot" not in opened
    assert sorted(os.listdir(tmp_path)) == ["in", "out", "sock"]


def test_step_inputs(fake, tmp_path):
    daemon = fake()
    x = np.zeros((2, HIDDEN), np.uint16)
    ids, weights = np.zeros((2, 2)), np.zeros((2, 2))
    cases = [
        (dict(input=("F32", x)), "BAD_DTYPE", ["input", "F32", "BF16"]), (dict(input=("BF16", x[0])), "BAD_SHAPE", ["input", "[64]"]),
        (dict(input=("BF16", x[:, :32])), "BAD_SHAPE", ["[2, 32]", "64"]), (dict(y=("BF16", x)), "NO_SUCH", ["input"]),
        (dict(input=("BF16", x), topk_ids=("I32", ids)), "NO_SUCH", ["topk_weights"]),
        (dict(input=("BF16", x), topk_weights=("F32", weights)), "NO_SUCH", ["topk_ids"]),
        (dict(input=("BF16", x), topk_ids=("F32", ids), topk_weights=("F32", weights)), "BAD_DTYPE", ["topk_ids", "F32", "I32"]),
        (dict(input=("BF16", x), topk_ids=("I32", ids[:1]), topk_weights=("F32", weights)), "BAD_SHAPE", ["topk_ids", "[1, 2]", "[2, 2]"]),
        (dict(input=("BF16", x), topk_ids=("I32", ids), topk_weights=("F32", weights[:, :1])), "BAD_SHAPE", ["topk_weights", "[2, 1]"]),
        (dict(input=("BF16", x), topk_ids=("I32", np.zeros((2, 9))), topk_weights=("F32", np.zeros((2, 9)))), "BAD_SHAPE", ["9", "8"]),
    ]
    for tensors, name, words in cases:
        write_tensors(tmp_path / "in", **tensors)
        error = ctl(daemon, "decode", "m", "--layer", 0, "--input", tmp_path / "in", "--output", tmp_path / "out", status=1)["error"]
        assert error["name"] == name and all(word in error["message"] for word in words), error
        assert not (tmp_path / "out").exists()
    for path in ("none", "."):
        assert ctl(daemon, "decode", "m", "--layer", 0, "--input", path, "--output", "out", status=1, cwd=tmp_path)["error"]["message"]


@pytest.mark.parametrize("more", [[], ["--prefill", "5"], ["--null"], ["--clients", "3"], ["--one-shot", "--seed", "9"]], ids=" ".join)
def test_bench(fake, more):
    daemon = fake(model__list={"models": [MODEL]})
    said = ctl(daemon, "bench", "m", "--tokens", 4, *more)
    text = json.dumps(said)
    assert "NaN" not in text and "Infinity" not in text
    for key in ("job_time_us", "judge_wait_us", "duck_max_us", "judge_gap_us"):
        assert said[key]["p50"] <= said[key]["p99"]
    assert said["tokens_per_second"] > 0 and said["tpot_us"] > 0
    clients, layers = (3 if "--clients" in more else 1), (2 if "--null" in more else 3)
    calls = daemon.seen("prefill" if "--prefill" in more else "decode")
    assert len(calls) == clients * layers * (4 + 1)  # one token to warm up
    assert len(daemon.seen("session.open")) == clients == len(daemon.seen("session.close"))
    assert all(("topk_ids" in call) == (call["layer"] > 0) for call in calls)
    if "--null" in more:
        assert said["judge_ratio"] is None and said["gparam_per_s"] is None and said["duck_max_us"]["p50"] == 0
    else:
        assert said["judge_ratio"] == 1.5
    assert said["modes"] == ([4] if "--null" in more else [5, 6] if "--prefill" in more else [0, 4])
    assert said["mode_names"][-1] == ("MoE prefill" if "--prefill" in more else "MoE forward SMP")
    if "--prefill" in more:
        assert math.isclose(said["gflops"], 2 * 5000 / 20 / 1e3) and said["avg_tile_batch"] == 1 and said["tiles"] == 4 * 3 * 10
    assert daemon.seen("session.open")[0].get("one_shot", False) == ("--one-shot" in more)
    parts = {"spawn": 5, "map": 1, "team": 2, "run": 20, "exit": 3}
    assert said.get("one_shot_us") == (parts if "--one-shot" in more else None)


def test_bench_straggler(fake):
    """Layer 0 waits for duck 7, the two others for duck 2, whose name is known."""
    daemon = fake(model__list={"models": [MODEL]}, duck__list={"ducks": [{"id": 7, "name": "a"}, {"id": 2, "name": "slow"}]})
    daemon.stragglers = {0: (7, 100.0), 1: (2, 5.0), 2: (2, 10.0)}
    said = ctl(daemon, "bench", "m", "--tokens", 4, "--clients", 2)["straggler"]
    assert said == {"duck": "slow", "share": pytest.approx(2 / 3), "late_us": 7.5}
    daemon.stragglers = {}
    assert ctl(daemon, "bench", "m", "--tokens", 1)["straggler"] is None


def test_one_shot_is_shown(fake, tmp_path):
    """decode: medians of its steps; prefill, of one step here: sums; the text says the same; status and session list tell the judges."""
    status = {"state": "ready", "version": "1", "uptime_s": 1, "sessions": 3, "jobs": 0, "ducks": [], "models": []}
    daemon = fake(session__list={"sessions": [{"session": 7, "model": "m", "judge": judge} for judge in ("persistent", "one-shot")]},
                  status=lambda params, notify: status)
    write_tensors(tmp_path / "in", input=("BF16", np.zeros((6, HIDDEN), np.uint16)))
    for kind in ("decode", "prefill"):
        line = [kind, "m", "--layer", 0, "--input", "in", "--output", "out", "--one-shot"]
        said = ctl(daemon, *line, cwd=tmp_path)
        assert said["one_shot_us"] == {"spawn": 5, "map": 1, "team": 2, "run": 20, "exit": 3}
        text = run("--socket", daemon.path, *map(str, line), cwd=tmp_path).stdout
        assert "one_shot_us: spawn 5.000 map 1.000 team 2.000 run 20.0 exit 3.000" in text, text
    text = run("--socket", daemon.path, "session", "list").stdout
    assert "JUDGE" in text and "persistent" in text and "one-shot" in text
    for told, words in (({}, "3 sessions, 0 jobs"), ({"one_shot_sessions": 2, "persistent_judge": True}, "3 sessions (2 one-shot), 0 jobs"),
                        ({"one_shot_sessions": 3, "persistent_judge": False}, "3 sessions (persistent_judge is off: one-shot), 0 jobs")):
        status.update(told)
        assert words in run("--socket", daemon.path, "status").stdout


def test_bench_paths(fake):
    """The fake fp9d has no ring: JSON is what is left, and it is said; --ring insists."""
    daemon = fake(model__list={"models": [MODEL]})
    for more in ([], ["--json-path"]):
        assert ctl(daemon, "bench", "m", "--tokens", 1, *more)["path"] == "json"
    asked = [opened.get("ring") for opened in daemon.seen("session.open")]
    assert asked == [True, None]
    assert ctl(daemon, "bench", "m", "--ring", status=1)["error"]["name"] == "NOT_READY"


def test_bench_refused(fake):
    daemon = fake(model__list={"models": [MODEL, {**MODEL, "name": "dense", "layer_kinds": "dd", "experts": 0, "top_k": 0}]})
    assert ctl(daemon, "bench", "n", status=1)["error"]["name"] == "NO_SUCH"
    assert ctl(daemon, "bench", "dense", "--null", status=1)["error"]["name"] == "BAD_REQUEST"
    assert ctl(daemon, "bench", "dense", "--tokens", "2")["judge_ratio"] == 1.5


def test_full_disk(fake):
    daemon = fake(status={"state": "ready", "ducks": [], "models": []})
    with open("/dev/full", "w") as full:
        done = subprocess.run([FP9CTL, "--socket", daemon.path, "status"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1 and "standard output" in done.stderr


@pytest.mark.parametrize("line,name", [
    ("doctor", "doctor"), ("doctor --help", "doctor"),
    ("duck add n host:1 --key-file f --spare", "duck add"), ("duck remove d", "duck remove"), ("duck drain d", "duck drain")])
def test_what_is_missing_says_so(line, name):
    """Not a typing error (2) and no daemon needed: the interface has it, this version does not."""
    done = run("--json", *line.split())
    words = f"{name} is in fp9's interface, this version does not have it"
    assert done.returncode == 1, done
    assert words in done.stderr
    error = json.loads(done.stdout)["error"]
    assert (error["name"], error["message"]) == ("BAD_REQUEST", words)


@pytest.mark.parametrize("line", ["metric", "duck ad", "load d --ring", "unload m --mtp", "status --spare", "duck"])
def test_near_misses_stay_wrong_usage(line):
    done = run(*line.split())
    assert done.returncode == 2 and "this version" not in done.stderr, done
