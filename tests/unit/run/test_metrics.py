"""What components measure, as the log gets it: means over the modules and the ranks that give a name."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from attrs import evolve
from torch import nn

from neox_core.errors import PluginError
from neox_core.parallel.context import BuildContext
from neox_core.parallel.groups import Groups
from neox_core.run import metrics as module
from neox_core.run.metrics import Metrics

CONTEXT = BuildContext(torch.device("cpu"), torch.float32, Groups(None, None, 0, 1), seed=1)


class Gate(nn.Module):
    def __init__(self, opened: float) -> None:
        super().__init__()
        self.opened = opened

    def metrics(self) -> dict[str, float]:
        return {"opened": self.opened}


def engine(**numbers: float) -> Any:
    return SimpleNamespace(metrics=lambda: {name: torch.tensor(value) for name, value in numbers.items()})


def test_each_component_has_its_prefix() -> None:
    optimizer = SimpleNamespace(metrics=lambda: {"trust": torch.tensor(2.0)})
    model = nn.Sequential(Gate(0.25), nn.Linear(2, 2), Gate(0.75))
    read = Metrics(engine(objective_z=3.0), {"optimizer": optimizer, "curriculum": None}, model, CONTEXT).read()
    assert read == {"objective_z": 3.0, "optimizer_trust": 2.0, "model_opened": 0.5}
    assert Metrics(engine(), {}, nn.Linear(1, 1), CONTEXT).read() == {}


def test_a_name_that_comes_later_is_refused() -> None:
    numbers = {"z": 1.0}
    metrics = Metrics(SimpleNamespace(metrics=lambda: numbers), {}, nn.Linear(1, 1), CONTEXT)  # type: ignore[arg-type]  # its metrics
    assert metrics.read() == {"z": 1.0}
    numbers["other"] = 2.0
    with pytest.raises(PluginError, match="the metric other was not there at the first log step"):
        metrics.read()
    numbers.clear()
    assert metrics.read() == {}


def test_a_component_that_gives_too_many_is_named() -> None:
    class Many(nn.Module):
        __module__ = "neox_lion.lion"

        def metrics(self) -> dict[str, float]:
            return {f"number_{each}": 1.0 for each in range(100_000)}

    said = r"Many\.metrics\(\) gives 100,000 numbers: a component gives 1,000 at most to the log \(in neox-lion .*\)"
    with pytest.raises(PluginError, match=said):
        Metrics(engine(), {}, Many(), CONTEXT).read()


def test_ranks_with_different_layers_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the stages of a pipeline: the mean is over all modules with a name, wherever they are."""
    gates = [[Gate(0.0), Gate(0.5)], [Gate(1.0)]]
    names = [["model_opened", "objective_z"], ["model_opened"]]
    tables: list[torch.Tensor] = []

    def gather(into: list[Any], own: Any, group: object) -> None:
        into[:] = names

    monkeypatch.setattr(module.dist, "get_world_size", lambda group: 2)
    monkeypatch.setattr(module.dist, "all_gather_object", gather)
    monkeypatch.setattr(module.dist, "all_reduce", lambda table, group: tables.append(table.clone()))
    context = evolve(CONTEXT, groups=evolve(CONTEXT.groups, world=object()))
    for numbers, own in (({"objective_z": 4.0}, gates[0]), ({}, gates[1])):
        Metrics(engine(**numbers), {}, nn.Sequential(*own), context).read()
    sums, counts = (tables[0] + tables[1]).tolist()
    assert [total / count for total, count in zip(sums, counts, strict=True)] == [0.5, 4.0]
