"""Rules of DeepSpeed's block of checkpoints, for every engine that has it."""

import os
from collections.abc import Iterator

from neox_core.config.problem import Problem
from neox_core.config.schema.structure import Config
from neox_core.plan.cluster import ClusterShape
from neox_core.plan.rules.rule import rule
from neox_plain.config.sections.checkpoint import CheckpointBlockSection

ON_LINUX = hasattr(os, "memfd_create")
SETTLED = {
    "checkpoint.load_universal": "checkpoints load on any number of ranks",
    "checkpoint.parallel_write.pipeline_stage": "every rank writes its share",
    "checkpoint.tag_validation": "ranks start from one checkpoint, which is checked, and count steps together",
}
"""Key -> what neox always does, whatever the value of the key."""


@rule(*SETTLED)
def settled_for_all_checkpoints(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """Checkpoints load in any layout, and all ranks write them."""
    config.section(CheckpointBlockSection)
    for key, always in SETTLED.items():
        config.note(key)
        if config.is_set(key):
            yield config.problem(f"changes no number of the run: {always}", key, severity="note")


@rule("checkpoint.use_node_local_storage", "hostfile")
def local_storage_is_of_one_host(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """The ranks of a run write one folder, so the local disk of a host works only for a run on that host."""
    key = "checkpoint.use_node_local_storage"
    local = config.section(CheckpointBlockSection).checkpoint.use_node_local_storage
    if local and len(shape.hosts) > 1:
        yield config.problem(
            f"the {len(shape.hosts)} hosts of this run write one folder, which must be on a shared disk",
            key,
            "false, and save: a folder that they share",
        )
    elif config.is_set(key):
        yield config.problem("changes nothing: save names the folder, on any disk", key, severity="note")


@rule("checkpoint.background", "save")
def background_needs_linux(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """Checkpoints are written in the background from memory that only Linux has; with no `save` there are none."""
    key = "checkpoint.background"
    if not in_background(config):
        return
    if not ON_LINUX:
        yield config.problem("needs shared memory without a name, which Linux has", key, "false")
    elif config.value("save") is None:
        yield config.problem("changes nothing: this run saves no checkpoints", key, "set save", severity="note")


def in_background(config: Config) -> bool | None:
    """Whether checkpoints are to be written while the run trains. None: where that pays and memory allows."""
    asked = config.section(CheckpointBlockSection).checkpoint.background
    return False if asked is None and not ON_LINUX else asked
