"""Fixtures. FP9_BUILD names the meson build directory (default: build/ of the tree); FP9_SANITIZED=1 says that it is a sanitized one."""
import os
import shutil
import signal
import sys

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [os.path.dirname(os.path.abspath(__file__)), os.path.join(ROOT, "proto", "client", "python")]  # support, and the module fp9

# A shell starts what it puts in the background with Ctrl-C ignored, and so would be every program that a test interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)

from support.daemon import SLOW, Daemon  # noqa: E402
from support.model import MODEL, Reference  # noqa: E402
from support.rpc import Rpc  # noqa: E402


@pytest.fixture(scope="session")
def build():
    path = os.environ.get("FP9_BUILD") or os.path.join(ROOT, "build")
    assert os.path.exists(os.path.join(path, "build.ninja")), f"{path} is no build directory; run ./run build or set FP9_BUILD"
    return path


@pytest.fixture(scope="session")
def reference():
    return Reference()


@pytest.fixture
def make_daemon(build, tmp_path):
    """Starts any number of daemons; each is stopped and checked at the end of the test."""
    made = []

    def make(start=True, **more):
        folder = tmp_path / f"daemon{len(made)}"
        folder.mkdir()
        daemon = Daemon(build, folder, **more)
        made.append(daemon)
        return daemon.start() if start else daemon

    yield make
    wrong = []
    for daemon in made:
        try:
            daemon.stop()
        except AssertionError as error:
            wrong.append(str(error))
    assert not wrong, "\n".join(wrong)


@pytest.fixture(scope="module")
def daemon(build, tmp_path_factory):
    """One daemon with four ducks for a whole module of tests that leave it as it was."""
    one = Daemon(build, tmp_path_factory.mktemp("daemon"))
    one.start()
    yield one
    one.stop()


@pytest.fixture(scope="module")
def served(daemon):
    """That daemon with the trained checkpoint as "m", whose blocks three ranks cut. Modules that need more have a `served` of their own."""
    daemon.ok("load", MODEL, "--name", "m", "--tp", 3, "--multiple-of", 64)
    return daemon


@pytest.fixture
def rpc(served):
    """A connection to what the module calls served."""
    with Rpc(served.socket, 30 * SLOW) as one:
        yield one


@pytest.fixture
def checkpoint(tmp_path):
    """A copy of the trained checkpoint that the test may spoil."""
    target = tmp_path / "spoiled"
    shutil.copytree(MODEL, target)
    for folder, _, names in os.walk(target):
        os.chmod(folder, 0o755)
        for name in names:
            os.chmod(os.path.join(folder, name), 0o644)
    return str(target)
