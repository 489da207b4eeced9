"""Config to plan: every number that follows, every origin, and a run.json that reads back as it was."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from neox_reference.origins import find_origins

from neox_core.config.report import ProblemsError
from neox_core.errors import ConfigError
from neox_core.plan.cluster import Machine
from neox_core.plan.resolve import Resolved, prepare_run
from neox_core.plan.runfile import digest, read_runfile, to_plain, write_runfile

Prepare = Callable[..., Resolved]


@pytest.fixture
def prepare(tmp_path: Path, text: str, catalog: Any) -> Prepare:
    def _prepare(*sets: str, num_cuda: int = 0, **more: Any) -> Resolved:
        (tmp_path / "tiny.yml").write_text(text)
        return prepare_run([tmp_path / "tiny.yml"], sets, catalog=catalog, machine=Machine(num_cuda, 4), **more)

    return _prepare


def test_the_model(prepare: Prepare) -> None:
    model = prepare(
        "no-weight-tying=true", "gpt-j-residual=true", "hidden-dropout=0", "output-layer-init-method=wang_init"
    ).plan.model
    assert (model.num_layers, model.hidden_size, model.num_attention_heads, model.intermediate_size) == (2, 64, 4, 256)
    assert (model.tie_embeddings, model.parallel_residual, model.residual_post_norm) == (False, True, False)
    assert (model.hidden_dropout, model.attention_dropout) == (0.0, 0.1)
    assert (model.init_method, model.output_init_method, model.init_std) == ("normal", "wang_init", 0.02)
    assert model.padded_vocab_size == 256
    assert (model.norm.kind, model.norm.name, model.norm.plugin) == ("norm", "layernorm", "everything")
    assert (model.norm.target, model.norm.settings) == ("math:floor", {"layernorm_epsilon": 1e-5})
    assert prepare("intermediate-size=100").plan.model.intermediate_size == 100


def test_the_learning_rate(prepare: Prepare) -> None:
    optim = prepare("lr-decay-style=cosine", "min-lr=1e-4", "warmup=0.1").plan.optim
    assert (optim.lr, optim.min_lr, optim.warmup_steps, optim.decay_steps) == (1e-3, 1e-4, 10, 100)
    assert optim.schedule.name == "cosine"
    shorter = prepare("lr-decay-iters=50", "warmup=0.1").plan.optim
    assert (shorter.warmup_steps, shorter.decay_steps) == (5, 50)
    # 0.29 x 100 is 28.999999999999996, and 0.015 x 100 is between two steps
    assert [prepare(f"warmup={share}").plan.optim.warmup_steps for share in (0.29, 0.015, 0, 1)] == [29, 1.5, 0, 100]


@pytest.mark.parametrize(
    ("sets", "decay"),
    [
        ((), 0.01),
        (("weight-decay=0.1",), 0.1),
        (("optimizer.params.weight_decay=0.2",), 0.2),
        (("optimizer.params.weight_decay=0",), 0.0),
    ],
)
def test_one_weight_decay_everywhere(prepare: Prepare, sets: tuple[str, ...], decay: float) -> None:
    optim = prepare(*sets).plan.optim
    assert optim.weight_decay == decay
    assert optim.optimizer.settings["weight_decay"] == decay


@pytest.mark.parametrize("beside", [(), ("gradient_clipping=0.5",)])
def test_max_grad_norm_sets_the_clipping(prepare: Prepare, beside: tuple[str, ...]) -> None:
    plan = prepare("optimizer.params.max_grad_norm=0.5", *beside).plan
    assert "max_grad_norm" not in plan.optim.optimizer.settings
    assert plan.optim.gradient_clipping == plan.engine["gradient_clipping"] == 0.5


@pytest.mark.parametrize(
    ("sets", "num_cuda", "expected"),
    [
        ((), 0, ("fp32", None)),
        (("bf16.enabled=true",), 0, ("bf16", None)),
        (("bfloat16.enabled=true",), 0, ("bf16", None)),
        (("bf16.enabled=false",), 0, ("fp32", None)),
        (("fp16.enabled=true",), 1, ("fp16", None)),
        (("torch_autocast.enabled=true",), 0, ("fp32", "bf16")),
        (("torch_autocast={enabled: true, dtype: bf16}",), 0, ("fp32", "bf16")),
        (("torch_autocast={dtype: bf16}",), 0, ("fp32", None)),
    ],
)
def test_precision(prepare: Prepare, sets: tuple[str, ...], num_cuda: int, expected: tuple[str, str | None]) -> None:
    precision = prepare(*sets, num_cuda=num_cuda).plan.precision
    assert (precision.dtype, precision.autocast) == expected


def test_checkpoints(prepare: Prepare) -> None:
    resting = prepare().plan.checkpoint
    assert (resting.save, resting.load, resting.resume, resting.schedule_from) == (None, None, "must", "must-match")
    assert (resting.load_optimizer, resting.load_rng, resting.save_optimizer, resting.save_rng) == (True,) * 4
    tuned = prepare("load=in", "finetune=true", "no-save-rng=true", resume="auto").plan.checkpoint
    assert (tuned.load_optimizer, tuned.load_rng, tuned.save_optimizer, tuned.save_rng) == (False, False, True, False)
    assert (tuned.finetune, tuned.resume) == (True, "auto")
    assert prepare("override-lr-scheduler=true").plan.checkpoint.schedule_from == "config"
    assert prepare("use-checkpoint-lr-scheduler=true").plan.checkpoint.schedule_from == "checkpoint"
    with pytest.raises(ProblemsError, match="--resume: must be must or auto"):
        prepare(resume="perhaps")


def test_a_run_that_is_started_again_goes_on_in_its_own_folder(prepare: Prepare) -> None:
    saving = ("save=out", "save-interval=5")
    assert prepare(*saving, resume="auto").plan.checkpoint.load == "out"
    assert prepare(*saving, "load=in", resume="auto").plan.checkpoint.load == "in"
    assert prepare(*saving).plan.checkpoint.load is None
    with pytest.raises(ProblemsError, match="--resume: auto has no folder to resume from"):
        prepare(resume="auto")


def test_where_a_run_lives(prepare: Prepare) -> None:
    assert prepare().plan.run_dir == "runs/tiny"
    assert prepare("save=out/x", "save-interval=5").plan.run_dir == "out/x"


def test_batch_and_ranks(prepare: Prepare, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    plan = prepare("num_gpus=2", "train_batch_size=24").plan
    assert (plan.batch.micro_batch, plan.batch.gradient_accumulation, plan.batch.data_parallel) == (4, 3, 2)
    assert plan.cluster.world_size == 2
    assert (plan.cluster.backend, plan.cluster.threads_per_rank) == ("gloo", 2)


def test_infer_looks_at_the_first_bytes(prepare: Prepare, dataset: str) -> None:
    assert prepare().plan.data.backend.name == "mmap"
    assert prepare("data-impl=infer").plan.data.prefix == dataset
    Path(f"{dataset}.idx").write_bytes(b"TNTIDX\x00\x00")
    assert prepare().plan.data.backend.name == "other", "whose component says so"
    Path(f"{dataset}.idx").write_bytes(b"MMID")
    assert prepare().plan.data.backend.name == "mmap", "what nothing recognises counts as that"


def test_the_engine_gets_explicit_values_and_no_block_too_many(prepare: Prepare) -> None:
    assert prepare("zero_optimization={stage: 1, reduce_bucket_size: 5e7, overlap_comm: true}").plan.engine == {
        "train_batch_size": 4,
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 1.0,
        "prescale_gradients": False,
        "gradient_predivide_factor": 1.0,
        "communication_data_type": None,
        "steps_per_print": None,
        "wall_clock_breakdown": False,
        "dump_state": False,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": {
            "stage": 1,
            "allgather_partitions": True,
            "allgather_bucket_size": 500_000_000,
            "reduce_bucket_size": 50_000_000,
            "overlap_comm": True,
            "reduce_scatter": True,
            "contiguous_gradients": True,
            "round_robin_gradients": False,
            "load_from_fp32_weights": True,
            "elastic_checkpoint": False,
            "ignore_unused_parameters": True,
            "sub_group_size": 1_000_000_000_000,
            "stage3_max_live_parameters": 1_000_000_000,
            "stage3_max_reuse_distance": 1_000_000_000,
            "stage3_prefetch_bucket_size": 500_000_000,
            "stage3_param_persistence_threshold": 100_000,
            "stage3_gather_16bit_weights_on_model_save": False,
            "zero_hpz_partition_size": 1,
            "zero_quantized_weights": False,
            "zero_quantized_gradients": False,
        },
    }


def test_the_engine_gets_one_precision_block(prepare: Prepare) -> None:
    assert prepare("bf16.enabled=true").plan.engine["bf16"] == {"enabled": True}
    half = prepare("fp16={enabled: true, initial_scale_power: 12, loss_scale: 0}", num_cuda=1).plan.engine
    assert half["fp16"] == {
        "enabled": True,
        "auto_cast": False,
        "loss_scale": 0.0,
        "initial_scale_power": 12,
        "loss_scale_window": 1000,
        "hysteresis": 2,
        "consecutive_hysteresis": False,
        "min_loss_scale": 1,
    }
    assert not {"fp16", "bf16"} & set(prepare("fp16={enabled: false}", "bf16={enabled: false}").plan.engine)


def test_run_json_reads_back_as_it_was(prepare: Prepare, tmp_path: Path) -> None:
    plan = prepare("num_gpus=2", "tokenizer-type=HFTokenizer", "vocab-file=tokenizer.json").plan
    write_runfile(plan, tmp_path / "run/run.json")
    again = read_runfile(tmp_path / "run/run.json", digest(plan))
    assert again == plan
    assert digest(again) == digest(plan) == hashlib.sha256((tmp_path / "run/run.json").read_bytes()).hexdigest()
    assert digest(prepare("seed=2").plan) != digest(prepare("seed=3").plan)


def test_a_place_that_takes_no_run_json_is_one_clear_error(prepare: Prepare, tmp_path: Path) -> None:
    plan = prepare().plan
    (tmp_path / "file").write_text("")
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    (tmp_path / "in/run.json").mkdir(parents=True)
    for folder, why in (("file", "Not a directory|File exists"), ("gone", "File exists"), ("in", "Is a directory")):
        with pytest.raises(ConfigError, match=f"{folder}/run.json: cannot be written: {why}") as caught:
            write_runfile(plan, tmp_path / folder / "run.json")
        assert "--run-dir" in caught.value.hint


def test_no_secret_is_in_run_json(prepare: Prepare, tmp_path: Path) -> None:
    plan = prepare("monitors=[console, web]").plan
    assert plan.monitors[1].settings == {"web_url": "http://localhost"}


def test_only_plugins_in_use_are_listed(prepare: Prepare) -> None:
    assert prepare().plan.plugins == {"everything": "unknown"}


def test_every_value_of_the_plan_has_an_origin(prepare: Prepare, tmp_path: Path) -> None:
    resolved = prepare(
        "seed=7", "gradient_clipping=1", "checkpoint_factor=5", "save=out", "optimizer.params.weight_decay=0.5"
    )
    origins = find_origins(resolved)
    plain = to_plain(resolved.plan)
    for block, values in plain.items():
        if isinstance(values, dict) and "settings_class" not in values:
            for name in values:
                assert any(path == f"{block}.{name}" or path.startswith(f"{block}.{name}.") for path in origins)
        else:
            assert block in origins
    file = f"{tmp_path}/tiny.yml"
    assert origins["model.num_layers"] == f"set in {file}:1:1"
    assert origins["optim.lr"] == origins["optim.optimizer.settings.lr"] == f"set in {file}:12:12"
    assert origins["optim.weight_decay"] == origins["optim.optimizer.settings.weight_decay"] == "set by --set"
    assert origins["train.seed"] == "set by --set"
    assert origins["checkpoint.save_interval"] == "set by --set"
    assert origins["run_dir"] == "set by --set"
    assert origins["model.norm"] == "default"
    assert origins["model.intermediate_size"] == "derived from 4 x hidden-size"
    assert origins["engine.gradient_clipping"] == "derived from the plan"
    assert origins["plugins.everything"] == "derived from the components in use"


def test_a_run_without_any_file_is_refused() -> None:
    with pytest.raises(ProblemsError, match="no config file is given"):
        prepare_run([])


def test_a_look_needs_no_dataset(prepare: Prepare) -> None:
    (note,) = prepare("data-path=nowhere/x", start=False).notes
    assert note.severity == "warning"


def test_a_plugin_that_is_gone_since_the_run_was_saved_is_named(tmp_path: Path, prepare: Prepare) -> None:
    used = {"plugins": {"everything": "1.0", "neox-gone": "0.3.0"}}
    (tmp_path / "run.json").write_text(json.dumps(used))
    with pytest.raises(ProblemsError) as error:
        prepare("norm=gonenorm", f"save={tmp_path}")
    said = f"the run in {tmp_path} used neox-gone 0.3.0: not installed here"
    assert [(each.severity, each.hint) for each in error.value.problems if each.message == said] == [
        ("note", "install neox-gone from its author")
    ]
    for sets in (
        ("norm=gonenorm",),
        ("norm=gonenorm", f"save={tmp_path / 'other'}"),
        ("seq-length=x", f"save={tmp_path}"),
    ):
        with pytest.raises(ProblemsError) as error:
            prepare(*sets)
        assert "neox-gone" not in str(error.value)
