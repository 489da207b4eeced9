"""What a run trains, and what trains it."""

from attrs import frozen

from neox_core.config.schema.setting import setting


@frozen
class ChoicesSection:
    """The components that own most of the other keys: of the model, and of how it is trained."""

    architecture: str = setting("gpt", help="The kind of model; its plugin has the keys of its shape.")
    objective: str = setting("causal-lm", help="What the model learns: samples made of documents, and their loss.")
    engine: str = setting(
        "deepspeed", help="What runs the steps; its plugin has the keys of sharding and offload.", changes="speed"
    )
