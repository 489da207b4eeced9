"""The contract of configs in the keys of another program."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from neox_core.config.problem import Problem
    from neox_core.config.read.load import Loaded


class Dialect(Protocol):
    """The keys of another program, or of older versions of this one. The target is the dialect itself.

    It is asked on the host for every config, so it imports nothing heavy and reads no file until it explains a key.

    * older: the top-level keys that `translate` takes out of every config: no section may own one of them.
    """

    @property
    def older(self) -> Sequence[str]: ...

    def translate(self, loaded: Loaded) -> Loaded:
        """The same config in the keys of neox, with a problem of severity `note` for each key that it translates.

        loaded: what the files and `--set` say, keys with `_`; it stays so. A value without equivalent becomes an error.
        """

    def explain(self, path: str, value: Any) -> Iterable[Problem] | None:
        """What to say of a key that nothing installed reads; None for a key that is unknown to the dialect too.

        path: dotted, with `_`
        value: what the config gives it; no problem where the value asks for nothing
        """

    def explain_name(self, kind: str, name: str) -> tuple[str, str] | None:
        """Message and hint on a name that no installed component of a kind has; None for an unknown one.

        A hint of "" lets neox list the installed names.
        """

    def names_in(self, path: str) -> Sequence[str]:
        """The keys that `explain` knows in a block, "" for the top level: for `did you mean`."""
