"""What a retriever and inverse-cloze do not take, said before the start."""

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from neox_bert.api import encoder_problems
from neox_gpt.api import teacher_in

from neox_core.api import Problem
from neox_core.errors import CheckpointError
from neox_core.plan.planners import sharding
from neox_retrieval.objective_section import InverseClozeSettings
from neox_retrieval.section import IndexSection, RetrieverSection

NAME = "retriever"
_OF_A_DECODER = ("logit_softcap", "fp16_lm_cross_entropy", "no_weight_tying", "use_bias_in_head")
LEAST_BLOCK = 8
"""Tokens of a block, of which three are special."""


def problems(config: Any) -> Iterator[Problem]:
    """Of a config that chooses the retriever or its objective."""
    (architecture,), (objective,) = config.components("architecture"), config.components("objective")
    retriever = architecture.entry.component.name == NAME
    trains = isinstance(objective.settings, InverseClozeSettings)
    if trains and not retriever:
        yield config.problem("needs a retriever", "objective", "set architecture: retriever, or remove objective")
    if not retriever:
        return
    if not trains:
        message = f"{objective.entry.component.name} needs the logits of tokens, which a retriever does not give"
        yield config.problem(message, "objective", "set objective: inverse-cloze")
    yield from encoder_problems(config)
    yield from _of_model(config)
    yield from _of_start(config, config.section(RetrieverSection))
    yield from _of_index(config, config.section(IndexSection))


def _of_model(config: Any) -> Iterator[Problem]:
    for key in _OF_A_DECODER:
        if config.value(key):
            yield config.problem("is for logits of tokens, which a retriever does not have", key, "remove it")
    if config.value("pipe_parallel_size") not in (None, 0, 1):
        yield config.problem("a retriever has no pipeline: it has two encoders", "pipe_parallel_size", "set it to 1")
    if config.components("curriculum"):
        message = "a retriever takes whole samples, of a query and a block"
        yield config.problem(message, config.components("curriculum")[0].path, "remove the curriculum")
    for each in config.components("model change"):
        yield config.problem(
            f"{each.entry.component.name} changes one decoder, not two encoders", each.path, "remove it"
        )
    if any(each.entry.component.name != "regular" for each in config.components("feed forward")):
        yield config.problem("the encoders of a retriever have the regular MLP alone", "mlp_type", "remove it")
    function, stage = "deepspeed_activation_checkpointing", sharding(config).stage
    recomputes = config.value("checkpoint_activations") and config.value(function)
    if config.section(RetrieverSection).share_towers and recomputes and stage >= 2:
        message = f"gives two gradients of an encoder that queries and blocks share, of which ZeRO {stage} takes one"
        yield config.problem(message, function, "remove it: torch's function recomputes with the same results")
    query, whole = config.section(RetrieverSection).query_length, config.value("seq_length")
    if whole - query < LEAST_BLOCK:
        message = (
            f"{query} leaves {max(0, whole - query)} of seq-length {whole} for the block, which needs {LEAST_BLOCK}"
        )
        yield config.problem(message, "query_length", "set a longer seq-length, or a shorter query-length")


def _of_start(config: Any, section: RetrieverSection) -> Iterator[Problem]:
    if section.bert_load is not None and section.ict_load is not None:
        yield config.problem("contradicts ict-load: both say what the encoders start with", "bert_load", "remove one")
    for key in ("bert_load", "ict_load"):
        folder = getattr(section, key)
        if folder is not None:
            try:
                teacher_in(Path(folder))
            except CheckpointError:
                message = f"{folder}: no checkpoint here to start with"
                hint = "name the folder that its run called save; a run that resumes from its own does not need it"
                yield config.problem(message, key, hint, "start")


def _of_index(config: Any, section: IndexSection) -> Iterator[Problem]:
    if not section.faiss_use_gpu:
        return
    if find_spec("faiss") is None:
        yield config.problem("FAISS is not installed", "faiss_use_gpu", "install a FAISS for GPUs, or remove it")
        return
    try:
        version("faiss-cpu")
    except PackageNotFoundError:
        return  # one that was built in another way, which `search.build` asks for its GPUs
    yield config.problem("the installed FAISS, faiss-cpu, has no GPU", "faiss_use_gpu", "remove it")
