"""Optimizers and learning-rate schedules."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from attrs import frozen

if TYPE_CHECKING:
    from torch import Tensor

    from neox_core.plan.runfile import OptimPlan


class Optimizer(Protocol):
    """`target(params, settings) -> torch.optim.Optimizer`.

    * params: groups `{"params": [...], "weight_decay": float}`. An option in a group wins over the settings, which
      count for a group without it.
    * It reads `lr` from its groups at each step: the schedule writes it. It starts above 0; at 0 no weight changes.
    * An optimizer that decays weights has a setting `weight_decay`. Without it, neox refuses `weight-decay` in a
      config, and groups have 0.
    * Its whole state is in `state_dict()`, as tensors and plain numbers: an optimizer that is built again and gets it
      by `load_state_dict()` makes the same later steps, bit for bit.
    * `step()` updates the weights that have a gradient, also those whose first gradient comes late, and keeps weights
      finite while gradients are finite. It does not change gradients and skips parameters without one. It is
      deterministic, whatever torch's generator draws.
    * `zero_grad()` removes the gradients.
    * Per-parameter state has the parameter's shape (under ZeRO it is sliced with the parameter) or is a scalar. With
      `Component.whole_parameters` it may also have one number for each index of a dimension, in a tensor that
      broadcasts to the parameter: [d1, 1] and [1, d2] for a [d1, d2].
    * With `Component.whole_parameters` it never gets parts of parameters. At ZeRO 1 it is built with all parameters;
      then its groups keep those that the rank owns, which may be none. In the groups of any other optimizer flat fp32
      slices take the place of parameters, once it is built, from ZeRO 1 on: see `Component.zero_stages`.
    * A parameter whose attribute `is_table` is True is an embedding or the head.
    * A target with a third argument `run` gets an `OptimizerRun`: lengths of the run, names of parameters.
    * It may put parameters into other groups. `lr_scale` in a group, a number, is a factor of the learning rate: `lr`
      is then the schedule's rate times it.
    * With "closure" in `Component.uses` it is called as `step(closure)`, with the gradients computed. `closure()`
      computes them again, of the same samples with the same dropout, averaged and clipped, at the weights as they are
      then, and returns the loss. Where such a gradient is not finite, no parameter has one. After the step the weights
      have moved by one update; what it added to them on the way is gone.
    * With "modes" in `Component.uses` it has the methods of `ModalOptimizer`.
    """

    param_groups: list[dict[str, Any]]

    def step(self) -> Any: ...

    def zero_grad(self, set_to_none: bool = True) -> None: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class ModalOptimizer(Protocol):
    """An optimizer whose weights for evaluation and checkpoints are not those at which gradients are computed.

    * neox calls `train()` once it is built, `eval()` before weights are evaluated, saved or loaded and `train()` after
      it, also before the first step, where they change nothing. Nor does a second call in a row.
    * `train()` restores what the weights were before `eval()`, to the bit, so that an evaluation or a save does not
      change a run. The mode is not in `state_dict()`; a checkpoint has the weights of evaluation.
    """

    def train(self) -> None: ...

    def eval(self) -> None: ...


@runtime_checkable
class AveragingOptimizer(Protocol):
    """An optimizer that communicates between data-parallel ranks by itself, at ZeRO 0 without other parallelism.

    * Its target takes a third argument named `group`: the process group of the data-parallel ranks, None for one rank.
    * Parameters and state are the same on all ranks, except for `own_state`. All ranks step together, and a parameter
      has a gradient on all ranks or on none.
    * Gradients are clipped before `step()`: averaged ones by their norm, a rank's own by the root mean square of all
      ranks' norms, which is never below the norm of the average.
    """

    def needs_average(self) -> bool:
        """Whether the next `step()` needs gradients averaged over the ranks; False: it gets the rank's own."""

    def own_state(self) -> Mapping[str, Tensor]:
        """The tensors that only this rank has, by name; empty where all ranks have the same state."""

    def load_own_state(self, stored: Sequence[Mapping[str, Tensor]]) -> None:
        """Load the `own_state` of all ranks of a run; called after the parameters and `state_dict()` are loaded.

        stored: one mapping per rank of the earlier run, in order. With the same number of ranks, the run continues bit
        for bit; the number may also differ.
        """


@frozen
class ScheduleShape:
    """Peak and floor of the learning rate; lengths in optimizer steps.

    * warmup_steps: length of the linear ramp from 0, which may end within a step.
    * decay_steps: the step at which the decay ends, including the warm-up.
    * total_steps: length of the run.
    """

    peak_lr: float
    min_lr: float
    warmup_steps: float
    decay_steps: int
    total_steps: int


@frozen
class OptimizerRun:
    """What an optimizer may know of its run: the argument `run` of a target that has one.

    * shape: peak and floor of the learning rate, lengths of the warm-up, the decay and the run.
    * names: parameter -> its name, as in checkpoints, such as layers.3.attention.query_key_value.weight. Another
      architecture has other names, so an optimizer accepts any. With a pipeline, those of this rank's stage.
    """

    shape: ScheduleShape
    names: Mapping[Tensor, str]


class LRSchedule(Protocol):
    """`target(shape: ScheduleShape, settings) -> LRSchedule`; also imported on the host, so it is light.

    * `schedule(step)` is the learning rate of the update after `step` finished steps: a float, finite and 0 or more,
      also for steps after the end of the run.
    * It is a pure function of the step, so that resuming replays nothing.
    * A schedule for `lr-decay-style` rises linearly from 0 to `peak_lr` in `warmup_steps` and is never above it; at
      step 0 it may have the rate of step 1. The decay starts within 5 % of the peak, is never below `min_lr`, and does
      not rise from `decay_steps` on.
    * It may have a method `options(step)`, also a pure function: other options of the optimizer's groups than `lr`, by
      name, with which that update is made. A group without an option of the name does not get it. The groups have
      their own options again after the update, so a checkpoint stores those.
    """

    def __call__(self, step: int) -> float: ...


def planned_shape(plan: OptimPlan, total_steps: int) -> ScheduleShape:
    """The lengths and rates of a plan. total_steps: length of the run, in optimizer steps."""
    return ScheduleShape(
        peak_lr=plan.lr,
        min_lr=plan.min_lr,
        warmup_steps=plan.warmup_steps,
        decay_steps=plan.decay_steps,
        total_steps=total_steps,
    )


def planned_schedule(plan: OptimPlan, total_steps: int) -> LRSchedule:
    """The schedule of a plan, on the host or in a rank. Raises PluginError for a fault of the component.

    plan: the optimizer's part of a plan.
    total_steps: length of the run, in optimizer steps.
    """
    schedule: LRSchedule = plan.schedule.make(planned_shape(plan, total_steps))

    def rate(step: int) -> float:
        with plan.schedule.blamed():
            found = schedule(step)
        if not isinstance(found, float | int) or not 0 <= found < math.inf:
            raise plan.schedule.fault(f"the learning rate of step {step} is {found!r}, not 0 or more")
        return found

    return rate
