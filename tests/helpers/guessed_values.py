"""Values that follow from the type of a key."""

from typing import Literal, get_args, get_origin

from neox_reference.keys import Key


def guessed(key: Key) -> str:
    """Another value than the default, as a config writes it, that the type and the check of the key admit."""
    field = key.field
    assert field is not None
    default = None if field.required else field.default
    kinds = (field.type,) if get_origin(field.type) in (tuple, dict, Literal) else (field.type, *get_args(field.type))
    if bool in kinds:
        return str(not default).lower()
    literal = next((kind for kind in kinds if get_origin(kind) is Literal), None)
    if literal is not None:
        return str(next(value for value in get_args(literal) if value != default))
    if int in kinds or float in kinds:
        numbers = (2 * (default or 0), (default or 0) + 1, 2, 0.5, 0)
        return next(str(each) for each in numbers if each != default and _fits(key, each))
    if str in kinds:
        return "other"
    return "[other]" if any(str in get_args(kind) for kind in kinds) else "[2, 4]"


def _fits(key: Key, value: float) -> bool:
    check = key.field.attribute.validator if key.field is not None else None
    try:
        return check is None or check(None, key.field.attribute, value) is None  # type: ignore[union-attr]  # a check is set
    except ValueError:
        return False
