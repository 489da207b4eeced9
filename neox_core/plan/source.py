"""Which config keys a field of a plan comes from, said at the field.

`config show`, `config diff` and the check at resume derive from it what they say of the field.
"""

from collections.abc import Mapping
from typing import Any

import attrs
from attrs import frozen

from neox_core.hooks.kinds import KIND_BY_NAME, Kind

SOURCE = "neox.plan.source"
"""In the metadata of a field."""
SAMPLES, CONTENTS, SCHEDULE = "the samples of a step", "the contents of the datasets", "the learning-rate schedule"
SHAPES, SETTING = "the shapes of the weights", "a setting of the optimizer"
"""What compares some fields of a plan when a run resumes, in place of the comparison of all others."""
START, FIRST = "of this start of a run", "acts before the first step"
"""Why others are not compared at all."""


@frozen
class Source:
    """keys: dotted, with `_`; of those that a config writes, the first counts.

    definitions: the kinds of component, where the field names one; the keys that choose it are among `keys`.
    derived: what the value follows from where no key is written; "": it is the default of the key.
    apart: what compares the value with that of the run that wrote a checkpoint, or why no one has to; "": a resumed
        run compares it, where one of the keys changes numbers.
    """

    keys: tuple[str, ...] = ()
    definitions: tuple[Kind, ...] = ()
    derived: str = ""
    apart: str = ""

    @property
    def kinds(self) -> tuple[str, ...]:
        """The names of `definitions`."""
        return tuple(kind.name for kind in self.definitions)

    def inside(self, setting: str) -> tuple[str, ...]:
        """The keys of a setting of the component that the field names."""
        blocks = (kind.settings_at for kind in self.definitions)
        return (*(f"{block}.{setting}" for block in blocks if block), setting)


def of(*keys: str, kind: str | Kind | tuple[str, ...] = (), derived: str = "", apart: str = "") -> Mapping[str, Any]:
    """Metadata of a field of a plan; a field without it comes from the key of its own name. Arguments as in `Source`.

    kind: a kind of the core by its name, or several, or a plugin's own; the keys that choose its component come first.
    """
    names = (kind,) if isinstance(kind, str | Kind) else kind
    kinds = tuple(each if isinstance(each, Kind) else KIND_BY_NAME[each] for each in names)
    choosing = tuple(each.key for each in kinds if each.key)
    return {SOURCE: Source((*choosing, *keys), kinds, derived, apart)}


def source_of(field: "attrs.Attribute[Any]") -> Source:
    """The source of a field of a plan class."""
    source: Source = field.metadata.get(SOURCE) or Source((field.name,))
    return source
