"""The kinds of component: which hook offers them, which key chooses them, where their settings are written."""

from attrs import frozen

INFER = "infer"
"""What a key says whose component `Kind.detect` finds out."""


@frozen
class Kind:
    """One kind of component.

    * name: as `neox plugins list --kind` takes it.
    * hook: the hook that offers it.
    * key: the config key whose value names the chosen component; "" when no key does.
    * settings_at: config path of the settings block; "" when each setting is a top-level key.
    * many: whether the key takes a list of names. Components of such a kind can also be switched on by `enabled` of
      their settings; without a key, that is the only way.
    * used: whether this version of the core uses components of this kind. Others can be offered and listed; a config
      that asks for one is refused.
    * plans: whether its planner makes a part of the plan, so that a component of this kind must have one.
    * light: whether the target is also imported on the host, where heavy libraries are refused.
    * any_case: whether the name may be written in capitals, as GPT-NeoX's documents do.
    * comes_with: the kind whose chosen component names one of this kind where no key does.
    * detect: import path of the function that names the component, by the keys of the config and the registry, where
      the key says `infer`.
    """

    name: str
    hook: str
    key: str = ""
    settings_at: str = ""
    many: bool = False
    used: bool = True
    light: bool = False
    plans: bool = False
    any_case: bool = False
    comes_with: str = ""
    detect: str = ""


KINDS: tuple[Kind, ...] = (
    Kind("architecture", "neox_architectures", key="architecture", plans=True),
    Kind("engine", "neox_engines", key="engine", plans=True),
    Kind("optimizer", "neox_optimizers", key="optimizer.type", settings_at="optimizer.params"),
    Kind("lr schedule", "neox_lr_schedules", key="lr_decay_style", light=True),
    Kind(
        "scheduler",
        "neox_schedulers",
        key="scheduler.type",
        settings_at="scheduler.params",
        light=True,
        comes_with="optimizer",
    ),
    Kind("norm", "neox_norms", key="norm"),
    Kind("activation", "neox_activations", key="activation"),
    Kind("position", "neox_positions", key="pos_emb"),
    Kind(
        "sparse layout", "neox_sparse_layouts", key="sparse_attention.mode", settings_at="sparse_attention", many=True
    ),
    Kind("kernel", "neox_kernels"),
    Kind("launcher", "neox_launchers", key="launcher", light=True, any_case=True),
    Kind(
        "data backend",
        "neox_data_backends",
        key="data_impl",
        detect="neox_core.config.compat.detect_data_format:detect",
    ),
    Kind("tokenizer", "neox_tokenizers", key="tokenizer_type"),
    Kind("corpus", "neox_corpora"),
    Kind("curriculum", "neox_curricula", many=True),
    Kind("monitor", "neox_monitors", key="monitors", many=True),
    Kind("model family", "neox_model_families", light=True),
    Kind("checkpoint format", "neox_checkpoint_formats", used=False),
    Kind("command", "neox_commands"),
)

KIND_BY_NAME = {kind.name: kind for kind in KINDS}
