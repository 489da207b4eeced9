"""Whether an activation takes a gate besides the value; imports no torch."""


def gated(settings: None) -> bool:
    """The plan of an activation with a gate."""
    return True


def plain(settings: None) -> bool:
    """The plan of an activation without a gate."""
    return False
