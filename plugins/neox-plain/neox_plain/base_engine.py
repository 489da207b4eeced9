"""What all engines share: the loss of a step, clipping, skipped updates, and what a checkpoint needs."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from attrs import frozen
from torch import Tensor, nn

from neox_core.contracts.objective import Batch
from neox_core.contracts.optim import AveragingOptimizer
from neox_core.errors import CheckpointError
from neox_core.parallel.row import Routing
from neox_core.parallel.sample_keys import sample_keys
from neox_core.parallel.tensor import cut_of
from neox_core.untrusted import replaces, short
from neox_plain.background.writer import Writer
from neox_plain.clip import clip, counts_here, drop, fill
from neox_plain.criterion import Criterion
from neox_plain.factors import factor_of, plain_options, require_matches, scale_gradients
from neox_plain.first_nonfinite import first_of, looking

if TYPE_CHECKING:
    from neox_core.contracts.curriculum import Curriculum
    from neox_core.parallel.context import BuildContext
    from neox_core.plan.runfile import RunPlan

AUTOCAST = {"bf16": torch.bfloat16}
"""What products are computed in where weights are wider, by its name in a plan."""


@frozen
class _Began:
    """A step as it began. batches: those that it has read; consumed: samples of the run before it."""

    batches: list[Tensor]
    consumed: int
    loss_scale: float | None


class BaseEngine(ABC):
    """One rank's model and optimizer in training: base class for a `contracts.engine.Engine`.

    model: the module; its parameters are the weights in the planned dtype. optimizer: the planned optimizer.

    A class of it averages gradients and steps the optimizer. Where it leaves clipping to `_clip_averaged`, an update
    whose gradient is not finite is not made and counts as skipped; on a GPU, where the host would have to wait for the
    device at every step to know, it is made unless `on_nonfinite_loss` is "skip", and `made_update` says on the device
    that it should not have been. The norms of this rank's own gradients are then kept on the device, of the first step
    with one that is not finite.
    """

    def __init__(
        self,
        plan: RunPlan,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        context: BuildContext,
        curriculum: Curriculum | None,
    ) -> None:
        self._writer_of: Callable[[Any], Writer] = partial(Writer, plan, context)
        self._curriculum = curriculum
        self._batch = plan.batch
        self._accumulation = plan.batch.gradient_accumulation
        self._groups, self._seed = context.groups, context.seed
        self._consumed, self._clipping = 0, plan.optim.gradient_clipping
        self._autocast = AUTOCAST[plan.precision.autocast] if plan.precision.autocast else None
        # To leave out an update the host must know that the gradient is not finite, which waits for the device; on a
        # CPU it costs nothing.
        self._looks = context.device.type == "cpu" or plan.train.on_nonfinite_loss == "skip"
        self._discarded = 0
        self._finite: bool | Tensor = True
        self._norm: Tensor | float | None = None
        self._began = _Began([], 0, None)
        self._left_out: _Began | None = None  # the first of the steps in a row that are left out
        self._own: dict[str, Tensor] = {}  # norms of this rank's gradients in this step, where the host does not look
        self._kept_norms: Tensor | None = None  # [parameters]: those of the first step with one that is not finite
        self._all_finite: Tensor | None = None  # whether there was no such step so far
        self.device = context.device
        self.model = model
        self._trained: Any = model  # a `parallel.row.Model`, or a stage of one
        self._named = dict(model.named_parameters())
        self._needs_keys = self._trained.draws or curriculum is not None
        self._criterion = Criterion(plan.objective, plan)
        self.optimizer = optimizer
        self._averaging = optimizer if isinstance(optimizer, AveragingOptimizer) else None
        self._options = [plain_options(group) for group in optimizer.param_groups]
        # Those that the norm counts, and those that are scaled: the gradients that the optimizer of this rank uses.
        self._step_told = [each.at_step for each in model.modules() if hasattr(each, "at_step")]
        self._clipped: list[Any] = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._scaled: list[Any] = self._clipped
        self._stepped: dict[str, Any] = {name: each for name, each in self._named.items() if each.requires_grad}
        require_matches(self._named, plan.engine, context.groups, context.device)
        asked = plan.engine.get("gradient_norm_counts", [])
        counts = {each: factor_of(name, asked) for name, each in self._named.items()}
        self._counts = {each: count for each, count in counts.items() if count != 1}
        if (factor := plan.engine.get("gradient_scale", 1.0)) != 1:
            scale_gradients(self._stepped.values(), factor)

    def background_writer(self) -> Writer:
        """As `contracts.engine.Engine` tells it."""
        return self._writer_of(self)

    @abstractmethod
    def train_step(self, batches: Iterator[Tensor], lr: float) -> Tensor:
        """As `contracts.engine.Engine.train_step`."""

    @abstractmethod
    def _forward(
        self, batch: Batch, share: Tensor | None, keys: tuple[Tensor, ...], routing: Routing | None, micro_step: int
    ) -> Tensor:
        """The loss of micro-batch `micro_step` of a step, for `_backward`; share: what its mean is multiplied by."""

    @abstractmethod
    def _backward(self, loss: Tensor, micro_step: int) -> None:
        """Add the gradient of `loss`, divided by the number of micro-batches of a step, to the gradients of it."""

    def made_update(self) -> bool | Tensor:
        """As `contracts.engine.Engine.made_update`."""
        return self._finite

    def find_nonfinite(self) -> list[str]:
        """The parameters whose gradient was not finite, this rank's own before any average, last layer first.

        Of the first in the row of steps that ends with the last one, none of which made an update. Repeats that step,
        so nothing can be trained or saved afterwards. Collective. Where the host does not look, of the first such step.
        """
        if self._left_out is None:
            norms = [] if self._kept_norms is None else self._kept_norms.tolist()
            names = zip(self._stepped, norms, strict=bool(norms))
            return [name for name, norm in names if not math.isfinite(norm)][::-1]
        found: dict[str, None] = {}

        def look(name: str, gradient: Tensor) -> None:
            values = gradient.coalesce().values() if gradient.is_sparse else gradient
            if not torch.isfinite(values).all():
                found[name] = None

        hooks = [each.register_hook(partial(look, name)) for name, each in self._named.items() if each.requires_grad]
        self._repeat(self._left_out)
        for hook in hooks:
            hook.remove()
        return list(found)

    def find_source(self) -> str:
        """The first place that produced a number which is not finite: see `contracts.engine.Engine`. Collective."""
        with looking(self.model) as found:
            loss = self._repeat(self._left_out or self._began)
        last = self._groups.pipe_rank == self._groups.pipe_size - 1  # all stages are told the loss
        if not found and last and not bool(loss.isfinite()):
            found = [(math.inf, f"{self._criterion.reference.owner} makes of finite results of the model")]
        return first_of(found, self._groups.model)

    def _repeat(self, began: _Began) -> Tensor:
        """Make a step again. Nothing can be trained or saved afterwards. Collective."""
        self._consumed, scaler = began.consumed, self.loss_scaler()
        if scaler is not None:
            scaler.cur_scale = began.loss_scale
        return self.train_step(iter(began.batches), lr=0.0)

    def evaluate(self, batches: Iterable[Tensor]) -> list[Tensor]:
        """This rank's loss of each batch, without dropout and auxiliary losses: scalars on the device.

        Where some tokens do not count, each is weighed so that the mean over all ranks is the mean over tokens.
        """
        self.model.eval()
        self._criterion.evaluation_metrics()  # those of an evaluation before
        with torch.no_grad():
            some = self._criterion.shares(self._given(batches, 0), self._groups)
            losses = [self._loss(self._evaluated(), batch, share) for batch, share in some]
        self.model.train()
        return losses

    def loss_of(self, model: Any) -> Tensor:
        """The loss of this rank's last micro-batch of the last step, by `model`, with a graph and nothing measured.

        model: called as that of the engine is, with its weights or others. Without dropout, in the dtype of its
        weights; weighed so that the mean over the ranks is that over tokens. Collective where labels have weights.
        """
        given = self._given(self._began.batches, self._began.consumed)
        *_, (batch, share) = self._criterion.shares(given, self._groups)
        loss: Tensor = model(self._criterion.of(batch, share, measures=False), routing=None)
        return loss

    def metrics(self) -> Mapping[str, Tensor]:
        """The means of what objective and model measured since the last call: scalars on the device by name."""
        return self._criterion.metrics()

    def evaluation_metrics(self) -> Mapping[str, Tensor]:
        """The means of what the objective measured in the last `evaluate`: scalars on the device by name."""
        return self._criterion.evaluation_metrics()

    @property
    def passes(self) -> float:
        """Over the model for a batch of the last step; one without gradients is a third of one."""
        return self._criterion.passes

    def grad_norm(self) -> float | None:
        """Norm of the whole gradient of the last step, before clipping; None before the first. Waits for the device."""
        return None if self._norm is None else float(self._norm)

    def loss_scale(self) -> float | None:
        """None unless training in fp16."""
        return None

    def loss_scaler(self) -> Any:
        """The object whose plain attributes are the state of fp16's loss scale; None in other types."""
        return None

    def timings(self) -> dict[str, float]:
        """Milliseconds of the parts of the last step, where the engine times them, else empty."""
        return {}

    def skipped_steps(self) -> int:
        """Updates left out so far, those before a resume included."""
        return self._discarded

    def count_skipped(self, steps: int) -> None:
        """Start counting from `steps`: those of the run that this one resumes."""
        self._discarded = steps

    def start_at(self, samples: int) -> None:
        """`samples` of the run are consumed: dropout's masks follow from the number of the sample."""
        self._consumed = samples

    def changed_options(self) -> list[dict[str, Any]]:
        """Of each parameter group, the options that are no longer what they were at the start, but for the lr."""
        return [
            {name: value for name, value in group.items() if name not in ("params", "lr") and value != first.get(name)}
            for group, first in zip(self.optimizer.param_groups, self._options, strict=True)
        ]

    def change_options(self, options: list[dict[str, Any]]) -> None:
        """Take over what `changed_options` gave, or nothing: a checkpoint of another program has no options. Raises
        CheckpointError for another number of groups or other types.
        """
        groups = self.optimizer.param_groups
        options = options or [{} for _ in groups]
        if len(options) != len(groups):
            raise CheckpointError(f"{len(options)} parameter groups are stored, the optimizer has {len(groups)}")
        for group, option, first in zip(groups, options, self._options, strict=True):
            group.update({name: value for name, value in first.items() if name != "lr"})
            for name, value in option.items():
                if name in ("params", "lr") or not replaces(value, group.get(name)):
                    message = f"the optimizer's group option {short(name)!r} cannot be {short(value)!r}"
                    raise CheckpointError(message, hint="load another checkpoint, or set no-load-optim: true")
            group.update(option)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The whole shape of every parameter: of those that are cut, with the parts on other ranks."""
        shapes = {}
        for name, parameter in self._named.items():
            shape, cut = self._shape_of(parameter), cut_of(parameter)
            shapes[name] = shape if cut is None else cut.whole_shape(shape)
        return shapes

    def stores(self, name: str) -> bool:
        """Whether this rank stores a parameter, or its part of one, among those of one copy of the model."""
        return counts_here(self._named[name], self._groups)

    def _evaluated(self) -> Any:
        """What is called for a loss that is not trained on."""
        return self.model

    def _shape_of(self, parameter: Any) -> tuple[int, ...]:
        """The shape of a parameter on all data-parallel ranks together."""
        return tuple(parameter.shape)

    def _kept(self, batches: Iterator[Tensor]) -> Iterator[Tensor]:
        """`batches`, of which those of this step are kept, and where it began, in case it has to be repeated.

        The modules of the model that have `at_step` are told the step.
        """
        self._began = began = _Began([], self._consumed, self.loss_scale())
        for tell in self._step_told:
            tell(self._batch.step_at(self._consumed))

        def keep(batch: Tensor) -> Tensor:
            began.batches.append(batch)
            return batch

        return map(keep, batches)

    def _routing_now(self) -> Routing | None:
        """Which tokens the layers of the model see in this step; None: all see all."""
        if self._curriculum is None or not self._curriculum.routed_layers:
            return None
        kept = self._curriculum.kept_tokens(self._batch.step_at(self._consumed))
        return Routing(self._curriculum.routed_layers, self._curriculum.seed, kept)

    def _forward_backward(self, batches: Iterator[Tensor]) -> Tensor:
        """The gradients of one step; returns the mean of its losses."""
        self._begin_step()
        total, routing = torch.zeros((), device=self.device), self._routing_now()
        given = self._given(islice(batches, self._accumulation), self._consumed)
        for micro_step, (batch, share) in enumerate(self._criterion.shares(given, self._groups)):
            loss = self._forward(batch, share, self._keys(micro_step), routing, micro_step)
            total += loss.detach()
            self._backward(loss, micro_step)
        self._end_step()
        return total / self._accumulation

    def _begin_step(self) -> None:
        """Know the number of micro-batches of the step at hand."""
        self._accumulation = self._batch.passes(self._batch.step_at(self._consumed))

    def _end_step(self) -> None:
        self._consumed = self._batch.samples_before(self._batch.step_at(self._consumed) + 1)

    def _given(self, batches: Iterable[Tensor], consumed: int) -> Iterator[Batch]:
        """What the objective gets of micro-batches, the first of which comes after `consumed` samples."""
        for micro_step, batch in enumerate(batches):
            keys = self._sample_keys(micro_step, consumed, len(batch)) if self._criterion.draws else None
            yield Batch(self._arrive(batch), keys, self._trained.documents)

    def _keys(self, micro_step: int) -> tuple[Tensor, ...]:
        """What dropout and routing need of a micro-batch's samples."""
        return (self._sample_keys(micro_step, self._consumed, self._batch.micro_batch),) if self._needs_keys else ()

    def _sample_keys(self, micro_step: int, consumed: int, count: int) -> Tensor:
        """Of a micro-batch's samples, which lie as in `data.batches.MicroBatches`."""
        first = consumed + (micro_step * self._groups.data_size + self._groups.data_rank) * self._batch.micro_batch
        return sample_keys(self._seed, first, count, self.device)

    def _arrive(self, batch: Tensor) -> Tensor:
        """`batch` on the device. The host waits for a copy to a GPU unless it is from page-locked memory."""
        if self.device.type == "cpu" or batch.device == self.device:
            return batch
        return batch.pin_memory().to(self.device, non_blocking=True)

    def _loss(
        self,
        model: Any,
        batch: Batch,
        share: Tensor | None,
        keys: tuple[Tensor, ...] = (),
        routing: Routing | None = None,
    ) -> Tensor:
        with self._casting():
            loss: Tensor = model(self._criterion.of(batch, share), *keys, routing=routing)
        return loss

    def _casting(self) -> torch.autocast:
        return torch.autocast(self.device.type, self._autocast, enabled=self._autocast is not None)

    def _clip_averaged(self) -> None:
        """With the gradients as the optimizer will use them: clip them, or drop them where they are not finite."""
        if not self._own:
            self._look()
        fill(self._stepped.values())
        self._norm = norm = self._clip(self._clipping)
        finite = torch.isfinite(norm)
        self._finite = bool(finite) if self._looks else finite
        self._keep_norms(finite)
        if self._finite is False:
            self._discarded += 1
            drop(self._scaled)

    def _look(self, gradients: dict[str, Tensor] | None = None) -> None:
        """Measure this rank's own gradients, before any average; the host does not wait for the result."""
        if self._looks:
            return
        if gradients is None:
            gradients = {name: each.grad for name, each in self._stepped.items() if each.grad is not None}
        if not gradients:
            return
        values = [each._values() if each.is_sparse else each for each in gradients.values()]  # noqa: SLF001 no sorting
        self._own.update(zip(gradients, torch._foreach_norm(values), strict=True))  # noqa: SLF001 as torch's clipping

    def _keep_norms(self, finite: Tensor) -> None:
        """Keep what `_look` measured, if the gradients of all steps before this one were finite on all ranks."""
        if self._looks:
            return
        zero = torch.zeros((), device=finite.device)
        own = torch.stack([self._own.get(name, zero).float() for name in self._stepped])
        first = self._kept_norms is None or self._all_finite is None
        self._kept_norms = own if first else torch.where(self._all_finite, own, self._kept_norms)
        self._all_finite = finite if first else self._all_finite & finite
        self._own = {}

    def _clip(self, largest: float) -> Tensor:
        own = self._averaging is not None and self._groups.data_size > 1 and not self._averaging.needs_average()
        return clip(self._clipped, self._scaled, largest, self._groups, own=own, counts=self._counts)

    def _note_update(self) -> None:
        """After a step: keep where it began if it is the first one in a row that is left out."""
        if self.made_update() is not False:
            self._left_out = None
        elif self._left_out is None:
            self._left_out = self._began

    def _set_lr(self, lr: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = lr * group.get("lr_scale", 1.0)
