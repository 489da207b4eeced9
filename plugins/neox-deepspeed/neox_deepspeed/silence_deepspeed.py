"""Keeps the engine's own chatter out of a run's output, by category and module, once."""

import logging
import os
import warnings

# DeepSpeed reads its level when it is imported and sets it on its own logger only.
_LOGGERS = ("DeepSpeed", "torch.distributed", "torch.distributed.distributed_c10d")

# (category, regular expression of the message, regular expression of the module that warns)
_WARNINGS: tuple[tuple[type[Warning], str, str], ...] = (
    # torch 2.13 renames the functional collectives; DeepSpeed calls them by their old names.
    (FutureWarning, "", r"torch\.distributed"),
    (FutureWarning, "", r"deepspeed\."),
    (DeprecationWarning, "", r"deepspeed\."),
    (UserWarning, "", r"deepspeed\."),
    (UserWarning, r"The given NumPy array is not writable", ""),
)


def quiet_engine(debug: bool) -> None:
    """Call before deepspeed is imported; `debug` leaves everything as it is."""
    if debug:
        return
    os.environ.setdefault("DEEPSPEED_LOG_LEVEL", "error")
    for name in _LOGGERS:
        logging.getLogger(name).setLevel(logging.ERROR)
    for category, message, module in _WARNINGS:
        warnings.filterwarnings("ignore", message=message, category=category, module=module)
