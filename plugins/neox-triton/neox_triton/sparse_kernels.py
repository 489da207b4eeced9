"""The kernels of block-sparse attention.

A program of the forward pass has some queries of a head and goes over the blocks that they see, keeping a running
softmax (FlashAttention-2, arXiv:2307.08691) by powers of two. The backward pass computes the probabilities again, once
by queries and once by keys, so that nothing is added by atomics and the same arguments give the same bits. Dropout is
the hash of `neox_gpt.dropout`, computed where it is needed. Offsets of samples and heads have 64 bits.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _mix(x):
    x = ((x >> 16) ^ x) * 0x21F0AAAD
    x = ((x >> 15) ^ x) * 0x735A2D97
    return (x >> 15) ^ x


@triton.jit
def _kept(salt, head, query, key, dropped):
    """Bool [queries, keys]: what dropout leaves: hashes above `dropped`."""
    rows = _mix(_mix(salt ^ head.to(tl.uint32)) ^ query.to(tl.uint32))
    return _mix(rows[:, None] ^ _mix((key + 1).to(tl.uint32))[None, :]) > dropped.to(tl.uint32)


@triton.jit
def _tile(base, at, stride, seq, DIM: tl.constexpr, WIDTH: tl.constexpr):
    """[tokens, WIDTH], zeros behind the sequence and behind the head's width."""
    dim = tl.arange(0, WIDTH)
    seen = (at < seq)[:, None] & (dim < DIM)[None, :]
    return tl.load(base + at.to(tl.int64)[:, None] * stride + dim[None, :], mask=seen, other=0.0)


@triton.jit
def _put(base, at, stride, x, seq, DIM: tl.constexpr, WIDTH: tl.constexpr):
    dim = tl.arange(0, WIDTH)
    held = (at < seq)[:, None] & (dim < DIM)[None, :]
    place = base + at.to(tl.int64)[:, None] * stride + dim[None, :]
    tl.store(place, x.to(base.dtype.element_ty), mask=held)


@triton.jit
def _dot(left, right, WIDEN: tl.constexpr):
    if WIDEN:
        left, right = left.to(tl.float32), right.to(tl.float32)
    return tl.dot(left, right, input_precision="ieee")


@triton.jit
def _listed(blocks_ptr, bits_ptr, first, i, BLOCK: tl.constexpr, TILE: tl.constexpr):
    """(positions, bits) of tile i of the entries of a list from the first on; a tile is in one entry."""
    entry = first + i * TILE // BLOCK
    at = tl.load(blocks_ptr + entry) * BLOCK + i * TILE % BLOCK + tl.arange(0, TILE)
    return at, tl.load(bits_ptr + entry)


@triton.jit
def _document(documents, at, seq, other, DOCUMENTS: tl.constexpr):
    return tl.load(documents + at, mask=at < seq, other=other) if DOCUMENTS else at


@triton.jit
def _scores(query, key, query_at, key_at, own, other, seq, scale, DOCUMENTS: tl.constexpr, WIDEN: tl.constexpr):
    """fp32 [queries, keys], in powers of two; -inf where a query does not see a key. own, other: their documents."""
    scores = _dot(query, tl.trans(key), WIDEN) * (scale * LOG2E)
    seen = (key_at[None, :] <= query_at[:, None]) & (key_at < seq)[None, :]
    if DOCUMENTS:
        seen = seen & (own[:, None] == other[None, :])
    return tl.where(seen, scores, float("-inf"))


@triton.jit
def forward(
    query_ptr, key_ptr, value_ptr, out_ptr, lse_ptr, starts_ptr, blocks_ptr, bits_ptr, documents_ptr, salts_ptr,
    query_batch, query_head, key_batch, key_head,
    value_batch, value_head, out_batch, out_head,
    seq, heads, first_head, scale, upscale, dropped,
    GROUPS: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, TALL: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr,
    DOCUMENTS: tl.constexpr, DROPS: tl.constexpr, WIDEN: tl.constexpr,
    QUERY_TOKEN: tl.constexpr, KEY_TOKEN: tl.constexpr, VALUE_TOKEN: tl.constexpr, OUT_TOKEN: tl.constexpr,
):  # fmt: skip
    tiles = tl.cdiv(seq, QUERIES)
    tile, place = tl.program_id(0) % tiles, (tl.program_id(0) // tiles).to(tl.int64)
    sample, head = place // heads, place % heads
    key_ptr += sample * key_batch + (head // GROUPS) * key_head
    value_ptr += sample * value_batch + (head // GROUPS) * value_head
    query_at = tile * QUERIES + tl.arange(0, QUERIES)
    part = query_at // BLOCK % (TALL // BLOCK)
    query = _tile(query_ptr + sample * query_batch + head * query_head, query_at, QUERY_TOKEN, seq, DIM, WIDTH)
    own = _document(documents_ptr + sample * seq, query_at, seq, -1, DOCUMENTS)
    salt = tl.load(salts_ptr + sample * DROPS).to(tl.uint32)
    highest = tl.full([QUERIES], float("-inf"), tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    out = tl.zeros([QUERIES, WIDTH], tl.float32)
    group = head * tl.cdiv(seq, TALL) + tile * QUERIES // TALL
    first, last = tl.load(starts_ptr + group), tl.load(starts_ptr + group + 1)
    for i in range((last - first) * (BLOCK // KEYS)):
        key_at, bits = _listed(blocks_ptr, bits_ptr, first, i, BLOCK, KEYS)
        key = _tile(key_ptr, key_at, KEY_TOKEN, seq, DIM, WIDTH)
        other = _document(documents_ptr + sample * seq, key_at, seq, -2, DOCUMENTS)
        scores = _scores(query, key, query_at, key_at, own, other, seq, scale, DOCUMENTS, WIDEN)
        if TALL > BLOCK:
            scores = tl.where(((bits >> part) & 1 == 1)[:, None], scores, float("-inf"))
        higher = tl.maximum(highest, tl.max(scores, 1))
        finite = tl.where(higher == float("-inf"), 0.0, higher)  # nothing seen so far
        probs = tl.exp2(scores - finite[:, None])
        fade = tl.exp2(highest - finite)
        total = total * fade + tl.sum(probs, 1)
        if DROPS:
            probs = tl.where(_kept(salt, head + first_head, query_at, key_at, dropped), probs * upscale, 0.0)
        value = _tile(value_ptr, key_at, VALUE_TOKEN, seq, DIM, WIDTH)
        out = out * fade[:, None] + _dot(probs.to(value.dtype), value, WIDEN)
        highest = higher
    total = tl.where(total == 0.0, 1.0, total)
    out_ptr += sample * out_batch + head * out_head
    _put(out_ptr, query_at, OUT_TOKEN, out / total[:, None], seq, DIM, WIDTH)
    lse = tl.where(highest == float("-inf"), 0.0, highest) + tl.log2(total)
    tl.store(lse_ptr + place * seq + query_at, lse, mask=query_at < seq)


@triton.jit
def backward_queries(
    query_ptr, key_ptr, value_ptr, out_ptr, grad_ptr, lse_ptr, delta_ptr, query_grad_ptr,
    starts_ptr, blocks_ptr, bits_ptr, documents_ptr, salts_ptr,
    query_batch, query_head, key_batch, key_head,
    value_batch, value_head, out_batch, out_head,
    grad_batch, grad_head, query_grad_batch, query_grad_head,
    seq, heads, first_head, scale, upscale, dropped,
    GROUPS: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, TALL: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr,
    DOCUMENTS: tl.constexpr, DROPS: tl.constexpr, WIDEN: tl.constexpr,
    QUERY_TOKEN: tl.constexpr, KEY_TOKEN: tl.constexpr, VALUE_TOKEN: tl.constexpr, OUT_TOKEN: tl.constexpr,
    GRAD_TOKEN: tl.constexpr, QUERY_GRAD_TOKEN: tl.constexpr,
):  # fmt: skip
    """Also leaves the sum of out * grad of each query in `delta`, for the pass by keys."""
    tiles = tl.cdiv(seq, QUERIES)
    tile, place = tl.program_id(0) % tiles, (tl.program_id(0) // tiles).to(tl.int64)
    sample, head = place // heads, place % heads
    key_ptr += sample * key_batch + (head // GROUPS) * key_head
    value_ptr += sample * value_batch + (head // GROUPS) * value_head
    query_at = tile * QUERIES + tl.arange(0, QUERIES)
    part = query_at // BLOCK % (TALL // BLOCK)
    grad = _tile(grad_ptr + sample * grad_batch + head * grad_head, query_at, GRAD_TOKEN, seq, DIM, WIDTH)
    out = _tile(out_ptr + sample * out_batch + head * out_head, query_at, OUT_TOKEN, seq, DIM, WIDTH)
    delta = tl.sum(grad.to(tl.float32) * out.to(tl.float32), 1)
    tl.store(delta_ptr + place * seq + query_at, delta, mask=query_at < seq)
    query = _tile(query_ptr + sample * query_batch + head * query_head, query_at, QUERY_TOKEN, seq, DIM, WIDTH)
    lse = tl.load(lse_ptr + place * seq + query_at, mask=query_at < seq, other=0.0)
    own = _document(documents_ptr + sample * seq, query_at, seq, -1, DOCUMENTS)
    salt = tl.load(salts_ptr + sample * DROPS).to(tl.uint32)
    found = tl.zeros([QUERIES, WIDTH], tl.float32)
    group = head * tl.cdiv(seq, TALL) + tile * QUERIES // TALL
    first, last = tl.load(starts_ptr + group), tl.load(starts_ptr + group + 1)
    for i in range((last - first) * (BLOCK // KEYS)):
        key_at, bits = _listed(blocks_ptr, bits_ptr, first, i, BLOCK, KEYS)
        key = _tile(key_ptr, key_at, KEY_TOKEN, seq, DIM, WIDTH)
        other = _document(documents_ptr + sample * seq, key_at, seq, -2, DOCUMENTS)
        scores = _scores(query, key, query_at, key_at, own, other, seq, scale, DOCUMENTS, WIDEN)
        if TALL > BLOCK:
            scores = tl.where(((bits >> part) & 1 == 1)[:, None], scores, float("-inf"))
        probs = tl.exp2(scores - lse[:, None])
        value = _tile(value_ptr, key_at, VALUE_TOKEN, seq, DIM, WIDTH)
        back = _dot(grad, tl.trans(value), WIDEN)
        if DROPS:
            back = tl.where(_kept(salt, head + first_head, query_at, key_at, dropped), back * upscale, 0.0)
        back = probs * (back - delta[:, None])
        found += _dot(back.to(key.dtype), key, WIDEN)
    query_grad_ptr += sample * query_grad_batch + head * query_grad_head
    _put(query_grad_ptr, query_at, QUERY_GRAD_TOKEN, found * scale, seq, DIM, WIDTH)


@triton.jit
def backward_keys(
    query_ptr, key_ptr, value_ptr, grad_ptr, lse_ptr, delta_ptr, key_grad_ptr, value_grad_ptr,
    key_sums_ptr, value_sums_ptr, columns_ptr, segments_ptr, slots_ptr,
    starts_ptr, blocks_ptr, bits_ptr, documents_ptr, salts_ptr,
    query_batch, query_head, key_batch, key_head,
    value_batch, value_head, grad_batch, grad_head,
    key_grad_batch, key_grad_head, value_grad_batch, value_grad_head,
    works, num_slots, seq, heads, first_head, scale, upscale, dropped,
    GROUPS: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, TALL: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, LONGEST: tl.constexpr,
    DOCUMENTS: tl.constexpr, DROPS: tl.constexpr, WIDEN: tl.constexpr,
    QUERY_TOKEN: tl.constexpr, KEY_TOKEN: tl.constexpr, VALUE_TOKEN: tl.constexpr, GRAD_TOKEN: tl.constexpr,
    KEY_GRAD_TOKEN: tl.constexpr, VALUE_GRAD_TOKEN: tl.constexpr,
):  # fmt: skip
    """For the keys of a head that `GROUPS` heads of queries share: no two programs add to one gradient.

    A program has at most LONGEST entries of each list; where there are more, it leaves its sums at its slot.
    """
    tiles: tl.constexpr = TALL // KEYS
    work, sample = tl.program_id(0) // tiles % works, (tl.program_id(0) // tiles // works).to(tl.int64)
    groups = tl.cdiv(seq, TALL)
    column = tl.load(columns_ptr + work)
    segment, slot = tl.load(segments_ptr + work), tl.load(slots_ptr + work)
    shared, wide, tile = column // groups, (column // groups).to(tl.int64), tl.program_id(0) % tiles
    within = tile * KEYS + tl.arange(0, KEYS)
    key_at = column % groups * TALL + within
    part = key_at // BLOCK % (TALL // BLOCK)
    key = _tile(key_ptr + sample * key_batch + wide * key_head, key_at, KEY_TOKEN, seq, DIM, WIDTH)
    value = _tile(value_ptr + sample * value_batch + wide * value_head, key_at, VALUE_TOKEN, seq, DIM, WIDTH)
    other = _document(documents_ptr + sample * seq, key_at, seq, -2, DOCUMENTS)
    salt = tl.load(salts_ptr + sample * DROPS).to(tl.uint32)
    key_grad = tl.zeros([KEYS, WIDTH], tl.float32)
    value_grad = tl.zeros([KEYS, WIDTH], tl.float32)
    for each in range(GROUPS):
        head = shared * GROUPS + each
        place = sample * heads + head
        start = starts_ptr + head * groups + column % groups
        first = tl.load(start) + segment * LONGEST
        last = tl.minimum(tl.load(start + 1), first + LONGEST)
        for i in range(tl.maximum(last - first, 0) * (BLOCK // QUERIES)):
            query_at, bits = _listed(blocks_ptr, bits_ptr, first, i, BLOCK, QUERIES)
            query = _tile(
                query_ptr + sample * query_batch + head.to(tl.int64) * query_head,
                query_at,
                QUERY_TOKEN,
                seq,
                DIM,
                WIDTH,
            )
            grad = _tile(
                grad_ptr + sample * grad_batch + head.to(tl.int64) * grad_head, query_at, GRAD_TOKEN, seq, DIM, WIDTH
            )
            lse = tl.load(lse_ptr + place * seq + query_at, mask=query_at < seq, other=0.0)
            delta = tl.load(delta_ptr + place * seq + query_at, mask=query_at < seq, other=0.0)
            own = _document(documents_ptr + sample * seq, query_at, seq, -1, DOCUMENTS)
            scores = _scores(query, key, query_at, key_at, own, other, seq, scale, DOCUMENTS, WIDEN)
            if TALL > BLOCK:
                scores = tl.where(((bits >> part) & 1 == 1)[None, :], scores, float("-inf"))
            probs = tl.exp2(scores - lse[:, None])
            back = _dot(grad, tl.trans(value), WIDEN)
            shown = probs
            if DROPS:
                kept = _kept(salt, head + first_head, query_at, key_at, dropped)
                shown = tl.where(kept, probs * upscale, 0.0)
                back = tl.where(kept, back * upscale, 0.0)
            value_grad += _dot(tl.trans(shown.to(grad.dtype)), grad, WIDEN)
            back = probs * (back - delta[:, None])
            key_grad += _dot(tl.trans(back.to(query.dtype)), query, WIDEN)
    key_grad *= scale
    if slot < 0:
        of_keys = key_grad_ptr + sample * key_grad_batch + wide * key_grad_head
        of_values = value_grad_ptr + sample * value_grad_batch + wide * value_grad_head
        _put(of_keys, key_at, KEY_GRAD_TOKEN, key_grad, seq, DIM, WIDTH)
        _put(of_values, key_at, VALUE_GRAD_TOKEN, value_grad, seq, DIM, WIDTH)
    else:
        start_of_slot = (sample * num_slots + slot) * TALL * DIM
        _put(key_sums_ptr + start_of_slot, within, DIM, key_grad, TALL, DIM, WIDTH)
        _put(value_sums_ptr + start_of_slot, within, DIM, value_grad, TALL, DIM, WIDTH)


@triton.jit
def add_up(
    sums_ptr, grad_ptr, shared_ptr, first_slots_ptr, counts_ptr,
    grad_batch, grad_head, num_shared, num_slots, seq,
    DIM: tl.constexpr, WIDTH: tl.constexpr, TALL: tl.constexpr, TOKENS: tl.constexpr,
    GRAD_TOKEN: tl.constexpr,
):  # fmt: skip
    """The partial sums of a group of keys, in their order."""
    tiles: tl.constexpr = TALL // TOKENS
    at = tl.program_id(0) // tiles % num_shared
    sample = (tl.program_id(0) // tiles // num_shared).to(tl.int64)
    groups = tl.cdiv(seq, TALL)
    column, first = tl.load(shared_ptr + at), tl.load(first_slots_ptr + at)
    within = tl.program_id(0) % tiles * TOKENS + tl.arange(0, TOKENS)
    total = tl.zeros([TOKENS, WIDTH], tl.float32)
    for i in range(tl.load(counts_ptr + at)):
        total += _tile(sums_ptr + (sample * num_slots + first + i) * TALL * DIM, within, DIM, TALL, DIM, WIDTH)
    grad_ptr += sample * grad_batch + (column // groups).to(tl.int64) * grad_head
    _put(grad_ptr, column % groups * TALL + within, GRAD_TOKEN, total, seq, DIM, WIDTH)
