"""What is said of one thing, or of none, is no plural."""
import numpy as np

from support import safetensors
from support.model import make_checkpoint, random_input


def test_a_model_of_one(build, make_daemon, tmp_path):
    """One layer with one expert on one duck."""
    daemon = make_daemon(ducks=1)
    path = make_checkpoint(build, tmp_path / "one", num_hidden_layers=1, num_experts=1, num_experts_per_tok=1, mlp_only_layers=[])
    assert daemon.ok("load", path, "--name", "one", "--tp", 1)["reason"] == "1 of 1 slot was not on the ducks"
    assert daemon.ok("load", path, "--name", "one", "--tp", 1)["reason"] == "the one slot is finished under this key"
    assert daemon.ok("prepare", "one", "--layer", 0)["reason"] == "the one slot that was asked for is finished under this key"
    daemon.refused("prepare", "one", "--layer", 1, name="BAD_SHAPE", words=["layer 1: model one has layer 0 alone"])
    ids = safetensors.Tensor("I32", np.full((4, 1), 1))
    source = random_input(str(tmp_path / "in"), 1, 512, experts=1, top_k=1, topk_ids=ids)
    step = ("--input", source, "--output", tmp_path / "out")
    daemon.refused("decode", "one", "--layer", 2, *step, name="BAD_SHAPE", words=["layer 2: model one has layer 0 alone"])
    daemon.refused("decode", "one", "--layer", 0, *step, name="BAD_EXPERT", words=["holds 1; 0 is the only expert, -1 is an empty slot"])
    assert daemon.ok("cache", "verify", "one")["checked"] == 1
    assert "verified 1 slot, " in daemon.log() and "0 slots, boot id" in daemon.log()


def test_tp_beside_a_strategy_with_a_number_of_its_own(daemon, checkpoint):
    daemon.refused("plan", checkpoint, "--tp", 3, "--strategy", "tp2xep2", name="BAD_SHAPE",
                   words=["has 4 ranks (2 ranks x 2 groups)", "tp 3 does not go with it", "right would be no tp, tp 4 or tp 2"])
    for tp in (2, 4):
        assert daemon.ok("plan", checkpoint, "--tp", tp, "--strategy", "tp2xep2")["strategy"] == "tp2xep2"
