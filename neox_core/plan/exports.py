"""Which families of published checkpoints a planned model can be exported as."""

from neox_core.config.schema.structure import Config
from neox_core.errors import ConfigError
from neox_core.hooks.registry import Registry
from neox_core.plan.runfile import ModelPlan


def exports(model: ModelPlan, config: Config, registry: Registry) -> dict[str, str]:
    """Family -> why the model cannot be exported as it, "" where it can."""
    try:
        model = model.exported(config)
    except ConfigError as error:
        return {"an export": error.message}
    found = {}
    for entry in (each for each in registry.entries() if each.definition.exports):
        if missing := entry.component.missing():
            found[entry.component.name] = f"needs {', '.join(missing)}, not installed"
            continue
        try:
            entry.load()().config(model, model.padded_vocab_size or 1)
            found[entry.component.name] = ""
        except ConfigError as error:
            found[entry.component.name] = error.message
        except Exception as error:  # noqa: BLE001 the code of a plugin
            found[entry.component.name] = f"{entry.plugin.id} failed: {type(error).__name__}"
    return found
