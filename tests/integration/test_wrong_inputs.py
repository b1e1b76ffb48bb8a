"""What people type wrong: each is refused with the exit status of fp9ctl(1) and a sentence that names the option, file, tensor or model and
says what would be right. Nothing hangs, and what is loaded stays."""
import os
import socket
import subprocess
import threading

import pytest

from support.daemon import SLOW, program
from support.model import MODEL, Reference

REFERENCE = os.path.join(MODEL, "reference.safetensors")
STEP = ("--input", REFERENCE, "--prefix", Reference.prefix(2), "--output", "{t}/out")
REFUSED, USAGE, NO_DAEMON = 1, 2, 3

CASES = {
    "no_directory": (["load", "{t}/nothere"], REFUSED, "{t}/nothere: No such file or directory"),
    "no_config": (["load", "{t}/dir"], REFUSED,
                  "{t}/dir/config.json: No such file; a model's directory, with config.json and weights in it"),
    "a_file": (["load", "{t}/file"], REFUSED, "{t}/file: is a file; the directory that holds config.json and weights is wanted"),
    "a_device": (["load", "/dev/null"], REFUSED, "/dev/null: is no directory"),
    "a_pipe": (["plan", "{t}/fifo"], REFUSED, "{t}/fifo: is no directory"),
    "no_json": (["plan", "{t}/file"], REFUSED, "{t}/file: no JSON: line 1: "),
    "empty_directory_name": (["load", ""], USAGE, "load: DIR is empty"),
    "no_utf8_directory": (["load", b"/tmp/\xff"], USAGE, "load: DIR is no UTF-8"),
    "no_utf8_name": (["load", MODEL, "--name", b"\xff"], USAGE, "--name: the value is no UTF-8"),
    "empty_name": (["load", MODEL, "--name", ""], USAGE, "--name: the value is empty"),
    "long_name": (["load", MODEL, "--name", "x" * 64], REFUSED, "has 64 bytes, allowed are 1 to 63"),
    "name_with_slash": (["load", MODEL, "--name", "a/b"], REFUSED, 'model name "a/b": no blanks, control characters or slashes'),
    "huge_tp": (["load", MODEL, "--tp", "99999999999999999999"], USAGE, "is no whole number from 1 to 1024"),
    "empty_tp": (["load", MODEL, "--tp", ""], USAGE, '--tp: "" is no whole number from 1 to 1024'),
    "too_many_ranks": (["load", MODEL, "--tp", "5"], REFUSED, "tp 5 needs 5 ducks, only 4 can take a rank"),
    "multiple_of": (["load", MODEL, "--multiple-of", "100"], USAGE, "is not 128 or 64 or 32 or 16 or 8"),
    "strategy": (["load", MODEL, "--strategy", "foo"], REFUSED, "tp, ep and tpNxepM are"),
    "memory": (["plan", MODEL, "--memory", "10"], REFUSED, "the smallest duck has 10 bytes; all ranks together need"),
    "memory_of_one": (["plan", MODEL, "--memory", "1K", "--tp", "1"], REFUSED, "bytes on each of 1 duck"),
    "memory_unit": (["plan", MODEL, "--memory", "4X"], USAGE, "4G, 512M or a count of bytes is right"),
    "no_model": (["model", "show", "x"], REFUSED, 'no model "x"; there is m'),
    "no_model_to_bench": (["bench", "x"], REFUSED, 'no model "x"; there is m'),
    "no_duck": (["duck", "show", "x"], REFUSED, 'no duck "x"; there are local0, local1, local2, local3'),
    "no_job": (["job", "show", "99"], REFUSED, 'no job "99"; there '),
    "no_such_model": (["unload", "x"], REFUSED, "model x: no model of that name is loaded"),
    "no_layer": (["prepare", "m", "--layer", "99"], REFUSED, "layer 99: model m has layers 0 to 3"),
    "from_a_file": (["prepare", "m", "--from", "{t}/file"], REFUSED, "expected at least 8 bytes, the file has 5 (the memfd is {t}/file)"),
    "from_a_directory": (["prepare", "m", "--from", "{t}/dir"], REFUSED, "{t}/dir: is no regular file; a safetensors file is wanted"),
    "from_a_pipe": (["prepare", "m", "--from", "{t}/fifo"], REFUSED, "{t}/fifo: is no regular file; a safetensors file is wanted"),
    "from_nothing": (["prepare", "m", "--from", "{t}/nothere"], REFUSED, "{t}/nothere: No such file or directory"),
    "no_prefix": (["decode", "m", "--layer", "2", "--input", REFERENCE, "--output", "{t}/out"], REFUSED,
                  "no tensor input in it; there are layers.0.mlp.input, layers.1.mlp.input"),
    "other_prefix": (["decode", "m", "--layer", "2", *STEP, "--prefix", "x."], REFUSED,
                     "no tensor x.input in it; there are layers.0.mlp.input"),
    "prefix_without_its_dot": (["decode", "m", "--layer", "2", *STEP, "--prefix", Reference.prefix(2)[:-1]], REFUSED,
                               "no tensor layers.2.mlpinput in it; a prefix ends with a dot: layers.2.mlp.; there are layers.0.mlp.input"),
    "of_a_dense_layer": (["decode", "m", "--layer", "2", *STEP, "--prefix", Reference.prefix(0)], REFUSED,
                         "layer 2 is a MoE layer: topk_ids and topk_weights are missing, 1 to 2 experts a token"),
    "for_a_dense_layer": (["prefill", "m", "--layer", "0", *STEP], REFUSED, "layer 0 is dense: it takes no topk_ids and topk_weights"),
    "input_directory": (["decode", "m", "--layer", "2", *STEP, "--input", "{t}/dir"], REFUSED, "{t}/dir is not a regular file"),
    "output_directory": (["decode", "m", "--layer", "2", *STEP, "--output", "{t}/dir"], REFUSED, "{t}/dir: "),
    "bench_tokens": (["bench", "m", "--tokens", "0"], USAGE, '--tokens: "0" is no whole number from 1 to 1000000'),
    "bench_both": (["bench", "m", "--ring", "--json-path"], USAGE, "--ring and --json-path: one of them at a time"),
    "half_a_command": (["session"], USAGE, "session needs list after it"),
    "empty_socket": (["--socket", "", "status"], USAGE, "--socket: the value is empty"),
    "no_socket": (["--socket", "{t}/nothere", "status"], NO_DAEMON, "no fp9d at {t}/nothere: No such file or directory"),
    "not_a_socket": (["--socket", "{t}/file", "status"], NO_DAEMON, "no fp9d at {t}/file: it is no stream socket"),
    "below_a_file": (["--socket", "{t}/file/x", "status"], NO_DAEMON, "no fp9d at {t}/file/x: Not a directory"),
}


@pytest.fixture(scope="module")
def loaded(daemon):
    daemon.ok("load", MODEL, "--name", "m", "--tp", 2, "--multiple-of", 64)
    return daemon


def said(build, loaded, args, folder):
    """(exit status, standard error) of fp9ctl for people."""
    if "--socket" not in args:
        args = ["--socket", loaded.socket, *args]
    done = subprocess.run([program(build, "fp9ctl"), *(a if isinstance(a, bytes) else a.replace("{t}", str(folder)) for a in args)],
                          stdin=subprocess.DEVNULL, capture_output=True, timeout=30 * SLOW, env=loaded.env, check=False)
    return done.returncode, done.stderr.decode("utf-8", "replace")


@pytest.mark.parametrize("case", CASES)
def test_wrong_inputs(build, loaded, tmp_path, case):
    args, status, words = CASES[case]
    (tmp_path / "file").write_text("hello")
    (tmp_path / "dir").mkdir()
    os.mkfifo(tmp_path / "fifo")
    found, message = said(build, loaded, args, tmp_path)
    assert found == status and words.replace("{t}", str(tmp_path)) in message, (found, message)
    assert (" --help says what is right" in message) == (status == USAGE), message
    (model,) = loaded.ok("model", "list")["models"]
    assert (model["name"], model["state"]) == ("m", "ready"), model


def test_whoever_answers_is_no_fp9d(build, loaded, tmp_path):
    """The socket is named, also by one that closes at once."""
    with socket.socket(socket.AF_UNIX) as one, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        one.bind(str(tmp_path / "http"))
        other.bind(str(tmp_path / "dgram"))
        one.listen()

        def serve():
            for answer in (b"HTTP/1.1 400 Bad Request\r\n\r\n", b""):
                client, _ = one.accept()
                with client:
                    client.recv(1000)
                    client.sendall(answer)
        thread = threading.Thread(target=serve)
        thread.start()
        status, message = said(build, loaded, ["--socket", "{t}/http", "status"], tmp_path)
        assert status == REFUSED and f"socket {tmp_path}/http: fp9d's answer: no JSON" in message, message
        status, message = said(build, loaded, ["--socket", "{t}/http", "status"], tmp_path)
        assert status == REFUSED and f"socket {tmp_path}/http: fp9d closed the connection" in message, message
        thread.join()
        status, message = said(build, loaded, ["--socket", "{t}/dgram", "status"], tmp_path)
        assert status == NO_DAEMON and f"no fp9d at {tmp_path}/dgram: it is no stream socket" in message, message
