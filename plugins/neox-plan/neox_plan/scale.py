"""What a run makes of files, connections and logins, by number of ranks: counted by the rules that a run follows.

`tests/test_scale.py` holds them to the checkpoints and groups of small runs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import ceil, isqrt, prod
from typing import TYPE_CHECKING, cast

from attrs import evolve, frozen

from neox_core.checkpoint.manifest import MOST_PIECES, RANKS_OF_A_PART, Piece, piece_to_plain
from neox_core.plan.planners import engine_planner
from neox_core.plan.stored.saved import RANKS_OF_A_FOLDER, rank_folder
from neox_plan.layout import held_by

if TYPE_CHECKING:
    from neox_core.contracts.architecture import ModelSize, Shapes
    from neox_core.plan.resolve import Resolved
    from neox_core.plan.runfile import RunPlan

OF_A_RANK = 3
"""Files that a rank writes at most: weights, optimizer, generators."""
BESIDE = 3
"""manifest.json, run.json and state.json."""
GENERATORS, RNG = 5, 150
"""Random generators of a rank on a CPU, and the bytes of the line of each."""
SEALED = 130
"""Bytes that a manifest says of a file: its name, size and SHA-256."""
BLOCK = 64
"""Ranks that agree on a stop in one group, as `neox_core.parallel.agreement` has it, which imports torch."""
FASTER = 2.1
"""A count that becomes more than so many times as large on twice the hosts grows faster than they do."""
NAMES = {
    "files": "files of a checkpoint",
    "in_a_folder": "files in its fullest folder",
    "pieces": "parts of tensors in it",
    "listed_bytes": "bytes that list them",
    "read_bytes": "bytes of these lists that a rank reads to resume",
    "read_by_all_bytes": "bytes of these lists that all ranks read to resume",
    "groups": "process groups of a rank",
    "peers": "ranks that a rank is connected to for a stop",
    "store": "connections of the first host's store",
    "logins": "logins of the starting machine",
}


@frozen
class Scale:
    """counts: of each of NAMES. twice: the same on twice the hosts with twice the batch."""

    counts: Mapping[str, int]
    twice: Mapping[str, int]

    @property
    def faster(self) -> list[str]:
        """What grows faster than the number of hosts; not what one host does without, such as logins."""
        # and one: a rank is not counted among its peers
        return [name for name, count in self.counts.items() if count and self.twice[name] > FASTER * count + 1]


def scale(resolved: Resolved) -> Scale:
    """The counts of a run whose size is known."""
    plan = resolved.plan
    cluster = evolve(plan.cluster, hosts=2 * plan.cluster.hosts)
    batch = evolve(plan.batch, data_parallel=2 * plan.batch.data_parallel)
    return Scale(_counts(resolved, plan), _counts(resolved, evolve(plan, cluster=cluster, batch=batch)))


def _counts(resolved: Resolved, plan: RunPlan) -> dict[str, int]:
    cluster, ranks, hosts = plan.cluster, plan.cluster.world_size, len(plan.cluster.hosts)
    stored = _stored(resolved, plan)
    pieces = sum(count for count, _ in stored) + GENERATORS * ranks
    parts = ceil(ranks / RANKS_OF_A_PART) + ceil(ranks / RANKS_OF_A_FOLDER) if pieces > MOST_PIECES else 0
    files = OF_A_RANK * ranks + BESIDE + parts
    every = sum(count * length for count, length in stored) + GENERATORS * ranks * RNG
    seals = SEALED * files
    if parts:  # a rank reads one line of each tensor, and then at ZeRO 3 its own part, else the parts of its stage
        head = seals + sum(length for _, length in stored)
        share = ceil(ranks / RANKS_OF_A_PART) if plan.optim.zero_stage == 3 else cluster.pipeline_parallel
        listed, read = head + every, head + every // share
    else:
        listed = read = seals + every
    block = ranks if ranks <= BLOCK else isqrt(ranks - 1) + 1
    leaders = ceil(ranks / block)
    split = cluster.tensor_parallel * cluster.pipeline_parallel > 1
    return {
        "files": files,
        "in_a_folder": OF_A_RANK * min(ranks, RANKS_OF_A_FOLDER) + BESIDE + parts,
        "pieces": pieces,
        "listed_bytes": listed,
        "read_bytes": read,
        "read_by_all_bytes": read * ranks,
        "groups": 2 + (4 if split else 0) + (1 if leaders > 1 else 0),
        "peers": block - 1 + leaders - 1,
        "store": ranks + hosts,
        "logins": _logins(resolved, hosts) if plan.launcher.name == "pdsh" and hosts > 1 else 0,
    }


def _logins(resolved: Resolved, hosts: int) -> int:
    """Those to the first host of each part, where the hosts are a tree: a part has about the root of their number."""
    (launcher,) = resolved.config.components("launcher")
    least: int = launcher.settings.pdsh_tree_from
    return ceil(hosts / (isqrt(hosts - 1) + 1)) if hosts >= least > 0 else hosts


def _stored(resolved: Resolved, plan: RunPlan) -> list[tuple[int, int]]:
    """Of each tensor of a checkpoint: in how many pieces it is stored, and the bytes that list one."""
    size, stage = cast("ModelSize", resolved.size), plan.optim.zero_stage
    alone = evolve(plan, cluster=evolve(plan.cluster, pipeline_parallel=1))
    held, data = held_by(resolved, alone), plan.batch.data_parallel
    owned = engine_planner(resolved.config).sharding(resolved.config).owns_parameters
    (optimizer,) = resolved.config.components("optimizer")
    states = ceil((optimizer.entry.component.state_numbers or (0.0, 0.0))[0])
    masters = int(plan.precision.dtype != "fp32")
    flat = _cuts(held, data * plan.cluster.pipeline_parallel) if stage in (1, 2) and not owned else {}
    found, lines = [], dict[tuple[int, tuple[int, ...]], int]()  # as long for each layer of a shape
    for name, shape in size.shapes.items():
        mine, ranks = prod(held[name]), 1 if held[name] == shape else plan.cluster.tensor_parallel
        spread = ceil(mine / ceil(mine / data)) if stage == 3 and mine else 1
        stepped = flat.get(name, spread)
        piece = lines.get((len(name), shape)) or lines.setdefault((len(name), shape), _line(name, shape, plan))
        found += [(ranks * spread, piece), *[(ranks * stepped, piece)] * (states + masters)]
    return found


def _cuts(held: Shapes, ranks: int) -> dict[str, int]:
    """In how many runs of elements each tensor is cut, where `ranks` share all of those with one dimension, and all
    others, as ZeRO 1 and 2 do.
    """
    cuts: dict[str, int] = {}
    for vectors in (True, False):
        group = {name: prod(shape) for name, shape in held.items() if (len(shape) == 1) == vectors}
        share, first = max(1, ceil(sum(group.values()) / ranks)), 0
        for name, count in group.items():
            cuts[name], first = (first + max(1, count) - 1) // share - first // share + 1, first + count
    return cuts


def _line(name: str, shape: tuple[int, ...], plan: RunPlan) -> int:
    """Bytes of the line of a piece of a tensor."""
    rank, span = plan.cluster.world_size - 1, (0, prod(shape)) if plan.optim.zero_stage and prod(shape) else None
    file = f"{rank_folder(rank)}rank-{rank:05d}.optimizer.safetensors"
    piece = Piece(file, f"state/exp_avg/{name}", "state", name, "F32", shape, span, "exp_avg")
    return len(json.dumps(piece_to_plain(piece))) + 2
