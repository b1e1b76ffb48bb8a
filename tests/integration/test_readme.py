"""Every example of the README runs: the ```sh blocks are typed, in order, into one shell."""
import os
import re
import subprocess

from support.daemon import SLOW
from support.model import ROOT

# An example that sets up the machine or starts the tests from within the tests is told apart by its first word.
LEFT_OUT = ("./run", "git ", "meson install", "sudo ", "apt-get ")


def blocks():
    with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as file:
        return re.findall(r"^```sh\n(.*?)^```$", file.read(), re.M | re.S)


def test_examples(build, tmp_path):
    """As they stand; only build/ is the build under test."""
    lines = [line for block in blocks() for line in block.splitlines() if not line.startswith(LEFT_OUT)]
    assert any("fp9d --local-ducks" in line for line in lines) and any("fp9ctl decode" in line for line in lines)
    text = "\n".join(lines).replace("$PWD/build/", build + "/")
    text = re.sub(r"^( *)build/", rf"\1{build}/", text, flags=re.M)
    text = "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n" + text
    done = subprocess.run(["bash", "-euo", "pipefail", "-m", "-c", text], cwd=ROOT, env=dict(os.environ, TMPDIR=str(tmp_path)),
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120 * SLOW)
    assert done.returncode == 0, f"{text}\n{done.stdout}"


def test_run_commands_are_real():
    """What the README says of ./run is what ./run says of itself."""
    with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as file:
        named = set(re.findall(r"\./run ([a-z]+)", file.read()))
    shown = subprocess.run([os.path.join(ROOT, "run"), "--help"], stdout=subprocess.PIPE, text=True, check=True).stdout
    commands = set(re.findall(r"^  ([a-z]+)  ", shown, re.M))
    assert {"demo", "test"} <= named <= commands | {"help"}, (named, commands)
    wrong = subprocess.run([os.path.join(ROOT, "run"), "nonsense"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert wrong.returncode == 2 and "nonsense" in wrong.stderr
