"""What the checks of feed-forwards and of mixers share: clauses of a module that a block calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from neox_author.testing.clauses import hold
from neox_author.testing.ranks import hold_same
from neox_author.testing.waits import NoWait
from torch import Tensor, nn

from neox_gpt.testing.ranks import Result, gradients, tensor_of, weighted

DECODER = "neox-gpt:gpt"
"""The architecture that parts are tried in."""
NAMING = ("no_weight_decay", "stacks", "starts_as_made")
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
Run = Callable[[nn.Module, Tensor], Result]


def random(*size: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Normal numbers, the same for a seed on every device and in every dtype, rounded."""
    return torch.randn(size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)


def check_calls(module: nn.Module, run: Run, x: Tensor, what: str) -> None:
    """Shape and dtype kept, input and what is trained left alone, the same bits twice, no random numbers; `module` is
    in training.
    """
    for dtype in DTYPES:
        module.to(dtype)
        given = x.to(dtype)
        own = {name: each.detach().clone() for name, each in _own(module)}
        before, state = given.clone(), torch.get_rng_state()
        first = run(module, given)
        if isinstance(first, tuple) and isinstance(first[-1], dict):
            first = first[0]
        shown = f"a {type(first).__name__}"
        if not isinstance(first, Tensor):
            raise AssertionError(f"{what} gives a tensor, not {shown}")
        hold(first.shape == x.shape, f"[batch, seq, hidden] to the same: {tuple(x.shape)} became {tuple(first.shape)}")
        hold(first.dtype == dtype, f"same dtype: {dtype} became {first.dtype}")
        hold(torch.equal(given, before), f"{what} leaves its input as it is")
        hold(torch.equal(torch.get_rng_state(), state), f"{what} draws no numbers from torch's own generator")
        hold(
            torch.equal(tensor_of(run(module, given)), first), f"{what} is deterministic: two calls give the same bits"
        )
        for name, each in _own(module):
            hold(torch.equal(each, own[name]), f"{what} leaves its parameters and buffers as they are; {name} differs")
    module.double()


def _own(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """What a call leaves alone; a parameter that is not trained may be a state."""
    yield from ((name, each) for name, each in module.named_parameters() if each.requires_grad)
    yield from module.named_buffers()


def check_modes(module: nn.Module, run: Run, x: Tensor) -> None:
    """In evaluation mode against training, without dropout."""
    results = []
    for training in (True, False):
        results.append({"the result": tensor_of(run(module.train(training), x)).detach()})
    module.train()
    hold_same("evaluation mode gives what training gives, without dropout", results[1], results[0])


def check_names(module: nn.Module) -> None:
    """The attributes that name parameters."""
    for inner in module.modules():
        for attribute in NAMING:
            names = getattr(inner, attribute, ())
            wrong = [names] if isinstance(names, str) else [each for each in names if not hasattr(inner, each)]
            said = f"`{attribute}` is a set of names of the module's own parameters"
            hold(not wrong, f"{said}; {type(inner).__name__} has {wrong[0]!r}" if wrong else said)


def check_added(module: nn.Module, run: Run, x: Tensor) -> None:
    """The gradients of two micro-batches, without a step between them, against those of one."""
    weight = random(*x.shape, seed=5)
    module.zero_grad()
    found: list[dict[str, Tensor]] = []
    for _ in range(2):
        weighted(run(module, x), weight).backward()
        found.append({name: each.grad.clone() for name, each in module.named_parameters() if each.grad is not None})
    module.zero_grad()
    wanted = {f"the gradient of {name}": 2 * each for name, each in found[0].items()}
    hold_same(
        "the gradients of two micro-batches add up",
        {f"the gradient of {name}": each for name, each in found[1].items()},
        wanted,
    )


def check_finite_differences(module: nn.Module, run: Run, x: Tensor) -> None:
    """Each gradient in float64 against central differences along one random direction."""
    weight = random(*x.shape, seed=5)
    found = gradients(module, lambda given: run(module, given), x, weight)
    step = 1e-6

    def value(given: Tensor) -> float:
        with torch.no_grad():
            return float(weighted(run(module, given), weight))

    def close(name: str, direction: Tensor, numeric: float) -> None:
        analytic = float((found[name] * direction).sum())
        clause = "the gradient is that of the function, by finite differences in float64"
        hold(abs(analytic - numeric) <= 1e-5 * (1 + abs(numeric)), f"{clause}: {name} differs")

    along = random(*x.shape, seed=6)
    numeric = (value(x + step * along) - value(x - step * along)) / (2 * step)
    close("the gradient of the input", along, numeric)
    for name, parameter in module.named_parameters():
        along, kept = random(*parameter.shape, seed=7), parameter.detach().clone()
        sides = []
        for sign in (1, -1):
            with torch.no_grad():
                parameter.copy_(kept + sign * step * along)
            sides.append(value(x))
        with torch.no_grad():
            parameter.copy_(kept)
        close(f"the gradient of {name}", along, (sides[0] - sides[1]) / (2 * step))


def check_recomputed(module: nn.Module, run: Run, x: Tensor) -> None:
    """As when activations are computed again: a pass whose activations are dropped, then one for the gradients."""
    weight = random(*x.shape, seed=5)
    plain = gradients(module, lambda given: run(module, given), x, weight)

    def again(given: Tensor) -> Result:
        with torch.no_grad():
            run(module, given)
        return run(module, given)

    hold_same("recomputed activations give the same bits", gradients(module, again, x, weight), plain, 0)


def check_accumulation(module: nn.Module, run: Run, x: Tensor) -> None:
    """Numbers in bfloat16 against float64 on the same numbers: positive ones, whose sums stop growing in bfloat16."""
    with torch.no_grad():
        for seed, parameter in enumerate(module.parameters()):
            size = 2 / (parameter.shape[-1] if parameter.dim() > 1 else 2)
            drawn = torch.rand(parameter.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
            parameter.copy_((drawn * size).bfloat16())
    x = (x.abs() + 0.5).bfloat16()
    with torch.no_grad():
        exact = tensor_of(run(module.double(), x.double()))
        got = tensor_of(run(module.bfloat16(), x)).double()
    error = ((got - exact).abs().amax(-1) / exact.abs().amax(-1)).median().item()
    hold(error < 0.03, f"sums of half-precision products are in fp32: a result in bfloat16 is off by {error:.0%}")


def check_no_wait(module: nn.Module, run: Run, x: Tensor) -> None:
    """Forward and backward, without a call that on a GPU would wait for what is computed there."""
    given = x.detach().clone().requires_grad_()
    with NoWait():
        weighted(run(module, given), torch.ones_like(given)).backward()
    module.zero_grad()
