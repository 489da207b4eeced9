"""The hooks that offer something else than components; each kind has one more (`hooks/kinds.py`).

A hook returns offers and does nothing else. The core calls it once per process of a `neox` command, on the host, while
heavy libraries are refused; a training process calls no hook.
"""

# mypy: disable-error-code="empty-body"
# (a hook is a declaration: its body is its docstring)

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from neox_core.hooks.markers import hookspec

if TYPE_CHECKING:
    from neox_core.config.problem import Problem
    from neox_core.config.schema.structure import Config
    from neox_core.hooks.component import ConfigSection
    from neox_core.hooks.kinds import Kind
    from neox_core.plan.cluster import ClusterShape
    from neox_core.plan.runfile import RunPlan


@hookspec
def neox_kinds() -> Iterable[Kind]:
    """Kinds of component that this plugin defines, whose hooks other plugins implement.

    neox calls it before every other hook. No two plugins define one kind, hook or key: neither of them is loaded then,
    except where the kind is one of a first-party plugin, which keeps it.
    """


@hookspec
def neox_config_sections() -> Iterable[ConfigSection]:
    """Top-level config keys that do not belong to one component."""


@hookspec
def neox_check_config(config: Config, cluster: ClusterShape) -> Iterable[Problem]:
    """Rules across sections: called once on the host, after every section is valid by itself.

    * config: has the keys of all sections, also the core's. `config.value("train-iters")` is a value, and
      `config.problem(message, "train-iters", hint)` is a Problem at the position where the key is written.
      `config.components("position")` are the chosen components, each a `Chosen`.
    * cluster: a ClusterShape, the ranks that the run will have.

    A rule may leave out an argument that it does not need. It returns a list of problems, which is empty where all is
    well. neox calls the rules of a plugin where the config chooses one of its components, writes one of its keys, or
    requires it, and always where the plugin offers nothing else.
    """


@hookspec
def neox_check_plan(config: Config, plan: RunPlan) -> Iterable[Problem]:
    """Rules of a whole plan: called once on the host, by `neox config check` and before `neox train` starts ranks.

    * plan: the run, as run.json will hold it.

    Otherwise as `neox_check_config`. A problem outside of the config, such as a checkpoint that does not fit, has the
    `exit_code` of its kind.
    """


@hookspec
def neox_train(
    config: Config, plan: RunPlan, files: Sequence[Path], sets: Sequence[str], resume: str | None
) -> Iterable[Callable[[], int]]:
    """What `neox train` does in place of one start of the ranks: called on the host, once the run is found startable.

    * files, sets, resume: the words of the command line, of which the plan was made.

    It returns a list: of one function, which starts runs and returns the exit code of the command, or of none where the
    run is started once. At most one plugin returns a function for a config.
    """
