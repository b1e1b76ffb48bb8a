"""What fp9d refuses at start: exit status, and a message that names the cause."""
import os
import shutil
import signal
import socket
import subprocess

import pytest

from support.daemon import SLOW, program
from support.model import MODEL
from support.service import free_port

SECONDS = 15


def attempt(daemon, *more, conf=None):
    """One start that should fail; (status, output)."""
    if conf is not None:
        with open(daemon.conf_path, "w", encoding="utf-8") as file:
            file.write(conf.format(daemon=daemon))
    done = subprocess.run([program(daemon.build, "fp9d"), "--config", daemon.conf_path, *more], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=SECONDS * SLOW, env=daemon.env)
    return done.returncode, done.stdout


GOOD = "[daemon]\nsocket = {daemon.socket}\nstate_dir = {daemon.state}\n"
BAD_CONF = [
    ("unknown key", GOOD + "[fleet]\nlocal_duck = 4\n", ["local_duck", "unknown"]),
    ("unknown section", GOOD + "[flet]\nlocal_ducks = 4\n", ["flet"]),
    ("no number", GOOD + "[fleet]\nlocal_ducks = four\n", ["local_ducks", "four"]),
    ("negative", GOOD + "[fleet]\nlocal_ducks = -1\n", ["local_ducks", "-1"]),
    ("cut number", GOOD + "[fleet]\nlocal_ducks = 4294967297\n", ["local_ducks", "4294967297"]),
    ("no boolean", GOOD + "[fleet]\npersistent_judge = maybe\n", ["persistent_judge", "maybe"]),
    ("no size", GOOD + "[fleet]\nlocal_memory = lots\n", ["local_memory", "lots"]),
    ("no choice", GOOD + "[fleet]\npartials = f16\n", ["partials", "f16", "bf16"]),
    ("no level", "[daemon]\nlog_level = loud\n", ["log_level", "loud"]),
    ("given twice", GOOD + "[fleet]\nlocal_ducks = 1\nlocal_ducks = 2\n", ["local_ducks", "twice"]),
    ("no line", GOOD + "what is this\n", ["fp9d.conf:4"]),
    ("empty duck", GOOD + '[duck "kitchen"]\n# address = kitchen:7909\n', ["fp9d.conf:4", "kitchen", "no keys"]),
    ("empty duck before another", GOOD + '[duck "a"]\n[duck "b"]\naddress = b:1\nplaintext = yes\n', ['[duck "a"]', "no keys"]),
]


@pytest.mark.parametrize("what,text,words", BAD_CONF, ids=[row[0].replace(" ", "-") for row in BAD_CONF])
def test_configuration(make_daemon, what, text, words):
    daemon = make_daemon(start=False)
    for more in ((), ("--check-config",)):
        status, said = attempt(daemon, *more, conf=text)
        assert status == 1, said
        for word in [*words, daemon.conf_path]:
            assert word in said, f"{word!r} is not in: {said}"
    assert not os.path.exists(daemon.socket)


BAD_SETTINGS = [
    ("duck without address", GOOD + '[duck "a"]\nplaintext = yes\n', ['[duck "a"]', "address", "missing"]),
    ("name of a local duck", GOOD + '[fleet]\nlocal_ducks = 2\n[duck "local1"]\naddress = b:1\nplaintext = yes\n', ["local0 to local1"]),
    ("cores backwards", GOOD + "[fleet]\nlocal_ducks = 0\nlocal_cores = 5-2\n", ["local_cores", "5-2"]),
    ("more prealloc than memory", GOOD + "[fleet]\nlocal_ducks = 2\nlocal_memory = 40T\nlocal_prealloc = yes\n",
     ["local_prealloc", "2 ducks", str(40 << 40), "memory"]),
    ("metrics elsewhere", GOOD.replace("\n", "\nmetrics_listen = 192.0.2.1:9100\n", 1), ["metrics_listen", "192.0.2.1", "Cannot assign"]),
]


@pytest.mark.parametrize("what,text,words", BAD_SETTINGS, ids=[row[0].replace(" ", "-") for row in BAD_SETTINGS])
def test_settings(make_daemon, what, text, words):
    """Each is good by itself, but not with the others or on this machine."""
    daemon = make_daemon(start=False)
    for more in ((), ("--check-config",)):
        status, said = attempt(daemon, *more, conf=text)
        assert status == 1, f"{what}: exit status {status}: {said}"
        for word in words:
            assert word in said, f"{what}: {word!r} is not in: {said}"


@pytest.mark.parametrize("path", ["/proc/self/mem", "/dev/zero", "/proc"])
def test_what_is_no_configuration(make_daemon, path):
    daemon = make_daemon(start=False)
    for name in ("fp9d", "fp9-duck"):
        done = subprocess.run([program(daemon.build, name), "--config", path, "--check-config"], stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=SECONDS * SLOW, env=daemon.env)
        assert done.returncode == 1 and path in done.stdout, done.stdout


def test_a_port_in_use_is_no_fault_of_the_configuration(make_daemon):
    daemon = make_daemon(start=False)
    with socket.create_server(("127.0.0.1", 0)) as busy:
        listen = f"metrics_listen = 127.0.0.1:{busy.getsockname()[1]}"
        status, said = attempt(daemon, "--check-config", conf=GOOD.replace("\n", "\n" + listen + "\n", 1))
        assert status == 0, said


def test_a_duck_takes_no_more_than_there_is(make_daemon, tmp_path):
    daemon = make_daemon(start=False)
    conf = tmp_path / "duck.conf"
    conf.write_text("[duck]\nlisten = 127.0.0.1:1\nplaintext = yes\nmemory = 40T\nprealloc = yes\nname = big\n")
    done = subprocess.run([program(daemon.build, "fp9-duck"), "--config", conf], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=SECONDS * SLOW, env=daemon.env)
    assert done.returncode == 1 and "prealloc" in done.stdout and "40.0 TiB" in done.stdout and "of memory" in done.stdout, done.stdout


def test_a_program_that_was_moved_away(make_daemon, tmp_path):
    """A duck that ends and cannot be started again: that, and not its end, is what is told, with the path."""
    daemon = make_daemon(start=False, ducks=1)
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("fp9d", "fp9-duck", "fp9-kernel", "fp9ctl"):
        shutil.copy(program(daemon.build, name), folder)
    daemon.env["LD_LIBRARY_PATH"] = os.path.join(daemon.build, "proto", "client")
    duck, daemon.build = folder / "fp9-duck", str(tmp_path)
    daemon.start()
    daemon.ok("load", MODEL, "--name", "m", "--tp", 1)
    (pid,) = daemon.duck_pids()
    assert os.readlink(f"/proc/{pid}/exe") == str(duck)
    duck.rename(tmp_path / "moved")
    os.kill(pid, signal.SIGKILL)
    words = f"{duck} cannot be started: No such file or directory"
    daemon.wait_for("the reason", lambda: words in daemon.ok("duck", "list")["ducks"][0].get("reason", ""))
    (model,) = daemon.ok("model", "list")["models"]
    assert model["state"] == "degraded" and model["error"]["message"] == f"duck local0 is lost: {words}", model
    (tmp_path / "moved").rename(duck)  # it comes back by itself
    daemon.wait_for("the model", lambda: daemon.ok("model", "list")["models"][0]["state"] == "ready", 40)


def test_load_with_no_duck_in_reach(make_daemon):
    """The refusal says of each duck what the list of ducks says, and advises to configure some only when there are none."""
    daemon = make_daemon(start=False, ducks=0, remote=[(name, f"127.0.0.1:{free_port()}") for name in ("near", "far")])
    daemon.spawn()
    daemon.wait_up(0)
    daemon.wait_for("both to be lost", lambda: all(duck["state"] == "lost" for duck in daemon.ok("duck", "list")["ducks"]))
    error = daemon.refused("load", MODEL, "--name", "m", name="NOT_READY", words=["no duck is up: near is "])
    for duck in daemon.ok("duck", "list")["ducks"]:
        assert duck["reason"] in error["message"] and f"{duck['name']} is " in error["message"], (duck, error)
    assert "local_ducks" not in error["message"], error
    daemon.stop()
    daemon = make_daemon(start=False, ducks=0).start()
    daemon.refused("load", MODEL, "--name", "m", name="NOT_READY", words=["no duck is configured", "local_ducks"])


def test_missing_configuration(make_daemon):
    daemon = make_daemon(start=False)
    os.remove(daemon.conf_path)
    status, said = attempt(daemon)
    assert status == 1 and daemon.conf_path in said and "No such file" in said, said


def test_check_config_starts_nothing(make_daemon):
    daemon = make_daemon(start=False)
    status, said = attempt(daemon, "--check-config")
    assert status == 0, said
    assert not os.path.exists(daemon.socket)


def test_check_config_of_a_duck(make_daemon, tmp_path):
    """What the start would refuse is refused before."""
    duck = program(make_daemon(start=False).build, "fp9-duck")

    def check(text, *more):
        (tmp_path / "duck.conf").write_text(f"[duck]\n{text}\n")
        done = subprocess.run([duck, "--check-config", "--config", str(tmp_path / "duck.conf"), *more], stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=20 * SLOW)
        return done.returncode, done.stdout + done.stderr

    for memory, status in (("1", 1), ("1M", 1), ("2M", 0)):
        done = check("plaintext = yes", "--memory", memory)
        assert done[0] == status and ("at least 1052672 are needed" in done[1]) == (status == 1), done
    key = tmp_path / "key"
    key.write_text("")
    key.chmod(0o600)
    for text, words in (("", "plaintext = yes"), (f"plaintext = yes\nkey_file = {key}", "no TLS")):
        status, said = check(text)
        assert status == 1 and words in said and "is good" not in said, said
    said = subprocess.run([duck, "-h"], stdout=subprocess.PIPE, text=True, timeout=20 * SLOW, check=True).stdout
    assert said.startswith("Usage: fp9-duck")


def test_socket_in_use(make_daemon):
    first = make_daemon(ducks=1)
    second = make_daemon(start=False)
    status, said = attempt(second, "--socket", first.socket)
    assert status == 1 and first.socket in said, said
    assert first.ok("status")["state"] == "ready", "the first daemon was disturbed"


def test_socket_of_somebody_else(make_daemon, tmp_path):
    """A socket that another program serves is no stale one."""
    path = str(tmp_path / "other.sock")
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(path)
        other.listen()
        status, said = attempt(make_daemon(start=False), "--socket", path)
        assert status == 1 and path in said, said
        assert os.path.exists(path)


def test_socket_is_a_file(make_daemon, tmp_path):
    path = tmp_path / "file"
    path.write_text("precious")
    status, said = attempt(make_daemon(start=False), "--socket", str(path))
    assert status == 1 and str(path) in said, said
    assert path.read_text() == "precious"


def test_socket_directory_missing(make_daemon, tmp_path):
    path = str(tmp_path / "nowhere" / "s")
    status, said = attempt(make_daemon(start=False), "--socket", path)
    assert status == 1 and path in said, said


def test_socket_path_too_long(make_daemon):
    status, said = attempt(make_daemon(start=False), "--socket", "/" + "x" * 200)
    assert status == 1 and "xxx" in said, said


def test_state_dir_is_a_file(make_daemon, tmp_path):
    path = tmp_path / "file"
    path.write_text("precious")
    status, said = attempt(make_daemon(start=False), "--state-dir", str(path))
    assert status == 1 and str(path) in said, said
    assert path.read_text() == "precious"


def test_state_dir_not_writable(make_daemon, tmp_path):
    """Nobody, not even root, can write into /proc."""
    status, said = attempt(make_daemon(start=False), "--state-dir", "/proc/self")
    assert status == 1 and "/proc/self" in said, said


def test_state_is_no_database(make_daemon):
    """Set aside and begun anew, with a word about it; fp9d starts."""
    daemon = make_daemon(ducks=1)
    daemon.stop()
    files = [name for name in os.listdir(daemon.state) if name.endswith(".db")]
    assert len(files) == 1, os.listdir(daemon.state)
    with open(os.path.join(daemon.state, files[0]), "w", encoding="utf-8") as file:
        file.write("this is a text file and no database\n" * 100)
    daemon.start()
    assert files[0] in daemon.log()
    daemon.stop()
    assert any(name != files[0] and name.startswith(files[0]) for name in os.listdir(daemon.state)), os.listdir(daemon.state)


def test_state_dir_missing_says_what_to_do(make_daemon, tmp_path):
    status, said = attempt(make_daemon(start=False), "--state-dir", str(tmp_path / "none"))
    assert status == 1 and str(tmp_path / "none") in said and "--state-dir" in said and "StateDirectory" in said, said


def test_hangup_is_no_end(make_daemon):
    """A reload is not in this version: fp9d says so and serves on, its ducks and its connections untouched."""
    daemon = make_daemon(ducks=1)
    pids = daemon.duck_pids()
    daemon.process.send_signal(signal.SIGHUP)
    daemon.wait_for("a word about SIGHUP", lambda: "SIGHUP: reading the configuration again is not in this version" in daemon.log())
    assert daemon.ok("status")["state"] == "ready"
    assert daemon.duck_pids() == pids
    daemon.stop()


@pytest.mark.parametrize("args", [["--no-such-option"], ["--local-ducks"], ["--local-ducks", "many"], ["stray"]], ids=" ".join)
def test_wrong_usage(make_daemon, args):
    status, said = attempt(make_daemon(start=False), *args)
    assert status == 2, said
    assert args[0] in said


def test_unknown_tier(make_daemon):
    status, said = attempt(make_daemon(start=False, env={"FP9_CPU": "mmx"}))
    assert status != 0 and "FP9_CPU" in said and "mmx" in said, said


def test_ctl_without_daemon(make_daemon):
    daemon = make_daemon(start=False)
    done = daemon.ctl("status")
    assert done.status == 3, (done.status, done.stderr)
    assert daemon.socket in done.stderr


@pytest.mark.parametrize("args", [["nonsense"], ["load"], ["decode", "m"], ["status", "--nonsense"], ["job", "wait", "x"], []],
                         ids=lambda a: " ".join(a) or "nothing")
def test_ctl_wrong_usage(make_daemon, args):
    assert make_daemon(start=False).ctl(*args).status == 2
