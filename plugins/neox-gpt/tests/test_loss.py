"""The chunked loss against torch's plain one in float64."""

import math

import pytest
import torch
from neox_author.testing.ranks import run_ranks
from neox_gpt.loss import cross_entropy, loss_and_gradient
from neox_gpt.outputs import DecoderOutputs
from torch import Tensor
from torch.nn import functional as F

from neox_core.parallel.tensor import TensorParallel

TOKENS, HIDDEN, VOCAB = 37, 24, 211


def plain(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(hidden, weight).flatten(0, -2), labels.flatten(), ignore_index=-100)


@pytest.fixture
def problem() -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states and weights in float64, labels of which some do not count."""
    random = torch.Generator().manual_seed(0)
    hidden = torch.randn(TOKENS, HIDDEN, dtype=torch.float64, generator=random)
    weight = torch.randn(VOCAB, HIDDEN, dtype=torch.float64, generator=random)
    labels = torch.randint(VOCAB, (TOKENS,), generator=random)
    labels[[0, 5, 6, 7, 36]] = -100
    return hidden, weight, labels


def with_gradients(function, hidden: Tensor, weight: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
    hidden, weight = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
    loss = function(hidden, weight, labels)
    (3 * loss).backward()  # what comes from above the loss must reach the gradients
    return loss.detach(), hidden.grad, weight.grad


@pytest.mark.parametrize("chunk", [1, 5, 36, 37, 1000, None])
def test_float64_equals_torch(problem, chunk: int | None) -> None:
    ours = with_gradients(lambda h, w, y: cross_entropy(h, w, y, chunk), *problem)
    theirs = with_gradients(plain, *problem)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("chunk", [5, None])
def test_what_is_compiled_equals_torch(problem, chunk: int | None) -> None:
    """The form that a compiler is given, as it is: test_compile.py compiles it."""
    ours = with_gradients(lambda h, w, y: cross_entropy(h, w, y, chunk, compiled=loss_and_gradient), *problem)
    theirs = with_gradients(plain, *problem)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("chunk", [4, None])
def test_fp32_is_within_1e_5_of_float64(problem, chunk: int | None) -> None:
    hidden, weight, labels = problem
    ours = with_gradients(lambda h, w, y: cross_entropy(h, w, y, chunk), hidden.float(), weight.float(), labels)
    theirs = with_gradients(plain, *problem)
    for one, other in zip(ours, theirs, strict=True):
        assert one.dtype == torch.float32
        assert (one.double() - other).norm() / other.norm() < 1e-5


def test_autocast_and_bfloat16_are_as_near_as_bfloat16_is(problem) -> None:
    hidden, weight, labels = problem
    loss, of_hidden, of_weight = with_gradients(plain, hidden, weight, labels)

    def under_autocast(*args: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return cross_entropy(*args, 8)

    for function, dtype in ((under_autocast, torch.float32), (cross_entropy, torch.bfloat16)):
        got = with_gradients(function, hidden.to(dtype), weight.to(dtype), labels)
        assert got[0].dtype == torch.float32
        assert got[1].dtype == got[2].dtype == dtype
        torch.testing.assert_close(got[0].double(), loss, rtol=1e-2, atol=0)
        for one, other in ((got[1], of_hidden), (got[2], of_weight)):
            assert (one.double() - other).norm() / other.norm() < 2e-2


def test_half_precision_keeps_the_gradient_of_a_large_batch() -> None:
    """fp16 with a loss scale: divided by the tokens first, the gradients of most words would be 0."""
    vocab = 4096
    random = torch.Generator().manual_seed(0)
    hidden = torch.randn(2048, 8, generator=random)
    weight = torch.randn(vocab, 8, generator=random) * 0.1
    labels = torch.zeros(2048, dtype=torch.int64)
    exact = torch.autograd.grad(plain(hidden, weight.requires_grad_(), labels), weight)[0]
    half = weight.detach().half().requires_grad_()
    scale = 2.0**12
    got = torch.autograd.grad(cross_entropy(hidden.half(), half, labels) * scale, half)[0].double() / scale
    assert (got - exact).norm() / exact.norm() < 1e-2
    assert (got[1:] - exact[1:]).norm() / exact[1:].norm() < 5e-2


def test_narrow_takes_each_loss_in_the_dtype_of_the_logits() -> None:
    """One token: its loss is a number of fp16 then, and is not in general. A large batch sums beyond fp16's 65504."""
    random = torch.Generator().manual_seed(0)
    hidden = torch.randn(9000, 8, generator=random).half()
    weight = torch.randn(300, 8, generator=random).half()
    labels = torch.randint(300, (9000,), generator=random)
    exact = plain(hidden.double(), weight.double(), labels)
    for narrow in (True, False):
        one = cross_entropy(hidden[:1], weight, labels[:1], narrow=narrow)
        assert one.dtype == torch.float32
        assert (one == one.half()) == narrow
        whole = cross_entropy(hidden, weight, labels, narrow=narrow)
        torch.testing.assert_close(whole.double(), exact, rtol=1e-2 if narrow else 1e-3, atol=0)
        assert whole * 9000 > 65504


def test_an_unlikely_label_has_its_finite_loss() -> None:
    """A probability of exp(-1000) is 0 in any dtype; its loss is 1000 all the same."""
    weight = torch.tensor([[0.0], [1000.0]], requires_grad=True)
    loss = cross_entropy(torch.ones(1, 1), weight, torch.tensor([0]))
    loss.backward()
    assert loss.item() == pytest.approx(1000)
    assert weight.grad.tolist() == [[-1.0], [1.0]]


def test_no_label_that_counts_is_zero_with_zero_gradient(problem) -> None:
    hidden, weight, labels = problem
    for got in with_gradients(cross_entropy, hidden, weight, torch.full_like(labels, -100)):
        assert torch.equal(got, torch.zeros_like(got))


def test_ignored_tokens_may_hold_anything(problem) -> None:
    hidden, weight, labels = problem
    spoilt = hidden.clone()
    spoilt[labels == -100] = 1e5
    for one, other in zip(
        with_gradients(cross_entropy, spoilt, weight, labels),
        with_gradients(cross_entropy, hidden, weight, labels),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=0)


def test_not_a_number_stays_one(problem) -> None:
    hidden, weight, labels = problem
    hidden[20] = math.nan
    assert cross_entropy(hidden, weight, labels).isnan()


def test_tied_weights_get_both_gradients() -> None:
    weight = torch.randn(VOCAB, HIDDEN, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    tokens = torch.arange(30).view(2, 15)
    grads = []
    for function in (plain, cross_entropy):
        tied = weight.clone().requires_grad_()
        function(F.embedding(tokens, tied).tanh(), tied, tokens + 1).backward()
        grads.append(tied.grad)
    torch.testing.assert_close(*grads, rtol=1e-10, atol=1e-14)


@torch.no_grad()
def test_evaluation_holds_no_gradient(problem) -> None:
    hidden, weight, labels = problem
    loss = cross_entropy(hidden, weight.requires_grad_(), labels)
    torch.testing.assert_close(loss, plain(hidden, weight, labels), rtol=1e-10, atol=0)
    assert not loss.requires_grad


def test_the_logits_of_the_batch_never_exist() -> None:
    """The largest tensor made is the weight's own gradient, for a batch whose logits are 16 times as large."""
    from torch.utils._python_dispatch import TorchDispatchMode

    largest = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            nonlocal largest
            out = function(*args, **(kwargs or {}))
            if isinstance(out, Tensor):
                largest = max(largest, out.numel())
            return out

    hidden, weight = torch.randn(1024, 64, requires_grad=True), torch.randn(2000, 64, requires_grad=True)
    with Watch():
        cross_entropy(hidden, weight, torch.zeros(1024, dtype=torch.int64), 32).backward()
    assert largest == weight.numel()


def test_a_graph_that_is_kept_gives_its_gradients_again(problem) -> None:
    hidden, weight, labels = problem
    given = hidden.requires_grad_(), weight.requires_grad_()
    loss = cross_entropy(*given, labels)
    first, second = (torch.autograd.grad(3 * loss, given, retain_graph=True) for _ in range(2))
    last = torch.autograd.grad(3 * loss, given)
    for one, *others in zip(first, second, last, strict=True):
        assert all(torch.equal(one, other) for other in others)


@pytest.mark.parametrize("native", [False, True])
def test_the_gradient_of_the_weight_is_scaled_where_it_is(native: bool) -> None:
    """The backward pass makes no second tensor of its size, but for the one that turns what torch computed."""
    from torch.utils._python_dispatch import TorchDispatchMode

    places = set()

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            out = function(*args, **(kwargs or {}))
            if isinstance(out, Tensor) and out.numel() == weight.numel():
                places.add(out.data_ptr())
            return out

    hidden, weight = torch.randn(16, 64, requires_grad=True), torch.randn(2000, 64, requires_grad=True)
    loss = cross_entropy(hidden, weight, torch.zeros(16, dtype=torch.int64), 16, by_torch=not native)
    taken_forward = loss.grad_fn.saved_tensors[1].data_ptr()
    with Watch():
        loss.backward()
    assert len(places - {taken_forward}) == (0 if native else 1)


@pytest.mark.parametrize("cap", [None, 1.5])
def test_a_bias_and_a_cap_of_logits(cap: float | None) -> None:
    """Loss, gradients and scores as autograd has them, on one rank and on two that share the vocabulary."""
    random = torch.Generator().manual_seed(0)
    hidden, weight, bias = (torch.randn(size, generator=random).double() for size in ((10, 6), (8, 6), (8,)))
    labels = torch.tensor([0, 7, 3, -100, 5, 2, 1, 4, 6, 7])

    def gradients(loss: Tensor, *given: Tensor) -> list[Tensor]:
        return [loss.detach(), *torch.autograd.grad(loss, given)]

    given = [each.requires_grad_() for each in (hidden, weight, bias)]
    logits = hidden @ weight.T + bias
    logits = logits if cap is None else cap * torch.tanh(logits / cap)
    wanted = gradients(F.cross_entropy(logits, labels), *given)
    got = gradients(cross_entropy(hidden, weight, labels, 3, bias=bias, cap=cap), *given)
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)
    outputs = DecoderOutputs(hidden[None], weight, bias=bias, cap=cap, chunk=4)
    torch.testing.assert_close(outputs.logits()[0], logits)
    log_prob = logits.log_softmax(-1).gather(1, labels.clamp(min=0)[:, None])[:, 0].masked_fill(labels == -100, 0.0)
    torch.testing.assert_close(outputs.scores(labels[None]).log_prob[0], log_prob)

    def rank(tensor: TensorParallel) -> None:
        rows = slice(4 * tensor.rank, 4 * tensor.rank + 4)
        x, *own = (each.detach().clone().requires_grad_() for each in (hidden, weight[rows], bias[rows]))
        loss = cross_entropy(tensor.enter(x[None])[0], own[0], labels, 3, tensor=tensor, bias=own[1], cap=cap)
        found = gradients(loss, x, *own)
        whole = [wanted[0], wanted[1], wanted[2][rows], wanted[3][rows]]
        for one, other in zip(found, whole, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)

    run_ranks(2, rank)
