"""The compiled chunks of the loss against torch's plain loss in float64 and next to the chunks in torch."""

import math
import shutil
import subprocess
import sys
from ctypes import c_int, c_long, c_void_p

import pytest
import torch
from neox_author.testing.ranks import run_ranks
from neox_gpt import native_loss
from neox_gpt.loss import by_torch, cross_entropy
from neox_gpt.native_loss import SOURCE, native_chunks
from neox_gpt.tiles import KEEPS_NAN
from neox_kernels.compile_c import COMPILERS, native
from torch import Tensor
from torch.nn import functional as F
from torch.profiler import profile
from torch.utils.flop_counter import FlopCounterMode

from neox_core.parallel.tensor import TensorParallel

pytestmark = pytest.mark.skipif(not any(map(shutil.which, COMPILERS)), reason="no compiler")


def problem(tokens: int, width: int, vocab: int, scale: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    random = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(size, generator=random) for size in ((tokens, width), (vocab, width)))
    labels = torch.randint(vocab, (tokens,), generator=random)
    labels[::5] = -100
    labels[1::7] = vocab - 1
    return hidden, weight * scale, labels


def with_gradients(function, hidden: Tensor, weight: Tensor, labels: Tensor, *more) -> list[Tensor]:
    given = [each.detach().clone().requires_grad_() for each in (hidden, weight)]
    loss = function(*given, labels, *more)
    return [loss.detach(), *torch.autograd.grad(3 * loss, given)]


def exact(hidden: Tensor, weight: Tensor, labels: Tensor) -> list[Tensor]:
    return with_gradients(lambda h, w, y: F.cross_entropy(h @ w.T, y), hidden.double(), weight.double(), labels)


def errors(got: list[Tensor], wanted: list[Tensor]) -> list[float]:
    return [float((one.double() - other).norm() / other.norm()) for one, other in zip(got, wanted, strict=True)]


def test_the_code_is_compiled_here() -> None:
    """Else the tests below would compare torch with itself."""
    assert native_chunks(*problem(8, 8, 8)[:2]) is not None


@pytest.mark.parametrize("chunk", [1, 33, 64, None])
@pytest.mark.parametrize("size", [(37, 24, 211), (1, 1, 2), (64, 128, 1000), (50, 300, 193), (129, 17, 577)])
def test_as_near_to_float64_as_the_chunks_in_torch(size: tuple[int, int, int], chunk: int | None) -> None:
    """Odd sizes leave a rest of tokens, words and widths, and the wide one takes its products in two parts."""
    given = problem(*size)
    if size[0] == 1:
        given[2][:] = 1
    wanted = exact(*given)
    native, torchs = (errors(with_gradients(each, *given, chunk), wanted) for each in (cross_entropy, by_torch))
    assert all(one < max(4 * other, 2e-6) for one, other in zip(native, torchs, strict=True)), (native, torchs)


@pytest.mark.parametrize("scale", [1e-3, 30.0])
def test_flat_and_steep_logits(scale: float) -> None:
    given = problem(40, 32, 500, scale)
    assert max(errors(with_gradients(cross_entropy, *given), exact(*given))) < 1e-5


@pytest.mark.parametrize("vectors", ["-mno-avx512f", "-mno-avx"])
def test_processors_with_shorter_vectors(monkeypatch: pytest.MonkeyPatch, vectors: str) -> None:
    monkeypatch.setattr(native_loss, "native", lambda source, *flags: native(source, *flags, vectors))
    given = problem(50, 300, 193)
    assert max(errors(with_gradients(cross_entropy, *given, 33), exact(*given))) < 2e-6


needs_bf16 = pytest.mark.skipif(
    not torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported(),
    reason="torch computes the loss in bf16 on this processor",
)


def under_autocast(*given) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return cross_entropy(*given)


ORDERS = {
    "rising": lambda rows: torch.arange(rows) / rows,
    "falling": lambda rows: 1 - torch.arange(rows) / rows,
    "one peak": lambda rows: 1 - (torch.arange(rows) / rows - 0.7).abs(),
    "jumps": lambda rows: (torch.arange(rows) // 250 % 3 - 1).float(),
}


@pytest.mark.parametrize("steep", [3.0, 100.0])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("function", [cross_entropy, pytest.param(under_autocast, marks=needs_bf16)])
def test_the_highest_logit_may_come_anywhere(function, order: str, steep: float) -> None:
    """What is summed up before a higher one is scaled down with it: to nothing, where it is far below."""
    hidden, weight, labels = problem(40, 16, 14_000, 0.1)
    hidden[:, 0], weight[:, 0] = 1, steep * ORDERS[order](len(weight))
    hidden[1, 0] = -1  # for one token the order is the reverse
    narrow = function is under_autocast
    wanted = exact(*((hidden.bfloat16(), weight.bfloat16(), labels) if narrow else (hidden, weight, labels)))
    assert max(errors(with_gradients(function, hidden, weight, labels), wanted)) < (4e-3 if narrow else 3e-6)


def by_torch_in_bf16(*given) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return by_torch(*given)


def test_who_multiplies_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    """The code in fp32 where the processor cannot, torch where it multiplies whole tiles or the width is odd."""
    wide = problem(8, 8, 8)[:2]
    narrow = [each.bfloat16() for each in wide]
    for has, tiles in ((False, False), (True, False), (True, True)):
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda has=has: has)
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda tiles=tiles: tiles)
        found = native_chunks(*wide)
        assert found is not None
        assert not found.narrow
        found = native_chunks(*narrow)
        assert (found is None) == tiles or not has
        assert found is None or found.narrow == has
        assert (native_chunks(*(each[:, :7] for each in narrow)) is None) == has


def test_bf16_multiplies_what_is_rounded_and_keeps_fp32_after_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    hidden, weight, labels = problem(64, 48, 400, 0.3)
    wanted = exact(hidden.bfloat16(), weight.bfloat16(), labels)
    assert max(errors(with_gradients(under_autocast, hidden, weight, labels), wanted)) < 1e-5


@needs_bf16
@pytest.mark.parametrize("chunk", [1, 33, 64, None])
@pytest.mark.parametrize("size", [(37, 24, 211), (7, 2, 33), (64, 128, 1000), (50, 1100, 193), (129, 18, 577)])
def test_bf16_is_nearer_to_float64_than_the_chunks_in_torch(size: tuple[int, int, int], chunk: int | None) -> None:
    """Products of bf16: the loss is that of the rounded numbers, and gradients have rounded probabilities."""
    hidden, weight, labels = problem(*size, scale=0.3)
    wanted = exact(hidden.bfloat16(), weight.bfloat16(), labels)
    native, torchs = (
        errors(with_gradients(each, hidden, weight, labels, chunk), wanted)
        for each in (under_autocast, by_torch_in_bf16)
    )
    assert native[0] < 1e-6
    assert all(one < max(other, 1e-3) for one, other in zip(native, torchs, strict=True)), (native, torchs)
    assert max(native) < 4e-3


@needs_bf16
def test_a_likely_label_keeps_its_small_gradient_in_bf16() -> None:
    """A probability of 0.9995 is 1 in bf16; less 1 it is not 0."""
    hidden, weight = torch.ones(1, 2), torch.tensor([[3.8, 3.8], [0.0, 0.0]])
    labels = torch.tensor([0])
    wanted = exact(hidden.bfloat16(), weight.bfloat16(), labels)
    assert wanted[2][0, 0].abs() < 3 * 6e-4
    assert max(errors(with_gradients(under_autocast, hidden, weight, labels), wanted)) < 4e-3


@pytest.mark.parametrize("function", [cross_entropy, under_autocast])
def test_the_result_does_not_depend_on_the_number_of_threads(function) -> None:
    given, threads, found = problem(100, 40, 7000), torch.get_num_threads(), []
    try:
        for number in (1, 2, 3, 7):
            torch.set_num_threads(number)
            found.append(with_gradients(function, *given, 48))
    finally:
        torch.set_num_threads(threads)
    for other in found[1:]:
        assert all(torch.equal(*pair) for pair in zip(found[0], other, strict=True))


def test_without_memory_it_says_so_and_touches_nothing() -> None:
    library, none = native(SOURCE, KEEPS_NAN), c_void_p(None)
    assert library is not None
    sizes, more = [c_long(each) for each in (2**28, 2**12, 2**28)], (c_int(2), c_int(0))
    assert library.loss_powers(*3 * [none], *sizes, *5 * [none], *more) == 1
    assert library.loss_gradients(*7 * [none], *sizes, *2 * [none], *more) == 1


@pytest.mark.parametrize("narrow", [False, True])
def test_two_ranks_that_share_the_vocabulary(narrow: bool) -> None:
    hidden, weight, labels = problem(30, 24, 400)
    labels[3:6] = torch.tensor([0, 199, 200])  # at the border between the two
    if narrow:
        hidden, weight = (each.bfloat16().float() for each in (hidden, weight))
    wanted = exact(hidden, weight, labels)

    def rank(tensor: TensorParallel) -> None:
        rows = slice(200 * tensor.rank, 200 * tensor.rank + 200)
        x, own = (each.detach().clone().requires_grad_() for each in (hidden, weight[rows]))
        with torch.autocast("cpu", torch.bfloat16, enabled=narrow):
            loss = cross_entropy(tensor.enter(x[None])[0], own, labels, 16, tensor=tensor)
        found = [loss.detach(), *torch.autograd.grad(3 * loss, (x, own))]
        assert max(errors(found, [wanted[0], wanted[1], wanted[2][rows]])) < (1e-2 if narrow else 2e-6)

    run_ranks(2, rank)


@pytest.mark.parametrize("label", [400, 2**40, -1, -(2**62)])
def test_a_label_outside_of_the_vocabulary_is_no_loss(label: int) -> None:
    hidden, weight, labels = problem(30, 24, 400)
    labels[4] = label
    assert cross_entropy(hidden.requires_grad_(), weight, labels).isnan()


@pytest.mark.parametrize("number", [math.nan, math.inf])
@pytest.mark.parametrize("gradient", [True, False])
@pytest.mark.parametrize("function", [cross_entropy, under_autocast])
def test_what_is_no_number_stays_none(function, number: float, gradient: bool) -> None:
    """In a state or in a word, also one that is no label."""
    for which, at in ((0, 7), (1, 211)):
        given = problem(30, 24, 400)
        given[2][given[2] == 211] = 0
        given[which][at, 3] = number
        with torch.set_grad_enabled(gradient):
            assert function(given[0].requires_grad_(), *given[1:]).isnan()


@pytest.mark.parametrize("function", [cross_entropy, under_autocast])
def test_ignored_tokens_have_no_gradient_and_may_hold_anything_finite(function) -> None:
    hidden, weight, labels = problem(30, 24, 400)
    before = with_gradients(function, hidden, weight, labels)
    hidden[labels == -100] = 1e5
    after = with_gradients(function, hidden, weight, labels)
    assert all(torch.equal(*pair) for pair in zip(before, after, strict=True))
    assert not after[1][labels == -100].any()
    assert not any(each.any() for each in with_gradients(function, hidden, weight, torch.full_like(labels, -100)))


@pytest.mark.parametrize("function", [cross_entropy, under_autocast])
def test_a_frozen_matrix_or_no_gradient_at_all_has_the_same_loss(function) -> None:
    hidden, weight, labels = problem(30, 24, 400)
    loss, of_hidden, _ = with_gradients(function, hidden, weight, labels)
    states = hidden.clone().requires_grad_()
    frozen = function(states, weight, labels)
    assert torch.equal(frozen.detach(), loss)
    assert torch.equal(torch.autograd.grad(3 * frozen, states)[0], of_hidden)
    assert torch.equal(function(hidden, weight, labels), loss)


def test_whoever_replaces_or_counts_products_changes_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """DeepSpeed's ZeRO 3 and its profiler put functions of their own in the place of `linear`, and leave them there."""
    given, seen = problem(40, 24, 400), []
    before = with_gradients(cross_entropy, *given, 16)
    monkeypatch.setattr(F, "linear", lambda x, weight: seen.append((len(x), *weight.shape)))
    after = with_gradients(cross_entropy, *given, 16)
    assert all(torch.equal(*pair) for pair in zip(before, after, strict=True))
    assert {each[1:] for each in seen} == {(400, 24)}
    assert sum(each[0] for each in seen) == 40


def test_torchs_own_counters_see_the_product() -> None:
    given = problem(40, 24, 400)
    with FlopCounterMode(display=False) as counted:
        cross_entropy(*given, 16)
    with profile(with_flops=True) as profiled:
        cross_entropy(*given, 16)
    assert counted.get_total_flops() == 2 * 40 * 24 * 400
    assert sum(event.flops or 0 for event in profiled.events() if event.name == "aten::mm") == 2 * 40 * 24 * 400


UNSEEN = """import sys, torch
from neox_gpt.loss import cross_entropy
from neox_gpt.native_loss import native_chunks
given = torch.ones(8, 8, requires_grad=True), torch.ones(8, 8)
assert native_chunks(*given)
cross_entropy(*given, torch.zeros(8, dtype=torch.int64)).backward()
sys.exit("sympy" in sys.modules)
"""


def test_a_step_that_nobody_counts_imports_no_symbolic_shapes() -> None:
    """They are a second of a start."""
    assert subprocess.run([sys.executable, "-c", UNSEEN], check=False).returncode == 0
