"""fp9-loadparts, which measures what `./run bench` compares a cold load with: it runs on a checkpoint and says what it cannot take."""
import json
import subprocess

from support.daemon import SLOW, program
from support.model import MODEL, make_checkpoint


def loadparts(build, path, tp=4):
    return subprocess.run([program(build, "fp9-loadparts"), path, str(tp), "64"], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=60 * SLOW)


def test_every_part(build, tmp_path):
    done = loadparts(build, make_checkpoint(build, tmp_path, num_hidden_layers=3, mlp_only_layers=[]))
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    rates = json.loads(done.stdout)
    assert {"read", "digest", "digest_all", "convert_one", "convert", "memory"} <= set(rates)
    assert all(value > 0 for value in rates.values()), rates


def test_dense_layers(build):
    done = loadparts(build, MODEL, tp=2)
    assert done.returncode == 1 and "its layers are no MoE layers" in done.stderr, done.stderr
