"""fp9ctl plan on config.json files of public models: nothing but that file is needed."""
import json
import os

import pytest

from support.model import MODEL, ROOT, make_checkpoint

CONFIGS = os.path.join(ROOT, "tests", "data", "configs")
BLOCKS = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}


@pytest.fixture
def config(tmp_path):
    """A directory with one config.json in it; block FP8 is put into those that are published in BF16."""
    def make(name, **changes):
        with open(os.path.join(CONFIGS, name + ".json"), encoding="utf-8") as file:
            values = json.load(file)
        values.update(changes)
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(values))
        return str(folder)
    return make


@pytest.mark.parametrize("name,limits", [("qwen3-30b-a3b-fp8", (6, 12, 24, 48, 96)),
                                         ("qwen3-235b-a22b-fp8", (12, 24, 48, 96, 192))])
def test_limits(daemon, config, name, limits):
    plan = daemon.ok("plan", config(name), "--ducks", 1000, "--memory", "1T")
    assert plan["family"] == "qwen3_moe"
    widths = {row["multiple_of"]: row["tp_max"] for row in plan["legal"]}
    assert tuple(widths[m] for m in (128, 64, 32, 16, 8)) == limits, plan["legal"]
    assert sum(rank["bytes"] for rank in plan["ranks"]) == plan["bytes_total"]
    assert 1.125 < plan["bytes_per_param"] < 1.2, plan["bytes_per_param"]


def test_one_more_is_refused(daemon, config):
    folder = config("qwen3-30b-a3b-fp8")
    daemon.ok("plan", folder, "--tp", 12, "--multiple-of", 64, "--ducks", 32, "--memory", "32G")
    daemon.refused("plan", folder, "--tp", 13, "--multiple-of", 64, "--ducks", 32, "--memory", "32G", name="BAD_SHAPE",
                   words=["moe_intermediate_size 768 = 12 units of 64: tp is at most 12", "32 allows 24"])
    daemon.refused("plan", folder, "--tp", 12, "--multiple-of", 64, "--ducks", 8, "--memory", "32G", name="BAD_SHAPE", words=["12", "8"])
    daemon.refused("plan", folder, "--tp", 12, "--multiple-of", 64, "--ducks", 32, "--memory", "1G", name="NO_MEMORY")


def test_all_of_32_ducks(daemon, config):
    """24 and 48 neurons a duck, without padding."""
    for name, multiple_of, neurons in (("qwen3-30b-a3b-fp8", 8, 24), ("qwen3-235b-a22b-fp8", 16, 48)):
        plan = daemon.ok("plan", config(name), "--tp", 32, "--multiple-of", multiple_of, "--ducks", 32, "--memory", "32G")
        assert [rank["neurons"] for rank in plan["ranks"]] == [neurons] * 32
        assert 1.125 < plan["bytes_per_param"] < 1.135 and plan["padding"] < plan["bytes_total"] / 1000, plan["padding"]


def test_uneven(daemon, config):
    """48 units of 128 over 11 ranks: four of five units, seven of four."""
    plan = daemon.ok("plan", config("qwen3-1.7b", quantization_config=BLOCKS), "--tp", 11, "--multiple-of", 128, "--ducks", 11,
                     "--memory", "32G")
    assert plan["family"] == "qwen3"
    assert [rank["neurons"] for rank in plan["ranks"]] == [640] * 4 + [512] * 7, plan["ranks"]


UNSUPPORTED = {
    "per-tensor": ({"quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "static"}}, "128"),
    "int4": ({"quantization_config": {"quant_method": "compressed-tensors", "format": "pack-quantized"}}, "compressed-tensors"),
    "family": ({"model_type": "deepseek_v4", "quantization_config": BLOCKS}, "deepseek_v4"),
    "other-blocks": ({"quantization_config": {**BLOCKS, "weight_block_size": [64, 64]}}, "64"),
}


@pytest.mark.parametrize("changes,word", UNSUPPORTED.values(), ids=UNSUPPORTED)
def test_unsupported(daemon, config, changes, word):
    daemon.refused("plan", config("qwen3-8b", **changes), name="UNSUPPORTED_MODEL", words=[word])


def test_bf16_has_a_plan_and_no_load(daemon, config):
    folder = config("qwen3-1.7b")
    plan = daemon.ok("plan", folder, "--tp", 11, "--multiple-of", 128)
    assert [rank["neurons"] for rank in plan["ranks"]] == [640] * 4 + [512] * 7
    assert plan["loadable"] is False and "quantization_config" in plan["note"]
    daemon.refused("load", folder, name="UNSUPPORTED_MODEL", words=["quantization_config"])


def test_plan_beyond_the_fleet(daemon):
    """A plan for more ducks than there are is made, and says that today's fleet cannot load it."""
    fleet = len(daemon.ok("duck", "list")["ducks"])
    for option in ("--ducks", "--tp"):
        plan = daemon.ok("plan", MODEL, option, fleet + 1, "--multiple-of", 16)
        assert plan["tp"] <= fleet or (plan["loadable"] is False and "today's fleet" in plan["note"]), plan
    assert plan["tp"] == fleet + 1
    plan = daemon.ok("plan", MODEL, "--tp", fleet + 1)
    assert "unknown number" not in plan["explanation"] and "a duck for each rank" in plan["explanation"]


def test_plan_beyond_the_fleets_memory(make_daemon, config):
    """What a load refuses for want of memory is not called loadable, and the reason is the load's."""
    daemon = make_daemon(ducks=4, memory="64M")
    folder = config("qwen3-30b-a3b-fp8")
    for options in (("--strategy", "tp2xep2"), ("--tp", 4), ("--tp", 4, "--multiple-of", 64)):
        plan = daemon.ok("plan", folder, *options)
        assert plan["tp"] == 4 and plan["loadable"] is False, plan
        assert "the smallest duck has 63.0 MiB" in plan["note"] and "rank 0 needs" in plan["note"], plan["note"]
        assert "note" not in daemon.ok("plan", MODEL, *options[:2]), "this one fits"
    big = daemon.ok("plan", folder, "--tp", 4, "--memory", "32G")
    assert big["loadable"] is True, "as if the ducks were such"
    daemon.refused("plan", folder, "--tp", 4, "--memory", "64M", name="NO_MEMORY", words=["64.0 MiB"])


def test_plan_beside_other_models(make_daemon, build, tmp_path):
    """What others hold is said, and what does not fit beside it is not called loadable: as a load refuses it, until it is dropped."""
    daemon = make_daemon(ducks=2, memory="24M")
    shape = dict(num_hidden_layers=2, hidden_size=512, moe_intermediate_size=256, num_experts=32, mlp_only_layers=[])
    first, second = (make_checkpoint(build, tmp_path / name, seed=seed, **{**shape, **more})
                     for name, seed, more in (("a", 1, {}), ("b", 2, {"num_experts_per_tok": 3, "num_hidden_layers": 1})))
    empty = daemon.ok("plan", first, "--tp", 2)
    assert empty["loadable"] is True and empty["held_bytes"] == 0
    daemon.ok("load", first, "--name", "a", "--tp", 2, "--multiple-of", 64)
    held = sum(slot["bytes"] for slot in daemon.ok("cache", "list")["slots"])
    again = daemon.ok("plan", first, "--tp", 2, "--multiple-of", 64)
    assert again["loadable"] is True and again["held_bytes"] == 0, "its own slots are none of others"
    other = ("--tp", 2, "--multiple-of", 128)
    plan = daemon.ok("plan", second, *other)
    assert plan["held_bytes"] == held and plan["loadable"] is True and "note" not in plan, plan
    daemon.ok("load", second, "--name", "b", *other)
    third = make_checkpoint(build, tmp_path / "c", seed=3, **{**shape, "num_experts": 40})
    plan = daemon.ok("plan", third, *other)
    assert plan["loadable"] is False and plan["held_bytes"] == sum(slot["bytes"] for slot in daemon.ok("cache", "list")["slots"])
    for word in ("a rank needs", "other slots hold", "invalidate-cache --model could drop", "a (", "b ("):
        assert word in plan["note"], plan["note"]
    daemon.refused("load", third, "--name", "c", *other, name="NO_MEMORY", words=["other slots hold"])
    assert "held_bytes" not in daemon.ok("plan", third, *other, "--memory", "32G")
    daemon.ok("invalidate-cache", "--model", "a")
    daemon.ok("invalidate-cache", "--model", "b")
    assert daemon.ok("plan", third, *other)["loadable"] is True
    daemon.ok("load", third, "--name", "c", *other)


def test_a_file_in_place_of_a_directory(daemon, config):
    """A plan needs the file alone; a load says what it wants."""
    folder = config("qwen3-30b-a3b-fp8")
    file = os.path.join(folder, "config.json")
    assert daemon.ok("plan", file, "--tp", 4) == daemon.ok("plan", folder, "--tp", 4)
    daemon.refused("load", file, "--name", "m", name="BAD_REQUEST", words=["config.json: is a file", "the directory that holds"])
