"""The kind of foreign checkpoint formats, the commands on them, and the format of GPT-NeoX."""

from neox_core.api import Component, Kind, hookimpl


@hookimpl
def neox_kinds() -> list[Kind]:
    return [
        Kind(
            "checkpoint format",
            "neox_checkpoint_formats",
            light=True,
            contracts=(
                "neox_checkpoints.contracts:CheckpointFormat",
                "neox_checkpoints.contracts:ForeignCheckpoint",
                "neox_checkpoints.contracts:Stored",
            ),
            kit="neox_checkpoints.testing:check_checkpoint_format",
            help="Checkpoints of other training programs that `neox checkpoint import` reads.",
        )
    ]


@hookimpl
def neox_checkpoint_formats() -> list[Component]:
    summary = "GPT-NeoX 1 and 2, with the state of the optimizer"
    return [Component("neox", "neox_checkpoints.neox.format:GPTNeoX", summary=summary)]


@hookimpl
def neox_commands() -> list[Component]:
    return [
        _command("import", "import_any", "Continue the training of another program from its checkpoint."),
        _command("import-neox", "import_neox", "Continue the training of GPT-NeoX from its checkpoint."),
        _command("inspect", "inspect", "Say what a folder of checkpoints is, and what would become of it."),
    ]


def _command(name: str, target: str, summary: str) -> Component:
    return Component(f"checkpoint.{name}", f"neox_checkpoints.commands:{target}", summary=summary)
