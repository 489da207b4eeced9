"""One thing that is wrong with a config, and where; and the error of a function that knows the key, not the place."""

from attrs import field, frozen
from attrs import validators as v

COMMAND_LINE = "--set"


@frozen
class Problem:
    """A mistake or a doubt.

    key: the dotted config path as the user spelled it; "" for a file as a whole.
    where: "file:line:column", or "--set", or "" when the key is missing; the core fills it in for a known key.
    severity: "error" stops the run; "start" stops it too, and is a warning where a config is only looked at
        (`neox config check`); "warning" and "note" are said once.
    value: what the key was given, as a config writes it; "" when nothing was; the core fills it in.
    exit_code: of a run that the problem stops, where all of its errors have the same one; else it is that of a config.
    """

    message: str
    key: str = ""
    hint: str = ""
    where: str = ""
    severity: str = field(default="error", validator=v.in_(("error", "start", "warning", "note")))
    value: str = ""
    exit_code: int = 2


class MisfitError(ValueError):
    """What keys ask for does not fit together, or not the machine; `key` is the one to look at."""

    def __init__(self, message: str, key: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.key = key
        self.hint = hint
