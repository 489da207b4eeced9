"""What `neox kernels list`, `check` and `bench` say of kernels that are right, wrong, unable or broken."""

import json
import sys
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from attrs import frozen
from neox_kernels.compare import TOLERANCE
from neox_kernels.tools import checked, listed, main, measured
from torch import Tensor

from neox_core.errors import ConfigError, PluginError
from neox_core.plan.runfile import ComponentRef

CPU = torch.device("cpu")


def reference(x: Tensor) -> Tensor:
    return x.square() * 2


@frozen
class Double:
    """A kernel whose result is `factor` of what it should be, and whose reasons are given."""

    factor: float = 1.0
    reasons: tuple[str, ...] = ()
    tested: frozenset[str] = frozenset()

    def why_not(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> tuple[str, ...]:
        return self.reasons

    def __call__(self, x: Tensor) -> Tensor:
        return x.square() * (2 * self.factor)

    def examples(self, dtype: torch.dtype, device: torch.device, *, large: bool) -> Iterable[tuple[Any, ...]]:
        yield (torch.linspace(-1, 1, 7, device=device).to(dtype).requires_grad_(),)


class Broken(Double):
    def examples(self, dtype: torch.dtype, device: torch.device, *, large: bool) -> Iterable[tuple[Any, ...]]:
        raise ValueError("no example")


GOOD, BAD, WRONG, BROKEN = Double(), Double(reasons=("too wide", "too old")), Double(factor=1.1), Broken()


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules.get(__name__) or type(sys)(__name__)
    for name in ("GOOD", "BAD", "WRONG", "BROKEN", "Double", "reference"):
        setattr(module, name, globals()[name])
    monkeypatch.setitem(sys.modules, __name__, module)


def row(*names: str) -> dict[str, Any]:
    offers = [ComponentRef("kernel", f"square.{name}", "p", "1", f"{__name__}:{name}").plain() for name in names]
    owners, missing = ("core",), [{"name": "p:square.far", "reason": "needs moon"}]
    return {
        "op": "square",
        "reference": f"{__name__}:reference",
        "owners": owners,
        "offers": offers,
        "missing": missing,
    }


def test_list_says_what_is_chosen_and_why_not_the_others() -> None:
    lines = list(listed([row("BAD", "GOOD"), row()], CPU, torch.float32))
    assert lines == [
        "on the CPU (cpu), fp32:",
        "square: reference  (core)",
        "    not square.BAD: too wide, too old",
        "    not square.GOOD: a CPU takes the reference; ask for it to use it",
        "    not p:square.far: needs moon",
        "square: reference  (core)",
        "    not p:square.far: needs moon",
    ]


def test_check_judges_each_kernel_in_each_dtype() -> None:
    found = list(checked([row("GOOD", "WRONG", "BAD")], CPU))
    assert [verdict for verdict, _ in found] == [True] * 3 + [False] * 3 + [None] * 3
    assert len(TOLERANCE) == 3
    assert "WRONG: off by 1.0e-01" in found[3][1]
    assert found[3][1].endswith(" (from p 1)")
    assert "cannot run: too wide" in found[-1][1]


def test_the_same_as_lines_of_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked = {"what": "check", "device": "cpu", "ops": [row("GOOD", "WRONG")], "as_json": True}
    monkeypatch.setattr(sys, "argv", ["tools", json.dumps(asked)])
    assert main() == 1
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(each["kernel"], each["right"]) for each in found] == [("square.GOOD", True)] * 3 + [
        ("square.WRONG", False)
    ] * 3


def test_a_cpu_is_not_measured() -> None:
    with pytest.raises(ConfigError, match="measured on a GPU"):
        list(measured([row("GOOD")], CPU, torch.float32))


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("Double", f": {__name__}:Double is a class, and must be an instance"),
        ("reference", f": {__name__}:reference has no tested"),
        ("BROKEN", " failed: ValueError: no example"),
    ],
)
def test_an_offer_that_is_no_kernel_is_its_authors_to_mend(name: str, fault: str) -> None:
    """The others are listed and checked."""
    said = f"kernel p:square.{name} 1{fault}"
    found = []
    with pytest.raises(PluginError) as error:
        found.extend(checked([row(name, "GOOD")], CPU))
    assert error.value.hint.startswith("tell the author of p")
    assert error.value.message.partition(" (")[0] == said
    lines = list(listed([row(name, "GOOD")], CPU, torch.float32))
    assert "    not square.GOOD: a CPU takes the reference; ask for it to use it" in lines
    assert name == "BROKEN" or any(line.startswith(f"    not square.{name}: {said}") for line in lines)
