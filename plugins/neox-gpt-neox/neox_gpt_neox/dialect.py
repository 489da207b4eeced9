"""The dialect of GPT-NeoX: its older spellings, and its keys that this version does not have."""

from collections.abc import Iterable, Sequence
from typing import Any

from neox_core.config.problem import Problem
from neox_core.config.read.load import Loaded
from neox_gpt_neox.recipe import mark_of, read_types, translate_recipe
from neox_gpt_neox.spellings import SPELLINGS
from neox_gpt_neox.translate import Rewriting, Spellings


class GPTNeoX(Spellings):
    """Configs of GPT-NeoX and DeepSpeed. What explains mistakes is imported where there is one."""

    def translate(self, loaded: Loaded) -> Loaded:
        """The config in today's spelling, and what several keys of GPT-NeoX mean together."""
        work = Rewriting(loaded)
        read_types(work)
        work.apply(self.rules, loaded)
        translate_recipe(work, mark_of(loaded.values))
        return work.done(loaded)

    def explain(self, path: str, value: Any) -> Iterable[Problem] | None:
        from neox_gpt_neox.explain import explain

        return explain(path, value)

    def explain_name(self, kind: str, name: str) -> tuple[str, str] | None:
        from neox_gpt_neox.explain import explain_name

        return explain_name(kind, name)

    def names_in(self, path: str) -> Sequence[str]:
        from neox_gpt_neox.explain import names_in

        return names_in(path)


DIALECT = GPTNeoX(SPELLINGS)
