"""The choice of a kernel, and how far one is from its reference."""

import json
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from attrs import evolve, frozen
from neox_gpt.api import SparseUse
from neox_gpt.architecture import GPTArchitecture
from neox_gpt.testing import example_decoder
from neox_kernels.choose import Choice, choose, use_kernels
from neox_kernels.compare import error_of
from torch import Tensor

from neox_core.errors import ConfigError, PluginError
from neox_core.parallel.context import BuildContext
from neox_core.parallel.groups import Groups
from neox_core.plan.runfile import ComponentRef, KernelPlan
from neox_core.run.consumed import require_consumed

CPU, META = torch.device("cpu"), torch.device("meta")


def reference(x: Tensor) -> Tensor:
    return x.square() * 2


@frozen
class Double:
    """A kernel whose result is `factor` of what it should be, and whose reasons are given."""

    factor: float = 1.0
    reasons: tuple[str, ...] = ()
    tested: frozenset[str] = frozenset({"meta"})

    def why_not(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> tuple[str, ...]:
        return self.reasons

    def __call__(self, x: Tensor) -> Tensor:
        return x.square() * (2 * self.factor)

    def examples(self, dtype: torch.dtype, device: torch.device, *, large: bool) -> Iterable[tuple[Any, ...]]:
        yield (torch.linspace(-1, 1, 7, device=device).to(dtype).requires_grad_(),)


class Picky(Double):
    """Says what it was asked for."""

    def why_not_for(self, use: SparseUse) -> tuple[str, ...]:
        return (f"blocks {use.blocks}, bias {use.bias}, dropout {use.dropout}",)


def __getattr__(name: str) -> Any:
    """A kernel that a module makes whenever it is asked for it."""
    if name != "MADE_ANEW":
        raise AttributeError(name)
    return Double()


PICKY = Picky()
GOOD, BAD, UNTESTED = Double(), Double(reasons=("too wide", "too old")), Double(tested=frozenset({"sm_90"}))
WRONG = Double(factor=1.1)


class Slow(Double):
    unasked = "one launch a parameter"


SLOW = Slow()
PLAIN = Double(reasons="too wide")


class Flat(Double):
    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        return super().__call__(x)


FLAT = Flat()


class Short(Double):
    def __call__(self, x: Tensor) -> Tensor:
        return super().__call__(x)[:-1]


class Raising(Double):
    def __call__(self, x: Tensor) -> Tensor:
        raise KeyError("no such block")


SHORT, RAISING = Short(), Raising()


class Broken(Double):
    def why_not(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> tuple[str, ...]:
        raise KeyError("no such GPU")


BROKEN = Broken()


def plan(want: str, *names: str) -> KernelPlan:
    offers = tuple(ComponentRef("kernel", f"square.{name}", "p", "1", f"{__name__}:{name}") for name in names)
    return KernelPlan("square", want, "square_fusion" if want == "fused" else "", offers)


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    module = sys.modules.get(__name__) or type(sys)(__name__)
    for name in ("GOOD", "BAD", "UNTESTED", "WRONG", "PICKY", "SLOW", "PLAIN", "Double", "BROKEN", "reference"):
        setattr(module, name, globals()[name])
    monkeypatch.setitem(sys.modules, __name__, module)


def choice(want: str, *names: str) -> Choice:
    """On the meta device, the one here that is not a CPU."""
    return choose(plan(want, *names), (1, 7), torch.float32, META)


def test_the_first_that_can_run() -> None:
    assert choice("fused", "BAD", "GOOD").kernel is GOOD
    assert choice("auto", "BAD", "GOOD").kernel is GOOD
    assert choice("auto", "BAD", "GOOD").line == "square: square.GOOD; not square.BAD: too wide, too old"


def test_auto_takes_only_what_was_tested_here() -> None:
    assert choice("auto", "UNTESTED").kernel is None
    assert choice("auto", "UNTESTED").line.startswith("square: reference; not square.UNTESTED: not tested on meta")
    assert choice("fused", "UNTESTED").kernel is UNTESTED


def test_a_cpu_takes_a_kernel_only_when_asked() -> None:
    found = choose(plan("auto", "GOOD"), (1, 7), torch.float32, CPU)
    assert found.line == "square: reference; not square.GOOD: a CPU takes the reference; ask for it to use it"
    assert choose(plan("fused", "GOOD"), (1, 7), torch.float32, CPU).kernel is GOOD


def test_a_kernel_may_be_for_those_who_ask() -> None:
    found = choice("auto", "SLOW")
    assert found.line == "square: reference; not square.SLOW: one launch a parameter; ask for it to use it"
    assert choice("fused", "SLOW").kernel is SLOW


@pytest.mark.parametrize("want", ["fused", "auto"])
def test_of_two_kernels_one_is_taken_and_the_other_is_no_fault(want: str) -> None:
    offered = plan(want, "GOOD", "WRONG", "BAD")
    found = choose(offered, (1, 7), torch.float32, META)
    assert found.kernel is GOOD
    assert found.passed_over == tuple((f"square.{name}", ("square.GOOD comes first",)) for name in ("WRONG", "BAD"))
    require_consumed(offered, set())


def test_asked_for_by_name_and_unable_is_an_error_with_the_reasons() -> None:
    with pytest.raises(ConfigError, match=r"kernels: no kernel .*square\.BAD: too wide, too old"):
        choose(evolve(plan("BAD", "BAD"), key="kernels"), (1, 7), torch.float32, META)
    assert choice("auto", "BAD").kernel is None


def test_a_switch_falls_back_and_the_start_of_the_run_says_so() -> None:
    assert choice("fused", "BAD").kernel is None
    assert choice("fused", "BAD").line == "square: reference; not square.BAD: too wide, too old"


@pytest.mark.parametrize(
    ("asked", "position", "dropout", "documents", "device", "chosen"),
    [
        ("fused", "none:NoPosition", 0.0, False, "cpu", "attention that stores no scores"),
        ("fused", "none:NoPosition", 0.0, False, "meta", "attention that stores no scores"),
        ("fused", "none:NoPosition", 0.1, False, "meta", "square.GOOD"),
        ("fused", "none:NoPosition", 0.0, True, "cpu", "square.GOOD"),
        ("fused", "alibi:Alibi", 0.0, False, "cpu", "square.GOOD"),
        ("GOOD", "none:NoPosition", 0.0, False, "meta", "square.GOOD"),
    ],
)
def test_a_fused_softmax_is_attention_without_scores_where_that_can_be(
    asked: str, position: str, dropout: float, documents: bool, device: str, chosen: str
) -> None:
    numbers = evolve(
        example_decoder(),
        kernels=(evolve(plan(asked, "GOOD"), op="scaled_upper_triang_masked_softmax"),),
        position=ComponentRef("position", "any", "p", "1", f"neox_positions.{position}"),
        attention_dropout=dropout,
        reset_attention_mask=documents,
    )
    context = BuildContext(torch.device(device), torch.float32, Groups(None, None, 0, 1), seed=1)
    (line,) = use_kernels(torch.nn.Linear(1, 1), GPTArchitecture(numbers), numbers.kernels, context, torch.float32)
    assert line == f"kernel of scaled_upper_triang_masked_softmax: {chosen}"


@pytest.mark.parametrize(
    ("position", "block", "dropout", "said"),
    [
        (("rotary", "Rotary"), 48, 0.1, "blocks (48,), bias False, dropout True"),
        (("alibi", "Alibi"), 16, 0.0, "blocks (16,), bias True, dropout False"),
        (("rpe", "RelativeBias"), 16, 0.0, "blocks (16,), bias True, dropout False"),
    ],
)
def test_what_a_sparse_model_asks_for_is_refused_before_its_first_step(
    position: tuple[str, str], block: int, dropout: float, said: str
) -> None:
    name, cls = position
    layout = ("neox_sparse_attention.local:local", "neox_sparse_attention.settings:LocalSettings", {"block": block})
    settings = {"rotary": "RotarySettings", "rpe": "RelativeSettings"}.get(name)
    numbers = evolve(
        example_decoder(),
        kernels=(evolve(plan("triton", "PICKY"), op="block_sparse_attention", key="kernels"),),
        position=ComponentRef(
            "position",
            name,
            "p",
            "1",
            f"neox_positions.{name}:{cls}",
            settings and f"neox_positions.settings:{settings}",
        ),
        layouts=(ComponentRef("sparse layout", "local", "p", "1", *layout),),
        attention_dropout=dropout,
    )
    context = BuildContext(CPU, torch.float32, Groups(None, None, 0, 1), seed=1)
    with pytest.raises(ConfigError) as caught:
        use_kernels(torch.nn.Linear(1, 1), GPTArchitecture(numbers), numbers.kernels, context, torch.float32)
    assert caught.value.message == (f"kernels: no kernel for block_sparse_attention can run here: square.PICKY: {said}")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("SHORT", rf"result 1 has the shape \[6\], not \[7\]; the reference is {__name__}:reference"),
        ("WRONG", rf"off by 1.0e-01 of 1e-05 in .*; the reference is {__name__}:reference"),
        ("FLAT", rf"gives no gradient of x; the reference is {__name__}:reference"),
        ("RAISING", "failed: KeyError: 'no such block'"),
        ("GOOD", ""),
        ("MADE_ANEW", ""),
    ],
)
def test_a_wrong_kernel_is_named_before_the_first_step(name: str, said: str) -> None:
    kernels = (evolve(plan("fused", name), reference=f"{__name__}:reference"),)
    numbers = SimpleNamespace(kernels=kernels, num_attention_heads=1, seq_length=7, hidden_size=4, intermediate_size=4)
    context = BuildContext(CPU, torch.float32, Groups(None, None, 0, 1), seed=1)
    model, before = torch.nn.Linear(1, 1), torch.random.get_rng_state()
    if said:
        with pytest.raises(PluginError, match=said):
            use_kernels(model, GPTArchitecture(numbers), numbers.kernels, context, torch.float32)
    else:
        use_kernels(model, GPTArchitecture(numbers), numbers.kernels, context, torch.float32)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_sparse_kernel_has_to_say_what_it_can() -> None:
    with pytest.raises(ConfigError, match="it has no why_not_for"):
        choose(plan("triton", "GOOD"), (1, 4), torch.float32, CPU, SparseUse((16,)))


def test_a_model_is_given_what_was_chosen_and_the_choice_is_kept(tmp_path: Path) -> None:
    class User(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kernels: dict[str, Any] = {}

    model = torch.nn.Sequential(User(), torch.nn.Linear(1, 1), User())
    kernels = (plan("fused", "BAD", "GOOD"), evolve(plan("auto", "UNTESTED"), op="cube"))
    numbers = SimpleNamespace(kernels=kernels, num_attention_heads=1, seq_length=7, hidden_size=4, intermediate_size=4)
    context = BuildContext(CPU, torch.float32, Groups(None, None, 0, 1), seed=1)
    lines = use_kernels(
        model, GPTArchitecture(numbers), numbers.kernels, context, torch.float32, tmp_path / "kernels.json"
    )
    assert lines[0].startswith("kernel of square: square.GOOD; not square.BAD")
    assert model[0].kernels == model[2].kernels == {"square": GOOD}
    assert json.loads((tmp_path / "kernels.json").read_text()) == {
        "square": {"chosen": "square.GOOD", "passed_over": {"square.BAD": ["too wide", "too old"]}},
        "cube": {
            "chosen": "reference",
            "passed_over": {"square.UNTESTED": ["a CPU takes the reference; ask for it to use it"]},
        },
    }


def test_the_error_is_that_of_the_worst_result_or_gradient() -> None:
    (arguments,) = GOOD.examples(torch.float32, CPU, large=False)
    assert error_of(GOOD, reference, arguments) < 1e-7
    assert error_of(WRONG, reference, arguments) == pytest.approx(0.1, rel=1e-4)

    def flat(x: Tensor) -> Tensor:
        return reference(x).detach() + 0 * x

    assert error_of(flat, reference, arguments) == pytest.approx(1.0)
    assert error_of(lambda x: reference(x) / 0, reference, arguments) == float("inf")


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("Double", f": {__name__}:Double is a class, and must be an instance"),
        ("reference", f": {__name__}:reference has no tested"),
        ("PLAIN", " failed: TypeError: why_not returns a tuple of texts, not 'too wide'"),
        ("BROKEN", " failed: KeyError: 'no such GPU'"),
    ],
)
def test_an_offer_that_is_no_kernel_is_its_authors_to_mend(name: str, fault: str) -> None:
    with pytest.raises(PluginError) as found:
        choice(name, name)
    assert found.value.hint.startswith("tell the author of p")
    assert found.value.message.partition(" (")[0].removeprefix(f"kernel p:square.{name} 1") == fault
    (passed,) = choice("auto", name).passed_over
    assert passed == (f"square.{name}", (found.value.message,))
    assert choice("auto", name, "GOOD").name == choice("auto", "GOOD").name


def test_a_reference_that_is_asked_for_takes_the_place_of_what_the_model_has() -> None:
    plan = KernelPlan("double", "reference", "kernels", (), f"{__name__}:reference")
    choice = choose(plan, (7,), torch.float32, CPU)
    assert (choice.line, choice.kernel) == ("double: reference", reference)
