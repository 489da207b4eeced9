"""The planner of an encoder: a decoder's plan and size, with the parts that only an encoder has."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from attrs import evolve, field, fields, frozen
from neox_gpt.api import DecoderSize, GPTPlan, GPTPlanner, MixerShape, MixerSize
from neox_gpt.api import attention_size as softmax_size

from neox_bert.section import SPECIAL, EncoderSection
from neox_core.config.schema.structure import Config
from neox_core.contracts.architecture import ModelSize, Named, Untold
from neox_core.plan.assemble import reference
from neox_core.plan.runfile import ComponentRef
from neox_core.plan.source import CONTENTS, of

if TYPE_CHECKING:
    from neox_bert.model import Encoder, EncoderRow

MIXER = "neox-bert:bidirectional"


@frozen(kw_only=True)
class BertPlan(GPTPlan):
    """An encoder. binary_head: what learns pairs, see `model.Transform`. special: the ids of the tokens of
    `section.SPECIAL`; None: those that the tokenizer has.
    """

    causal: ClassVar[bool] = False

    num_tokentypes: int
    binary_head: bool = field(metadata=of("sentence_pairs"))
    special: tuple[int | None, ...] = field(
        metadata=of("cls_token_id", "sep_token_id", "mask_token_id", "pad_token_id")
    )
    tokenizer: ComponentRef | None = field(default=None, metadata=of(kind="tokenizer", apart=CONTENTS))

    def make_model(self, *parts: Any, **more: Any) -> "Encoder":
        from neox_bert.model import Encoder  # imports torch

        return Encoder(*parts, **more, **self._own())

    def make_row(self, *parts: Any) -> "EncoderRow":
        from neox_bert.model import EncoderRow, padded  # imports torch

        own = self._own()
        return EncoderRow(padded(parts[0], own["special"]), *parts[1:], **own)

    def _own(self) -> dict[str, Any]:
        from neox_bert.special import special_tokens  # may load a tokenizer

        return {"special": special_tokens(self), "types": self.num_tokentypes, "pairs": self.binary_head}


def attention_size(shape: MixerShape, settings: None) -> MixerSize:
    """The parameters of `attention.Bidirectional`."""
    size = softmax_size(shape, None)
    uses = size.uses - {"softcap", "query_key_layer_scaling", "softmax_in_fp32"}
    return evolve(size, causal=False, decodes=False, uses=uses)


class BertPlanner(GPTPlanner):
    """The planner of the encoder."""

    plan_class: type[GPTPlan] = BertPlan
    picture = ""
    shares_output_layer = False

    def components(self, kind: str, fields: Mapping[str, Any], registry: Any) -> Sequence[Named] | None:
        """Those of a decoder; in place of causal attention, one that sees all of a sample."""
        found = super().components(kind, fields, registry)
        if kind != "mixer" or found is None:
            return found
        return [evolve(each, name=MIXER) if each.name == "global" else each for each in found]

    def plan(self, config: Config) -> BertPlan:
        decoder, encoder = super().plan(config), config.section(EncoderSection)
        tokenizers, (objective,) = config.components("tokenizer"), config.components("objective")
        return BertPlan(
            **{each.name: getattr(decoder, each.name) for each in fields(GPTPlan)},
            num_tokentypes=encoder.num_tokentypes,
            binary_head=getattr(objective.settings, "sentence_pairs", "none") != "none",
            special=tuple(getattr(encoder, f"{name}_token_id") for name in SPECIAL),
            tokenizer=reference(tokenizers[0]) if tokenizers else None,
        )

    def size(self, config: Config, plan: Any) -> ModelSize | Untold:
        size = self.trunk_size(config, plan)
        if not isinstance(size, DecoderSize):
            return size
        hidden = plan.hidden_size
        norm = {name: shape for name, shape in size.shapes.items() if name.startswith("final_norm.")}
        more: dict[str, tuple[int, ...]] = {}
        more |= {"transform.weight": (hidden, hidden), "transform.bias": (hidden,), "transform.out_bias": (size.rows,)}
        more |= {name.replace("final_norm", "transform.norm"): shape for name, shape in norm.items()}
        if plan.binary_head:
            more |= {"transform.pooler.weight": (hidden, hidden), "transform.pooler.bias": (hidden,)}
            more |= {"transform.pair.weight": (2, hidden), "transform.pair.bias": (2,)}
        return evolve(size, shapes={**size.shapes, **more}, split={**size.split, "transform.out_bias": 0})

    def trunk_size(self, config: Config, plan: Any) -> ModelSize | Untold:
        """The parameters of `model.EncoderTrunk`."""
        size = super().size(config, plan)
        if not isinstance(size, DecoderSize):
            return size
        return evolve(size, shapes={**size.shapes, "embedding.types": (plan.num_tokentypes, plan.hidden_size)})


PLANNER = BertPlanner()
