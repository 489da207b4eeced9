"""Power iteration against eigenvalues and an explicit Hessian in float64; what is refused. Runs: tests/e2e."""

from pathlib import Path
from typing import Any

import pytest
import torch
from neox_author.testing import assert_light, check_callback, load_only
from neox_eigenvalue.power import difference_product, largest_eigenvalue

from neox_core.config.report import ProblemsError
from neox_core.hooks.loader import load_plugins
from neox_core.plan.resolve import prepare_run

EXACT: dict[str, Any] = {"tol": 1e-13, "max_iter": 5000}


def dot(one: list[torch.Tensor], other: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack([(a * b).sum() for a, b in zip(one, other, strict=True)]).sum()


def test_listing_is_light() -> None:
    assert_light("neox-eigenvalue")


def test_contract() -> None:
    settings = {"enabled": True, "gas_boundary_resolution": 1000}
    check_callback(load_only("neox-eigenvalue"), "eigenvalue", eigenvalue=settings)


@pytest.mark.parametrize("signs", [(9.0, -4.0, 1.0), (-9.0, 4.0, 1.0), (0.5, 0.25, 0.0)])
def test_it_is_the_eigenvalue_of_the_largest_size_with_its_sign(signs: tuple[float, ...]) -> None:
    draw = torch.Generator().manual_seed(0)
    basis = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64, generator=draw))[0]
    matrix = basis @ torch.diag(torch.tensor(signs, dtype=torch.float64)) @ basis.T
    start = [torch.randn(3, dtype=torch.float64, generator=draw)]
    found = largest_eigenvalue(lambda vector: [matrix @ vector[0]], start, dot, **EXACT)
    assert found.value == pytest.approx(signs[0], rel=1e-10)


def test_it_ends_by_its_tolerance_or_after_its_iterations() -> None:
    matrix = torch.diag(torch.tensor([2.0, 1.0], dtype=torch.float64))
    start = [torch.tensor([1.0, 1.0], dtype=torch.float64)]
    rayleigh = [(2 * 4**k + 1) / (4**k + 1) for k in range(20)]  # of the iterates, in closed form

    def found(tol: float, most: int) -> Any:
        return largest_eigenvalue(lambda vector: [matrix @ vector[0]], start, dot, tol=tol, max_iter=most)

    assert (found(1e-9, 3).value, found(1e-9, 3).iterations) == (pytest.approx(rayleigh[2]), 3)
    ends = next(k for k in range(1, 20) if abs(rayleigh[k] - rayleigh[k - 1]) / rayleigh[k] < 1e-2) + 1
    assert found(1e-2, 100).iterations == ends
    zero = largest_eigenvalue(lambda vector: [0 * vector[0]], start, dot, **EXACT)
    assert (zero.value, zero.iterations) == (0.0, 1)
    odd = largest_eigenvalue(lambda vector: [vector[0] / 0 * 0], start, dot, **EXACT)
    assert odd.value == 0.0  # what is not finite counts as 0


def test_a_difference_of_gradients_is_the_product_with_the_explicit_hessian() -> None:
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(16, 4, dtype=torch.float64, generator=draw)
    point = [
        torch.randn(4, 3, dtype=torch.float64, generator=draw),
        torch.randn(3, dtype=torch.float64, generator=draw),
    ]

    def loss(weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy((x @ weight + bias).tanh() * 3, torch.arange(16) % 3)

    def gradient(at: list[torch.Tensor]) -> list[torch.Tensor]:
        leaves = [each.requires_grad_() for each in at]
        return list(torch.autograd.grad(loss(*leaves), leaves))

    blocks: Any = torch.autograd.functional.hessian(loss, tuple(point))
    rows = [
        torch.cat([block.reshape(one.numel(), -1) for block in row], 1) for one, row in zip(point, blocks, strict=True)
    ]
    hessian = torch.cat(rows)
    exact = max(torch.linalg.eigvalsh(hessian).tolist(), key=abs)
    start = [torch.randn(each.shape, dtype=torch.float64, generator=draw) for each in point]
    found = largest_eigenvalue(
        difference_product(gradient, point), start, dot, tol=1e-10, max_iter=2000, stability=1e-6
    )
    assert found.value == pytest.approx(exact, rel=1e-5)


CONFIG = (
    "num-layers: 2\nhidden-size: 8\nnum-attention-heads: 2\nseq-length: 8\nmax-position-embeddings: 8\n"
    "padded-vocab-size: 16\ntrain-iters: 4\ntrain_batch_size: 2\ndevice: cpu\nengine: deepspeed\n"
    "data-path: none\ndata-impl: mmap\noptimizer: {type: Adam, params: {lr: 1.0e-3}}\neigenvalue: {enabled: true}\n"
)


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (("eigenvalue.layer_name=bert.encoder.layer",), "eigenvalue.layer_name: names no row of layers of a model"),
        (("eigenvalue.layer_num=3",), "eigenvalue.layer_num: 3 is above num-layers, 2"),
        (("eigenvalue.tol=0",), "eigenvalue.tol"),
        (("num_gpus=2", "pipe-parallel-size=2"), "pipe-parallel-size: contradicts eigenvalue"),
        (("zero_optimization.stage=3",), "zero_optimization.stage: contradicts eigenvalue"),
        (
            ("num_gpus=2", "model-parallel-size=2", "sequence-parallel=true"),
            "sequence-parallel: contradicts eigenvalue",
        ),
        (
            ("checkpoint-activations=true", "deepspeed-activation-checkpointing=true"),
            "deepspeed-activation-checkpointing: contradicts eigenvalue",
        ),
    ],
)
def test_what_cannot_work_is_refused_before_the_start(sets: tuple[str, ...], said: str, tmp_path: Path) -> None:
    config = tmp_path / "run.yml"
    config.write_text(CONFIG)
    prepare_run([config], ("num_gpus=1",), catalog=load_plugins(), start=False)
    with pytest.raises(ProblemsError) as caught:
        prepare_run(
            [config], ("num_gpus=1", *sets) if "num_gpus=2" not in sets else sets, catalog=load_plugins(), start=False
        )
    assert said in str(caught.value)
