"""Components of a decoder: norms, activations, mixers, feed-forwards, positions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol

from attrs import Factory, field, frozen

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from collections.abc import Set as AbstractSet

    import torch
    from neox_plain.api import Spread
    from torch import Tensor

    from neox_gpt.scope import Scope


class Norm(Protocol):
    """`target(dim: int, settings) -> torch.nn.Module`.

    A module that normalises its input over the last dimension.

    * dim: size of the last dimension, in elements.
    * Input and output: [..., dim], with any number of leading dimensions or none. The output is on the device and in
      the dtype of the input, in whatever dtype the parameters are.
    * Statistics are in fp32 or better; for an input in fp64 they are in fp64. In half precision its numbers are
      those of fp64, rounded: to 2 machine epsilons of the largest. For zeros, result and gradient are finite.
    * The module does not change its input. It is deterministic: two calls on the same input give the same bits. Its
      gradient is the gradient of the function.
    * The class attribute `no_weight_decay` names the module's own parameters that weight decay must not change, such as
      {"weight", "bias"}.

    Planner: `(dim: int, settings) -> dict`, the shape of each parameter by name. Without a planner, the number of
    parameters is not known before a run starts.
    """

    no_weight_decay: frozenset[str]

    def __call__(self, x: Tensor) -> Tensor: ...


class Activation(Protocol):
    """`target(settings) -> Activation`.

    A function of the inner width of an MLP, without parameters and without state.

    * gated False: elementwise, [..., width] -> [..., width].
    * gated True: the input is [..., 2 * width], with the value in the first half and the gate in the second; the output
      is [..., width], proportional to the value.
    * The output has the dtype of the input and is finite for every finite input. The function does not change its
      input.
    * In each dtype its numbers are those of float64 for the same input, rounded: to 4 machine epsilons of the largest.
    * It is deterministic: two calls on the same input give the same bits. Its gradient is the gradient of the function.

    Planner: `(settings) -> bool`, whether it is gated.
    """

    gated: bool

    def __call__(self, x: Tensor) -> Tensor: ...


@frozen
class FeedForwardShape:
    """The numbers that a feed-forward needs.

    * hidden_size: width of the residual stream, in elements.
    * intermediate_size: `intermediate-size`, the inner width, in elements.
    * bias: `use-bias-in-mlp`.
    * gated: whether the chosen activation is gated.
    * layer: index of the block, from 0.
    * spread: gives a number of data-parallel ranks, each of which has another part of a parameter; None on the host.
    """

    hidden_size: int
    intermediate_size: int
    bias: bool = True
    gated: bool = False
    layer: int = 0
    spread: Callable[[int], Spread] | None = field(default=None, eq=False)


@frozen
class FeedForwardSize:
    """What the planner of a feed-forward tells before a start.

    * shapes: of each parameter of the whole layer, by name.
    * split: the dimension along which tensor parallelism splits a parameter, by name. Every rank has all of the others.
    * kept: numbers that the backward pass needs of each token, all tensor ranks together, besides its input.
    * one_rank_only: it cannot be split; a run with model-parallel-size above 1 is refused.
    * spread: over how many data-parallel ranks a parameter is spread along its first dimension, by name.
    * flops: as `flops_per_token` of the module; None: 6 for each element of its parameters of two dimensions or more.
    """

    shapes: Mapping[str, tuple[int, ...]]
    split: Mapping[str, int] = field(factory=dict)
    kept: int = 0
    one_rank_only: bool = False
    spread: Mapping[str, int] = field(factory=dict)
    flops: int | None = None


class FeedForward(Protocol):
    """`target(shape: FeedForwardShape, activation: Activation, tensor: TensorParallel, settings) -> torch.nn.Module`.

    The part of a block that looks at one token at a time: [batch, seq, hidden] -> [batch, seq, hidden], between a norm
    and the residual stream. `activation` is the one that the config chooses; a feed-forward may do without it.

    * The result for a token depends on that token alone: not on its neighbours, its place, or the micro-batch. So a
      feed-forward is causal, and decodes without a state. One with `depends_on_batch = True` keeps this in evaluation
      mode; in training its result may depend on all tokens of the micro-batch.
    * Result and input have one shape, dtype and device. The input is not changed, and two calls give the same bits:
      no random numbers, since activations are computed again in the backward pass. The block adds dropout. Nothing
      else changes either: no parameter, buffer or gradient; and evaluation mode gives what training gives.
    * Products of half-precision numbers are summed in fp32, as torch's are. The gradient is that of the function.
    * It does not wait for the device (`.item()`, `nonzero`, `if tensor:`), and it raises nothing for finite input.
      For zeros its numbers are finite.
    * `auxiliary_losses` and `auxiliary_metrics`, tuples of identifiers that may be left out, none in both: what it
      gives besides. It then returns (tensor, numbers), a dict with a finite scalar of fp32 or wider for each name, a
      mean over the tokens of a call.
      A loss comes with its coefficient in it, and is added to what is trained on; its gradient counts once, in every
      layout, also where activations are computed again. The log has the sum of a loss over the layers, and the mean of
      a metric, as `feed_forward_<name>`.
    * Each tensor rank gives the same numbers, computed from what `tensor.enter` and `tensor.copy` give.
    * `flops_per_token`: floating-point operations of forward and backward for one token, all tensor ranks together;
      6 for each weight that is multiplied.

    Tensor parallelism: `neox_gpt.api` has the layers. `ColumnLinear` takes the residual stream and gives
    this rank's outputs, `RowLinear` the reverse. A module with split parameters of its own has `cuts`, a dict from
    their names to `tensor.cut(dim, (length,))`, and calls `tensor.enter` and `tensor.leave` itself. A parameter that
    every rank has, and that only a part of the result goes through, is used as `tensor.copy(parameter)`.

    Parameters that data-parallel ranks have different parts of: a module names them in `cuts`, as
    `shape.spread(ranks).cut(dim, length)`, and in `spreads`, as `shape.spread(ranks)`. The module exchanges tokens with
    the ranks of its `group` in forward and backward, so that a part's gradient is that of the tokens of all of them;
    all ranks call it equally often. Its planner says `spread`, so that a run which cannot do this is refused.

    The model draws every parameter of two or more dimensions; `residual_output = True` on a module draws its weights
    by `output-layer-init-method`. `no_weight_decay` on a module names its parameters that do not decay, `stacks` those
    that are stacks of matrices, [several, ..., inputs], each of which, [outputs, inputs], is drawn by itself.

    A feed-forward with the attribute `last_bias`, a parameter or None, also takes `bias=False` and then leaves that
    bias out of its result, for kernels that add it along with the residual.

    Planner: `(shape: FeedForwardShape, settings) -> FeedForwardSize`. Without one, a run with model-parallel-size
    above 1 is refused, and the number of parameters is not known before a run starts.
    """

    flops_per_token: int

    def __call__(self, x: Tensor) -> Tensor | tuple[Tensor, Mapping[str, Tensor]]: ...


@frozen
class MixerShape:
    """The numbers that a mixer may use.

    * hidden_size: width of the residual stream, in elements.
    * num_heads, num_kv_heads: `num-attention-heads`, `num-kv-heads`.
    * seq_length: length of a training sample, in tokens.
    * bias: `use-bias-in-attn-linear`. dropout: `attention-dropout`, a probability.
    * softmax_in_fp32, query_key_layer_scaling: the keys of softmax attention with these names.
    * layer: index of the block, from 0.
    * head_dim: width of a head, in elements: `head-dim`, or hidden_size / num_heads.
    * qk_norm: `qk-norm`, or shared for `use-qk-layernorm`; norm: makes the model's norm of a width in elements, None on
      the host.
    * window: a token sees so many tokens before itself; None: all. positions: whether it takes the model's positions.
    * multiplier: of the scores; None: head_dim^-1/2. softcap: c of `c tanh(score / c)`, which keeps scores within c.
    * output_bias: `use-bias-in-attn-output`; None: as `bias`.
    """

    hidden_size: int
    num_heads: int
    num_kv_heads: int
    seq_length: int
    bias: bool = True
    dropout: float = 0.0
    softmax_in_fp32: bool = False
    query_key_layer_scaling: bool = False
    layer: int = 0
    head_dim: int = field(default=Factory(lambda self: self.hidden_size // self.num_heads, takes_self=True))
    qk_norm: Literal["head", "all", "shared"] | None = None
    norm: Callable[[int], Any] | None = None
    window: int | None = None
    positions: bool = True
    multiplier: float | None = None
    softcap: float | None = None
    output_bias: bool | None = None

    @property
    def ends_in_bias(self) -> bool:
        """Whether the last projection has a bias."""
        return self.bias if self.output_bias is None else self.output_bias

    @property
    def width(self) -> int:
        """Elements of the queries of all heads."""
        return self.num_heads * self.head_dim

    @property
    def qkv_width(self) -> int:
        """Outputs of a projection to queries, keys and values."""
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim


@frozen
class ByHead:
    """A split in whole heads: each tensor-parallel rank has heads / ranks of them. dim: the dimension with them."""

    dim: int
    heads: int


@frozen
class MixerSize:
    """What the planner of a mixer tells before a start.

    * shapes: of each parameter of the whole layer, by name.
    * split: how tensor parallelism splits a parameter, by name: the dimension, 0 for columns and 1 for rows of a
      projection, or `ByHead`. Every rank has all of the others.
    * flops: floating-point operations of forward and backward for one token of a sample of `seq_length` tokens, all
      tensor ranks together; 6 for each weight that is multiplied.
    * kept: numbers that the backward pass needs of each token, all tensor ranks together, besides its input.
    * causal: no result depends on later tokens. A run that predicts the next token needs it.
    * decodes: it can continue a sequence from the state that it has kept. `neox generate` and `sample-prompt` need it.
    * needs_positions: it calls `position.rotate` and adds `position.score_bias`.
    * uses: the fields of the shape that it acts on, of `bias`, `dropout`, `head_dim`, `num_kv_heads`, `qk_norm`,
      `softmax_in_fp32`, `query_key_layer_scaling`, `multiplier`, `softcap` and `output_bias`. A config that sets the
      key of one that no layer uses gets a note. `bias` and `num_kv_heads` are used where they change the shapes.
    * norms: the widths, in elements, of norms of the model's kind that it has within, by name.
    * one_rank_only: it cannot be split; a run with model-parallel-size above 1 is refused.
    """

    shapes: Mapping[str, tuple[int, ...]]
    split: Mapping[str, int | ByHead] = field(factory=dict)
    flops: int = 0
    kept: int = 0
    causal: bool = True
    decodes: bool = False
    needs_positions: bool = False
    uses: AbstractSet[str] = frozenset()
    norms: Mapping[str, int] = field(factory=dict)
    one_rank_only: bool = False


class Mixer(Protocol):
    """`target(shape: MixerShape, tensor: TensorParallel, settings) -> torch.nn.Module`.

    The part of a block that looks at several tokens: [batch, seq, hidden] -> [batch, seq, hidden], between a norm and
    the residual stream. It is called as `mixer(x, position, scope, layer)`.

    * x: with sequence parallelism this rank's positions; `tensor.enter` and `ColumnLinear` give all of them.
    * position: the `Position` of the model, for a mixer with `needs_positions`; others leave it alone. `scope.prepared`
      is what it prepared.
    * scope.documents: int64 [batch, seq] of all positions, or None where a sample is one document. Nothing passes from
      a token to one with another number; the numbers never decrease along a sample.
    * scope.state(layer): None in training. While decoding, a dict of tensors, empty before the first token: the mixer
      stores in it what later calls need and finds it there again. x are then the tokens after those of earlier calls,
      one or several. scope.cache has `length`, the tokens of earlier calls, and `capacity`, the most there will be.
      Nothing of a sequence is kept anywhere else.
    * scope.keys: int64 [batch], one number for each sample, or None: no dropout. All that is random follows from it,
      from `layer` and from places in the sample. What dropout keeps is scaled: the mean result is that without it.
    * layer: the place of this pass among all layers; a block that is shared has several. Only for `scope`.
    * The result of a sample does not depend on the others of the micro-batch. With `causal`, a change of a token
      alters no earlier result. Decoding with a state gives what a whole sequence gives.
    * Result and input have one shape, dtype and device. The input is not changed, and two calls give the same bits,
      since activations are computed again in the backward pass. The block adds the dropout of the residual stream.
      Nothing else changes either: no parameter, buffer or gradient; without keys, evaluation gives what training gives.
    * Products of half-precision numbers are summed in fp32, as torch's are. The gradient is that of the function.
    * It does not wait for the device (`.item()`, `nonzero`, `if tensor:`), and it raises nothing for finite input.
      For zeros its numbers are finite.

    Tensor parallelism and the drawing of weights are as of a `FeedForward`: ColumnLinear, RowLinear, `cuts`,
    `tensor.copy`, `residual_output`, `no_weight_decay`, `last_bias`.

    Planner, which every mixer has: `(shape: MixerShape, settings) -> MixerSize`.
    """

    def __call__(self, x: Tensor, position: Position, scope: Scope, layer: int) -> Tensor: ...


@frozen
class PositionShape:
    """The numbers that a position needs.

    * hidden_size: width of the residual stream, in elements.
    * num_heads: attention heads of the whole model.
    * head_dim: width of a head, in elements.
    * max_positions: length of the longest sequence, in tokens.
    """

    hidden_size: int
    num_heads: int
    head_dim: int
    max_positions: int


@frozen
class PositionSize:
    """What the planner of a position may tell before a start, in place of the shapes alone.

    * shapes: of each parameter, by name.
    * embeds: `embed` changes its input. A run is refused where it does not, and no layer has a mixer that takes
      positions.
    """

    shapes: Mapping[str, tuple[int, ...]]
    embeds: bool = True


class ScoreBias(Protocol):
    """`bias(head, query, key) -> Tensor`: the bias that a position adds to the scaled score of a query and a key.

    * head: index of the head in the whole model. query, key: their positions; a key is never after its query.
    * All three are int64 and broadcast to one shape: scalars in FlexAttention on a GPU; [heads, 1, 1], [rows, 1] and
      [keys] where attention computes some rows of queries at a time.
    * The result is floating point, finite, and has this shape or broadcasts to it. It depends only on the distance of
      query and key, also beyond the prepared positions.
    * The function does not build a tensor of all [heads, seq, seq].
    """

    def __call__(self, head: Tensor, query: Tensor, key: Tensor, /) -> Tensor: ...


class Position(Protocol):
    """`target(shape: PositionShape, settings) -> torch.nn.Module` with these four methods.

    A position tells a model where its tokens are. A method without a task returns its input.

    * positions: int64 [seq] or [batch, seq], the index of each token in its document, from 0 to below `max_positions`;
      [seq] means the same for all samples. The indices may start anywhere and restart at 0: cached generation passes
      one token with its index, a packed sample has one document after the other, a part of a sequence has its own
      indices.
    * The result for a token depends only on its own index.
    * It is deterministic: two calls give the same bits. Its gradient is the gradient of the function.
    * The model draws every parameter of two or more dimensions, so `__init__` may leave weight matrices empty.
    * The class attribute `no_weight_decay` names the module's own parameters that weight decay must not change.
    * It may have a method `rotate_in_window`, which takes the place of `rotate` in layers with a window, and a property
      `decodes_up_to`, the tokens of a text that decoding can make, where they are fewer than `max_positions`; None: as
      many.

    Planner: `(shape: PositionShape, settings) -> dict`, the shape of each parameter by name, or a `PositionSize`.
    """

    no_weight_decay: frozenset[str]

    def embed(self, hidden: Tensor, positions: Tensor) -> Tensor:
        """Add positions to the embeddings; called once, before the first block. Does not change its input.

        hidden: [batch, seq, hidden]. Returns the same shape and dtype.
        """
        ...

    def prepare(self, positions: Tensor, dtype: torch.dtype) -> Any:
        """Compute what `rotate` and `score_bias` need, such as cos and sin; called once per forward pass, for all
        layers.

        Only this method may use trained parameters. Returns a tensor, a tuple of tensors, or None.
        dtype: dtype of the activations.
        """
        ...

    def rotate(self, query: Tensor, key: Tensor, prepared: Any) -> tuple[Tensor, Tensor]:
        """Rotate queries and keys; called in each layer. Returns (query, key) in the same shapes and dtypes.

        query, key: [batch, heads, seq, head_dim], views of one tensor, which `rotate` does not change. A
        tensor-parallel rank passes its share of the heads, and a key may have fewer heads than the query: `rotate`
        treats all heads alike.
        prepared: the result of `prepare`.
        The product of a query and a key depends only on their distance: adding one offset to all positions does not
        change it.
        """
        ...

    def score_bias(self, prepared: Any) -> ScoreBias | None:
        """The bias to add to the scores, as a function of head, query and key; None for no bias. Called in each layer.

        prepared: the result of `prepare`.
        """
        ...
