"""Whether an activation takes a gate beside the value, told without torch."""


def gated(settings: None) -> bool:
    return True


def plain(settings: None) -> bool:
    return False
