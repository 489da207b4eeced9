"""For tests that build the engine in one process."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import torch.distributed as dist


@contextmanager
def process_group_of_one(folder: Path) -> Iterator[None]:
    """A process group of this process alone, as DeepSpeed's engine asks for one.

    folder: where the file is written by which ranks find each other
    """
    dist.init_process_group("gloo", store=dist.FileStore(str(folder / "store"), 1), rank=0, world_size=1)
    with patch.dict(os.environ, {"LOCAL_RANK": "0"}):
        yield
    import deepspeed.comm

    # Where DeepSpeed was asked for an engine, torch's own would leave it with groups that no longer exist.
    (deepspeed.comm if deepspeed.comm.is_initialized() else dist).destroy_process_group()
