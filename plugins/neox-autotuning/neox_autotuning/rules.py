"""Rules of the block `autotuning`, one function each."""

from collections.abc import Iterator
from typing import Any

from neox_core.api import Component, Problem

BLOCK = "autotuning"
MODEL = Component("model_based", "neox_autotuning.model:predict", needs=("xgboost",))


def problems(config: Any) -> Iterator[Problem]:
    """All problems that the rules find."""
    if not config.is_set(BLOCK):
        return
    from neox_autotuning.settings import AutotuningSettings  # most configs have no such block

    block = config.section(AutotuningSettings).autotuning
    if block.enabled:
        yield Problem(
            "is enabled, and neox train does not search",
            BLOCK,
            "run `neox tune` with the same files, then train with its best",
            severity="start",
        )
    else:
        yield Problem("is read by `neox tune` only", BLOCK, severity="note")
    yield from steps_follow(block)
    yield from tuner_can_be_used(config, block)
    yield from width_agrees(config, block)


def steps_follow(block: Any) -> Iterator[Problem]:
    """end_profile_step is not before start_profile_step."""
    if block.end_profile_step < block.start_profile_step:
        yield Problem(
            f"{block.end_profile_step} comes before start_profile_step {block.start_profile_step}",
            f"{BLOCK}.end_profile_step",
        )


def tuner_can_be_used(config: Any, block: Any) -> Iterator[Problem]:
    """tuner_type applies with fast: false; model_based needs xgboost."""
    key = f"{BLOCK}.tuner_type"
    if block.fast:
        if config.is_set(key):
            yield Problem("is not read with fast: true", key, f"{BLOCK}.fast: false, or remove it")
    elif block.tuner_type == "model_based" and MODEL.missing():
        yield Problem(
            "model_based needs xgboost, which is not installed", key, "install it, or use gridsearch or random"
        )


def width_agrees(config: Any, block: Any) -> Iterator[Problem]:
    """mp_size equals model-parallel-size."""
    width = config.value("model_parallel_size")
    if config.is_set(f"{BLOCK}.mp_size") and block.mp_size != width:
        yield Problem(f"{block.mp_size} is not model-parallel-size, {width}", f"{BLOCK}.mp_size", "remove it")
