from neox_core.api import Component, Kind, hookimpl


@hookimpl
def neox_kinds() -> list[Kind]:
    return [
        Kind(
            "model family",
            "neox_model_families",
            light=True,
            exports=True,
            contracts=("neox_hf.contracts:ModelFamily",),
            help="Families of published checkpoints that can be read and written.",
        ),
        Kind(
            "checkpoint format",
            "neox_checkpoint_formats",
            used=False,
            contracts=("neox_hf.contracts:CheckpointFormat",),
            help="Foreign checkpoint layouts.",
        ),
    ]


@hookimpl
def neox_model_families() -> list[Component]:
    return [
        Component("gpt_neox", "neox_hf.gpt_neox:GPTNeoX", summary="Pythia and GPT-NeoX-20B (arXiv:2204.06745)"),
        Component("llama", "neox_hf.llama:Llama", summary="LLaMA and what has its shape (arXiv:2302.13971)"),
        Component("mistral", "neox_hf.llama:Mistral", summary="Mistral without a sliding window (arXiv:2310.06825)"),
        Component("neox", "neox_hf.neox:Neox", summary="Any other decoder, with its code beside the weights"),
    ]


@hookimpl
def neox_commands() -> list[Component]:
    summary = "Read and write the checkpoints of other libraries."
    return [Component("checkpoint", "neox_hf.commands:checkpoint", summary=summary)]
