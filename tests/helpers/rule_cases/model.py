"""Rules about the shape of the decoder and its attention."""

from rule_cases.case import CPU, Case

CASES: dict[str, Case] = {
    "steps_to_measure_in": (
        ("compile=auto", "train-iters=80", "log-interval=10"),
        "warning: compile: auto needs 8 log intervals of 10 steps: the run has 80 steps (lower log-interval, or",
        ("compile=auto", "train-iters=81", "log-interval=10"),
        CPU,
    ),
    "what_is_measured_is_open": (
        ("callbacks=[measure_compile]",),
        "error: callbacks: measure_compile belongs to compile: auto (write that in its place)",
        ("compile=auto", "callbacks=[measure_compile]", "log-interval=1"),
        CPU,
    ),
    "heads_divide_hidden": (
        ("hidden-size=65",),
        "error: hidden-size: 65 cannot be divided by num-attention-heads 4",
        ("hidden-size=68",),
        CPU,
    ),
    "attention_said_once": (
        ("sparsity=all", "attention-config=[[[global], all]]"),
        "error: attention-config: contradicts sparsity (keep one of the two)",
        ("attention-config=[[[global], all]]",),
        CPU,
    ),
    "attention_fits_layers": (
        ("attention-config=[[[global], 3]]",),
        "error: attention-config: names the attention of 3 layers, and num-layers is 2",
        ("attention-config=[[[global], 2]]",),
        CPU,
    ),
    "feed_forwards_fit_layers": (
        ("mlp-type=[[[regular], 3]]",),
        "error: mlp-type: names the feed-forward of 3 layers, and num-layers is 2",
        ("mlp-type=[[[regular], 2]]",),
        CPU,
    ),
    "every_second_layer_is_there": (
        ("sparsity=interspersed", "num-layers=1"),
        "error: sparsity: does nothing: the first layer is dense, and there is no other (set sparsity: all, or none)",
        ("sparsity=interspersed",),
        CPU,
    ),
    "sparse_block_used": (
        ("sparse_attention.block=8",),
        "error: sparse_attention: does nothing: no layer is sparse (set sparsity: all)",
        ("sparse_attention.block=8", "sparsity=interspersed"),
        CPU,
    ),
    "blocks_divide_sequence": (
        ("sparsity=all", "sparse_attention.block=12"),
        "error: sparse_attention.block: 12 does not divide seq-length 32",
        ("sparsity=all", "sparse_attention.block=32"),
        CPU,
    ),
    "sequence_fits_positions": (
        ("seq-length=33",),
        "error: seq-length: 33 is more than max-position-embeddings 32",
        ("seq-length=32",),
        CPU,
    ),
    "vocabulary_known": (
        ("padded-vocab-size=null",),
        "error: tokenizer-type: is required (or padded-vocab-size, for a dataset without tokenizer)",
        ("padded-vocab-size=null", "tokenizer-type=HFTokenizer", "vocab-file=a"),
        CPU,
    ),
    "padding_agrees": (
        ("make-vocab-size-divisible-by=100",),
        "error: padded-vocab-size: 256 is not a multiple of make-vocab-size-divisible-by 100",
        ("make-vocab-size-divisible-by=64",),
        CPU,
    ),
    "one_residual": (
        ("gpt-j-residual=true", "apply-residual-connection-post-layernorm=true"),
        "error: apply-residual-connection-post-layernorm: excludes gpt-j-residual",
        ("gpt-j-residual=false", "apply-residual-connection-post-layernorm=true"),
        CPU,
    ),
    "width_is_no_sum": (
        ("hidden-size=64", "intermediate-size=516"),
        "warning: intermediate-size: 516 is more than 8 times hidden-size 64 (172 is the width that GPT-NeoX derives",
        ("hidden-size=64", "intermediate-size=512"),
        CPU,
    ),
    "kv_heads_divide_heads": (
        ("num-kv-heads=3",),
        "error: num-kv-heads: num-attention-heads 4 cannot be divided by 3",
        ("num-kv-heads=2",),
        CPU,
    ),
    "norms_after_sublayers": (
        ("norm-place=both", "gpt-j-residual=true"),
        "error: norm-place: both excludes gpt-j-residual",
        ("norm-place=both",),
        CPU,
    ),
    "a_tied_head_has_no_bias": (
        ("use-bias-in-head=true",),
        "error: use-bias-in-head: needs no-weight-tying: true",
        ("use-bias-in-head=true", "no-weight-tying=true"),
        CPU,
    ),
    "windows_have_a_width": (
        ("attention-config=[[[sliding, global], all]]",),
        "error: attention-config: calls layers sliding, which needs their window (set sliding-window-width)",
        ("attention-config=[[[sliding, global], all]]", "sliding-window-width=4"),
        CPU,
    ),
    "windows_are_shorter_than_samples": (
        ("sliding-window-width=31",),
        "note: sliding-window-width: hides nothing from the tokens of a sample, of which there are 32",
        ("sliding-window-width=30",),
        CPU,
    ),
    "shared_blocks_are_alike": (
        ("attention-config=[[[sliding, global], all]]", "sliding-window-width=4", "num-unique-layers=1"),
        "error: attention-config: excludes num-unique-layers (name one attention for all layers)",
        ("attention-config=[[[sliding, global], all]]", "sliding-window-width=4"),
        CPU,
    ),
    "nope_leaves_something_out": (
        ("attention-config=[[[nope, global], all]]", "pos-emb=learned"),
        "error: attention-config: calls layers nope, and pos-emb learned acts on no layer (such as pos-emb: rotary)",
        ("attention-config=[[[global, global], all]]", "pos-emb=learned"),
        CPU,
    ),
    "queries_and_keys_have_one_norm": (
        ("use-qk-layernorm=true", "num-kv-heads=2"),
        "error: use-qk-layernorm: queries have 4 heads and keys 2, and one norm for both",
        ("use-qk-layernorm=true",),
        CPU,
    ),
    "unique_layers_divide_layers": (
        ("num-layers=4", "num-unique-layers=3"),
        "error: num-unique-layers: num-layers 4 cannot be divided by 3",
        ("num-layers=4", "num-unique-layers=2"),
        CPU,
    ),
    "sharing_has_layers": (
        ("param-sharing-style=spaced",),
        "warning: param-sharing-style: does nothing without num-unique-layers",
        ("param-sharing-style=spaced", "num-unique-layers=1"),
        CPU,
    ),
    "one_norm_for_parallel_residual": (
        ("gpt-j-tied=true",),
        "error: gpt-j-tied: needs gpt-j-residual: true",
        ("gpt-j-tied=true", "gpt-j-residual=true"),
        CPU,
    ),
    "layer_scaling_is_in_fp32": (
        ("apply-query-key-layer-scaling=true", "attention-softmax-in-fp32=false"),
        "error: attention-softmax-in-fp32: contradicts apply-query-key-layer-scaling",
        ("apply-query-key-layer-scaling=true",),
        CPU,
    ),
    "documents_have_an_end": (
        ("eod-mask-loss=true",),
        "error: eod-mask-loss: needs the token that ends a document (set tokenizer-type)",
        ("eod-mask-loss=true", "reset-position-ids=true", "tokenizer-type=HFTokenizer", "vocab-file=a"),
        CPU,
    ),
    "weights_are_drawn_on_the_cpu": (
        ("use-cpu-initialization=false",),
        "note: use-cpu-initialization: changes nothing: neox always draws the initial weights there",
        (),
        CPU,
    ),
}
