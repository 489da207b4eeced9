"""What a layout's settings must be, given each other and the sequence; a rule a function."""

from collections.abc import Iterator
from typing import Any

from neox_core.api import Problem

BLOCK = "sparse_attention"


def _problem(key: str, message: str, hint: str = "") -> Problem:
    return Problem(message, f"{BLOCK}.{key}", hint)


def looks_where_the_model_does(settings: Any, *, causal: bool) -> Iterator[Problem]:
    """A decoder sees nothing ahead, so neither do its global blocks; an encoder sees both sides.

    causal: whether the model is a decoder.
    """
    direction = getattr(settings, "attention", None)
    if causal and direction == "bidirectional":
        yield _problem("attention", "a decoder cannot look ahead", "attention: unidirectional")
    elif causal and getattr(settings, "horizontal_global_attention", False):
        yield _problem("horizontal_global_attention", "needs attention: bidirectional, which no decoder has")
    elif not causal and direction == "unidirectional":
        message = "is unidirectional, and the tokens of an encoder see those after them too"
        yield _problem("attention", message, "attention: bidirectional")


def windows_hold_global_blocks(settings: Any, num_blocks: int) -> Iterator[Problem]:
    """Fixed: a window is a whole number of groups of global blocks, one group for each pattern."""
    if not hasattr(settings, "num_different_global_patterns"):
        return
    local, globals_ = settings.num_local_blocks, settings.num_global_blocks
    if local % globals_:
        yield _problem("num_local_blocks", f"{local} is not a multiple of num_global_blocks {globals_}")
    patterns = settings.num_different_global_patterns
    if patterns > 1 and not settings.different_layout_per_head:
        yield _problem("num_different_global_patterns", f"{patterns} patterns need different_layout_per_head: true")
    if patterns > local // globals_:
        yield _problem("num_different_global_patterns", f"a window has room for {local // globals_}, not {patterns}")


def ranges_are_ranges(settings: Any, num_blocks: int) -> Iterator[Problem]:
    """Each global range ends after it starts, within the sequence."""
    if not hasattr(settings, "global_block_indices"):
        return
    starts, ends = settings.global_block_indices, settings.global_block_end_indices
    beyond = [start for start in starts if start >= num_blocks]
    if beyond:
        yield _problem("global_block_indices", f"the sequence has {num_blocks} blocks, and none has number {beyond[0]}")
    if ends is None:
        return
    if len(ends) != len(starts):
        yield _problem("global_block_end_indices", f"has {len(ends)} ends for {len(starts)} global_block_indices")
    for start, end in zip(starts, ends, strict=False):
        if end <= start:
            yield _problem("global_block_end_indices", f"{end} does not come after its start {start}")
        elif end > num_blocks:
            yield _problem("global_block_end_indices", f"{end} is more than the {num_blocks} blocks of the sequence")


def counts_fit(settings: Any, num_blocks: int) -> Iterator[Problem]:
    """No more blocks are asked for than a sequence has."""
    for key in ("num_random_blocks", "num_sliding_window_blocks", "num_global_blocks"):
        count = getattr(settings, key, 0)
        if count > num_blocks:
            yield _problem(key, f"{count} is more than the {num_blocks} blocks of the sequence")


def heads_differ(settings: Any, num_blocks: int) -> Iterator[Problem]:
    """Heads have layouts of their own where something is drawn for each, or where they take turns."""
    patterns, drawn = getattr(settings, "num_different_global_patterns", 1), getattr(settings, "num_random_blocks", 0)
    if getattr(settings, "different_layout_per_head", False) and patterns == 1 and not drawn:
        key = "num_random_blocks" if hasattr(settings, "num_random_blocks") else "num_different_global_patterns"
        said = f"does nothing while {key} is {getattr(settings, key)}: the heads have one layout"
        yield Problem(said, f"{BLOCK}.different_layout_per_head", severity="note")


RULES = (heads_differ, windows_hold_global_blocks, ranges_are_ranges, counts_fit)
