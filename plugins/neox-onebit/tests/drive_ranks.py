"""One of several ranks that step the optimizers of neox-onebit on given gradients.

Leaves FOLDER/<case>-<rank>.pt, what the rank saw after each step, and FOLDER/bytes-<rank>.pt.
"""

from collections import Counter
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from neox_author.testing import build, load_only
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from neox_core.errors import ConfigError

SHAPES = ((37, 160), (700,), (3,))
STEPS = 50
COMMON = {"lr": 0.02, "betas": (0.8, 0.95), "eps": 1e-6}
DECAY = 0.1
CASES = {
    "adam": ("OneBitAdam", {"freeze_step": 10, "variance_floor": 0.1}),
    "zeroone": (
        "ZeroOneAdam",
        {
            "var_freeze_step": 20,
            "var_update_scaler": 3,
            "local_step_scaler": 9,
            "local_step_clipper": 4,
            "variance_floor": 0.1,
        },
    ),
    "uncorrected": (
        "ZeroOneAdam",
        {
            "var_freeze_step": 12,
            "var_update_scaler": 4,
            "local_step_scaler": 5,
            "local_step_clipper": 8,
            "variance_floor": 0.0,
            "bias_correction": False,
        },
    ),
    "deepspeed": ("OneBitAdam", {"freeze_step": 10, "compatibility": "deepspeed"}),
    "lamb": (
        "OneBitLamb",
        {"freeze_step": 12, "variance_floor": 0.1, "max_coeff": 2.0, "coeff_beta": 0.8, "factor_threshold": 0.05},
    ),
}


def rate(step: int) -> float:
    """At the beginning 0, as in a warm-up; then it falls."""
    return 0.0 if step == 1 else 0.02 * (1 - step / 80)


def gradients(step: int, rank: int, shapes=SHAPES) -> list[torch.Tensor]:
    """Of one rank: a part that all have and one of its own, of other sizes from row to row."""
    shared, own = (torch.Generator().manual_seed(1000 * step + seed) for seed in (0, 1 + rank))
    return [
        (torch.randn(shape, generator=shared) + torch.randn(shape, generator=own))
        * torch.linspace(0.1, 3, shape[0]).view(-1, *[1] * (len(shape) - 1))
        for shape in shapes
    ]


def start(shapes=SHAPES) -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(7)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]


def make(case: str, weights, group=None):
    name, settings = CASES[case]
    entry = load_only("neox-onebit").find("optimizer", name)
    groups = [{"params": weights[:1], "weight_decay": DECAY}, {"params": weights[1:], "weight_decay": 0.0}]
    return entry.load()(groups, build(entry, comm_backend_name="gloo", **COMMON, **settings), group=group)


def give(optimizer, weights, step: int, rank: int, size: int) -> None:
    """This step's gradients, averaged where the optimizer asks for it."""
    for group in optimizer.param_groups:
        group["lr"] = rate(step)
    for weight, gradient in zip(weights, gradients(step, rank, [each.shape for each in weights]), strict=True):
        weight.grad = gradient
        if optimizer.needs_average() and size > 1:
            dist.all_reduce(weight.grad)
            weight.grad /= size


def stepped(case: str, folder: Path, rank: int, size: int) -> None:
    """The case, and from the middle on a second optimizer that continues from what the first has stored."""
    weights = start()
    optimizer = make(case, weights, dist.group.WORLD)
    seen, resumed = [], None
    for step in range(1, STEPS + 1):
        give(optimizer, weights, step, rank, size)
        optimizer.step()
        if resumed is not None:
            give(resumed[0], resumed[1], step, rank, size)
            resumed[0].step()
            assert all(torch.equal(*pair) for pair in zip(weights, resumed[1], strict=True)), step
        if step == 39:
            stored = {
                "weights": [weight.detach().clone() for weight in weights],
                "state": optimizer.state_dict(),
                "own": {name: value.clone() for name, value in optimizer.own_state().items()},
            }
            torch.save(stored, folder / f"{case}-stored-{rank}.pt")
            stored = torch.load(folder / f"{case}-stored-{rank}.pt")
            others = [torch.nn.Parameter(torch.zeros_like(weight)) for weight in weights]
            for other, weight in zip(others, stored["weights"], strict=True):
                other.detach().copy_(weight)
            again = make(case, others, dist.group.WORLD)
            again.load_state_dict(stored["state"])
            again.load_own_state([stored["own"] if each == rank else {} for each in range(size)])
            resumed = again, others
        seen.append(
            {
                "weights": [weight.detach().clone() for weight in weights],
                "states": [{k: _copy(v) for k, v in optimizer.state[weight].items()} for weight in weights],
                "own": {name: value.clone() for name, value in optimizer.own_state().items()},
            }
        )
    torch.save(seen, folder / f"{case}-{rank}.pt")


def _copy(value):
    return value.clone() if isinstance(value, torch.Tensor) else value


class OnTheWire(TorchDispatchMode):
    """Bytes that this rank sends, by collective, as the collectives that torch runs say it.

    A ring sends 2 (n - 1) / n of what it adds up, an all-to-all all but its own part, an all-gather its part to all.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.sent: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "c10d":
            name, size = func._schema.name.removeprefix("c10d::"), self.size
            tensors = {each.name: tree_leaves(value) for each, value in zip(func._schema.arguments, args, strict=False)}
            if name == "allreduce_":
                self.sent[name] += 2 * (size - 1) * _bytes(tensors["tensors"]) // size
            elif name == "alltoall_base_":
                self.sent[name] += (size - 1) * _bytes(tensors["input"]) // size
            elif name == "allgather_":
                self.sent[name] += (size - 1) * _bytes(tensors["input_tensors"])
            else:
                raise AssertionError(f"nobody counts {name}")
        return func(*args, **(kwargs or {}))


def _bytes(tensors) -> int:
    return sum(each.nbytes for each in tensors if isinstance(each, torch.Tensor))


def counted(folder: Path, rank: int, size: int) -> None:
    """Bytes of an all-reduce in fp32 and bf16, and of a compressed step, over two layers of a width of 256."""
    shapes = [(256, 1024), (1024,), (1024, 256), (256,)]
    found = {}
    for dtype in (torch.float32, torch.bfloat16):
        with OnTheWire(size) as wire:
            for shape in shapes:
                dist.all_reduce(torch.zeros(shape, dtype=dtype))
        found[str(dtype)] = dict(wire.sent)
    for case in ("adam", "lamb"):
        weights = start(shapes)
        optimizer = make(case, weights, dist.group.WORLD)
        for step in range(1, 15):
            give(optimizer, weights, step, rank, size)
            averaged = optimizer.needs_average()
            with OnTheWire(size) as wire:
                optimizer.step()
            assert averaged == (not wire.sent)
        found[case] = dict(wire.sent)
    torch.save(found, folder / f"bytes-{rank}.pt")


def idle(rank: int, size: int) -> None:
    """A parameter without a gradient in a compressed step stays as it is, and so does what was lost of it."""
    for case in ("adam", "zeroone", "lamb"):
        weights = start()
        optimizer = make(case, weights, dist.group.WORLD)
        blocks = slice(37, 42)  # of the second, after 37 rows of the first
        for step in range(1, 24):
            give(optimizer, weights, step, rank, size)
            before = [weight.detach().clone() for weight in weights]
            lost = optimizer.own_state().get("worker_error", torch.empty(0))[blocks].clone()
            if step == 22:
                weights[1].grad = None
            optimizer.step()
            same = [torch.equal(*pair) for pair in zip(weights, before, strict=True)]
            assert same == [False, step == 22, False] or step == 1, (case, step, same)
            kept = torch.equal(optimizer.own_state().get("worker_error", lost)[blocks], lost)
            assert kept == (step == 22) or step < 22, (case, step)


def refused() -> None:
    entry = load_only("neox-onebit").find("optimizer", "OneBitAdam")
    with pytest.raises(ConfigError, match="comm_backend_name is nccl, and the ranks talk over gloo"):
        entry.load()([{"params": start()}], build(entry), group=dist.group.WORLD)


def drive(folder: Path, rank: int, size: int) -> None:
    for each in CASES:
        stepped(each, folder, rank, size)
    counted(folder, rank, size)
    idle(rank, size)
    refused()
