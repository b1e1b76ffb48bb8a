"""Jobs: what is one, who has asked, how far it is, cancelling, and what is known of them after a restart."""
import json
import os
import re
import signal
import subprocess
import threading
import time

import numpy as np
import pytest

from support import safetensors
from support.daemon import SLOW, program
from support.freeze import stopped
from support.model import HIDDEN, MODEL, make_checkpoint
from support.rpc import Rpc, RpcError, Session

LAYER = 2
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")


@pytest.fixture
def served(make_daemon):
    daemon = make_daemon(ducks=2)
    daemon.ok("load", MODEL, "--name", "shakespeare", "--tp", 2, "--multiple-of", 64)
    return daemon


def job_of(daemon, number):
    return daemon.ok("job", "show", number)


def start(daemon, *args):
    """fp9ctl that is not waited for."""
    return subprocess.Popen([program(daemon.build, "fp9ctl"), "--socket", daemon.socket, "--json", *map(str, args)],
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=daemon.env)


def running(daemon, kind):
    return daemon.wait_for(f"a {kind} that runs", lambda: next(
        (j for j in daemon.ok("job", "list")["jobs"] if j["kind"] == kind and j["state"] == "running"), None))


def begin_verify(rpc, daemon, full):
    """Its request's number and its job, which runs. One that was cancelled may still read a layer, and is said to."""
    deadline = time.monotonic() + 20 * SLOW
    while True:
        number = rpc.send("cache.verify", {"full": full})
        while rpc.core.waiting(number):
            rpc.process(0.02)
            for job in daemon.ok("job", "list")["jobs"]:
                if job["kind"] == "verify" and job["state"] == "running":
                    return number, job
        with pytest.raises(RpcError) as caught:
            rpc.answer(number)
        assert caught.value.name == "BUSY" and "was cancelled" in caught.value.message and time.monotonic() < deadline


def test_who_has_called_a_load_off(make_daemon, build, tmp_path):
    """It is not its own client: so that is told who it was, and why."""
    big = make_checkpoint(build, tmp_path / "big", num_hidden_layers=6, num_experts=64, hidden_size=512, moe_intermediate_size=512)
    daemon = make_daemon(ducks=2, memory="512M", fleet="heartbeat_s = 60")
    me = f"uid {os.getuid()}"
    with Rpc(daemon.socket, 60 * SLOW) as one, Rpc(daemon.socket, 60 * SLOW) as other:
        for method, params, words in (("cache.invalidate", {"model": "big"}, f"since its cache was invalidated by {me} at 20"),
                                      ("model.unload", {"model": "big"}, f"since it was unloaded by {me}"),
                                      ("job.cancel", None, f"by {me}")):
            job = one.model_load(big, name="big", tp=2, wait=False)
            other.call(method, **(params or {"job": job}))
            with pytest.raises(RpcError) as caught:
                one.job_wait(job)
            assert caught.value.name == "CANCELLED", str(caught.value)
            assert f"job {job} (load of big) was cancelled {words}" in caught.value.message
            assert words in job_of(daemon, job)["error"]["message"]


MANY = 80000


@pytest.fixture
def source(tmp_path):
    """A file with MANY tokens for a MoE layer."""
    path = str(tmp_path / "many")
    safetensors.write(path, {"input": safetensors.Tensor("BF16", np.full((MANY, HIDDEN), 0x3C00, np.uint16)),
                             "topk_ids": safetensors.Tensor("I32", np.tile(np.array([1, 2], np.int32), (MANY, 1))),
                             "topk_weights": safetensors.Tensor("F32", np.full((MANY, 2), 0.5, np.float32))})
    return path


def batch(daemon, kind, source, target):
    """fp9ctl at MANY tokens, which take seconds: decode by their number, prefill by one-shot runs."""
    client = start(daemon, kind, "shakespeare", "--layer", LAYER, "--input", source, "--output", target,
                   *(["--one-shot"] if kind == "prefill" else []))
    return client, running(daemon, kind)


def test_a_load_in_full(served):
    jobs = served.ok("job", "list")["jobs"]
    assert [j["id"] for j in jobs] == [1]
    job = job_of(served, 1)
    assert job == jobs[0]
    assert (job["kind"], job["model"], job["layer"], job["state"], job["progress"]) == ("load", "shakespeare", None, "done", 1)
    assert job["uid"] == os.getuid() and job["pid"] > 1 and job["error"] is None
    assert all(TIME.match(job[key]) for key in ("queued", "started", "ended")) and job["seconds"] > 0
    assert job["bytes_read"] == job["total_bytes"] > 0 and job["bytes_sent"] > job["bytes_read"]
    waited = served.ok("job", "wait", 1)
    assert waited["model"] == "shakespeare" and waited["cache"] == "miss" and waited["job"] == 1
    text = subprocess.run([program(served.build, "fp9ctl"), "--socket", served.socket, "job", "show", "1"], stdout=subprocess.PIPE,
                          text=True, check=True, env=served.env, timeout=60).stdout
    assert "queued: " in text and "uid: " in text


@pytest.mark.parametrize("kind", ["decode", "prefill"])
def test_files_are_jobs_and_steps_are_not(served, reference, tmp_path, kind):
    with Rpc(served.socket) as rpc:
        session = Session(rpc, "shakespeare", 4)
        session.run("decode", LAYER, *reference.inputs(LAYER, 4))
        session.run("prefill", LAYER, *reference.inputs(LAYER, 4))
    assert len(served.ok("job", "list")["jobs"]) == 1
    done = served.run(kind, "shakespeare", LAYER, reference.path, tmp_path / "out", reference.prefix(LAYER))
    job = job_of(served, done["job"])
    assert (job["kind"], job["model"], job["layer"], job["state"], job["progress"]) == (kind, "shakespeare", LAYER, "done", 1)
    assert job["done_tokens"] == job["total_tokens"] == done["tokens"] and job["uid"] == os.getuid()
    waited = served.ok("job", "wait", done["job"])
    assert waited["tokens"] == done["tokens"] and waited["layer"] == LAYER


def test_cancel_a_batch(served, source, tmp_path):
    for kind in ("prefill", "decode"):
        client, job = batch(served, kind, source, tmp_path / "out")
        assert job["pid"] == client.pid and job["total_tokens"] == MANY
        served.wait_for("some tokens", lambda: job_of(served, job["id"])["done_tokens"] > 0)
        waiter = start(served, "job", "wait", job["id"])
        assert served.ok("job", "cancel", job["id"])["state"] == "cancelled"
        for process in (client, waiter):
            out, err = process.communicate(timeout=20 * SLOW)
            assert process.returncode == 1, (out, err)
            assert json.loads(out)["error"]["name"] == "CANCELLED", out
        assert not (tmp_path / "out").exists()
        after = job_of(served, job["id"])
        assert after["state"] == "cancelled" and 0 < after["progress"] < 1 and after["error"]["name"] == "CANCELLED"
        served.refused("job", "cancel", job["id"], name="BAD_REQUEST", words=["cancelled already"])
    served.wait_for("the sessions to go", lambda: served.ok("status")["sessions"] == 0)


def test_a_batch_ends_with_its_client(served, source, tmp_path):
    client, job = batch(served, "decode", source, tmp_path / "out")
    client.kill()
    client.communicate()
    served.wait_for("the job to end", lambda: job_of(served, job["id"])["state"] == "cancelled", 5)
    assert "its client left" in job_of(served, job["id"])["error"]["message"]
    status = served.ok("status")
    assert status["sessions"] == 0 and status["jobs"] == 0


def test_a_batch_that_fails(served, source, tmp_path):
    """The job's error is the step's, with its values."""
    client, job = batch(served, "decode", source, tmp_path / "out")
    victim = served.duck_pids()[0]
    name = served.duck_name(victim)
    os.kill(victim, signal.SIGKILL)
    out, _ = client.communicate(timeout=30 * SLOW)
    assert client.returncode == 1 and json.loads(out)["error"]["name"] == "DUCK_LOST", out
    served.wait_for("the job to end", lambda: job_of(served, job["id"])["state"] == "failed", 5)
    error = job_of(served, job["id"])["error"]
    assert error["name"] == "DUCK_LOST" and error["duck"] == name and error["layer"] == LAYER and error["phase"] == "decode"


def test_a_batch_that_is_refused(served, tmp_path):
    """Its job has failed, and says with what; a file that fits no step of the model leaves no job."""
    x, ids, weights = np.zeros((5, HIDDEN), np.uint16), np.zeros((5, 2), np.int32), np.ones((5, 2), np.float32)
    ids[0, 1] = 13
    path = str(tmp_path / "in")
    for kind in ("decode", "prefill"):
        safetensors.write(path, {"input": safetensors.Tensor("BF16", x), "topk_ids": safetensors.Tensor("I32", ids),
                                 "topk_weights": safetensors.Tensor("F32", weights)})
        command = (kind, "shakespeare", "--layer", LAYER, "--input", path, "--output", tmp_path / "out")
        served.refused(*command, name="BAD_EXPERT", words=["token 0, slot 1 holds 13"])
        jobs = served.ok("job", "list")["jobs"]
        assert (jobs[-1]["kind"], jobs[-1]["state"], jobs[-1]["error"]["name"]) == (kind, "failed", "BAD_EXPERT"), jobs[-1]
        assert "token 0, slot 1 holds 13" in jobs[-1]["error"]["message"] and jobs[-1]["done_tokens"] == 0, jobs[-1]
        safetensors.write(path, {"input": safetensors.Tensor("BF16", x[:, :64])})
        served.refused(*command, name="BAD_SHAPE", words=["[5, 64]", str(HIDDEN)])
        assert served.ok("job", "list")["jobs"] == jobs


def test_progress_of_a_batch(served):
    with Rpc(served.socket, 60 * SLOW) as rpc, Rpc(served.socket, 60 * SLOW) as other:
        x = np.zeros((512, HIDDEN), np.uint16)
        ids, weights = np.zeros((512, 2), np.int32), np.ones((512, 2), np.float32)
        session = Session(rpc, "shakespeare", 512, job="prefill", job_layer=LAYER, job_tokens=512 * 40)
        job = session.info["job"]
        number = other.send("job.wait", {"job": job})
        for _ in range(40):
            session.run("prefill", LAYER, x, ids, weights)
            time.sleep(0.02)
        told = [n["params"] for n in rpc.notifications if n["method"] == "job.progress"]
        assert told and all(n["job"] == job and n["total_tokens"] == 512 * 40 for n in told)
        assert [n["done_tokens"] for n in told] == sorted(n["done_tokens"] for n in told)
        assert told[-1]["phase"] == "done" and told[-1]["done_tokens"] == 512 * 40
        assert any(0 < n["done_tokens"] < 512 * 40 and n["eta_s"] > 0 for n in told)
        assert other.answer(number)["tokens"] == 512 * 40
        assert any(n["params"]["job"] == job for n in other.notifications), "who waits hears how far it is"
        for wrong in (dict(job="decode"), dict(job_tokens=5), dict(job="decode", job_layer=2), dict(job="walk", job_layer=1, job_tokens=1)):
            with pytest.raises(RpcError) as caught:
                rpc.call("session.open", model="shakespeare", max_tokens=1, **wrong)
            assert caught.value.name == "BAD_REQUEST" and "job" in caught.value.message
        with pytest.raises(RpcError) as caught:
            rpc.call("session.open", model="shakespeare", max_tokens=1, job="decode", job_layer=4, job_tokens=1)
        assert caught.value.name == "BAD_SHAPE"
    served.wait_for("the sessions to go", lambda: served.ok("status")["sessions"] == 0)


def test_cancel_a_load_and_a_verify(make_daemon, build, tmp_path):
    big = make_checkpoint(build, tmp_path / "big", num_hidden_layers=6, num_experts=64, hidden_size=512, moe_intermediate_size=512)
    daemon = make_daemon(ducks=2, memory="512M", fleet="heartbeat_s = 60")
    client = start(daemon, "load", big, "--name", "big", "--tp", 2)
    job = running(daemon, "load")
    assert job["pid"] == client.pid
    daemon.ok("job", "cancel", job["id"])
    out, _ = client.communicate(timeout=30 * SLOW)
    assert client.returncode == 1 and json.loads(out)["error"]["name"] == "CANCELLED", out
    assert job_of(daemon, job["id"])["state"] == "cancelled"
    daemon.ok("load", big, "--name", "big", "--tp", 2)
    with Rpc(daemon.socket, 60 * SLOW) as one, Rpc(daemon.socket, 60 * SLOW) as other:
        for full in (False, True):
            with stopped(*daemon.duck_pids()):  # else a job might be done before it was looked at
                number, verify = begin_verify(one, daemon, full)
                assert other.call("job.cancel", job=verify["id"])["state"] == "cancelled"
                with pytest.raises(RpcError) as caught:
                    one.answer(number)
                assert caught.value.name == "CANCELLED", str(caught.value)
                assert f"was cancelled by uid {os.getuid()}" in caught.value.message
        # One whose client goes ends, too; then the next one is served at once.
        with stopped(*daemon.duck_pids()):
            begin_verify(one, daemon, False)
            one.close()
    daemon.wait_for("the verify to end", lambda: daemon.ok("status")["jobs"] == 0, 10)
    done = daemon.ok("cache", "verify")
    assert done["checked"] == 12 and done["bad"] == []
    verified = job_of(daemon, done["job"])
    assert verified["state"] == "done" and verified["progress"] == 1 and verified["kind"] == "verify"
    assert daemon.ok("job", "wait", done["job"])["checked"] == 12


def test_they_survive_a_restart(served, reference, source, tmp_path):
    """Those that are over as they were, those that were cut as failed; no number is given twice."""
    served.refused("load", str(tmp_path), "--name", "nothing", name="NO_SUCH")
    done = served.run("decode", "shakespeare", LAYER, reference.path, tmp_path / "out", reference.prefix(LAYER))
    before = served.ok("job", "list")["jobs"]
    assert [j["state"] for j in before] == ["done", "failed", "done"], before
    waited = served.ok("job", "wait", 1)
    client, job = batch(served, "decode", source, tmp_path / "out")
    cut = job["id"]
    time.sleep(0.5)  # its beginning is written beside everything else
    served.kill()
    client.communicate(timeout=30 * SLOW)
    served.start()
    served.wait_for("the model", lambda: served.ok("status")["state"] == "ready")
    after = served.ok("job", "list")["jobs"]
    assert after[:3] == before
    assert after[3]["id"] == cut and after[3]["state"] == "failed" and "fp9d ended while it ran" in after[3]["error"]["message"]
    assert after[3]["error"]["name"] == "INTERNAL" and after[3]["pid"] == client.pid and TIME.match(after[3]["ended"])
    assert [j["kind"] for j in after[4:]] == ["load"] and after[4]["id"] == cut + 1 and after[4]["uid"] is None
    assert served.ok("job", "wait", 1) == waited
    error = served.refused("job", "wait", 2, name="NO_SUCH")
    assert error["job"] == 2
    served.refused("job", "wait", cut, name="INTERNAL", words=["fp9d ended"])
    served.refused("job", "wait", 1000, name="NO_SUCH", words=["1000"])
    again = served.run("decode", "shakespeare", LAYER, reference.path, tmp_path / "out", reference.prefix(LAYER))
    assert again["job"] == cut + 2
    # And once more, in an orderly way.
    whole = served.ok("job", "list")["jobs"]
    served.stop()
    served.start()
    assert served.ok("job", "list")["jobs"][:len(whole)] == whole


def test_the_history_is_bounded(served):
    with Rpc(served.socket, 60 * SLOW) as rpc:
        for _ in range(300):
            session = Session(rpc, "shakespeare", 1, job="decode", job_layer=LAYER, job_tokens=1)
            session.close()
        last = session.info["job"]
        jobs = rpc.call("job.list")["jobs"]
        assert len(jobs) == 256 and jobs[-1]["id"] == last and jobs[0]["id"] == last - 255
        assert {j["state"] for j in jobs} == {"cancelled"}
    served.stop()
    served.start()
    jobs = served.ok("job", "list")["jobs"]
    assert 250 <= len(jobs) <= 256 and jobs[-1]["id"] >= last


def test_two_wait_and_one_leaves(served, tmp_path):
    """The answer goes to who is still there."""
    with Rpc(served.socket, 60 * SLOW) as rpc:
        session = Session(rpc, "shakespeare", 1, job="decode", job_layer=LAYER, job_tokens=10)
        job = session.info["job"]
        gone, stays = start(served, "job", "wait", job), start(served, "job", "wait", job)
        time.sleep(0.3)
        gone.kill()
        gone.communicate()
        results = []
        thread = threading.Thread(target=lambda: results.append(stays.communicate(timeout=20 * SLOW)))
        thread.start()
        session.close()
        thread.join()
        assert stays.returncode == 1 and json.loads(results[0][0])["error"]["name"] == "CANCELLED", results
