from neox_core.api import Component, hookimpl
from neox_positions.settings import RotarySettings


@hookimpl
def neox_positions() -> list[Component]:
    return [
        Component("learned", "neox_positions.learned:Learned", summary="A trained table, added to the embeddings"),
        Component(
            "sinusoidal", "neox_positions.sinusoidal:Sinusoidal", summary="Fixed sines and cosines (arXiv:1706.03762)"
        ),
        Component(
            "rotary",
            "neox_positions.rotary:Rotary",
            RotarySettings,
            summary="Queries and keys turned by their position (arXiv:2104.09864)",
        ),
        Component("none", "neox_positions.none:NoPosition", summary="Nothing: the causal mask alone tells the order"),
    ]
