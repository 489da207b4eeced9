"""Each value that the type of a key or the documents name is taken beside what it needs, or is in a table of reasons.

Numbers and texts have bounds, which `neox config explain` shows. A switch is asked for its other value by
tests/unit/plan/test_no_silent_key.py, whose table `REFUSED` names those that stay. The reason is a part of the error;
docs/adr/0023-values-that-stay-refused.md says more about those that no other key would mend.
"""

from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

import pytest
from changed_keys import TWO, changes, keys
from neox_reference.coverage import ledger
from neox_reference.keys import Key
from plan_answers import CPU, GPU, Sets, asking

DOCUMENTED: dict[str, dict[str, Any]] = ledger()["parameters"]
LEVELS = "is required by schedule_type: fixed_discrete"
ON_CPU = "is nccl, and the ranks talk over gloo"

# (key, value) -> the reason why it is refused beside what `changed_keys` puts there
REASONS = {
    ("tokenizer_type", "GPT2Tokenizer"): "is required by tokenizer GPT2Tokenizer",
    ("optimizer.type", "OneBitAdam"): "OneBitAdam needs freeze_step",
    ("optimizer.type", "ZeroOneAdam"): ON_CPU,
    ("optimizer.type", "OneBitLamb"): ON_CPU,
    ("scheduler.type", "1Cycle"): "is required by scheduler 1Cycle",
    ("data_types.grad_accum_dtype", "fp16"): "does not go with a model in bf16 at ZeRO stage 1",
    ("curriculum_learning.schedule_type", "fixed_root"): "is required by schedule_type: fixed_root",
    ("curriculum_learning.schedule_type", "fixed_discrete"): LEVELS,
    ("rotary_scaling", "linear"): "does nothing with rotary-scaling linear",
    ("sparse_attention.attention", "bidirectional"): "a decoder cannot look ahead",
}
ZERO, COMPRESSION = "zero_optimization", "compression_training"
METRIC = "{enabled: true, curriculum_learning: {enabled: true, curriculum_metrics: {a: {schedule_type: custom}}}}"
# key -> value, the reason, what stands beside it: values that only a rule refuses, and those of older documents
OTHERS: list[tuple[str, str, str, Sets]] = [
    (f"{COMPRESSION}.channel_pruning.shared_parameters.enabled", "true", "is for convolutions", ()),
    (f"{COMPRESSION}.weight_quantization.shared_parameters.quantizer_kernel", "true", "torch rounds the weights", ()),
    ("sparse_attention.horizontal_global_attention", "true", "which no decoder has", ("sparsity=all",)),
    ("comms_logger.prof_all", "false", "times nothing", ("comms_logger.enabled=true",)),
    ("autotuning.enabled", "true", "neox train does not search", ()),
    (
        "data_efficiency",
        f"{{enabled: true, data_sampling: {METRIC}}}",
        "needs a function, which a config cannot hold",
        (),
    ),
    (f"{ZERO}.allgather_partitions", "false", "applies at stage 1 only", (f"{ZERO}.stage=2",)),
    (f"{ZERO}.grad_hooks", "false", "applies at stage 1 only", (f"{ZERO}.stage=2",)),
    ("amp.opt_level", "O2", "keeps weights in half precision", ()),
    ("amp.opt_level", "O3", "keeps weights in half precision", ()),
    ("amp.loss_scale", "dynamic", "nothing calls Apex", ()),
    ("distributed_backend", "mpi", "must be one of", TWO),
    ("eigenvalue.layer_name", "blocks", "names no row of layers", ("eigenvalue.enabled=true",)),
    ("rpe_causal", "false", "pos-emb: rpe is always causal", ()),
    ("deepspeed_mpi", "true", "the launcher tells the ranks their places", ()),
    ("output_layer_parallelism", "row", "computes the same numbers as column", ()),
    ("checkpoint_validation_with_forward_pass", "true", "compares what it loads with the checksums", ()),
]


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with asking(tmp_path_factory.mktemp("values")) as ask:
        yield ask


def values(key: Key) -> set[str]:
    """Those that the type of a key and the documents name, as a config writes them, but for a switch's."""
    assert key.field is not None
    kind = key.field.type
    kinds = (kind,) if get_origin(kind) is Literal else get_args(kind)
    named = {str(value) for each in kinds if get_origin(each) is Literal for value in get_args(each)}
    named |= {str(each) for path in key.spellings for each in DOCUMENTED.get(path, {}).get("choices", ())}
    return {f"[{each}]" for each in named} if get_origin(kind) is tuple else named


def asked() -> Iterator[tuple[str, str, Sets, Any]]:
    """Each value but the default."""
    for key in keys():
        path, _, beside, machine = changes(key)
        default = None if key.field is None or key.field.required else key.field.default
        for value in sorted(values(key) - {str(default)}):
            if f"{path}={value}" not in beside:
                yield path, value, beside, machine


CASES = sorted({(path, value, beside): machine for path, value, beside, machine in asked()}.items(), key=str)


@pytest.mark.parametrize(
    ("case", "machine"), CASES, ids=lambda each: "=".join(each[:2]) if isinstance(each, tuple) else ""
)
def test_a_value_is_taken_or_refused_for_a_reason(case: tuple[str, str, Sets], machine: Any, ask: Any) -> None:
    path, value, beside = case
    answer = ask((*beside, f"{path}={value}"), machine)
    said = [each.message for each in answer.said if each.severity == "error"]
    assert bool(said) == ((path, value) in REASONS), said
    assert not said or any(REASONS[path, value] in each for each in said), said


def test_each_reason_is_asked_for() -> None:
    assert REASONS.keys() <= {(path, value) for (path, value, _), _ in CASES}


@pytest.mark.parametrize(("path", "value", "reason", "beside"), OTHERS)
def test_a_value_stays_refused(path: str, value: str, reason: str, beside: Sets, ask: Any) -> None:
    said = [each.message for each in ask((*beside, f"{path}={value}"), GPU if "opt_level" in path else CPU).said]
    assert any(reason in each for each in said), said
