"""Offers the average of weights: the callback that keeps it, the evaluator, and the command that exports it."""

from typing import Any

from neox_core.api import Component, Problem, hookimpl


@hookimpl
def neox_callbacks() -> list[Component]:
    return [
        Component(
            "ema",
            "neox_ema.average:Average",
            "neox_ema.settings:EmaSettings",
            summary="Keeps a moving average of the weights",
        )
    ]


@hookimpl
def neox_evaluators() -> list[Component]:
    return [Component("ema", "neox_ema.evaluate:Evaluator", summary="Validation loss at the average of the weights")]


@hookimpl
def neox_commands() -> list[Component]:
    summary = "Write a checkpoint whose weights are the average that neox-ema kept."
    return [Component("checkpoint.average", "neox_ema.commands:average", summary=summary)]


@hookimpl
def neox_check_config(config: Any) -> list[Problem]:
    kept = [each for each in config.components("callback") if each.entry.qualified == "neox-ema:ema"]
    read = [each for each in config.components("evaluator") if each.entry.qualified == "neox-ema:ema"]
    if not kept:
        said = "ema evaluates the average of the weights, and none is kept"
        return [config.problem(said, "evaluators", "set ema: {enabled: true}")] if read else []
    found = []
    (optimizer,) = config.components("optimizer")
    if "modes" in optimizer.entry.component.uses:
        said = f"contradicts {optimizer.entry.component.name}, which averages the weights itself"
        found.append(config.problem(said, "ema.enabled", "remove it"))
    if config.value("save") is not None and config.value("no_save_optim"):
        said = "contradicts ema, whose average is stored with the state of the optimizer"
        found.append(config.problem(said, "no_save_optim", "remove it"))
    if config.is_set("zero_optimization.stage") and config.value("zero_optimization.stage") == 3:
        found.append(config.problem("3 contradicts ema, which averages at ZeRO 0 to 2", "zero_optimization.stage"))
    where = "zero_optimization.offload_optimizer"
    if config.is_set(f"{where}.device") and config.value(f"{where}.device") != "none":
        found.append(config.problem("contradicts ema, whose average is on the device", where, "remove it"))
    return found
