"""Config, machine and plugins to the plan of a run."""

from collections.abc import Sequence
from pathlib import Path

from attrs import evolve, frozen

from neox_core.config.dialects import modernise
from neox_core.config.problem import Problem
from neox_core.config.read.load import Loaded, load
from neox_core.config.report import ProblemsError, errors, in_order
from neox_core.config.schema.convert import REQUIRED
from neox_core.config.schema.sections.checkpoint import CheckpointSection
from neox_core.config.schema.sections.host import PluginsSection
from neox_core.config.schema.structure import Config, SectionInvalidError, structure
from neox_core.contracts.architecture import ModelSize, Untold
from neox_core.contracts.engine import Memory
from neox_core.errors import CheckpointError, PluginError
from neox_core.hooks.catalog import Catalog
from neox_core.hooks.install import how_to_install
from neox_core.hooks.loader import load_plugins
from neox_core.plan.assemble import Resume, assemble, run_dir
from neox_core.plan.cluster import ClusterShape, Machine, cluster_shape, detect, imagined
from neox_core.plan.hosts import Pool
from neox_core.plan.planners import architecture_planner, engine_planner
from neox_core.plan.rules import check_rules, unread_keys
from neox_core.plan.rules.plugins import plugin_rules
from neox_core.plan.runfile import KernelPlan, RunPlan
from neox_core.plan.start import hindrances
from neox_core.plan.stored.installed import schedules
from neox_core.untrusted import short


@frozen
class Resolved:
    """A plan that can be started, and what it was made of; notes stop nothing.

    memory: of the fullest rank; None where the size is not known.
    """

    plan: RunPlan
    config: Config
    catalog: Catalog
    notes: tuple[Problem, ...]
    size: ModelSize | Untold
    memory: Memory | None


def prepare_run(
    files: Sequence[Path],
    sets: Sequence[str] = (),
    *,
    resume: str | None = "must",
    debug: bool = False,
    catalog: Catalog | None = None,
    machine: Machine | None = None,
    start: bool = True,
    cluster: str | None = None,
    folder: Path | None = None,
    checked: bool = False,
) -> Resolved:
    """Files and `--set` to a plan. Raises ConfigError with every problem of every file in one report.

    start: False when the run is only looked at; a dataset that is not there yet is then a warning.
    cluster: resolve as if on so many hosts of so many GPUs, "12x8", instead of on this machine or the hostfile's.
    resume: must, auto, or None: must, unless `load` is `save`, which a first start fills.
    folder: of the run; None: `save`, else runs/<name of the first file>.
    checked: also ask the launcher, and look at the checkpoint that the run would load.
    """
    machine, pool = (machine or detect(), None) if cluster is None else imagined(cluster)
    catalog = load_plugins() if catalog is None else catalog
    written = load(files, sets)
    loaded = modernise(written, catalog.registry)
    if not written.values:
        raise ProblemsError(loaded.problems or [Problem("no config file is given")])
    plain, ill = structure(loaded, catalog)
    ledger: set[str] = set()
    config = evolve(plain, ledger=ledger)
    problems = [*loaded.problems, *ill, *_requirements(config, catalog)]
    valid = not errors(problems)
    shape, against_rules = _rules(config, machine, pool)
    problems = [_settled(each, start) for each in (*problems, *against_rules)]
    kernels: tuple[KernelPlan, ...] = ()
    if not errors(problems):
        kernels, refused = architecture_planner(config).kernels(config, catalog.registry, shape.device)
        problems += refused
    if valid:
        of_plugins = plugin_rules("neox_check_config", config, catalog, kernels, cluster=shape)
        problems += [_settled(each, start) for each in of_plugins]
    if written.unreadable:  # it may have what is missing elsewhere
        problems = [each for each in problems if not each.message.startswith(REQUIRED)]
    problems += [Problem(line, severity="warning") for line in catalog.warnings()]
    if errors(problems):
        if any(each.exit_code == PluginError.exit_code for each in ill):
            problems += _gone(config, catalog)
        raise ProblemsError(written.with_values(problems))
    folder = Path(run_dir(config)) if folder is None else folder
    plan = assemble(config, shape, _resume(resume, config), str(folder), debug, kernels)
    if plan.checkpoint.schedule_from == "checkpoint":
        plan = evolve(plan, checkpoint=evolve(plan.checkpoint, schedules=schedules(catalog)))
    _refuse_unread(config, ledger, catalog, written, problems)
    if checked:
        found = hindrances(config, plan, catalog, imagined=cluster is not None)
        problems += [_settled(each, start) for each in found]
        if errors(problems):
            raise ProblemsError(written.with_values(problems))
    size = architecture_planner(config).size(config, plan.model)
    return Resolved(
        plan,
        config,
        catalog,
        in_order(written.with_values(problems)),
        size,
        _memory(config, plan, size) if isinstance(size, ModelSize) and not size.untold else None,
    )


def _memory(config: Config, plan: RunPlan, size: ModelSize) -> Memory:
    """What the engine expects the fullest rank to hold."""
    architecture, (optimizer,) = architecture_planner(config), config.components("optimizer")
    held, activations = architecture.on_fullest_rank(plan, size), architecture.activation_bytes(plan, size)
    return engine_planner(config).memory(config, plan, held, activations, optimizer.entry.component.state_numbers)


def _rules(config: Config, machine: Machine, pool: Pool | None) -> tuple[ClusterShape, list[Problem]]:
    """The ranks of the run, and what the core's rules say."""
    problems: list[Problem] = []
    try:
        shape = cluster_shape(config, machine, problems, pool)
    except SectionInvalidError:
        shape = ClusterShape("cpu", 1, "gloo", 1)
    else:
        if not config.loaded.unreadable:  # what it lacks may be in there
            problems += check_rules(config, shape)
    return shape, problems


def _refuse_unread(
    config: Config, ledger: set[str], catalog: Catalog, written: Loaded, problems: Sequence[Problem]
) -> None:
    """Raises ProblemsError for keys that nothing has read, unless a warning or note on them or their block says why."""
    warned = {each.key for each in problems if each.severity in ("warning", "note")}
    found = unread_keys(config, ledger, catalog)
    unread = [each for each in found if not {each.key, each.key.partition(".")[0]} & warned]
    if unread:
        raise ProblemsError(written.with_values([*problems, *unread]))


def _resume(resume: str | None, config: Config) -> Resume:
    checkpoint = config.section(CheckpointSection)
    load, save = checkpoint.load, checkpoint.save
    if resume is None and load is not None and not checkpoint.finetune and (load == save or _is_empty(Path(load))):
        return "auto"  # the first start of a job whose command stays the same
    if resume in (None, "must"):
        return "must"
    if resume != "auto":
        raise ProblemsError([Problem(f"must be must or auto, not {resume!r}", "--resume")])
    if checkpoint.load is None and checkpoint.save is None:
        raise ProblemsError([Problem("auto has no folder to resume from", "--resume", "set save and save-interval")])
    return "auto"


def _is_empty(folder: Path) -> bool:
    try:
        return next(folder.iterdir(), None) is None
    except OSError:  # not there, not a folder, or not to be read: `find_checkpoint` says so
        return False


def _requirements(config: Config, catalog: Catalog) -> list[Problem]:
    """`plugins: {require: [...]}`."""
    try:
        required = config.section(PluginsSection).plugins.require
    except SectionInvalidError:
        return []
    found = []
    for name in required:
        try:
            catalog.require([name])
        except PluginError as error:
            problem = config.problem(error.message, "plugins.require", error.hint)
            found.append(evolve(problem, exit_code=error.exit_code))
    return found


def _gone(config: Config, catalog: Catalog) -> list[Problem]:
    """Plugins that are not here and were used by the run in `save` or `load`: what has no name now may be theirs."""
    from neox_core.plan.stored.saved import read_run

    found = []
    for key in ("load", "save"):
        try:
            used = read_run(Path(config.value(key)))["plugins"]
            gone = {f"{plugin} {short(used[plugin])}": plugin for plugin in used if catalog.report(plugin) is None}
        except (CheckpointError, KeyError, TypeError):  # no such run
            continue
        if gone:
            message = f"the run in {config.value(key)} used {', '.join(gone)}: not installed here"
            found.append(config.problem(message, key, how_to_install(*gone.values()), "note"))
    return found


def _settled(problem: Problem, start: bool) -> Problem:
    """What stops a start, such as a dataset that is not there yet, does not stop a look."""
    if problem.severity != "start":
        return problem
    return evolve(problem, severity="error" if start else "warning")
