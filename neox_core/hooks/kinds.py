"""The kinds of component: which hook offers them, which key chooses them, where their settings are written."""

from attrs import field, frozen
from attrs import validators as v

from neox_core.hooks.component import IMPORT_PATH

_PATHS = v.deep_iterable(v.matches_re(IMPORT_PATH), v.instance_of(tuple))
_FLAG = v.instance_of(bool)
_WORD = r"[a-z][a-z0-9_]*"
_PATH = rf"({_WORD}(\.{_WORD})*)?"


@frozen
class Kind:
    """One kind of component. A plugin defines one of its own by `neox_kinds`.

    * name: in lower case, as `neox plugins list --kind` takes it.
    * hook: the hook that offers it, which plugins implement as those of the core; it returns a list of `Component`.
    * key: the config key, with `_` for `-`, whose value names the chosen component; "" when no key does. The plugin
      that defines the kind owns the key by a ConfigSection, which is read before components are chosen.
    * settings_at: config path of the settings block; "" when each setting is a top-level key.
    * many: whether the key takes a list of names. Components of such a kind can also be switched on by `enabled` of
      their settings; without a key, that is the only way.
    * used: whether anything uses components of this kind. Others can be listed; a config that asks for one is refused.
    * light: whether the target is also imported on the host, where heavy libraries are refused.
    * any_case: whether the name may be written in capitals, as GPT-NeoX's documents do.
    * exports: whether `neox config check` says of each component whether a planned model can be exported as it: the
      target's `config(model, vocab_size)` raises ConfigError with the reason where not. With `light`.
    * named_by: import path of the function that names its components, each with its key, from a config; with `many`.
    * contracts: kinds of plugins: import paths of the Protocols of the target, the first that of every component. They
      are read for docs/hooks.md and not imported.
    * kit: kinds of plugins: import path of the check that the contract holds, `check(catalog, name, **settings)`.
    * help: kinds of plugins: what docs/hooks.md says of the hook.
    * plans: kinds of the core only: whether a run needs its planner, so that every component has one, and the plan too.
    * names_others: kinds of the core only: whether its planner names components of other kinds by keys of the config.
    * comes_with: kinds of the core only: the kind whose chosen component names one of this kind where no key does.
    """

    name: str = field(validator=v.matches_re(r"[a-z][a-z0-9 ]*"))
    hook: str = field(validator=v.matches_re(_WORD))
    key: str = field(default="", validator=v.matches_re(_PATH))
    settings_at: str = field(default="", validator=v.matches_re(_PATH))
    many: bool = field(default=False, validator=_FLAG)
    used: bool = field(default=True, validator=_FLAG)
    light: bool = field(default=False, validator=_FLAG)
    any_case: bool = field(default=False, validator=_FLAG)
    exports: bool = field(default=False, validator=_FLAG)
    named_by: str = field(default="", validator=v.matches_re(f"({IMPORT_PATH})?"))
    contracts: tuple[str, ...] = field(default=(), validator=_PATHS)
    kit: str = field(default="", validator=v.matches_re(f"({IMPORT_PATH})?"))
    help: str = field(default="", validator=v.instance_of(str))
    plans: bool = field(default=False, validator=_FLAG)
    names_others: bool = field(default=False, validator=_FLAG)
    comes_with: str = field(default="", validator=v.instance_of(str))


KINDS: tuple[Kind, ...] = (
    Kind("architecture", "neox_architectures", key="architecture", plans=True, names_others=True),
    Kind("objective", "neox_objectives", key="objective"),
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
    Kind("launcher", "neox_launchers", key="launcher", light=True, any_case=True),
    Kind("data backend", "neox_data_backends", key="data_impl"),
    Kind("tokenizer", "neox_tokenizers", key="tokenizer_type"),
    Kind("curriculum", "neox_curricula", many=True),
    Kind("monitor", "neox_monitors", key="monitors", many=True),
    Kind("callback", "neox_callbacks", key="callbacks", many=True),
    Kind("evaluator", "neox_evaluators", key="evaluators", many=True),
    Kind("store", "neox_stores", many=True, light=True, plans=True, named_by="neox_core.config.stores:named_stores"),
    Kind("dialect", "neox_dialects", light=True),
    Kind("command", "neox_commands"),
)
"""Those of the core, in the order in which they are listed."""

KIND_BY_NAME = {kind.name: kind for kind in KINDS}
