"""Where the time goes between the command and the first step."""

from __future__ import annotations

import time


class Startup:
    """Seconds by part, in order. `began`: when `neox train` started, unix seconds."""

    def __init__(self, began: float) -> None:
        self._began = self._last = began
        self._parts: dict[str, float] = {}

    def mark(self, part: str, at: float | None = None) -> None:
        """Everything since the last mark was `part`."""
        now = time.time() if at is None else at
        self._parts[part] = self._parts.get(part, 0.0) + now - self._last
        self._last = now

    def values(self) -> dict[str, float]:
        """`startup_<part>_s` and `startup_total_s`, as they are logged."""
        parts = {f"startup_{part}_s": round(seconds, 3) for part, seconds in self._parts.items()}
        return {**parts, "startup_total_s": round(self._last - self._began, 3)}
