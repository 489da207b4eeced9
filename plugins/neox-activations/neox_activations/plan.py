"""Whether an activation takes a gate besides the value; imports no torch."""


def gated(settings: None) -> bool:
    return True


def plain(settings: None) -> bool:
    return False
