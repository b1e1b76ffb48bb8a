"""Every example of the README runs: the ```sh blocks are typed, in order, into one shell beside a daemon."""
import os
import re
import subprocess

from support.daemon import SLOW, program
from support.model import ROOT

# An example that sets up the machine or starts the tests from within the tests is told apart by its first word.
LEFT_OUT = ("./run", "git ", "meson install", "sudo ", "apt-get ")


def blocks():
    with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as file:
        return re.findall(r"^```sh\n(.*?)^```$", file.read(), re.M | re.S)


def test_examples(make_daemon, tmp_path):
    daemon = make_daemon()
    names = {name: os.path.dirname(program(daemon.build, name)) for name in ("fp9ctl", "fp9d", "fp9-mkckpt")}
    env = dict(daemon.env, FP9_SOCKET=daemon.socket, TMPDIR=str(tmp_path),
               PATH=":".join(sorted(set(names.values()))) + ":" + os.environ["PATH"])
    ran = 0
    for block in blocks():
        kept = [line for line in block.splitlines() if not line.startswith(LEFT_OUT) and "fp9d --" not in line]
        text = "\n".join(kept)
        if not any(line.strip() and not line.startswith("#") for line in kept):
            continue
        done = subprocess.run(["bash", "-euo", "pipefail", "-c", text], cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=120 * SLOW)
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{daemon.log()[-3000:]}"
        ran += 1
    assert ran > 0, "the README has no example"


def test_run_commands_are_real():
    """What the README says of ./run is what ./run says of itself."""
    with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as file:
        named = set(re.findall(r"\./run ([a-z]+)", file.read()))
    shown = subprocess.run([os.path.join(ROOT, "run"), "--help"], stdout=subprocess.PIPE, text=True, check=True).stdout
    commands = set(re.findall(r"^  ([a-z]+)  ", shown, re.M))
    assert {"demo", "test"} <= named <= commands | {"help"}, (named, commands)
    wrong = subprocess.run([os.path.join(ROOT, "run"), "nonsense"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert wrong.returncode == 2 and "nonsense" in wrong.stderr
