"""Where `pipe-partition-method` cuts a row of layers, with DeepSpeed's own cut of it on two pretended stages."""

import json
import os
import subprocess
import sys

# An embedding of 1,000 numbers, six blocks of 100, and three small layers.
SCRIPT = """
import json
import torch.distributed as dist
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore
from neox_core.parallel.row import RowLayer
from neox_deepspeed.patches import import_deepspeed

import_deepspeed("cpu")
import deepspeed.comm
from deepspeed.pipe import PipelineModule
from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology
from neox_deepspeed.pipeline import _specs

kinds = [("Embedding", 1000), *[("TransformerLayer", 100)] * 6, ("Norm", 10), ("Head", 10), ("Loss", 10)]
row = [
    RowLayer(kind, f"part.{at}", lambda size=size: nn.Linear(size, 1, bias=False), lambda *given: given)
    for at, (kind, size) in enumerate(kinds)
]
dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
deepspeed.comm.init_distributed("fake", auto_mpi_discovery=False, verbose=False, dist_init_required=False)
cuts = {}
for method in ("uniform", "parameters", "type:transformer"):
    grid = PipeModelDataParallelTopology(num_pp=2, num_mp=1, num_dp=1)
    stage = PipelineModule(_specs(row)[0], topology=grid, partition_method=method)
    cuts[method] = [int(each) for each in stage.parts]
print(json.dumps(cuts))
"""


def test_each_method_cuts_where_its_share_is_equal() -> None:
    """Equal counts of layers, of parameters as far as whole layers allow, and of layers of a kind."""
    env = {**os.environ, "LOCAL_RANK": "0"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=env, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "uniform": [0, 5, 10],
        "parameters": [0, 1, 10],
        "type:transformer": [0, 4, 10],
    }
