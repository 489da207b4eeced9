"""Each rule between keys: broken once, and just held once."""

from collections.abc import Callable
from pathlib import Path
from typing import get_origin

import pytest
from changed_keys import RETRIEVER
from neox_reference.rule_index import all_rules, rules_about
from rule_cases import CASES, SUBJECTS

from neox_core.config.schema.convert import block_of, fields_of
from neox_core.config.schema.sections import CORE_SECTIONS
from neox_core.hooks.loader import load_plugins
from neox_core.plan.cluster import Machine
from neox_core.plan.rules.rule import Rule, keys_of

Check = Callable[..., list[str]]
REGISTRY = load_plugins().registry
RULES = all_rules(REGISTRY)
# rules whose cases take more than `--set`: in test_rules_offload.py, test_blend.py, test_rules_idle.py, and below
ELSEWHERE = {"one_offload", "files_need_libaio", "files_are_read_in_order", "buffers_hold_a_parameter"} | {
    "compiled_layers_learn",
    "whole_weights_are_in_memory",
    "one_dataset_or_several",
    "every_split_has_datasets",
    "weight_for_each_dataset",
    "weights_from_one_place",
    "pass_over_one_dataset",  # tests/unit/data/test_train_epochs.py
    "local_storage_is_of_one_host",
    "keys_of_the_device",
    "fast_start_reads_files",
    "onnx_has_no_fusion",  # test_kernels.py
    "a_row_for_each_id",
    "engine_does_what_optimizer_uses",  # tests/unit/checkpoint/test_optimizer_page.py
    "mixers_have_planners",  # plugins/neox-gpt/tests/test_mixers.py
    "mixers_of_shared_blocks",
    "mixers_are_causal",
    "mixers_can_decode",
    "mixers_can_be_split",
    "positions_are_taken",
    "feed_forwards_can_be_split",  # plugins/neox-gpt/tests/test_check_feed_forward.py
    "feed_forwards_can_be_spread",  # plugins/neox-moe/tests/test_runs.py, tests/e2e/test_spread_experts.py
    "pipeline_makes_one_pass",  # plugins/neox-author/tests/test_check_loss.py
    "model_changes_change_something",  # plugins/neox-gpt/tests/test_check_model_change.py
    "model_changes_can_be_split",
    "model_changes_need_whole_weights",
    "model_changes_are_not_compiled",
    "keys_that_do_nothing_here",  # test_rules_idle.py
    "bf16_has_instructions",
}


def test_every_rule_has_a_case() -> None:
    assert {rule.__name__ for rule in RULES} == set(CASES) | ELSEWHERE
    assert len(CASES) == sum(len(subject.CASES) for subject in SUBJECTS), "a rule has a case in two subjects"


def _known(key: str) -> bool:
    """Whether a dotted key is a setting of the core, or in a block whose keys a component owns."""
    name, *inner = key.split(".")
    classes: list[type] = [section.settings for section in CORE_SECTIONS]
    classes += [section.settings for _, section in REGISTRY.sections_of_components()]
    for part in (name, *inner):
        found = next((each for cls in classes for each in fields_of(cls) if each.name == part), None)
        if found is None:
            return False
        if get_origin(found.type) is dict:
            return True  # of a component, such as the params of an optimizer
        block = block_of(found.type)
        classes = [block] if block else []
    return True


@pytest.mark.parametrize("rule", RULES, ids=lambda each: each.__name__)
def test_every_rule_says_itself_and_which_keys_it_is_about(rule: Rule) -> None:
    assert [key for key in keys_of(rule) if not _known(key)] == []
    name, said = next(each for each in rules_about(keys_of(rule)[0], REGISTRY) if each[0] == rule.__name__)
    assert name == rule.__name__
    assert said.endswith(".")
    assert "\n" not in said


@pytest.mark.parametrize("rule", CASES)
def test_rule(check: Check, rule: str) -> None:
    broken, said, held, machine = CASES[rule]
    found = check(*broken, machine=machine)
    assert len(found) == 1
    assert said in found[0]
    assert check(*held, machine=machine) == []


def test_an_engine_needs_its_library_where_ranks_can_run(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    there: dict[str, object] = {"torch": object(), "deepspeed": None}
    for module in ("neox_core.hooks.component", "neox_core.plan.rules.components"):
        monkeypatch.setattr(f"{module}.find_spec", lambda name: there.get(name, name))
    (said,) = check()
    assert "error: engine: deepspeed needs deepspeed, not installed (pip install" in said
    assert check("engine=plain") == []
    there["torch"] = None
    assert check() == []


@pytest.mark.parametrize(
    ("cpuinfo", "slow"),
    [
        ("flags\t\t: fpu avx2 fma\n", True),
        ("flags\t\t: fpu avx2 avx512f avx512bw\n", False),
        ("flags\t\t: fpu avx2 avx_ne_convert\n", False),
        ("Features\t: fp asimd\n", False),  # of another kind of processor: nothing is known
        ("", False),
    ],
)
def test_bf16_without_instructions_for_it_is_told(
    check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cpuinfo: str, slow: bool
) -> None:
    (tmp_path / "cpuinfo").write_text(cpuinfo)
    monkeypatch.setattr("neox_plain.config.precision_rules.CPUINFO", tmp_path / "cpuinfo")
    said = "enabled: this processor has no instructions for bf16: a step takes about 50 times as long as in fp32 (train"
    for block in ("bf16", "torch_autocast"):
        found = check(f"{block}.enabled=true")
        assert [f"warning: {block}.{said}" in each for each in found] == [True] * slow
        assert check(f"{block}.enabled=true", machine=Machine(1, 4)) == []  # which has a GPU
    assert check() == []


def test_the_base_config_has_no_problem(check: Check) -> None:
    assert check() == []


@pytest.mark.parametrize(("rows", "refused"), [(256, True), (512, False)])
def test_the_embedding_has_a_row_for_each_id_of_the_tokenizer(check: Check, rows: int, refused: bool) -> None:
    """Else a rank says so, after the start. CharLevelTokenizer has 512 ids."""
    found = check(f"padded-vocab-size={rows}", "tokenizer-type=CharLevelTokenizer", catalog=load_plugins())
    said = f"error: padded-vocab-size: {rows} is smaller than the tokenizer's 512 ids (leave it out"
    assert any(said in each for each in found) is refused


def test_an_encoder_that_two_towers_share_is_not_recomputed_by_deepspeed(check: Check) -> None:
    """Its two gradients, of queries and of blocks, would reach DeepSpeed one after the other."""
    recomputed = ("share-towers=true", "checkpoint-activations=true", "deepspeed-activation-checkpointing=true")
    for stage, number in ((1, 0), (2, 1)):
        said = check(*RETRIEVER, *recomputed, f"zero_optimization.stage={stage}", catalog=load_plugins())
        assert sum("gives two gradients of an encoder" in each for each in said) == number
