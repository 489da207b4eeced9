"""Config as a whole: who owns which key, which components are chosen, and what is said of a key that nobody reads."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from neox_gpt.config.sections.model import ModelSection
from neox_gpt_neox.known import gpt_neox, known

from neox_core.api import Component, hookimpl
from neox_core.config.dialects import modernise
from neox_core.config.read.load import load
from neox_core.config.report import in_order, render
from neox_core.config.schema.owners import find_owners
from neox_core.config.schema.structure import Config, SectionInvalidError, structure
from neox_core.hooks.loader import load_plugins

Read = Callable[..., tuple[Config, list[str]]]


def from_neox(plugin: str) -> str:
    """How a first-party plugin is installed: an index may have anything under its name."""
    return f"`pip install ./plugins/{plugin}` in the repository of neox"


@pytest.fixture
def read(tmp_path: Path, text: str, catalog: Any) -> Read:
    """Config and problems of the base config with lines added or, for a key it has, replaced."""

    def _read(more: str = "", *, catalog: Any = catalog) -> tuple[Config, list[str]]:
        keys = {line.partition(":")[0].replace("_", "-") for line in more.splitlines() if not line.startswith(" ")}
        kept: list[str] = []
        for line in text.splitlines():
            if line.startswith(" "):
                kept += [line] if kept and not kept[-1].startswith("#") else []
            else:
                kept.append("#" if line.partition(":")[0].replace("_", "-") in keys else line)
        file = tmp_path / "c.yml"
        file.write_text("\n".join(kept) + "\n" + more)
        config, problems = structure(modernise(load([file]), catalog.registry), catalog)
        lines = render(in_order(problems)).replace(f"{tmp_path}/", "").splitlines()
        return config, lines

    return _read


def test_sections_hold_what_was_written_and_defaults(read: Read) -> None:
    config, problems = read("norm: rmsnorm\nrms-norm-epsilon: 1e-6\n")
    assert not problems
    model = config.section(ModelSection)
    assert (model.num_layers, model.norm, model.pos_emb) == (2, "rmsnorm", "learned")
    assert config.value("rms-norm-epsilon") == 1e-6
    assert config.value("optimizer.type") == "Adam"
    assert config.components("norm")[0].settings.rms_norm_epsilon == 1e-6
    assert config.components("optimizer")[0].settings.betas == (0.9, 0.999)


def test_origin_and_is_set(read: Read, tmp_path: Path) -> None:
    config, _ = read("seed: 7\n")
    assert config.origin("num-layers") == f"{tmp_path}/c.yml:1:1"
    assert config.is_set("optimizer.params.lr")
    assert not config.is_set("pos-emb")
    assert config.origin("pos-emb") == "default"
    with pytest.raises(KeyError):
        config.value("no-such-key")


def test_an_alias_counts_as_the_key(read: Read) -> None:
    config, problems = read("checkpoint_factor: 5\nbfloat16: {enabled: true}\nextra-depth: 2\n")
    assert [line.partition(": note: ")[2] for line in problems] == [
        "checkpoint_factor: is another name of save_interval",
        "bfloat16: is another name of bf16",
        "extra-depth: is another name of extra_level",
    ]
    assert config.value("save-interval") == 5
    assert config.is_set("save-interval")
    assert config.is_set("bf16.enabled")
    assert config.value("extra-level") == 2


def test_problems_of_all_sections_come_at_once_in_the_users_spelling(read: Read) -> None:
    config, problems = read(
        "num_layers: 2.5\nseed: 'x'\noptimizer: {type: Adam, params: {learning_rate: 1}}\nnum_workes: 1\n"
    )
    assert [line.partition(": error: ")[2] for line in problems] == [
        "num_layers: must be a whole number, not 2.5",
        "seed: must be a whole number, not 'x'",
        "optimizer.params.learning_rate: unknown key (known: lr, betas, eps, weight_decay)",
        "num_workes: unknown key (did you mean num-workers?)",
    ]
    assert problems[0].startswith("c.yml:")
    with pytest.raises(SectionInvalidError):
        config.section(ModelSection)


def test_a_required_key_that_is_missing(read: Read) -> None:
    _, problems = read("hidden-size: null\n")
    assert [line.partition("error: ")[2] for line in problems] == [
        "hidden-size: is required and may not be null (Width of the residual stream.)"
    ]


def test_settings_of_a_component_that_is_not_chosen(read: Read) -> None:
    _, problems = read("rms-norm-epsilon: 1e-6\n")
    assert problems[0].endswith(
        "rms-norm-epsilon: belongs to norm rmsnorm, and this config has norm: layernorm "
        "(set norm: rmsnorm, or remove rms-norm-epsilon)"
    )
    assert read("rms-norm-epsilon: null\n")[1] == []


def test_a_key_that_several_components_of_a_kind_share(read: Read) -> None:
    _, problems = read("tokenizer-type: HFTokenizer\nvocab-file: a\nmerge-file: b\n")
    assert problems[0].endswith(
        "merge-file: belongs to tokenizer GPT2BPETokenizer, and this config has tokenizer-type: HFTokenizer "
        "(set tokenizer-type: GPT2BPETokenizer, or remove merge-file)"
    )
    _, problems = read("merge-file: b\n")
    assert "belongs to tokenizer GPT2BPETokenizer, and this config has tokenizer-type: null" in problems[0]


def test_a_component_that_nobody_offers(read: Read) -> None:
    _, problems = read("norm: rmsnrom\n")
    assert "norm: no norm 'rmsnrom'; installed: layernorm, rmsnorm (did you mean 'rmsnorm'?)" in problems[0]
    _, problems = read("norm: scalenorm\n")
    assert problems[0].endswith(f"norm: no norm 'scalenorm'; installed: layernorm, rmsnorm ({from_neox('neox-norms')})")


def test_a_component_without_settings_gets_none(read: Read) -> None:
    _, problems = read("optimizer: {type: Fixed, params: {lr: 1}}\n")
    assert problems[0].endswith("optimizer.params.lr: Fixed has no settings (remove it)")


@pytest.mark.parametrize("value", ["abc123", "[abc123]", "{abc123: 1}"])
def test_a_secret_has_no_place_in_a_config_nor_in_a_message(read: Read, value: str) -> None:
    _, problems = read(f"monitors: [web]\nweb-token: {value}\n")
    assert len(problems) == 1
    assert "web-token: is a secret" in problems[0]
    assert "abc123" not in problems[0]


def test_keys_of_packages(read: Read) -> None:
    _, problems = read("block_data_path: b\nrotary-pct: 0.25\nqwertz: 1\nrotary_pcd: 1\n")
    assert [line.partition("error: ")[2] for line in problems] == [
        f"block_data_path: belongs to neox-retrieval, which is not installed ({from_neox('neox-retrieval')})",
        f"rotary-pct: belongs to neox-positions, which is not installed ({from_neox('neox-positions')})",
        "qwertz: unknown key (no key has a similar name)",
        "rotary_pcd: unknown key (did you mean rotary-ndims?)",
    ]


def test_a_key_that_is_refused_is_named_with_its_reason(read: Read) -> None:
    _, problems = read("amp: {enabled: true, cast_model_type: half}\n")
    assert any("amp.cast_model_type: is known, and refused: nothing calls Apex" in line for line in problems)


def test_the_table_of_known_keys_is_read_for_a_mistake_only(read: Read) -> None:
    known.cache_clear()
    assert read("seed: 1\n")[1] == []
    assert known.cache_info().currsize == 0
    assert read("sede: 1\n")[1] != []
    assert known.cache_info().currsize == 1


def test_null_sets_no_key_that_is_refused(read: Read) -> None:
    assert not [line for line in read("amp: {cast_model_type: null}\n")[1] if "cast_model_type" in line]


def test_a_component_of_a_package_that_is_not_installed(read: Read) -> None:
    installed = "installed: Adam, AnyStage, CPU_Adam, Fixed, Ramped, Rowwise, Sharded, Undecayed"
    _, problems = read("optimizer: {type: OneBitAdam, params: {lr: 1, freeze_step: 3, cuda-awar: 1}}\n")
    assert [line.partition("error: ")[2] for line in problems] == [
        f"optimizer.type: no optimizer 'OneBitAdam'; {installed} ({from_neox('neox-onebit')})",
    ]


def test_a_setting_of_another_optimizer(read: Read) -> None:
    _, problems = read("optimizer: {type: Adam, params: {lr: 1, freeze_step: 3, stge: 0}}\n")
    assert [line.partition("error: ")[2] for line in problems] == [
        "optimizer.params.freeze_step: unknown key (known: lr, betas, eps, weight_decay)",
        "optimizer.params.stge: unknown key (known: lr, betas, eps, weight_decay)",
    ]


@pytest.mark.parametrize(
    "line",
    [
        "output_layer_parallelism: row",
    ],
)
def test_values_of_later_versions(read: Read, line: str) -> None:
    _, problems = read(line + "\n")
    assert len(problems) == 1
    assert "is not needed: it computes the same numbers as column" in problems[0]


@pytest.mark.parametrize(
    "line", ["pipe_parallel_size: 1", "model-parallel-size: 1", "bias-gelu-fusion: false", "eod-mask-loss: null"]
)
def test_values_that_hold_anyway(read: Read, line: str) -> None:
    assert read(line + "\n")[1] == []


def test_one_component_offered_twice_is_chosen_by_its_full_name(read: Read, plugins: Any, everything: Any) -> None:
    class Other:
        @hookimpl
        def neox_norms(self) -> list[Component]:
            return [Component("layernorm", "math:ceil")]

    both = plugins(everything=everything, other=Other())
    _, problems = read(catalog=both)
    assert "norm 'layernorm' is offered by everything unknown and other unknown" in problems[0]
    assert "norm: `everything:layernorm` or `other:layernorm`" in problems[0]
    config, problems = read("norm: other:layernorm\n", catalog=both)
    assert not problems
    assert config.components("norm")[0].entry.component.target == "math:ceil"


def test_a_broken_plugin_is_named_where_it_is_missed(read: Read, plugins: Any, everything: Any) -> None:
    class Broken:
        @hookimpl
        def neox_norms(self) -> list[Component]:
            raise RuntimeError("the disk is on fire")

    both = plugins(everything=everything, other=Broken())
    assert read(catalog=both)[1] == []
    for line in ("norm: mine", "norm: other:mine", "mine-epsilon: 1"):
        _, problems = read(line + "\n", catalog=both)
        assert "other unknown is broken: RuntimeError: the disk is on fire" in problems[0]


def test_keys_of_gpt_neox_alone_are_named_with_what_they_are_for(read: Read) -> None:
    _, problems = read("use_mup: true\nnum-experts: 8\nte_mha:\nexpansion_factor: 2\n")
    said = [
        line.partition("error: ")[2].replace("is a key of GPT-NeoX that this version does not have", "...")
        for line in problems
    ]
    assert said == [
        "use_mup: ...: muP (remove it)",
        "num-experts: ...: mixture of experts (moe-num-experts is the spelling in use)",
        "expansion_factor: ...: its own width of the MLP (write that width: intermediate-size, see docs/migrating.md)",
    ]


def test_a_key_of_gpt_neox_at_rest_is_a_note(read: Read) -> None:
    config, problems = read("use_mup: false\nnum_experts: 1\ntrain-impl: normal\n")
    assert config is not None
    assert ["error" in line for line in problems] == [False] * 3
    assert all("asks for nothing" in line for line in problems)


@pytest.mark.parametrize(
    ("text", "key", "hint"),
    [
        ("activation: swish\n", "activation", "activation: silu is the same"),
        ("norm: te_rmsnorm\n", "norm", "norm: rmsnorm"),
        ("attention-config: [[[mamba], all]]\n", "attention-config", "installed: "),
    ],
)
def test_a_name_of_gpt_neox_alone_is_no_typo(read: Read, text: str, key: str, hint: str) -> None:
    _, problems = read(text)
    (line,) = [line for line in problems if "is a name of GPT-NeoX" in line]
    assert f"error: {key}: " in line
    assert hint in line


@pytest.mark.parametrize("key", ["gd_retain_weight", "use_named_train_datasets", "norm_activation_type"])
def test_a_key_of_somebody_elses_gpt_neox_is_no_typo(read: Read, key: str) -> None:
    assert read(f"{key}: 1\n")[1][0].endswith("unknown key (no key has a similar name)")


def test_without_its_dialect_a_key_is_unknown_and_the_package_named(read: Read) -> None:
    catalog = load_plugins(disabled={"neox-gpt-neox": "a test"})
    _, problems = read("geglu: true\nfp16: {typ: 1}\nuse-mpu: 1\n", catalog=catalog)
    missing = "which is disabled: switched off by a test"
    said = {line.partition("error: ")[2] for line in problems}
    assert any(line.startswith(f"geglu: belongs to neox-gpt-neox, {missing}") for line in said)
    for key in ("fp16.typ", "use-mpu"):
        (line,) = [line for line in said if line.startswith(f"{key}: unknown key")]
        assert f"a key of gpt-neox needs neox-gpt-neox, {missing}" in line


def test_keys_of_gpt_neox_alone_have_no_owner() -> None:
    owned = set(find_owners(load_plugins().registry).keys()) | set(known().names_in(""))
    assert sorted(gpt_neox()[0].keys() & owned) == []
