"""The work of `neox retrieval search` and `evaluate`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

from neox_core.errors import UsageError, run_main
from neox_core.plan.runfile import receive_plan
from neox_core.terminal import echo, echo_json
from neox_retrieval.opened import Opened, open_run
from neox_retrieval.questions import asked, held_out, held_out_blocks, rates, table_of
from neox_retrieval.search import Index, build
from neox_retrieval.vectors import read_vectors


def main() -> None:
    """Answer a question with the nearest blocks of text, as the command line asks in JSON."""
    given: dict[str, Any] = json.loads(sys.argv[1])
    plan = receive_plan(given["plan"])
    opened = open_run(plan, Path(given["checkpoint"]), torch.device("cpu"))
    vectors = read_vectors(Path(given["blocks"]), opened.facts)
    model: Any = plan.model
    if "text" in given:
        index = build(vectors, gpu=model.index.gpu, exact=given["exact"])
        found = _search(opened, index, given["text"], given["count"])
        if given["as_json"]:
            echo_json(found)
            return
        for rank, each in enumerate(found, 1):
            echo(f"{rank}. {each['title'] or 'block'} ({each['block']}, {each['product']:.3f})")
            echo(f"   {each['text']}")
        return
    for k in given["counts"]:
        if k > opened.facts.blocks:
            raise UsageError(f"-k {k} is more than the {opened.facts.blocks} blocks", hint="ask for fewer")
    without: dict[int, int] = {}
    if given["held_out"] is not None:
        questions = held_out(opened, given["held_out"])
        if given["without"]:
            without = {each.block: each.sentence for each in questions if each.block is not None}
    else:
        questions = asked(Path(given["questions"]), opened.facts.blocks)
    replaced = held_out_blocks(opened, without)
    index = build(vectors, gpu=model.index.gpu, exact=given["exact"])
    rated = rates(opened, index, questions, given["counts"], replaced, bm25=given["bm25"])
    if given["as_json"]:
        echo_json(rated)
    else:
        echo("\n".join(table_of(rated)))


def _search(opened: Opened, index: Index, text: str, count: int) -> list[dict[str, Any]]:
    """The nearest blocks, the nearest first, as plain values."""
    products, numbers = index.search(opened.embed_queries([text]), min(count, opened.facts.blocks))
    return [
        {
            "block": number,
            "product": product,
            "title": opened.words(opened.blocks.title(number)),
            "text": opened.words(opened.blocks.body(number)),
        }
        for product, number in zip(products[0].tolist(), numbers[0].tolist(), strict=True)
    ]


if __name__ == "__main__":
    run_main(main)
