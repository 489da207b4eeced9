"""A decoder that neox has trained, for transformers: its model classes have no such combination of parts.

This file lies beside the weights. `AutoModelForCausalLM.from_pretrained(FOLDER, trust_remote_code=True)` loads both.
"""

from __future__ import annotations

from dataclasses import fields

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast

ACTIVATIONS = {
    "gelu": F.gelu,
    "gelu_new": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
    "identity": lambda x: x,
}
CACHE = "cache" if "cache" in {each.name for each in fields(CausalLMOutputWithPast)} else "past_key_values"
"""What outputs call it: `cache` from transformers 5.24 on."""


class NeoxConfig(PretrainedConfig):
    """rms_norm_eps_in: "rms", beside the root, or "mean-square", under it. rotary_dim: 0 for no rotary positions.

    hidden_act: of the gate, where the MLP is gated. learned_positions: whether a table of positions is added.
    """

    model_type = "neox"

    def __init__(
        self,
        vocab_size: int = 256,
        hidden_size: int = 64,
        num_hidden_layers: int = 2,
        num_attention_heads: int = 4,
        num_key_value_heads: int | None = None,
        intermediate_size: int = 256,
        max_position_embeddings: int = 128,
        hidden_act: str = "gelu",
        gated: bool = False,
        norm: str = "layernorm",
        norm_eps: float = 1e-5,
        rms_norm_eps_in: str = "rms",
        rotary_dim: int = 0,
        rotary_base: float = 10000.0,
        learned_positions: bool = False,
        use_parallel_residual: bool = False,
        shared_norm: bool = False,
        attention_bias: bool = True,
        mlp_bias: bool = True,
        tie_word_embeddings: bool = True,
        head_dim: int | None = None,
        **more: object,
    ) -> None:
        self.vocab_size, self.hidden_size = vocab_size, hidden_size
        self.num_hidden_layers, self.num_attention_heads = num_hidden_layers, num_attention_heads
        self.num_key_value_heads = num_key_value_heads or num_attention_heads
        self.intermediate_size, self.max_position_embeddings = intermediate_size, max_position_embeddings
        self.hidden_act, self.gated = hidden_act, gated
        self.norm, self.norm_eps, self.rms_norm_eps_in = norm, norm_eps, rms_norm_eps_in
        self.rotary_dim, self.rotary_base, self.learned_positions = rotary_dim, rotary_base, learned_positions
        self.use_parallel_residual, self.shared_norm = use_parallel_residual, shared_norm
        self.attention_bias, self.mlp_bias = attention_bias, mlp_bias
        self.head_dim = head_dim or hidden_size // num_attention_heads
        super().__init__(tie_word_embeddings=tie_word_embeddings, **more)


class RMSNorm(nn.Module):
    def __init__(self, config: NeoxConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(config.hidden_size))
        self.eps, self.under_the_root = config.norm_eps, config.rms_norm_eps_in == "mean-square"

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        square = wide.square().mean(-1, keepdim=True)
        root = (square + self.eps).sqrt() if self.under_the_root else square.sqrt() + self.eps
        return (wide / root * self.weight).to(x.dtype)


def make_norm(config: NeoxConfig) -> nn.Module:
    """The norm that the config names."""
    if config.norm == "rmsnorm":
        return RMSNorm(config)
    return nn.LayerNorm(config.hidden_size, eps=config.norm_eps)


class NeoxAttention(nn.Module):
    """The rows of `qkv`: for each key its queries, then the key and its value."""

    def __init__(self, config: NeoxConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.kv_heads, self.group = config.num_key_value_heads, config.num_attention_heads // config.num_key_value_heads
        self.head_dim = config.head_dim
        width = (self.group + 2) * self.kv_heads * self.head_dim
        self.qkv = nn.Linear(config.hidden_size, width, bias=config.attention_bias)
        inner = config.num_attention_heads * self.head_dim
        self.output = nn.Linear(inner, config.hidden_size, bias=config.attention_bias)

    def forward(
        self, x: Tensor, turn: tuple[Tensor, Tensor] | None, mask: Tensor | None, cache: Cache | None
    ) -> Tensor:
        batch, seq, _ = x.shape
        by_key = self.qkv(x).view(batch, seq, self.kv_heads, self.group + 2, self.head_dim)
        query, key, value = by_key.split((self.group, 1, 1), 3)
        query, key, value = (part.flatten(2, 3).transpose(1, 2) for part in (query, key, value))
        if turn is not None:
            query, key = rotate(query, *turn), rotate(key, *turn)
        if cache is not None:
            key, value = cache.update(key, value, self.layer)
        key, value = (part.repeat_interleave(self.group, 1) for part in (key, value))
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=mask is None)
        return self.output(attended.transpose(1, 2).reshape(batch, seq, -1))


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The first dimensions of x [batch, heads, seq, head_dim], as many as cos has, turned in halves."""
    turned, rest = x[..., : cos.shape[-1]], x[..., cos.shape[-1] :]
    result = turned * cos + turned.roll(cos.shape[-1] // 2, -1) * sin
    return torch.cat((result.to(x.dtype), rest), -1)


class NeoxMLP(nn.Module):
    def __init__(self, config: NeoxConfig) -> None:
        super().__init__()
        self.gated, self.activation = config.gated, ACTIVATIONS[config.hidden_act]
        inner = config.intermediate_size * (2 if config.gated else 1)
        self.up = nn.Linear(config.hidden_size, inner, bias=config.mlp_bias)
        self.down = nn.Linear(config.intermediate_size, config.hidden_size, bias=config.mlp_bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.up(x)
        if not self.gated:
            return self.down(self.activation(x))
        value, gate = x.chunk(2, -1)
        return self.down(value * self.activation(gate))


class NeoxLayer(nn.Module):
    def __init__(self, config: NeoxConfig, layer: int) -> None:
        super().__init__()
        self.parallel = config.use_parallel_residual
        self.attention_norm, self.attention = make_norm(config), NeoxAttention(config, layer)
        self.mlp_norm = None if config.shared_norm else make_norm(config)
        self.mlp = NeoxMLP(config)

    def forward(
        self, x: Tensor, turn: tuple[Tensor, Tensor] | None, mask: Tensor | None, cache: Cache | None
    ) -> Tensor:
        normed = self.attention_norm(x)
        after = x + self.attention(normed, turn, mask, cache)
        if self.mlp_norm is not None:
            normed = self.mlp_norm(x if self.parallel else after)
        return after + self.mlp(normed)


class NeoxPreTrainedModel(PreTrainedModel):
    config_class = NeoxConfig
    base_model_prefix = "model"
    _no_split_modules = ("NeoxLayer",)
    _supports_sdpa = True


class NeoxModel(NeoxPreTrainedModel):
    def __init__(self, config: NeoxConfig) -> None:
        super().__init__(config)
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        table = nn.Embedding(config.max_position_embeddings, config.hidden_size) if config.learned_positions else None
        self.position = table
        self.layers = nn.ModuleList(NeoxLayer(config, layer) for layer in range(config.num_hidden_layers))
        self.final_norm = make_norm(config)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        """For transformers: the embedding of the tokens."""
        return self.embedding

    def set_input_embeddings(self, value: nn.Module) -> None:
        """For transformers: replace the embedding of the tokens."""
        self.embedding = value

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        cache: Cache | None = None,
        **more: object,
    ) -> BaseModelOutputWithPast:
        """cache: what transformers calls `past_key_values` from 5.24 on."""
        past_key_values = cache if past_key_values is None else past_key_values
        x = self.embedding(input_ids) if inputs_embeds is None else inputs_embeds
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache()
        past = 0 if past_key_values is None else past_key_values.get_seq_length()
        if position_ids is None:
            position_ids = torch.arange(past, past + x.shape[1], device=x.device)[None]
        if self.position is not None:
            x = x + self.position(position_ids)
        turn, mask = self._turn(position_ids, x.dtype), self._mask(x, past, attention_mask)
        for layer in self.layers:
            x = layer(x, turn, mask, past_key_values)
        return BaseModelOutputWithPast(last_hidden_state=self.final_norm(x), **{CACHE: past_key_values})

    def _turn(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor] | None:
        """Cosine and signed sine, each [batch, 1, seq, rotary_dim]."""
        width = self.config.rotary_dim
        if not width:
            return None
        exponent = torch.arange(0, width, 2, device=positions.device, dtype=torch.float32) / width
        angles = positions[:, None, :, None].float() * self.config.rotary_base**-exponent
        cos, sin = angles.cos(), angles.sin()
        return torch.cat((cos, cos), -1).to(dtype), torch.cat((-sin, sin), -1).to(dtype)

    def _mask(self, x: Tensor, past: int, attention_mask: Tensor | None) -> Tensor | None:
        """Which keys a query sees, [batch or 1, 1, seq, past + seq]; None: all before it."""
        if past == 0 and (attention_mask is None or bool(attention_mask.all())):
            return None
        seq = x.shape[1]
        keys = torch.arange(past + seq, device=x.device)
        queries = torch.arange(past, past + seq, device=x.device)
        seen = (keys[None] <= queries[:, None])[None, None]
        if attention_mask is not None:
            itself = (keys[None] == queries[:, None])[None, None]  # a padding token sees itself: no row is empty
            seen = seen & attention_mask[:, None, None, : past + seq].bool() | itself
        return seen


class NeoxForCausalLM(NeoxPreTrainedModel, GenerationMixin):
    _tied_weights_keys = {"lm_head.weight": "model.embedding.weight"}  # noqa: RUF012 transformers changes it in place

    def __init__(self, config: NeoxConfig) -> None:
        super().__init__(config)
        self.model = NeoxModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_output_embeddings(self) -> nn.Module:
        """For transformers: the head."""
        return self.lm_head

    def set_output_embeddings(self, value: nn.Module) -> None:
        """For transformers: replace the head."""
        self.lm_head = value

    def forward(
        self, input_ids: Tensor | None = None, labels: Tensor | None = None, **more: object
    ) -> CausalLMOutputWithPast:
        """labels: as `input_ids`; each token is predicted from those before it, -100 counts for nothing."""
        more.pop("return_dict", None)
        inner = self.model(input_ids, **more)
        logits = self.lm_head(inner.last_hidden_state)
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits[:, :-1].float().flatten(0, 1), labels[:, 1:].flatten())
        return CausalLMOutputWithPast(loss=loss, logits=logits, **{CACHE: getattr(inner, CACHE)})
