"""Which layers have an adapter, and what it adds: asked on the host before a run starts, and in ranks."""

from fnmatch import fnmatchcase

from neox_gpt.api import ChangeSize, LinearShape

from neox_lora.settings import LoraBlock, LoraSettings


def adapter_size(linear: LinearShape, settings: LoraSettings) -> ChangeSize | None:
    """The parameters of the adapter of a layer; None where it has none."""
    block = settings.lora
    if not is_target(linear.name, block):
        return None
    shapes = {"down": (block.rank, linear.inputs), "up": (linear.outputs, block.rank)}
    return ChangeSize(shapes, {"down": 1} if linear.split == "inputs" else {"up": 0})


def is_target(name: str, block: LoraBlock) -> bool:
    """Whether a layer has an adapter, by its name in the model."""
    return any(fnmatchcase(name, each) or fnmatchcase(name, f"*.{each}") for each in block.target_modules)
