"""An installation over one that is in use keeps its configuration."""
import os
import subprocess

from support.daemon import SLOW
from support.model import ROOT


def install(build, target):
    subprocess.run(["meson", "install", "-C", build, "--no-rebuild", "--destdir", str(target)], check=True, stdin=subprocess.DEVNULL,
                   stdout=subprocess.DEVNULL, timeout=120 * SLOW)


def shipped(name):
    with open(os.path.join(ROOT, "conf", name), encoding="utf-8") as file:
        return file.read()


def test_configuration_is_kept(build, tmp_path):
    install(build, tmp_path)
    folder = tmp_path / "etc" / "fp9"
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["fp9-duck.conf", "fp9d.conf"]
    assert all((folder / name).read_text() == shipped(name) for name in names)
    mine = "[fleet]\nlocal_ducks = 4\n"
    (folder / "fp9d.conf").write_text(mine)
    install(build, tmp_path)
    assert (folder / "fp9d.conf").read_text() == mine
    assert (folder / "fp9d.conf.new").read_text() == shipped("fp9d.conf")
    assert sorted(path.name for path in folder.iterdir()) == ["fp9-duck.conf", "fp9d.conf", "fp9d.conf.new"]
