"""One thing that is wrong with a config, and where."""

from attrs import frozen


@frozen
class Problem:
    """A mistake or a doubt.

    key: the dotted config path as the user spelled it; "" for a file as a whole.
    where: "file:line:column", or "--set", or "" when the key is missing; the core fills it in for a known key.
    severity: "error" stops the run; "warning" and "note" are said once.
    """

    message: str
    key: str = ""
    hint: str = ""
    where: str = ""
    severity: str = "error"
