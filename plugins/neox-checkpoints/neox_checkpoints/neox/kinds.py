"""Whether what files say is of the kind that it has to be, before anything is computed from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isfinite
from pathlib import Path
from typing import Any

from neox_core.errors import CheckpointError
from neox_core.untrusted import short


def _is_number(found: Any) -> bool:
    return isinstance(found, int | float) and not isinstance(found, bool) and abs(found) < 1e30 and isfinite(found)


def _is_count(found: Any) -> bool:
    return type(found) is int and 1 <= found < 1 << 60


def _is_text(found: Any) -> bool:
    return isinstance(found, str)


def _is_block(found: Any) -> bool:
    return isinstance(found, Mapping)


_NEEDED = ("num_layers", "hidden_size", "num_attention_heads")
_CONFIG: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    (
        (
            "num_layers hidden_size num_attention_heads num_kv_heads train_iters train_batch_size"
            " train_micro_batch_size_per_gpu gradient_accumulation_steps gas"
        ),
        _is_count,
        "a whole number of 1 or more",
    ),
    (
        (
            "rotary_pct rotary_emb_base hidden_dropout attention_dropout weight_decay gradient_clipping"
            " layernorm_epsilon rms_norm_epsilon scalenorm_epsilon"
        ),
        _is_number,
        "a number",
    ),
    ("norm pos_emb activation optimizer.type", _is_text, "a name"),
    ("optimizer optimizer.params fp16 deepspeed_extra_args", _is_block, "a block"),
    ("deepspeed_extra_args.gradient_clipping", _is_number, "a number"),
)
_ENGINE = {
    "train_batch_size": _is_count,
    "train_micro_batch_size_per_gpu": _is_count,
    "gradient_clipping": _is_number,
}
_SCHEDULE = {"start_lr": _is_number, "min_lr": _is_number, "warmup_iter": _is_number, "end_iter": _is_count}


def require_config(given: Mapping[str, Any], path: Path) -> None:
    """Raises CheckpointError for a key that the import reads and that has a value of another kind. given: without null.
    path: of the checkpoint.
    """
    for listed, is_right, kind in _CONFIG:
        for key in listed.split():
            block, _, name = key.rpartition(".")
            within = given.get(block) if block else given
            found = within.get(name) if isinstance(within, Mapping) else None
            if (found is None and key in _NEEDED) or (found is not None and not is_right(found)):
                raise CheckpointError(f"{path}: the config sets {key} to {short(found)}, not to {kind}")


def engine_in(found: Any, path: Path) -> Mapping[str, Any]:
    """DeepSpeed's own config in a file; nothing where it holds none."""
    told: Mapping[str, Any] = found if isinstance(found, Mapping) else {}
    for key, is_right in _ENGINE.items():
        if told.get(key) is not None and not is_right(told[key]):
            raise CheckpointError(f"{path}: {key} of ds_config is {short(told[key])}, not a number for it")
    return told


def schedule_in(found: Any, path: Path) -> Mapping[str, Any]:
    """The state of the learning rate in a file; nothing where it holds none of GPT-NeoX's."""
    if not isinstance(found, Mapping) or "start_lr" not in found:
        return {}
    for name, is_right in _SCHEDULE.items():
        if not is_right(found.get(name)):
            raise CheckpointError(f"{path}: {name} of lr_scheduler is {short(found.get(name))}, not a number for it")
    if not _is_text(found.get("decay_style")):
        raise CheckpointError(f"{path}: decay_style of lr_scheduler is {short(found.get('decay_style'))}, not a name")
    return found


def shape_in(found: Any, name: str, path: Path) -> tuple[int, ...]:
    """A shape of `param_shapes`."""
    if not isinstance(found, (list, tuple)) or not all(map(_is_count, found)):
        raise CheckpointError(f"{path}: the shape of {short(name)} in param_shapes is {short(found)}")
    return tuple(found)
