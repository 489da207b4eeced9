"""Keys of mixtures of experts in GPT-NeoX, today's and those of its versions of 2024, in the spelling of neox."""

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import evolve, frozen
from neox_gpt_neox.api import Gone, Moved, OlderSpelling, Spellings

from neox_core.api import Problem
from neox_core.config.read.load import Loaded, Place

EXPERTS, INTERVAL, MLP = "moe_num_experts", "moe_expert_interval", "mlp_type"
PLAIN = "regular"
"""The feed-forward of the layers between those with experts."""

RULES: tuple[OlderSpelling, ...] = (
    Moved("expert_interval", INTERVAL),
    Gone("moe_lbl_in_fp32", "all losses of a router are in fp32", None),
    Gone("moe_type", "torch computes the experts", ("megablocks",), "remove it, and read docs/migrating.md"),
    Gone("moe_glu", "`activation` decides whether experts have a gate", (False,), "activation: swiglu"),
    Gone("moe_use_residual", "a layer has experts or an MLP", (False,), "remove it; mlp-type chooses by layer"),
    Gone("moe_eval_capacity_factor", "in evaluation nothing is dropped", None),
    Gone("moe_min_capacity", "an expert's capacity follows from moe-train-capacity-factor alone", None),
    Gone("use_tutel", "torch computes the experts", (False,)),
    Gone("create_moe_param_group", "experts are parameters like others", None),
    Gone("enable_expert_tensor_parallelism", "model-parallel-size always splits each expert", (True, False)),
    Gone(
        "moe_jitter_eps",
        "a feed-forward draws no random numbers, since activations are computed again in the backward pass",
        (0,),
        "remove it; moe-loss-coeff and moe-z-loss-coeff train the router",
    ),
)


@frozen
class MoEKeys(Spellings):
    """GPT-NeoX has experts in each layer whose number, from 0, is a multiple of moe_expert_interval; neox says which
    layers have them in mlp-type.
    """

    @property
    def older(self) -> tuple[str, ...]:
        return (*super().older, INTERVAL, "moe_token_dropping")

    def translate(self, loaded: Loaded) -> Loaded:
        loaded = super().translate(loaded)
        written = loaded.values.get(EXPERTS)
        values, places, problems = dict(loaded.values), dict(loaded.places), list(loaded.problems)

        def say(key: str, message: str, hint: str = "", severity: str = "error") -> None:
            place = places[key]
            problems.append(Problem(message, place.spelled, hint, place.where, severity))

        self._dropping(values, places, say)
        interval = values.pop(INTERVAL, None)
        place = places.get(INTERVAL)
        count = written if isinstance(written, int) and not isinstance(written, bool) else 0
        if interval is not None and not (isinstance(interval, int) and interval is not True and interval > 0):
            say(INTERVAL, f"must be a whole number above 0, not {interval!r}")
        elif count > 1 and values.get(MLP) in (None, PLAIN):
            values[MLP] = of_layers(interval or 1, values.get("num_layers"))
            said = place or places[EXPERTS]
            shown = "moe" if isinstance(values[MLP], str) else str(values[MLP]).replace("'", "")
            message = f"is GPT-NeoX's spelling of mlp-type: {shown}"
            problems.append(Problem(message, said.spelled, f"mlp-type: {shown}", said.where, "note"))
            places[MLP] = Place(said.where, said.spelled)
        elif interval not in (None, 1) and count != 1:
            say(INTERVAL, "mlp-type says which layers have experts", "remove it")
        if count == 1 and not _chosen(values.get(MLP)):
            from neox_moe.settings import MoESettings  # a config without experts needs none of them

            for field in MoESettings.__attrs_attrs__:
                if values.pop(field.name, None) is not None:
                    say(field.name, "has no effect: with one expert, GPT-NeoX has the MLP", "remove it", "note")
        places = {path: each for path, each in places.items() if path.partition(".")[0] in values}
        return evolve(loaded, values=values, places=places, problems=tuple(problems))

    @staticmethod
    def _dropping(values: dict[str, Any], places: Mapping[str, Place], say: Any) -> None:
        """`moe_token_dropping`, beside which GPT-NeoX takes a capacity of 1."""
        key, factor = "moe_token_dropping", "moe_train_capacity_factor"
        dropping = values.pop(key, None)
        if dropping is True and values.get(factor) is None:
            values[factor] = 1.0
            places[factor] = places[key]  # type: ignore[index]  # a dict of ours
            say(key, "is the old spelling of moe-train-capacity-factor: 1.0", severity="note")
        elif dropping is False and values.pop(factor, None) is not None:
            say(factor, "has no effect: moe-token-dropping is false", "remove it", "note")


def of_layers(interval: int, num_layers: Any) -> str | list[Any]:
    """The `mlp-type` of experts in the layers 0, interval, 2 * interval ..."""
    if interval == 1:
        return "moe"
    names = ["moe", *[PLAIN] * (interval - 1)]
    if not isinstance(num_layers, int) or num_layers % interval == 0:
        return [[names, "all"]]
    times, left = divmod(num_layers, interval)
    return [*([[names, times]] if times else []), [names[:left], 1]]


def _chosen(mlp_type: Any) -> bool:
    if isinstance(mlp_type, str):
        return mlp_type.rpartition(":")[2] == "moe"
    return isinstance(mlp_type, Sequence) and any(_chosen(each) for each in mlp_type)


DIALECT = MoEKeys(RULES)
