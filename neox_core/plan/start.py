"""What stands in the way of a start though the config is valid: the launcher's objections, the checkpoint to load."""

from collections.abc import Iterator
from pathlib import Path

from attrs import evolve, frozen

from neox_core.config.problem import Problem
from neox_core.config.schema.structure import Config
from neox_core.contracts.host import LaunchCommand, launch_fault
from neox_core.errors import CheckpointError, ConfigError, NeoxError
from neox_core.plan.runfile import DIGEST, Host, RunPlan, digest
from neox_core.plan.stored.resume import resume_problems


@frozen
class Hindrance:
    """A problem, and the exit code of a run that it stops."""

    problem: Problem
    exit_code: int = ConfigError.exit_code


def hindrances(config: Config, plan: RunPlan, *, imagined: bool) -> Iterator[Hindrance]:
    """All of them. imagined: the cluster is not this machine's, so that they are warnings."""
    for each in (*_of_launcher(config, plan, imagined), *_of_checkpoint(config, plan)):
        soft = imagined and each.problem.severity == "error"
        yield evolve(each, problem=evolve(each.problem, severity="warning")) if soft else each


def exit_code_of(found: list[Hindrance]) -> int:
    """That of all errors where they have the same one, else a config's; 0 without an error."""
    codes = {each.exit_code for each in found if each.problem.severity == "error"}
    return (codes.pop() if len(codes) == 1 else ConfigError.exit_code) if codes else 0


def launch_command(plan: RunPlan) -> LaunchCommand:
    """What starts the ranks. Raises NeoxError for hosts out of reach, PluginError for a fault of the launcher."""
    command: LaunchCommand = plan.launcher.make(plan, Path(plan.run_dir) / "run.json")
    fault = launch_fault(command)
    if fault:
        raise plan.launcher.fault(fault)
    return evolve(command, env={**command.env, DIGEST: digest(plan)})


def _of_launcher(config: Config, plan: RunPlan, imagined: bool) -> Iterator[Hindrance]:
    if imagined and len(plan.cluster.hosts) == 1:  # it would be the machine that the run is started on
        here = Host("localhost", plan.cluster.hosts[0].slots)
        plan = evolve(plan, cluster=evolve(plan.cluster, hosts=(here,)))
    try:
        launch_command(plan)
    except NeoxError as error:
        yield Hindrance(config.problem(error.message, "launcher", error.hint), error.exit_code)


def _of_checkpoint(config: Config, plan: RunPlan) -> Iterator[Hindrance]:
    for problem in resume_problems(config, plan):
        yield Hindrance(problem, CheckpointError.exit_code)
