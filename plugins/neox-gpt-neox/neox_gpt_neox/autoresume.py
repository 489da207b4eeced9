"""The callback that asks a command of the user's whether the run has to save and end."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING, ClassVar

from neox_core.contracts.events import Ask
from neox_core.terminal import cut, echo, one_line

if TYPE_CHECKING:
    from neox_core.contracts.events import Where
    from neox_core.contracts.host import RunInfo
    from neox_core.parallel.context import BuildContext
    from neox_gpt_neox.config.sections.autoresume import AutoresumeSettings

LONGEST_NAME = 200


class Autoresume:
    """Asks at every `adlr-autoresume-interval` steps. A command that gives no answer does not end a run."""

    where: ClassVar[Where] = "rank 0"

    def __init__(self, run: RunInfo, context: BuildContext, settings: AutoresumeSettings) -> None:
        self._command, self._timeout = list(settings.autoresume_command), settings.autoresume_timeout
        self._interval = settings.adlr_autoresume_interval
        self._ending = False

    def step(self, step: int) -> Ask | None:
        if self._ending or step % self._interval:
            return None
        status = self._answer("ask", step)
        if status != 1:
            if status not in (0, None):
                self._say(f"exit status {status} at step {step}, which is neither 0 nor 1: the run trains on")
            return None
        self._ending = True
        return Ask("stop", f"autoresume-command asked for it at step {step}")

    def end(self, step: int) -> None:
        if self._ending:
            self._answer("ended", step)

    def _answer(self, event: str, step: int) -> int | None:
        """The exit status; None, and a line that says why, where there is none in time."""
        environment = {**os.environ, "NEOX_AUTORESUME": event, "NEOX_STEP": str(step)}
        nothing = subprocess.DEVNULL
        try:
            process = subprocess.Popen(
                self._command, stdin=nothing, stdout=nothing, stderr=nothing, env=environment, start_new_session=True
            )
        except OSError as error:
            self._say(f"did not start at step {step}: {error.strerror}; the run trains on")
            return None
        try:
            return process.wait(self._timeout)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # and what it has started
            process.wait()
            self._say(f"gave no answer in {self._timeout} s at step {step} and was ended; the run trains on")
            return None

    def _say(self, message: str) -> None:
        echo(f"autoresume-command ({cut(one_line(self._command[0]), LONGEST_NAME)}): {message}")
