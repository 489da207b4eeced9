"""Every hook of neox: the catalogue of what a plugin can add.

A hook returns offers and does nothing else. The core calls it once per process of a `neox` command, on the host, while
heavy libraries are refused; a training process calls no hook. The Protocol of a kind in `neox_core.contracts` states
what a target of this kind must be.
"""

# mypy: disable-error-code="empty-body"
# (a hook is a declaration: its body is its docstring)

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from neox_core.hooks.markers import hookspec

if TYPE_CHECKING:
    from neox_core.config.problem import Problem
    from neox_core.config.schema.structure import Config
    from neox_core.hooks.component import Component, ConfigSection
    from neox_core.hooks.spellings import OlderSpelling
    from neox_core.plan.cluster import ClusterShape


@hookspec
def neox_config_sections() -> Iterable[ConfigSection]:
    """Top-level config keys that do not belong to one component."""


@hookspec
def neox_architectures() -> Iterable[Component]:
    """Chosen by `architecture`. Contract: `contracts.Architecture`; its planner is a `contracts.ArchitecturePlanner`.

    The keys of its shape are its `sections`.
    """


@hookspec
def neox_engines() -> Iterable[Component]:
    """Chosen by `engine`. Contract: `contracts.EngineMaker`; its planner is a `contracts.EnginePlanner`.

    The keys of sharding, offload and profiling are its `sections`.
    """


@hookspec
def neox_older_spellings() -> Iterable[OlderSpelling]:
    """Keys of other programs and of older versions, and what each means today: `Means`, `Moved`, `Gone`, `Assumed`.

    They are translated, in the order given, before anything else looks at a config, and each is noted.
    """


@hookspec
def neox_optimizers() -> Iterable[Component]:
    """Chosen by `optimizer.type`, settings under `optimizer.params`. Contract: `contracts.Optimizer`.

    An optimizer that communicates between the data-parallel ranks by itself also follows
    `contracts.AveragingOptimizer`.
    """


@hookspec
def neox_lr_schedules() -> Iterable[Component]:
    """Chosen by `lr-decay-style`. Contract: `contracts.LRSchedule`."""


@hookspec
def neox_schedulers() -> Iterable[Component]:
    """Chosen by `scheduler.type`, settings under `scheduler.params`. Contract: `contracts.LRSchedule`.

    A scheduler replaces `lr-decay-style`, and may ignore the warm-up, peak and floor of the shape.
    """


@hookspec
def neox_norms() -> Iterable[Component]:
    """Chosen by `norm`. Contract: `contracts.Norm`."""


@hookspec
def neox_activations() -> Iterable[Component]:
    """Chosen by `activation`. Contract: `contracts.Activation`."""


@hookspec
def neox_positions() -> Iterable[Component]:
    """Chosen by `pos-emb`. Contract: `contracts.Position`."""


@hookspec
def neox_sparse_layouts() -> Iterable[Component]:
    """Which key blocks each query block attends to. Contract: `contracts.SparseLayout`."""


@hookspec
def neox_kernels() -> Iterable[Component]:
    """Named `<op>.<implementation>`, chosen by `kernels` and the fusion switches. Contract: `contracts.Kernel`.

    `neox plugins info OP` shows the call signature of the reference of an op such as `cross_entropy`. The component
    that computes an op follows `contracts.KernelUser` and declares the op. A kernel of block-sparse attention also
    follows `contracts.SparseKernel`.
    """


@hookspec
def neox_launchers() -> Iterable[Component]:
    """Chosen by `launcher`. Contract: `contracts.Launcher`; the target is imported on the host and must be light."""


@hookspec
def neox_data_backends() -> Iterable[Component]:
    """Chosen by `data-impl`. Contract: `contracts.DataBackend`.

    A backend that can continue an unfinished dataset also follows `contracts.ResumableBackend`, one that reads text
    `contracts.TokenizingBackend`, one that does not count its documents beforehand `contracts.StreamingBackend`.
    """


@hookspec
def neox_tokenizers() -> Iterable[Component]:
    """Chosen by `tokenizer-type`. Contract: `contracts.Tokenizer`.

    A tokenizer that can be trained on text also follows `contracts.TrainableTokenizer`.
    """


@hookspec
def neox_corpora() -> Iterable[Component]:
    """Texts that `neox data prepare` knows by name. Contract: `contracts.NamedCorpus`."""


@hookspec
def neox_curricula() -> Iterable[Component]:
    """Chosen by `enabled` of their own settings, one at a time. Contract: `contracts.Curriculum`."""


@hookspec
def neox_monitors() -> Iterable[Component]:
    """Chosen by `monitors`, a list, or by `enabled` of their own settings. Contract: `contracts.Monitor`."""


@hookspec
def neox_model_families() -> Iterable[Component]:
    """Families of published checkpoints that can be read and written. Contract: `contracts.ModelFamily`."""


@hookspec
def neox_checkpoint_formats() -> Iterable[Component]:
    """Foreign checkpoint layouts. Contract: `contracts.CheckpointFormat`."""


@hookspec
def neox_commands() -> Iterable[Component]:
    """Subcommands of `neox`, by name; `config.x` is one of `neox config`.

    The target is a `click.Command`, imported when the command is called.
    """


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
