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
            kit="neox_hf.testing:check_model_family",
            help="Families of published checkpoints that can be read and written.",
        ),
    ]


@hookimpl
def neox_model_families() -> list[Component]:
    llama_like = "neox_hf.llama_like"
    return [
        Component("gpt_neox", "neox_hf.gpt_neox:GPTNeoX", summary="Pythia and GPT-NeoX-20B (arXiv:2204.06745)"),
        Component("gpt2", "neox_hf.gpt2:GPT2", summary="GPT-2 and what has its shape"),
        Component("gptj", "neox_hf.gpt2:GPTJ", summary="GPT-J"),
        Component("llama", "neox_hf.llama:Llama", summary="LLaMA and what has its shape (arXiv:2302.13971)"),
        Component("mistral", "neox_hf.llama:Mistral", summary="Mistral (arXiv:2310.06825)"),
        Component("mixtral", "neox_hf.mixtral:Mixtral", summary="Mixtral, with neox-moe (arXiv:2401.04088)"),
        Component("qwen2", f"{llama_like}:Qwen2", summary="Qwen 2 and 2.5 (arXiv:2407.10671)"),
        Component("qwen3", f"{llama_like}:Qwen3", summary="Qwen 3, dense (arXiv:2505.09388)"),
        Component("olmo2", f"{llama_like}:Olmo2", summary="OLMo 2 (arXiv:2501.00656)"),
        Component("gemma2", "neox_hf.gemma:Gemma2", summary="Gemma 2 (arXiv:2408.00118)"),
        Component("gemma3_text", "neox_hf.gemma:Gemma3", summary="Gemma 3, of text alone (arXiv:2503.19786)"),
        Component("neox", "neox_hf.neox:Neox", summary="Any other decoder, with its code beside the weights"),
    ]


@hookimpl
def neox_checkpoint_formats() -> list[Component]:
    return [Component("hf", "neox_hf.format:HuggingFace", summary="Weights that transformers reads, to start from")]


@hookimpl
def neox_commands() -> list[Component]:
    summary = "Read and write the checkpoints of other libraries."
    return [Component("checkpoint", "neox_hf.commands:checkpoint", summary=summary)]
