"""What stands in the way of a start though the config is valid: the launcher's objections, and those of plugins."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attrs import evolve

from neox_core.config.problem import Problem
from neox_core.config.schema.structure import Config
from neox_core.contracts.host import LaunchCommand, launch_fault
from neox_core.errors import NeoxError
from neox_core.hooks.catalog import Catalog
from neox_core.plan.rules.plugins import plugin_rules
from neox_core.plan.runfile import DIGEST, Host, RunPlan, digest


def hindrances(config: Config, plan: RunPlan, catalog: Catalog, *, imagined: bool) -> Iterator[Problem]:
    """All of them. imagined: the cluster is not this machine's, so that they are warnings."""
    of_plugins = plugin_rules("neox_check_plan", config, catalog, plan.model.kernels, plan=plan)
    for each in (*_of_launcher(config, plan, imagined), *of_plugins):
        yield evolve(each, severity="warning") if imagined and each.severity == "error" else each


def launch_command(plan: RunPlan, settings: Any = None) -> LaunchCommand:
    """What starts the ranks. Raises NeoxError for hosts out of reach, PluginError for a fault of the launcher.

    settings: of the launcher, where they are at hand.
    """
    command = _asked(plan, settings)
    return evolve(command, env={**command.env, DIGEST: digest(plan)})


def _asked(plan: RunPlan, settings: Any) -> LaunchCommand:
    """What the launcher answers."""
    command: LaunchCommand = plan.launcher.make(plan, Path(plan.run_dir) / "run.json", settings=settings)
    if fault := launch_fault(command):
        raise plan.launcher.fault(fault)
    return command


def _of_launcher(config: Config, plan: RunPlan, imagined: bool) -> Iterator[Problem]:
    if imagined and len(plan.cluster.hosts) == 1:  # it would be the machine that the run is started on
        here = Host("localhost", plan.cluster.hosts[0].slots)
        plan = evolve(plan, cluster=evolve(plan.cluster, hosts=(here,)))
    try:
        _asked(plan, config.components("launcher")[0].settings)
    except NeoxError as error:
        yield evolve(config.problem(error.message, "launcher", error.hint), exit_code=error.exit_code)
