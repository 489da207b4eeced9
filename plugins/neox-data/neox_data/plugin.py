"""What neox-data offers."""

from neox_core.api import Component, Kind, hookimpl


@hookimpl
def neox_kinds() -> list[Kind]:
    contract, said = "neox_data.contracts:NamedCorpus", "Texts that `neox data prepare` knows by name."
    kit = "neox_data.testing:check_corpus"
    return [Kind("corpus", "neox_corpora", contracts=(contract,), kit=kit, help=said)]


@hookimpl
def neox_commands() -> list[Component]:
    return [Component("data", "neox_data.commands:data", summary="Turn text into datasets of tokens.")]
