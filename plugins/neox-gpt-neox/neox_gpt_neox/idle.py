"""Keys that act only beside another choice than that of the config, as those of a norm that it does not have."""

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from neox_core.config.problem import COMMAND_LINE
from neox_core.config.schema.convert import same
from neox_gpt_neox.translate import Rewriting

NOT_HERE = "has no effect here"
"""How the note starts on such a key."""


@frozen
class Idle:
    """keys: each with its default in GPT-NeoX, None where it has none. They do not act where the key `beside`, whose
    default is `default`, is one of `names`.

    with_any_value: whether they are dropped from a config of GPT-NeoX at other values too.
    """

    keys: Mapping[str, Any]
    beside: str
    names: tuple[str, ...]
    default: str | None = None
    with_any_value: bool = True


_NORMS = ("layernorm", "rmsnorm", "scalenorm")
_POSITIONS = ("learned", "rotary", "sinusoidal", "rpe", "alibi", "none")


def _of(name: str, names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(each for each in names if each != name)


def _norm(norm: str, key: str, default: float) -> Idle:
    return Idle({key: default}, "norm", _of(norm, _NORMS), "layernorm")


def _position(name: str, keys: Mapping[str, Any]) -> Idle:
    return Idle(keys, "pos_emb", _of(name, _POSITIONS), "learned")


IDLE = (
    Idle(
        {"merge_file": None},
        "tokenizer_type",
        ("HFTokenizer", "SPMTokenizer", "CharLevelTokenizer", "TiktokenTokenizer"),
    ),
    _norm("layernorm", "layernorm_epsilon", 1e-5),
    _norm("rmsnorm", "rms_norm_epsilon", 1e-8),
    _norm("scalenorm", "scalenorm_epsilon", 1e-8),
    _position("rotary", {"rotary_pct": 1.0, "rotary_emb_base": 10_000}),
    _position("rpe", {"rpe_num_buckets": 32, "rpe_max_distance": 128}),
    Idle(
        {"comment": None, "account": None},
        "launcher",
        ("local", "pdsh", "openmpi", "mvapich", "mpich", "impi"),
        "local",
    ),
    Idle({"moe_top_k": 1, "moe_router_type": "sinkhorn"}, "mlp_type", ("regular",), "regular", with_any_value=False),
    Idle({"short_seq_prob": 0.1}, "objective", ("causal-lm",), "causal-lm", with_any_value=False),
)


def drop_idle(work: Rewriting, *, of_gpt_neox: bool) -> None:
    """Take out, with a note, what does not act beside the tokenizer, norm, position or launcher that a file chooses. In
    a config that is not recognised as GPT-NeoX's only what is at GPT-NeoX's default: another value is a mistake there.
    """
    for each in IDLE:
        place = work.places.get(each.beside)
        if place is not None and place.where == COMMAND_LINE and each.beside != "tokenizer_type":
            continue  # who changes the model there changes its other keys too
        chosen = work.value(each.beside) or each.default
        for key, default in each.keys.items():
            value = work.value(key)
            if chosen not in each.names or value is None:
                continue
            if same(value, default) or (of_gpt_neox and each.with_any_value):
                work.drop(key, f"{NOT_HERE}: it does not act beside {each.beside.replace('_', '-')}: {chosen}")
