// Cross-entropy of a chunk of tokens over the rows of a vocabulary, in two passes over blocks of rows.
//
// `loss_powers` takes the logits of a block while they are in cache to exp(logit - highest), of each token's highest so
// far, adds them times the block's words to the gradient of the states, and keeps them. `loss_gradients` multiplies
// them by the states for the gradient of the words, once it is known what makes probabilities of them: each logit is
// computed once and exponentiated once. What the label itself adds to the gradients, its probability less 1, is added
// apart, so that it keeps its digits where that is next to nothing. Threads share fixed runs of blocks, whose sums are
// added in order, so the result does not depend on their number.

#include "tiles.h"

constexpr long ROWS = 192;  // of the vocabulary, a block
constexpr long RUNS = 32;   // of blocks, each with a highest so far and a sum for the gradient of the states

static long blocks_of(long rows) { return (rows + ROWS - 1) / ROWS; }
static long runs_of(long rows) { return std::min(RUNS, blocks_of(rows)); }
static long tiles_of(long rows, long columns) { return (rows + HIGH - 1) / HIGH * ((columns + WIDE - 1) / WIDE); }
static long begin_of(long run, long rows) { return run * blocks_of(rows) / runs_of(rows); }  // its first block

// The highest logit of each token so far, given that of the blocks before or null. logits: panels [count, WIDE].
// Returns whether one is higher than before.
static bool highest_of(const float *logits, long tokens, long count, const float *before, float *most) {
    ints rises{};
    for (long t = 0; t < tokens; t += WIDE) {
        const float *panel = logits + t * count;
        vec one = load(panel), other = load(panel + LANES);
        for (long v = 1; v < count; ++v) {
            one = higher(one, load(panel + v * WIDE));
            other = higher(other, load(panel + v * WIDE + LANES));
        }
        if (before) {
            const vec first = load(before + t), second = load(before + t + LANES);
            one = higher(first, one);
            other = higher(second, other);
            rises |= (one != first) | (other != second);
        }
        store(most + t, one);
        store(most + t + LANES, other);
    }
    int any = 0;
    for (int i = 0; i < LANES; ++i) any |= rises[i];
    return any;
}

// exp(logit - most) of a panel [count, WIDE], to `kept`; in bf16 also in pairs of rows, to `pairs`. Their sums go to
// `sum`.
template <bool narrow>
static void powers_of_panel(const float *logits, long count, const float *most, char *kept, unit *pairs, float *sum) {
    const vec top[2] = {load(most), load(most + LANES)};
    vec sums[2] = {};
    for (long v = 0; v < count; ++v)
        for (int j = 0; j < 2; ++j) {
            const long at = v * WIDE + j * LANES;
            const vec x = power(load(logits + at) - top[j]);
            sums[j] += x;
            if (!narrow) store((float *)kept + at, x);
            else if (kept) *(halves *)((half *)kept + at) = rounded(x);
        }
    for (int j = 0; j < 2; ++j) store(sum + j * LANES, sums[j]);
    if (!narrow || !pairs) return;
    for (long v = 0; v < count; v += 2)
        for (int j = 0; j < 2; ++j) {
            const half *from = (const half *)kept + v * WIDE + j * LANES;
            const halves one = *(const halves *)from, other = v + 1 < count ? *(const halves *)(from + WIDE) : halves{};
            *(ints *)(pairs + v / 2 * WIDE + j * LANES) = widened(one) | widened(other) << 16;
        }
}

// See loss_powers.
template <bool narrow>
static int powers_of(const unit *states, const unit *weight, const int64_t *labels, long tokens, long rows, long width,
                     char *powers, float *highest, float *total, float *own, float *sums, int threads) {
    const long deep = units<narrow>(width), size = narrow ? 2 : 4;
    unit *turned = room(tokens * deep);  // panels of tokens, [deep, WIDE] each
    if (!turned) return 1;
    for (long t = 0; t < tokens; ++t)
        for (long k = 0; k < deep; ++k) turned[(t / WIDE * deep + k) * WIDE + t % WIDE] = states[t * deep + k];
    const bool apart = narrow || !powers;
    const long of_words = up(width, HIGH) * ROWS;
    int failed = 0;
#pragma omp parallel num_threads(threads) reduction(| : failed)
    {
        float *mine = apart ? (float *)room(ROWS * tokens) : nullptr;
        unit *pairs = narrow && powers ? room(units<narrow>(ROWS) * tokens) : nullptr;
        unit *words = powers ? room(of_words + width) : nullptr;
        failed |= (apart && !mine) || (narrow && powers && !pairs) || (powers && !words);
#pragma omp for schedule(dynamic, 1)
        for (long run = 0; run < runs_of(rows); ++run) {
            if (failed) continue;
            float *grad = powers ? sums + run * width * tokens : nullptr;
            const long begin = begin_of(run, rows), end = begin_of(run + 1, rows);
            for (long block = begin; block < end; ++block) {
                const long first = block * ROWS, count = std::min(ROWS, rows - first), high = units<narrow>(count);
                char *kept = powers ? powers + first * tokens * size : nullptr;
                float *logits = apart ? mine : (float *)kept;
                const long following = block + 1 < end ? std::min(ROWS, rows - first - count) : 0;
                Ahead next_words(weight + (first + count) * deep, following * deep * 4,
                                 tiles_of(count, tokens) * ((deep + DEEP - 1) / DEEP));
                for (long k = 0; k < deep; k += DEEP)
                    for (long t = 0; t < tokens; t += WIDE)
                        panel<narrow>(count, WIDE, weight + first * deep + k, deep, turned + t * deep + k * WIDE,
                                      std::min(DEEP, deep - k), logits + t * count, WIDE, k > 0, 0,
                                      {&next_words});
                for (long t = 0; t < tokens; ++t)
                    if (labels[t] >= first && labels[t] < first + count)
                        own[t] = logits[(t / WIDE * count + labels[t] - first) * WIDE + t % WIDE];
                float *most = highest + block * tokens;
                const float *before = block > begin ? most - tokens : nullptr;
                const bool rises = highest_of(logits, tokens, count, before, most);
                for (long t = 0; t < tokens; t += WIDE)
                    powers_of_panel<narrow>(logits + t * count, count, most + t,
                                            narrow ? kept ? kept + t * count * size : nullptr
                                                   : (char *)(logits + t * count),
                                            pairs ? pairs + t * high : nullptr, total + block * tokens + t);
                if (!powers) continue;
                for (long t = 0; t < tokens; ++t) {
                    const long v = labels[t] - first;
                    if (v < 0 || v >= count) continue;
                    const long at = (t / WIDE * count + v) * WIDE + t % WIDE;
                    if (narrow) {
                        ((half *)kept)[at] = 0;
                        ((half *)(pairs + (t / WIDE * high + v / 2) * WIDE + t % WIDE))[v % 2] = 0;
                    } else ((real *)kept)[at] = 0.0f;
                }
                if (rises)
                    for (long t = 0; t < tokens; t += LANES) {
                        const vec by = power(load(before + t) - load(most + t));
                        for (long k = 0; k < width; ++k)
                            store(grad + k * tokens + t, load(grad + k * tokens + t) * by);
                    }
                pack<narrow, HIGH>((const char *)weight + first * width * size, count, width, width, words,
                                   words + of_words);
                const unit *by_token = narrow ? pairs : (const unit *)kept;
                for (long t = 0; t < tokens; t += WIDE)
                    panel<narrow>(width, WIDE, words, 0, by_token + t * high, high, grad + t, tokens, block > begin);
            }
        }
        std::free(mine);
        std::free(pairs);
        std::free(words);
    }
    std::free(turned);
    return failed;
}

// Packed states [units of tokens, WIDE] times `scale` [tokens].
template <bool narrow>
static void scaled(const unit *packed, const float *scale, long row, unit *out) {
    for (long u = 0; u < row; ++u)
        for (int j = 0; j < WIDE; j += LANES) {
            const ints x = *(const ints *)(packed + u * WIDE + j);
            if (!narrow) {
                *(vec *)(out + u * WIDE + j) = (vec)x * scale[u];
                continue;
            }
            const halves one = rounded((vec)(x << 16) * scale[2 * u]);
            const halves other = rounded((vec)(x >> 16 << 16) * scale[2 * u + 1]);
            *(ints *)(out + u * WIDE + j) = widened(one) | widened(other) << 16;
        }
}

// See loss_gradients.
template <bool narrow>
static int gradients_of(const void *states, const void *weight, const int64_t *labels, const float *scale,
                        const float *less, long tokens, long rows, long width, const char *powers, const float *sums,
                        float *grad_states, float *grad_weight, int threads) {
    const long row = units<narrow>(tokens), wide = units<narrow>(WIDE), size = narrow ? 2 : 4;
    const long of_states = up(width, WIDE) * row;
    unit *packed = room(of_states + width);
    if (!packed) return 1;
    int failed = 0;
    pack<narrow, WIDE>(states, tokens, width, width, packed, packed + of_states);
#pragma omp parallel num_threads(threads) reduction(| : failed)
    {
        unit *mine = room(of_states);
        failed |= !mine;
#pragma omp for schedule(dynamic, 1)
        for (long run = 0; run < runs_of(rows); ++run) {
            if (failed || !grad_weight) continue;
            const long begin = begin_of(run, rows), end = begin_of(run + 1, rows);
            for (long block = begin; block < end; ++block) {
                const long first = block * ROWS, count = std::min(ROWS, rows - first);
                const unit *kept = (const unit *)(powers + first * tokens * size);
                const float *by = scale + block * tokens;
                const long following = block + 1 < end ? std::min(ROWS, rows - first - count) : 0;
                const long tiles = tiles_of(count, width);
                Ahead next_powers(powers + (first + count) * tokens * size, following * tokens * size, tiles);
                Ahead next_words(grad_weight + (first + count) * width, following * width * 4, tiles);
                if (block == begin || std::memcmp(by, by - tokens, tokens * sizeof(float)))
                    for (long j = 0; j < width; j += WIDE) scaled<narrow>(packed + j * row, by, row, mine + j * row);
                for (long j = 0; j < width; j += WIDE)
                    panel<narrow>(count, std::min<long>(WIDE, width - j), kept, wide, mine + j * row, row,
                                  grad_weight + first * width + j, width, true, (count - 1) * wide,
                                  {&next_powers, &next_words});
                for (long t = 0; t < tokens; ++t) {
                    const long v = labels[t] - first;
                    if (v < 0 || v >= count) continue;
                    real *out = grad_weight + labels[t] * width;
                    for (long k = 0; k < width; ++k) out[k] += less[t] * number_at<narrow>(states, t * width + k);
                }
            }
        }
        std::free(mine);
#pragma omp for schedule(static)
        for (long k = 0; k < width; ++k) {
            float *sum = grad_states + k * tokens;
            std::fill_n(sum, tokens, 0.0f);
            for (long run = 0; run < runs_of(rows); ++run) {
                const float *by = scale + (begin_of(run + 1, rows) - 1) * tokens;  // of its last block
                const float *part = sums + (run * width + k) * tokens;
                for (long t = 0; t < tokens; t += LANES) store(sum + t, load(sum + t) + load(part + t) * load(by + t));
            }
            for (long t = 0; t < tokens; ++t)
                if (labels[t] >= 0) sum[t] += less[t] * number_at<narrow>(weight, labels[t] * width + k);
        }
    }
    std::free(packed);
    return failed;
}

extern "C" {

long loss_step() { return WIDE; }
long loss_blocks(long rows) { return blocks_of(rows); }
long loss_runs(long rows) { return runs_of(rows); }
int loss_of_bf16() { return NARROW; }

// states: [tokens, width], weight: [rows, width], both of fp32 or, if narrow, of bf16. labels: [tokens], a row or -1.
// tokens: a multiple of loss_step(); width: if narrow, even. powers: rows * tokens numbers like the states, of each
// block [tokens / WIDE, rows of the block, WIDE], or null where no gradient is taken. highest, total: [blocks, tokens].
// own: [tokens], the logit of the label where it is one of the rows. sums: [runs, width, tokens], or null.
int loss_powers(const void *states, const void *weight, const int64_t *labels, long tokens, long rows, long width,
                void *powers, float *highest, float *total, float *own, float *sums, int threads, int narrow) {
    return (narrow ? powers_of<NARROW> : powers_of<false>)((const unit *)states, (const unit *)weight, labels, tokens,
                                                           rows, width, (char *)powers, highest, total, own, sums,
                                                           threads);
}

// scale: [blocks, tokens], what makes probabilities of the powers, 0 where a token does not count. less: [tokens], the
// label's probability less 1. powers, sums: by loss_powers. grad_states: [width, tokens]. grad_weight: [rows, width],
// added to; or null.
int loss_gradients(const void *states, const void *weight, const int64_t *labels, const float *scale, const float *less,
                   const void *powers, const float *sums, long tokens, long rows, long width, float *grad_states,
                   float *grad_weight, int threads, int narrow) {
    return (narrow ? gradients_of<NARROW> : gradients_of<false>)(states, weight, labels, scale, less, tokens, rows,
                                                                 width, (const char *)powers, sums, grad_states,
                                                                 grad_weight, threads);
}
}
