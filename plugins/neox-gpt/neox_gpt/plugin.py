"""Offers the decoder of GPT-NeoX and its relatives."""

from typing import Any

from neox_core.api import Component, ConfigSection, Kind, Problem, hookimpl
from neox_gpt.config.kinds import KINDS
from neox_gpt.ops import OPS

SECTIONS = "neox_gpt.config.sections"


@hookimpl
def neox_kinds() -> tuple[Kind, ...]:
    return KINDS


@hookimpl
def neox_architectures() -> list[Component]:
    return [
        Component(
            name="gpt",
            target="neox_gpt.architecture:GPTArchitecture",
            planner="neox_gpt.config.planner:PLANNER",
            summary="A decoder of blocks of attention and MLP, as GPT-NeoX has it.",
            ops=OPS,
            sections=(
                ConfigSection("model", f"{SECTIONS}.model:ModelSection"),
                ConfigSection("attention", f"{SECTIONS}.attention:AttentionSection"),
                ConfigSection("dropout", f"{SECTIONS}.model:DropoutSection"),
                ConfigSection(
                    "activation checkpointing", f"{SECTIONS}.activation_checkpointing:ActivationCheckpointingSection"
                ),
                ConfigSection("fusion", f"{SECTIONS}.fusion:FusionSection"),
            ),
        )
    ]


@hookimpl
def neox_check_plan(config: Any, plan: Any) -> list[Problem]:
    from neox_gpt.config.ends import without_ends  # listing plugins needs none of it
    from neox_gpt.config.kernels import compiled_code

    return [*without_ends(config, plan), *compiled_code(plan)]


@hookimpl
def neox_mixers() -> list[Component]:
    return [
        Component(
            name="global",
            target="neox_gpt.attention.attention:Attention",
            planner="neox_gpt.attention.size:attention_size",
            summary="Causal softmax attention, dense or with a sparse layout.",
        )
    ]


@hookimpl
def neox_feed_forwards() -> list[Component]:
    return [
        Component(
            name="regular",
            target="neox_gpt.mlp:MLP",
            planner="neox_gpt.config.mlp_size:mlp_size",
            summary="The MLP with the chosen activation, plain or gated.",
        )
    ]


@hookimpl
def neox_callbacks() -> list[Component]:
    return [
        Component(
            name="measure_compile",
            target="neox_gpt.measure_compile:MeasureCompile",
            summary="Chooses for `compile: auto`, which names it, whether the layers are compiled.",
        )
    ]


@hookimpl
def neox_commands() -> list[Component]:
    return [
        Component(
            name="generate",
            target="neox_gpt.generation.command:generate",
            summary="Continue a prompt with the model in a checkpoint.",
        )
    ]
