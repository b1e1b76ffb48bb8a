"""The examples of libfp9 and of the Python module run, and all say the same; module, library and fp9ctl run where they are installed."""
import os
import re
import subprocess

import numpy as np
import pytest

import fp9
from support.daemon import SLOW
from support.model import HIDDEN, MODEL, ROOT

STEPS = 5
EXAMPLES = os.path.join(ROOT, "proto", "client")


def run(daemon, *args, **env):
    done = subprocess.run(list(map(str, args)), env={**daemon.env, "FP9_SOCKET": daemon.socket, "PYTHONDONTWRITEBYTECODE": "1", **env},
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60 * SLOW)
    return done.returncode, done.stdout, done.stderr


def native(build, name):
    return os.path.join(build, "proto", "client", "fp9-example-" + name)


def expected(daemon, layer, top_k, first):
    """y of the examples' token that begins with pattern number `first`, by way of inputs copied and a waiting call."""
    x = (0x3F00 + (np.arange(HIDDEN) + first) % 128).astype(np.uint16)
    routing = (np.arange(top_k, dtype=np.int32), np.full(top_k, 1 / top_k, np.float32)) if top_k else ()
    with fp9.connect(daemon.socket, 30 * SLOW) as conn, conn.session_open("m", 1, output_dtype="f32") as session:
        return np.array(session.decode(layer, x, *routing).y[0])


def forget(daemon):
    """So that the next load has something to do and progress to tell."""
    if daemon.ok("model", "list")["models"]:
        daemon.ok("unload", "m", "--drop-cache")


@pytest.mark.parametrize("layer,top_k", [(0, 0), (1, 2), (3, 1)])
def test_examples(daemon, build, layer, top_k):
    python = ["/usr/bin/python3", os.path.join(EXAMPLES, "python", "examples", "decode.py")]
    path = {"PYTHONPATH": os.path.join(EXAMPLES, "python")}
    forget(daemon)
    status, said, progress = run(daemon, native(build, "async"), "m", layer, top_k, STEPS, MODEL)
    assert status == 0, progress
    assert 'job.progress {"job":' in progress and '"phase":"done"' in progress
    lines = [f"stream {stream}: {STEPS} steps, y[0] = {expected(daemon, layer, top_k, stream + STEPS - 1)[0]:g}" for stream in (0, 1)]
    assert said.splitlines() == lines
    assert run(daemon, *python, "m", layer, top_k, STEPS, **path)[:2] == (0, said)
    lanes = [f"lane {lane}: {STEPS} steps, y[0] = {expected(daemon, layer, top_k, lane + STEPS - 1)[0]:g}" for lane in range(4)]
    for path_ in ("json", "ring"):
        status, told, error = run(daemon, native(build, "lanes"), "m", layer, top_k, STEPS, path_)
        assert (status, told.splitlines()) == (0, lanes), error
    forget(daemon)
    status, again, progress = run(daemon, *python, "m", layer, top_k, STEPS, MODEL, **path)
    assert (status, again) == (0, said) and re.search(r"^done: \d+ of \d+ bytes$", progress, re.M), progress
    y = expected(daemon, layer, top_k, 0)
    status, said, _ = run(daemon, native(build, "decode"), "m", layer, top_k)
    assert status == 0 and said.startswith(f"y[0] = {y[0]:g}, y[{HIDDEN - 1}] = {y[-1]:g}, "), said


def test_examples_show_errors(daemon, build):
    for program in ([native(build, "async")], ["/usr/bin/python3", os.path.join(EXAMPLES, "python", "examples", "decode.py")]):
        status, said, error = run(daemon, *program, "nobody", 1, 2, 3, PYTHONPATH=os.path.join(EXAMPLES, "python"))
        assert status == 1 and not said and error.startswith("NO_SUCH: ") and "nobody" in error, (status, said, error)
    assert run(daemon, native(build, "async"))[0] == 2
    assert run(daemon, native(build, "async"), "m", 1, 2, 3, FP9_SOCKET="/nonexistent")[0] == 3


def test_installed_module(daemon, build, tmp_path):
    """Where meson puts it, it is whole: imported from there alone, with the standard library alone, it asks for the status."""
    subprocess.run(["meson", "install", "-C", build, "--no-rebuild", "--tags", "python-runtime", "--destdir", str(tmp_path)], check=True,
                   stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, timeout=60 * SLOW)
    (folder,) = [folder for folder, names, _ in os.walk(tmp_path) if "fp9" in names]
    assert re.search(r"/lib/python3[^/]*/(dist|site)-packages$", folder), folder
    text = "import sys; sys.modules['numpy'] = None; import fp9; print(fp9.__file__, fp9.connect().status()['state'])"
    status, said, error = run(daemon, "/usr/bin/python3", "-c", text, PYTHONPATH=folder)
    assert (status, said) == (0, f"{folder}/fp9/__init__.py ready\n"), error


def linker_folders():
    """Where the dynamic linker looks, by Debian's own word: "/usr/lib/x86_64-linux-gnu: (from ...)", then the libraries."""
    said = subprocess.run(["/sbin/ldconfig", "-v", "-N", "-X"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                          text=True, timeout=60 * SLOW).stdout
    return {os.path.realpath(folder) for folder in re.findall(r"^(/[^:]*):", said, re.M)}


def test_installed_library(daemon, build, tmp_path):
    """libfp9 lies where the dynamic linker looks (which meson knows by dpkg-dev), fp9.pc beside it, and the fp9ctl beside them uses it."""
    subprocess.run(["meson", "install", "-C", build, "--no-rebuild", "--tags", "runtime,devel", "--destdir", str(tmp_path)], check=True,
                   stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, timeout=60 * SLOW)
    (folder,) = [folder for folder, names, files in os.walk(tmp_path) if "libfp9.so.0" in files]
    libdir = "/" + os.path.relpath(folder, tmp_path)
    assert os.path.realpath(libdir) in linker_folders(), f"{libdir}: configure again where dpkg-dev is installed"
    assert os.path.exists(os.path.join(folder, "pkgconfig", "fp9.pc"))
    (ctl,) = [os.path.join(at, "fp9ctl") for at, _, files in os.walk(tmp_path) if "fp9ctl" in files]
    status, said, error = run(daemon, ctl, "--version", LD_LIBRARY_PATH=folder)
    assert status == 0 and said.startswith("fp9ctl "), (status, said, error)
    traced = run(daemon, ctl, "--version", LD_LIBRARY_PATH=folder, LD_TRACE_LOADED_OBJECTS="1")[1]
    assert f"libfp9.so.0 => {folder}/libfp9.so.0" in traced, traced
    assert run(daemon, ctl, "--version", LD_LIBRARY_PATH="")[0] == 127  # no rpath of the build is left in it
