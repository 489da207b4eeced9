"""Keys that mean something together in a config of GPT-NeoX, and keys that act beside another choice."""

from pathlib import Path
from typing import Any

import pytest
from neox_author.testing import load_only
from neox_gpt_neox.migrate import migrate

from neox_core.config.dialects import modernise
from neox_core.config.problem import Problem
from neox_core.config.read.load import load

CATALOG = load_only("neox-gpt-neox")
NEOX = {"checkpoint_factor": 5, "tokenizer_type": "HFTokenizer", "hidden_dropout": 0, "attention_dropout": 0}
NEOX |= {"weight_decay": 0, "optimizer": {"type": "Adam", "params": {"lr": 1.0}}}


@pytest.fixture
def read(tmp_path: Path) -> Any:
    """(values, problems) of a file, beside keys that mark it as GPT-NeoX's."""

    def _read(text: str, *sets: str, marked: bool = True) -> tuple[dict[str, Any], tuple[Problem, ...]]:
        (tmp_path / "c.yml").write_text(text)
        more = tmp_path / "more.yml"
        more.write_text("\n".join(f"{key}: {value}" for key, value in NEOX.items() if f"{key}:" not in text))
        loaded = modernise(load([tmp_path / "c.yml", *([more] if marked else [])], sets), CATALOG.registry)
        assert set(loaded.places) <= {path for path in loaded.places if value_of(loaded.values, path)}
        own = {key: value for key, value in loaded.values.items() if key not in NEOX or f"{key}:" in text}
        return own, loaded.problems

    return _read


def value_of(values: Any, path: str) -> bool:
    """Whether a place has a value."""
    for part in path.split("."):
        if not isinstance(values, dict) or part not in values:
            return False
        values = values[part]
    return True


@pytest.mark.parametrize(
    ("written", "values"),
    [
        ("merge_file: m", {}),
        ("norm: layernorm\nrms_norm_epsilon: 1e-6", {"norm": "layernorm"}),
        ("norm: rmsnorm\nrms_norm_epsilon: 1e-6", {"norm": "rmsnorm", "rms_norm_epsilon": 1e-6}),
        ("layernorm_epsilon: 1e-6", {"layernorm_epsilon": 1e-6}),
        ("rotary_pct: 0.25", {}),
        ("pos_emb: rotary\nrotary_pct: 0.25", {"pos_emb": "rotary", "rotary_pct": 0.25}),
        ("account: a\ncomment: c", {}),
        ("launcher: slurm\naccount: a", {"launcher": "slurm", "account": "a"}),
        ("deepspeed_slurm: true\naccount: a", {"launcher": "slurm", "account": "a"}),
        ("comet_tags: [a]\ncomet_others: {b: 1}", {"comet": {"tags": ["a"], "others": {"b": 1}}}),
        ("fp16: {type: bfloat16, enabled: true, loss_scale: 0}", {"bf16": {"enabled": True}}),
        ("train_iters: 9\nwarmup_iters: 3\n", {"train_iters": 9, "warmup": 1 / 3}),
        ("decay_lr_to: 0.25", {"min_lr": 0.25}),
        ("attention_type: groupedquery", {}),
        ("profile: true", {"profile": {"first": 11, "last": 12}}),
        (
            "deepspeed_extra_args: {comms_logger: {enabled: true}, timers: {}}",
            {"comms_logger": {"enabled": True}, "deepspeed_extra_args": {"timers": {}}},
        ),
    ],
)
def test_what_a_key_of_gpt_neox_is_read_as(read: Any, written: str, values: dict[str, Any]) -> None:
    own, problems = read(written)
    assert own == values
    assert {each.severity for each in problems} <= {"note"}


@pytest.mark.parametrize("written", ["rms_norm_epsilon: 1e-6", "rotary_pct: 0.25", "account: a", "short_seq_prob: 0.2"])
def test_the_same_key_in_a_config_of_neox_is_left_to_its_reader(read: Any, written: str) -> None:
    own, problems = read(written, marked=False)
    assert list(own) == [written.partition(":")[0]]
    assert problems == ()


@pytest.mark.parametrize(
    "written",
    [
        "rms_norm_epsilon: 1e-8",
        "norm: rmsnorm\nlayernorm_epsilon: 1e-5",
        "scalenorm_epsilon: 1e-8",
        "pos_emb: alibi\nrotary_pct: 1.0\nrotary_emb_base: 10000",
        "rpe_num_buckets: 32\nrpe_max_distance: 128",
        "moe_top_k: 1\nmoe_router_type: sinkhorn",
        "short_seq_prob: 0.1",
    ],
)
@pytest.mark.parametrize("marked", [True, False])
def test_a_key_at_gpt_neox_s_default_that_does_not_act_is_noted(read: Any, written: str, *, marked: bool) -> None:
    own, problems = read(written, marked=marked)
    assert own.keys() <= {"norm", "pos_emb"}
    assert {each.severity for each in problems} == {"note"}


def test_what_a_key_of_experts_says_at_another_value_is_left_to_its_reader(read: Any) -> None:
    assert read("moe_top_k: 2")[0] == {"moe_top_k": 2}


def test_a_cosine_that_ends_before_the_run_is_noted_of_gpt_neox_alone(read: Any) -> None:
    def said(written: str, *, marked: bool = True) -> list[tuple[str, str]]:
        return [(each.key, each.message) for each in read(written, marked=marked)[1] if "rises" in each.message]

    ends = "train_iters: 100\nlr_decay_style: cosine\n"
    message = "the rate is min-lr from step 90 to the end, 100; GPT-NeoX's cosine rises again after its end"
    assert said(f"{ends}lr_decay_iters: 90") == [("lr_decay_iters", message)]
    assert said(f"{ends}lr-decay-fraction: 0.9") == [("lr-decay-fraction", message)]
    assert said(f"{ends}lr_decay_iters: 90", marked=False) == []
    assert said(f"{ends}lr_decay_iters: 90\nlr_decay_version: 1") == []
    assert said(f"{ends}lr_decay_iters: 100") == []
    assert said("train_iters: 100\nlr_decay_style: linear\nlr_decay_iters: 90") == []


def test_a_warmup_within_the_first_step_is_noted(read: Any) -> None:
    def said(written: str) -> list[str]:
        return [each.message for each in read(written)[1] if each.key == "warmup"]

    at_once = "lasts 0.2 steps: the first update has the peak, and in GPT-NeoX 5 times it"
    assert said("train_iters: 20\nwarmup: 0.01") == [at_once]
    assert said("train_iters: 20\nwarmup: 0.13") == []
    assert said("train_iters: 143000\nwarmup: 0.01") == []


def test_a_key_that_gpt_neox_does_not_read_is_noted(read: Any) -> None:
    own, (said,) = read("reset_attention_mask: true\nreset_position_ids: false")
    assert own["reset_attention_mask"] is True
    assert (said.key, said.severity) == ("reset_attention_mask", "note")
    assert "GPT-NeoX reads it nowhere" in said.message
    assert read("reset_attention_mask: true", marked=False)[1] == ()


def test_a_choice_of_the_command_line_is_its_users_own(read: Any) -> None:
    assert "rotary_pct" in read("pos_emb: rotary\nrotary_pct: 0.25", "pos_emb=learned")[0]
    assert read("merge_file: m", "tokenizer_type=SPMTokenizer")[0] == {}


def test_hosts_start_by_pdsh(read: Any, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("# two\na slots=8\n\nb slots=8\n")
    (tmp_path / "one").write_text("a slots=8\n")
    assert read(f"hostfile: {tmp_path}/hosts")[0]["launcher"] == "pdsh"
    assert read(f"hostfile: {tmp_path}/hosts\nlauncher: slurm")[0]["launcher"] == "slurm"
    assert "launcher" not in read(f"hostfile: {tmp_path}/one")[0]
    assert "launcher" not in read(f"hostfile: {tmp_path}/hosts", marked=False)[0]
    assert read("hostfile: /mock_path", marked=False)[0] == {}
    assert read("hostfile: /gone")[0] == {"hostfile": "/gone"}


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("mlp_multiple_of: 0\nhidden_size: 8", "must be a number of 1 or more, not 0"),
        ("lr_decay_fraction: 1.5", "must be above 0 and at most 1, not 1.5"),
        ("checkpoint_scale: log\ncheckpoint_factor: 1\ntrain_iters: 5", "must be above 1 with checkpoint_scale: log"),
        ("attention_type: sparse", "cannot be 'sparse'"),
    ],
)
def test_a_mistake_is_an_error(read: Any, written: str, said: str) -> None:
    (problem,) = [each for each in read(written)[1] if each.severity == "error"]
    assert said in problem.message


def test_defaults_that_differ_are_noted_and_written(tmp_path: Path) -> None:
    (tmp_path / "c.yml").write_text(
        "hidden_size: 8\ncheckpoint_factor: 5\nhidden_dropout: 0.5\noptimizer: {params: {lr: 1}, type: A}\n"
    )
    (noted,) = [
        each for each in modernise(load([tmp_path / "c.yml"]), CATALOG.registry).problems if "marks" in each.message
    ]
    assert "attention-dropout 0.0 (here 0.1), weight-decay 0.1 (here 0.01)" in noted.message
    assert "hidden-dropout" not in noted.message
    new = migrate([tmp_path / "c.yml"], CATALOG).text
    assert new.endswith(
        "# GPT-NeoX's defaults, which its files do not write\nattention-dropout: 0.0\nweight-decay: 0.1\n"
    )
    (tmp_path / "new.yml").write_text(new)
    assert migrate([tmp_path / "new.yml"], CATALOG).text == new
    decays = "hidden_size: 8\ncheckpoint_factor: 5\noptimizer: {params: {weight_decay: 0.5}}\n"
    (tmp_path / "c.yml").write_text(decays)
    assert "weight-decay: 0.1" not in migrate([tmp_path / "c.yml"], CATALOG).text
