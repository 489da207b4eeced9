"""A rank that joins no process group and makes no progress: one of WAITING as in a collective, else as if it hung."""

import faulthandler
import os
import time
from pathlib import Path

from neox_core.heartbeat import STACK_SIGNAL, Heartbeat

faulthandler.register(STACK_SIGNAL)
rank = os.environ["RANK"]
beat = Heartbeat(int(os.environ["LOCAL_RANK"]))
beat.expect(1.0, 1.0)
beat.reached(7)
for _ in range(5 if rank == os.environ.get("AHEAD") else 3):
    beat.beat()
Path(f"here{rank}").touch()
if rank in os.environ["WAITING"].split():
    exec(compile("def all_reduce():\n    time.sleep(300)\n", "site-packages/torch/distributed/c10d.py", "exec"))
    all_reduce()  # noqa: F821
time.sleep(300)
