"""Records which entries of a config or a plan were read: an entry that nothing reads stops the run."""


class Ledger:
    """What was read, and by whom. Those who read note it here; what they read does not change."""

    def __init__(self) -> None:
        self._readers: dict[str, set[str]] = {}

    def note(self, entry: str, reader: str = "") -> None:
        """entry: a dotted config key, or the identity of a component. reader: a plugin; "": the core."""
        self._readers.setdefault(entry, set()).add(reader)

    def readers(self, entry: str) -> frozenset[str]:
        """The readers of the entry; empty where nothing has read it."""
        return frozenset(self._readers.get(entry, ()))

    def __contains__(self, entry: str) -> bool:
        return entry in self._readers
