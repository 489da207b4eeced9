"""The compiled attention against torch's in float64, and next to torch's in the same numbers."""

import math
import shutil
from collections.abc import Callable
from ctypes import c_float, c_int, c_int64, c_void_p
from pathlib import Path

import pytest
import torch
from neox_gpt.attention import native
from neox_gpt.attention.native import causal_attention
from neox_gpt.attention.scores import Request, attend
from neox_gpt.tiles import KEEPS_NAN
from neox_kernels.compile_c import COMPILERS
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

pytestmark = pytest.mark.skipif(not any(map(shutil.which, COMPILERS)), reason="no compiler")
FP32, BF16 = torch.float32, torch.bfloat16
HAS_BF16 = torch.cpu._is_avx512_bf16_supported() and not torch.cpu._is_amx_tile_supported()
needs_bf16 = pytest.mark.skipif(not HAS_BF16, reason="torch computes attention in bf16 on this processor")
BOTH = [FP32, pytest.param(BF16, marks=needs_bf16)]
SIZES = [
    (2, 4, 4, 128, 32),
    (1, 2, 1, 2, 8),
    (2, 6, 2, 97, 64),
    (1, 3, 3, 33, 17),
    (1, 2, 2, 300, 80),
    (2, 4, 1, 130, 128),
    (1, 1, 1, 31, 600),
]
"""Batch, heads, heads of keys, tokens, width."""
Function = Callable[[Tensor, Tensor, Tensor, float], Tensor]


def problem(size: tuple[int, ...] = (2, 4, 2, 130, 24), dtype: torch.dtype = FP32, steep: float = 1.5) -> list[Tensor]:
    """Queries, keys, values and the slope of the result, with the heads of a token side by side."""
    batch, heads, kv_heads, seq, width = size
    random = torch.Generator().manual_seed(0)
    return [
        (torch.randn(batch, seq, count, width, generator=random) * steep).to(dtype).transpose(1, 2)
        for count in (heads, kv_heads, kv_heads, heads)
    ]


def by_torch(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    return F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale, enable_gqa=True)


def with_gradients(function: Function, given: list[Tensor], scale: float | None = None) -> list[Tensor]:
    *inputs, slope = (each.detach() for each in given)
    for each in inputs:
        each.requires_grad_()
    out = function(*inputs, given[0].shape[3] ** -0.5 if scale is None else scale)
    return [out.detach(), *torch.autograd.grad(out, inputs, slope)]


def by_definition(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    key, value = (each.repeat_interleave(query.shape[1] // key.shape[1], 1) for each in (key, value))
    scores = (query @ key.transpose(2, 3) * scale).masked_fill(
        torch.ones(2 * query.shape[2:3]).triu(1).bool(), -math.inf
    )
    return scores.softmax(-1) @ value


def errors(got: list[Tensor], given: list[Tensor], scale: float | None = None) -> list[float]:
    """Relative ones of the result and of each gradient."""
    exact = with_gradients(by_definition, [each.double() for each in given], scale)
    return [
        float((one.double() - other).norm() / other.norm().clamp(min=1e-9))
        for one, other in zip(got, exact, strict=True)
    ]


def test_the_code_is_compiled_here() -> None:
    """Else the tests below would compare torch with itself."""
    assert causal_attention(*problem()[:3], 1.0) is not None


@pytest.mark.parametrize("dtype", BOTH)
@pytest.mark.parametrize("size", SIZES)
def test_as_near_to_float64_as_torch(size: tuple[int, ...], dtype: torch.dtype) -> None:
    """Odd sizes leave a rest of queries, keys and widths; the widest takes its scores in parts."""
    given = problem(size, dtype)
    own, torchs = (errors(with_gradients(each, given), given) for each in (causal_attention, by_torch))
    least = 4e-6 if dtype == FP32 else 5e-3
    assert all(one < max(1.1 * other, least) for one, other in zip(own, torchs, strict=True)), (own, torchs)


@pytest.mark.parametrize(("steep", "scale"), [(1e-3, None), (30.0, None), (1.5, -0.5), (1.5, 0.0)])
def test_flat_and_steep_scores_and_any_scale(steep: float, scale: float | None) -> None:
    given = problem(steep=steep)
    own, plain = (
        errors(with_gradients(each, given, scale), given, scale) for each in (causal_attention, by_definition)
    )
    assert all(one < max(2 * other, 2e-6) for one, other in zip(own, plain, strict=True)), (own, plain)


@pytest.mark.parametrize("dtype", BOTH)
@pytest.mark.parametrize("place", [1, 40, 96, 129])
def test_no_later_token_reaches_an_earlier_one(place: int, dtype: torch.dtype) -> None:
    """Bit for bit, in each place among 32 queries and 96 keys, forward and back."""
    given = problem(dtype=dtype)
    clean = with_gradients(causal_attention, given)
    query, key, value, slope = (each.clone() for each in given)
    for each in (query, key, value):
        each[:, :, place:] = 1e4
    slope[:, :, place:] = 0.0
    out, *grads = with_gradients(causal_attention, [query, key, value, slope])
    assert torch.equal(out[:, :, :place], clean[0][:, :, :place])
    assert torch.equal(grads[0][:, :, :place], clean[1][:, :, :place])
    assert not any(each[:, :, place:].any() for each in grads)


@pytest.mark.parametrize("dtype", BOTH)
def test_what_is_not_finite_is_seen(dtype: torch.dtype) -> None:
    for bad in (math.nan, math.inf):
        for which in range(3):
            given = [each.clone() for each in problem(dtype=dtype)]
            given[which][0, 0, 5] = bad
            assert not causal_attention(*given[:3], 0.2)[0, 0, 5:].isfinite().all()


@pytest.mark.parametrize("dtype", BOTH)
def test_the_result_does_not_depend_on_the_number_of_threads(dtype: torch.dtype) -> None:
    given, threads, found = problem(dtype=dtype), torch.get_num_threads(), []
    try:
        for number in (1, 2, 3, 7):
            torch.set_num_threads(number)
            found.append(with_gradients(causal_attention, given))
    finally:
        torch.set_num_threads(threads)
    for other in found[1:]:
        assert all(torch.equal(*pair) for pair in zip(found[0], other, strict=True))


@pytest.mark.parametrize("dtype", BOTH)
def test_each_sample_and_head_is_by_itself(dtype: torch.dtype) -> None:
    """So ranks that share heads or samples compute the same bits as one that has all."""
    given = problem(dtype=dtype)
    whole = with_gradients(causal_attention, given)
    sample, pool = slice(1, 2), slice(1, 2)
    part = [given[0][sample, 2:4], given[1][sample, pool], given[2][sample, pool], given[3][sample, 2:4]]
    own = with_gradients(causal_attention, part)
    wanted = [whole[0][sample, 2:4], whole[1][sample, 2:4], whole[2][sample, pool], whole[3][sample, pool]]
    assert all(torch.equal(*pair) for pair in zip(own, wanted, strict=True))


@pytest.mark.parametrize("dtype", BOTH)
def test_any_layout_in_memory(dtype: torch.dtype) -> None:
    given = problem((2, 4, 2, 70, 24), dtype)
    wanted = with_gradients(causal_attention, given)
    packed = torch.zeros(2, 70, 11, 25, dtype=dtype)[..., 1:]  # odd places, as parts of a larger tensor
    query, key, value = packed[:, :, :4], packed[:, :, 5:7], packed[:, :, 8:10]
    for to, of in zip((query, key, value), given, strict=False):
        to.copy_(of.transpose(1, 2))
    apart = [each.transpose(1, 2) for each in (query, key, value)]
    turned = [each.transpose(2, 3).contiguous().transpose(2, 3) for each in given]
    for other in ([*apart, turned[3]], [*turned[:3], given[3][:1, :1, :1, :1].expand_as(given[3])], turned):
        if other[3].stride(0) == 0:  # one number for all, as the slope of a sum
            wanted = with_gradients(causal_attention, [*given[:3], other[3].contiguous()])
        assert all(torch.equal(*pair) for pair in zip(with_gradients(causal_attention, other), wanted, strict=True))
        wanted = with_gradients(causal_attention, given)


def test_the_heads_of_a_token_are_side_by_side_in_the_result() -> None:
    """As torch has them: the product that follows reads them without a copy."""
    out = causal_attention(*problem()[:3], 1.0)
    assert out.transpose(1, 2).is_contiguous()


def test_memory_goes_with_the_tokens() -> None:
    """Saved for the backward pass: what goes in and comes out, and two numbers for each query and head."""
    saved: list[Tensor] = []
    given = [each.detach().requires_grad_() for each in problem()[:3]]
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x) or x, lambda x: x):
        out = causal_attention(*given, 1.0)
    assert sorted(each.numel() for each in saved) == sorted(
        [*(each.numel() for each in given), out.numel(), 2 * 2 * 4 * 130]
    )


def test_recomputed_it_has_the_same_bits() -> None:
    given = problem()
    again = with_gradients(lambda *inputs: checkpoint(causal_attention, *inputs, use_reentrant=False), given)
    assert all(torch.equal(*pair) for pair in zip(again, with_gradients(causal_attention, given), strict=True))


@pytest.mark.parametrize("dtype", BOTH)
def test_a_compiler_takes_it_as_it_is(dtype: torch.dtype) -> None:
    def function(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        return (
            causal_attention(query, key, value, scale).transpose(1, 2).flatten(2).unflatten(2, (4, -1)).transpose(1, 2)
        )

    given = problem(dtype=dtype)
    compiled = with_gradients(torch.compile(function, fullgraph=True, backend="aot_eager"), given)
    assert all(torch.equal(*pair) for pair in zip(compiled, with_gradients(function, given), strict=True))


@needs_bf16
def test_autocast_asks_for_its_format() -> None:
    query, key, value, _ = problem()
    with torch.autocast("cpu", BF16):
        out = causal_attention(query, key.bfloat16(), value, 0.2)
    assert out.dtype == BF16
    assert torch.equal(out, causal_attention(query.bfloat16(), key.bfloat16(), value.bfloat16(), 0.2))


def test_what_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    query, key, value, _ = problem()
    assert causal_attention(query.double(), key.double(), value.double(), 1.0) is None
    assert causal_attention(query.half(), key.half(), value.half(), 1.0) is None
    assert causal_attention(query[:, :, :0], key[:, :, :0], value[:, :, :0], 1.0) is None
    assert causal_attention(query.to("meta"), key.to("meta"), value.to("meta"), 1.0) is None
    with FakeTensorMode() as mode:
        assert causal_attention(*(mode.from_tensor(each) for each in (query, key, value)), 1.0) is None
    with sdpa_kernel(SDPBackend.MATH):
        assert causal_attention(query, key, value, 1.0) is None
    narrow = [each.bfloat16() for each in (query, key, value)]
    for has, tiles in ((False, False), (True, True)):
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda has=has: has)
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda tiles=tiles: tiles)
        assert causal_attention(*narrow, 1.0) is None
    monkeypatch.setattr(native, "native", lambda *_: None)  # as without a compiler
    assert causal_attention(query, key, value, 1.0) is None
    assert errors(with_gradients(_attended, problem()), problem())[0] < 2e-6


def _attended(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    return attend(query, key, value, Request(scale))


def test_attention_goes_by_it() -> None:
    given = problem()
    pairs = zip(with_gradients(_attended, given), with_gradients(causal_attention, given), strict=True)
    assert all(torch.equal(*pair) for pair in pairs)


def test_who_counts_operations_sees_them(monkeypatch: pytest.MonkeyPatch) -> None:
    given = problem()[:3]
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        _attended(*given, 1.0)
    assert counter.get_total_flops() == 4 * 2 * 4 * 130 * 130 * 24
    seen = []
    real = F.scaled_dot_product_attention
    monkeypatch.setattr(
        F, "scaled_dot_product_attention", lambda *args, **more: seen.append(args) or real(*args, **more)
    )
    out = _attended(*given, 1.0)
    assert [each.shape for each in seen[0]] == [each.shape for each in given]
    monkeypatch.undo()
    assert torch.equal(out, _attended(*given, 1.0))


def test_without_memory_it_says_so_and_touches_nothing() -> None:
    library, none = native.native(native.SOURCE, KEEPS_NAN), [c_void_p(None)]
    sizes, strides = (c_int64 * 5)(1, 1, 1, 2**40, 2**12), (c_int64 * 24)()
    assert library is not None
    more = sizes, strides, c_float(1.0), c_int(2), c_int(0)
    assert library.attention_forward(*5 * none, *more) == 1
    assert library.attention_backward(*9 * none, *more) == 1


def test_the_source_is_in_the_package() -> None:
    """And what it includes: both are compiled where the package is installed."""
    assert native.SOURCE.is_file()
    assert (Path(native.SOURCE).parent.parent / "tiles.h").is_file()
