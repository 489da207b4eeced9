"""Keys that do nothing in this run, because of other keys: a note names each, and the run starts."""

from collections.abc import Callable, Iterator, Sequence

from attrs import frozen

from neox_core.config.problem import Problem
from neox_core.config.schema.convert import block_of, by_key
from neox_core.config.schema.sections.data import DataSection
from neox_core.config.schema.sections.training import TrainingSection
from neox_core.config.schema.structure import Config
from neox_core.plan.cluster import ClusterShape
from neox_core.plan.rules.rule import Rule, rule


@frozen
class Idle:
    """Keys, and why they do nothing in a run; "" where they have an effect. does: what is left of their effect."""

    keys: tuple[str, ...]
    why: Callable[[Config, ClusterShape], str]
    does: str = "nothing"


NO_TOKENIZER = "there is no tokenizer-type to read it"
IDLE = (
    Idle(("eval_interval",), lambda config, _: "" if config.section(TrainingSection).eval_iters else "eval-iters is 0"),
    Idle(("sample_prompt",), lambda config, _: "" if config.section(DataSection).tokenizer_type else NO_TOKENIZER),
)


def idle_rule(entries: Sequence[Idle]) -> Rule:
    """The rule that notes each of the keys that does nothing in a run, unless it has its default."""

    @rule(*(key for each in entries for key in each.keys))
    def keys_that_do_nothing_here(config: Config, shape: ClusterShape) -> Iterator[Problem]:
        """A key that does nothing because of other keys is noted, unless it has its default."""
        for each in entries:
            written = [key for key in each.keys if config.is_set(key) and _is_changed(config, key)]
            why = each.why(config, shape) if written else ""
            yield from (config.problem(f"does {each.does}: {why}", key, severity="note") for key in written if why)

    return keys_that_do_nothing_here


def _is_changed(config: Config, key: str) -> bool:
    """Whether a key has another value than its default; False where the value is wrong, which is reported."""
    first, *inner = key.split(".")
    field = next((by_key(cls)[first] for cls in config.sections if first in by_key(cls)), None)
    if field is None or first not in config.fields:
        return False
    for part in inner:
        field = by_key(block_of(field.type))[part]
    return bool(config.value(key) != field.default)


keys_that_do_nothing_here = idle_rule(IDLE)
