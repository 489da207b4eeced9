"""Strict structuring of one settings class: what is widened, what is refused, and that all problems come at once."""

from pathlib import Path
from typing import Any, Literal

import pytest
from attrs import field, frozen
from attrs import validators as v

from neox_core.api import setting
from neox_core.config.schema.structure import structure_settings
from neox_core.errors import ConfigError


@frozen
class Inner:
    depth: int = setting(1, help="Depth.", check=v.ge(0))
    name: str = setting(help="Name.")


@frozen
class Settings:
    flag: bool = setting(False, help="Flag.")
    count: int = setting(3, help="Count.", check=v.gt(0))
    rate: float = setting(0.5, help="Rate.", aliases=("old-rate",))
    text: str = setting("a", help="Text.")
    folder: Path = setting(Path("x"), help="Folder.")
    maybe: int | None = setting(7, help="Maybe.")
    mode: Literal["fast", "slow"] = setting("fast", help="Mode.")
    stage: Literal[0, 1] = setting(0, help="Stage.")
    pair: tuple[float, float] = setting((0.0, 1.0), help="Pair.")
    many: tuple[str, ...] = setting((), help="Many.")
    numbers: list[int] = field(factory=list)
    share: str | tuple[float, ...] = setting("1,1", help="Share.")
    anything: dict[str, Any] = field(factory=dict)
    inner: Inner | None = setting(None, help="Inner.")


def problems(**values: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        structure_settings(Settings, values)
    return caught.value.message.splitlines()[1:]


def one(**values: Any) -> Any:
    (name,) = values
    return getattr(structure_settings(Settings, values), name)


def test_defaults_hold() -> None:
    assert structure_settings(Settings, {}) == Settings()


@pytest.mark.parametrize(
    ("key", "written", "read"),
    [
        ("flag", True, True),
        ("count", 5e8, 500_000_000),
        ("rate", 2, 2.0),
        ("rate", 1e-5, 1e-5),
        ("folder", "a/b", Path("a/b")),
        ("maybe", None, None),
        ("maybe", 4, 4),
        ("mode", "slow", "slow"),
        ("stage", 1, 1),
        ("pair", [1, 0.5], (1.0, 0.5)),
        ("many", ["a", "b"], ("a", "b")),
        ("numbers", [1, 2.0], [1, 2]),
        ("share", "9,1", "9,1"),
        ("share", [9, 1], (9.0, 1.0)),
        ("anything", {"a": {"b": [None, 1]}}, {"a": {"b": [None, 1]}}),
        ("inner", {"name": "x"}, Inner(name="x")),
        ("count", None, 3),
        ("pair", None, (0.0, 1.0)),
    ],
)
def test_what_is_read(key: str, written: Any, read: Any) -> None:
    value = one(**{key: written})
    assert value == read
    assert type(value) is type(read)


@pytest.mark.parametrize(
    ("key", "written", "said"),
    [
        ("flag", "false", "must be true or false, not 'false' (without quotes, true or false)"),
        ("flag", "yes", "must be true or false, not 'yes'"),
        ("flag", 1, "must be true or false, not 1"),
        ("flag", 0.0, "must be true or false, not 0.0"),
        ("count", 3.9, "must be a whole number, not 3.9"),
        ("count", True, "must be a whole number, not true"),
        ("count", "3", "must be a whole number, not '3' (write the number without quotes)"),
        ("count", float("inf"), "must be a whole number, not inf"),
        ("count", [3], "must be a whole number, not a list"),
        ("count", 0, "must be > 0: 0"),
        ("rate", "0.1", "must be a number, not '0.1' (write the number without quotes)"),
        ("rate", False, "must be a number, not false"),
        ("rate", float("inf"), "must be a finite number, not inf"),
        ("rate", float("nan"), "must be a finite number, not nan"),
        ("rate", 10**400, "must be a finite number"),
        ("text", 3, "must be text, not 3 (write it in quotes)"),
        ("text", "a\0b", "must not hold a NUL character"),
        ("text", "a\ud800", "must not hold an incomplete character"),
        ("text", {"a": 1}, "must be text, not a block of keys"),
        ("mode", "fats", "must be one of 'fast', 'slow', not 'fats' (did you mean 'fast'?)"),
        ("mode", True, "must be one of 'fast', 'slow', not true"),
        ("stage", True, "must be one of 0, 1, not true"),
        ("stage", 2, "must be one of 0, 1, not 2"),
        ("pair", [1], "must have 2 values, not 1"),
        ("pair", "1,2", "must be a list, not '1,2'"),
        ("many", "a", "must be a list, not 'a'"),
        ("share", 3, "must be text, not 3; or must be a list, not 3"),
        ("anything", [1], "must be a block of keys, not a list"),
        ("inner", 3, "must be a block of keys, not 3"),
    ],
)
def test_what_is_refused(key: str, written: Any, said: str) -> None:
    (line,) = problems(**{key: written})
    assert line.startswith(f"error: {key}: {said}")


def test_every_problem_is_reported_with_its_path() -> None:
    lines = problems(flag="no", pair=[1, "x"], inner={"depth": -1, "deep": 2}, zzz=1)
    assert lines == [
        "error: zzz: unknown key (known: " + lines[0].partition("known: ")[2],
        "error: flag: must be true or false, not 'no' (without quotes, true or false)",
        "error: pair[1]: must be a number, not 'x'",
        "error: inner.deep: unknown key (did you mean 'depth'?)",
        "error: inner.depth: must be >= 0: -1",
        "error: inner.name: is required (Name.)",
    ]


def test_hyphens_are_underscores_at_every_depth() -> None:
    @frozen
    class Deep:
        low_end: int = setting(0, help="Low.")

    @frozen
    class Outer:
        the_block: Deep = setting(Deep(), help="Block.")

    assert structure_settings(Outer, {"the-block": {"low-end": 3}}).the_block.low_end == 3


def test_path_is_put_in_front() -> None:
    with pytest.raises(ConfigError, match=r"optimizer\.params\.coutn: unknown key \(did you mean 'count'\?\)"):
        structure_settings(Settings, {"coutn": 1}, "optimizer.params")


def test_spellings_of_one_key() -> None:
    assert structure_settings(Settings, {"old-rate": 0.25}).rate == 0.25
    assert structure_settings(Settings, {"rate": 0.25, "old_rate": 0.25}).rate == 0.25
    (said,) = problems(rate=0.25, old_rate=0.5)
    assert said.startswith("error: rate: differs from its other spelling 'old_rate' (keep one of the two; a --set ")


def test_a_class_may_refuse_a_combination() -> None:
    @frozen
    class Range:
        low: int = setting(0, help="Low.")
        high: int = setting(1, help="High.")

        def __attrs_post_init__(self) -> None:
            if self.low > self.high:
                raise ValueError("low must not be above high")

    assert structure_settings(Range, {"low": 1}).low == 1
    with pytest.raises(ConfigError, match="low must not be above high"):
        structure_settings(Range, {"low": 2})


def test_a_type_that_no_config_can_hold_is_the_authors_mistake() -> None:
    @frozen
    class Odd:
        value: complex = setting(0j, help="Odd.")

    with pytest.raises(TypeError, match="a setting cannot have the type"):
        structure_settings(Odd, {"value": 1})
