"""Faults of a settings class, as its author wrote it, that do not keep a plugin from loading."""

from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from neox_core.config.schema.convert import InvalidError, convert, fields_of


def settings_faults(cls: type) -> Iterator[str]:
    """A line for each setting whose type or default cannot be written in a config."""
    for field in fields_of(cls):
        problems: list[str] = []
        written = None if field.required else _as_written(field.default)
        try:
            convert(written, field.type, field.name, lambda problem: problems.append(problem.message))  # noqa: B023
        except InvalidError as error:
            problems.append(error.message)
        except TypeError as error:
            yield f"{cls.__name__}.{error}"
            continue
        if problems and not field.required:
            yield f"{cls.__name__}.{field.name}: its default {problems[0]}"


def _as_written(value: Any) -> Any:
    """A default as a config file would write it."""
    if attrs.has(type(value)):
        return {name: _as_written(inner) for name, inner in attrs.asdict(value, recurse=False).items()}
    if isinstance(value, Mapping):
        return {name: _as_written(inner) for name, inner in value.items()}
    return [_as_written(inner) for inner in value] if isinstance(value, tuple | list) else value
