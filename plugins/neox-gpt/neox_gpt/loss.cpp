// Cross-entropy of a chunk of tokens over the rows of a vocabulary, in two passes over blocks of rows.
//
// `loss_powers` takes the logits of a block while they are in cache to exp(logit - the block's highest) of each token,
// and keeps those. `loss_gradients` takes them, scaled to probabilities, to both gradients: each logit is computed once
// and exponentiated once. Threads share blocks and fixed runs of blocks, whose sums are added in order, so the result
// does not depend on their number.

#include "tiles.h"

constexpr long ROWS = 192;  // of the vocabulary, a block
constexpr long RUNS = 32;   // of blocks, each with a sum of its own for the gradient of the states

// See loss_powers.
template <bool narrow>
static int powers_of(const unit *states, const unit *weight, const int64_t *labels, long tokens, long rows, long width,
                     void *powers, float *highest, float *total, float *own, int threads) {
    const long deep = units<narrow>(width), blocks = (rows + ROWS - 1) / ROWS;
    unit *turned = room(tokens * deep);  // panels of tokens, [deep, WIDE] each
    if (!turned) return 1;
    for (long t = 0; t < tokens; ++t)
        for (long k = 0; k < deep; ++k) turned[(t / WIDE * deep + k) * WIDE + t % WIDE] = states[t * deep + k];
    const bool apart = narrow || !powers;
    int failed = 0;
#pragma omp parallel num_threads(threads) reduction(| : failed)
    {
        float *mine = apart ? (float *)room(ROWS * tokens) : nullptr;
        failed |= apart && !mine;
#pragma omp for schedule(dynamic, 1)
        for (long block = 0; block < blocks; ++block) {
            if (failed) continue;
            const long first = block * ROWS, count = std::min(ROWS, rows - first);
            float *logits = apart ? mine : (float *)powers + first * tokens;
            half *kept = powers ? (half *)powers + first * tokens : nullptr;
            for (long k = 0; k < deep; k += DEEP)
                for (long t = 0; t < tokens; t += WIDE)
                    panel<narrow>(count, WIDE, weight + first * deep + k, deep, turned + t * deep + k * WIDE,
                                  std::min(DEEP, deep - k), logits + t, tokens, k > 0);
            for (long t = 0; t < tokens; ++t)
                if (labels[t] >= first && labels[t] < first + count) own[t] = logits[(labels[t] - first) * tokens + t];
            float *most = highest + block * tokens, *sum = total + block * tokens;
            std::copy_n(logits, tokens, most);
            std::fill_n(sum, tokens, 0.0f);
            for (long v = 1; v < count; ++v)
                for (long t = 0; t < tokens; t += LANES)
                    store(most + t, higher(load(most + t), load(logits + v * tokens + t)));
            for (long v = 0; v < count; ++v)
                for (long t = 0; t < tokens; t += LANES) {
                    const vec x = power(load(logits + v * tokens + t) - load(most + t));
                    if (!narrow) store(logits + v * tokens + t, x);
                    else if (kept) *(halves *)(kept + v * tokens + t) = rounded(x);
                    store(sum + t, load(sum + t) + x);
                }
        }
        std::free(mine);
    }
    std::free(turned);
    return failed;
}

// The powers [count, tokens] of a block times `scale` [tokens], in rows and in panels of WIDE tokens.
template <bool narrow>
static void probabilities(const void *powers, const float *scale, const float *less, const int64_t *labels, long tokens,
                          long first, long count, unit *by_row, unit *by_panel) {
    const long deep = units<narrow>(count);
    for (long u = 0; u < deep; ++u)
        for (long t = 0; t < tokens; t += LANES) {
            unit *out = by_panel + (t / WIDE * deep + u) * WIDE + t % WIDE;
            const vec by = load(scale + t);
            if (!narrow) {
                const vec x = load((const float *)powers + u * tokens + t) * by;
                *(vec *)(by_row + u * tokens + t) = *(vec *)out = x;
                continue;
            }
            const half *from = (const half *)powers + 2 * u * tokens + t;
            half *row = (half *)by_row + 2 * u * tokens + t;
            const halves one = rounded(number(*(const halves *)from) * by);
            halves other{};
            *(halves *)row = one;
            if (2 * u + 1 < count) *(halves *)(row + tokens) = other = rounded(number(*(const halves *)(from + tokens)) * by);
            *(ints *)out = widened(one) | widened(other) << 16;
        }
    for (long t = 0; t < tokens; ++t) {
        const long v = labels[t] - first;
        if (v < 0 || v >= count) continue;
        unit *at = by_panel + (t / WIDE * deep + units<narrow>(v + 1) - 1) * WIDE + t % WIDE;
        if (narrow) ((half *)by_row)[v * tokens + t] = ((half *)at)[v % 2] = rounded(less[t]);
        else *(real *)(by_row + v * tokens + t) = *(real *)at -= 1.0f;
    }
}

// See loss_gradients.
template <bool narrow>
static int gradients_of(const void *states, const void *weight, const int64_t *labels, const float *scale,
                        const float *less, long tokens, long rows, long width, const void *powers, float *grad_states,
                        float *grad_weight, int threads) {
    const long blocks = (rows + ROWS - 1) / ROWS, runs = std::min(RUNS, blocks);
    const long row = units<narrow>(tokens), size = narrow ? 2 : 4;
    unit *packed = room(up(width, WIDE) * row + width);
    float *sums = (float *)room(runs * width * tokens);  // of each run [width, tokens]
    if (!packed || !sums) {
        std::free(packed);
        std::free(sums);
        return 1;
    }
    int failed = 0;
    pack<narrow, WIDE>(states, tokens, width, width, packed, packed + up(width, WIDE) * row);
#pragma omp parallel num_threads(threads) reduction(| : failed)
    {
        const long of_words = up(width, HIGH) * ROWS;
        unit *by_row = room(2 * ROWS * tokens), *by_panel = by_row + ROWS * tokens;
        unit *words = room(of_words + width);
        failed |= !by_row || !words;
#pragma omp for schedule(dynamic, 1)
        for (long run = 0; run < runs; ++run) {
            if (failed) continue;
            float *sum = sums + run * width * tokens;
            const long begin = run * blocks / runs, end = (run + 1) * blocks / runs;
            for (long block = begin; block < end; ++block) {
                const long first = block * ROWS, count = std::min(ROWS, rows - first), deep = units<narrow>(count);
                probabilities<narrow>((const char *)powers + first * tokens * size, scale + block * tokens, less,
                                      labels, tokens, first, count, by_row, by_panel);
                pack<narrow, HIGH>((const char *)weight + first * width * size, count, width, width, words, words + of_words);
                for (long t = 0; t < tokens; t += WIDE)
                    panel<narrow>(width, WIDE, words, 0, by_panel + t * deep, deep, sum + t, tokens, block > begin);
                if (grad_weight)
                    for (long j = 0; j < width; j += WIDE)
                        panel<narrow>(count, std::min<long>(WIDE, width - j), by_row, row, packed + j * row, row,
                                      grad_weight + first * width + j, width, true);
            }
        }
        std::free(by_row);
        std::free(words);
#pragma omp for schedule(static)
        for (long k = 0; k < width; ++k) {
            if (failed) continue;
            float *sum = grad_states + k * tokens;
            std::copy_n(sums + k * tokens, tokens, sum);
            for (long run = 1; run < runs; ++run)
                for (long t = 0; t < tokens; ++t) sum[t] += sums[(run * width + k) * tokens + t];
        }
    }
    std::free(packed);
    std::free(sums);
    return failed;
}

extern "C" {

long loss_step() { return WIDE; }
long loss_blocks(long rows) { return (rows + ROWS - 1) / ROWS; }
int loss_of_bf16() { return NARROW; }

// states: [tokens, width], weight: [rows, width], both of fp32 or, if narrow, of bf16. labels: [tokens], a row or -1.
// tokens: a multiple of loss_step(); width: if narrow, even. powers: [rows, tokens], like the states, or null where no
// gradient is taken. highest, total: [blocks, tokens]. own: [tokens], the logit of the label where it is one of the
// rows.
int loss_powers(const void *states, const void *weight, const int64_t *labels, long tokens, long rows, long width,
                void *powers, float *highest, float *total, float *own, int threads, int narrow) {
    return (narrow ? powers_of<NARROW> : powers_of<false>)((const unit *)states, (const unit *)weight, labels, tokens,
                                                           rows, width, powers, highest, total, own, threads);
}

// scale: [blocks, tokens], what makes probabilities of the powers, 0 where a token does not count. less: [tokens], if
// narrow the label's probability less 1. grad_states: [width, tokens]. grad_weight: [rows, width], added to; or null.
int loss_gradients(const void *states, const void *weight, const int64_t *labels, const float *scale, const float *less,
                   long tokens, long rows, long width, const void *powers, float *grad_states, float *grad_weight,
                   int threads, int narrow) {
    return (narrow ? gradients_of<NARROW> : gradients_of<false>)(states, weight, labels, scale, less, tokens, rows,
                                                                 width, powers, grad_states, grad_weight, threads);
}
}
