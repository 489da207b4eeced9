// Cross-entropy of a chunk of tokens over the rows of a vocabulary, in two passes over blocks of rows.
//
// `loss_powers` takes the logits of a block while they are in cache to exp(logit - the block's highest) of each token,
// and keeps those. `loss_gradients` takes them, scaled to probabilities, to both gradients: each logit is computed once
// and exponentiated once. Products are of fp32, or of bf16 where the processor multiplies it, and added up in fp32.
// Threads share blocks and fixed runs of blocks, whose sums are added in order, so the result does not depend on their
// number.
//
// A product takes its operands in units of 32 bits: a number of fp32, or two of bf16 that are neighbours in the sum.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
constexpr int LANES = 16, HIGH = 12;
#elif defined(__AVX__)
constexpr int LANES = 8, HIGH = 6;
#else
constexpr int LANES = 4, HIGH = 8;
#endif
constexpr int WIDE = 2 * LANES;  // a tile in registers is HIGH by WIDE
constexpr long ROWS = 192;       // of the vocabulary, a block
constexpr long RUNS = 32;        // of blocks, each with a sum of its own for the gradient of the states
constexpr long DEEP = 256;       // of the width, at once

typedef float vec __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef int32_t ints __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef uint16_t halves __attribute__((vector_size(LANES * 2), aligned(2), may_alias));
typedef int32_t unit __attribute__((may_alias));
typedef float real __attribute__((may_alias));
typedef uint16_t half __attribute__((may_alias));  // bf16

static inline vec load(const float *p) { return *(const vec *)p; }
static inline void store(float *p, vec x) { *(vec *)p = x; }
static inline vec higher(vec a, vec b) { return b > a ? b : a; }

// exp(x) for x <= 0, to about 1 unit in the last place; below -87 it is as good as nothing.
static inline vec power(vec x) {
    x = x < -87.0f ? vec{} - 87.0f : x;
    const vec shift = vec{} + 12582912.0f;  // 1.5 * 2^23: adding it rounds
    const vec n = (x * 1.44269504088896341f + shift) - shift;
    vec r = x - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    vec p = vec{} + 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    const ints bits = (__builtin_convertvector(n, ints) + 127) << 23;
    return p * (vec)bits;
}

#if defined(__AVX512BF16__)
// By hand, since GCC 12 stores each sum to memory after each such product.
static inline void add_pairs(vec &sum, vec a, vec b) { asm("vdpbf16ps %1, %2, %0" : "+v"(sum) : "v"(a), "v"(b)); }
static inline halves rounded(vec x) { return (halves)_mm512_cvtneps_pbh((__m512)x); }
constexpr bool NARROW = true;
#else
static inline void add_pairs(vec &, vec, vec) {}
static inline halves rounded(vec) { return halves{}; }
constexpr bool NARROW = false;
#endif
static inline ints widened(halves x) { return __builtin_convertvector(x, ints); }
static inline vec number(halves x) { return (vec)(widened(x) << 16); }
static inline half rounded(float x) { return rounded(vec{} + x)[0]; }

// Units of so many numbers that are added up.
template <bool narrow>
constexpr long units(long count) {
    return narrow ? (count + 1) / 2 : count;
}

// c [high, WIDE] (+)= a [high, deep] b [deep, WIDE], in units; the strides of a are given, b is packed.
template <bool narrow, int high>
static inline void tile(const unit *a, long a_row, long a_step, const unit *b, long deep, float *c, long c_row,
                        bool add) {
    vec sum[high][2];
#pragma GCC unroll 16
    for (int i = 0; i < high; ++i) {
        sum[i][0] = sum[i][1] = vec{};
        __builtin_prefetch(c + i * c_row, 1);
    }
    for (long k = 0; k < deep; ++k) {
        const vec b0 = *(const vec *)(b + k * WIDE), b1 = *(const vec *)(b + k * WIDE + LANES);
#pragma GCC unroll 16
        for (int i = 0; i < high; ++i) {
            const unit *at = a + i * a_row + k * a_step;
            const vec x = narrow ? (vec)(ints{} + *at) : vec{} + *(const real *)at;
            if constexpr (narrow) {
                add_pairs(sum[i][0], x, b0);
                add_pairs(sum[i][1], x, b1);
            } else {
                sum[i][0] += x * b0;
                sum[i][1] += x * b1;
            }
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < high; ++i)
#pragma GCC unroll 2
        for (int j = 0; j < 2; ++j) {
            float *out = c + i * c_row + j * LANES;
            store(out, add ? load(out) + sum[i][j] : sum[i][j]);
        }
}

template <bool narrow, int high>
static void tiles(long left, const unit *a, long a_row, long a_step, const unit *b, long deep, float *c, long c_row,
                  bool add) {
    if constexpr (high > 0) {
        if (left >= high) tile<narrow, high>(a, a_row, a_step, b, deep, c, c_row, add);
        else tiles<narrow, high - 1>(left, a, a_row, a_step, b, deep, c, c_row, add);
    }
}

// c [rows, columns <= WIDE] (+)= a b for one packed panel b. a: rows of `a_row` units, or packed, panels of HIGH rows.
template <bool narrow>
static void panel(long rows, long columns, const unit *a, long a_row, const unit *b, long deep, float *c, long c_row,
                  bool add) {
    const bool packed = a_row == 0;
    float part[HIGH * WIDE];
    for (long i = 0; i < rows; i += HIGH) {
        const unit *from = a + i * (packed ? deep : a_row);
        const long high = std::min<long>(HIGH, rows - i), row = packed ? 1 : a_row, step = packed ? HIGH : 1;
        if (columns == WIDE) {
            tiles<narrow, HIGH>(high, from, row, step, b, deep, c + i * c_row, c_row, add);
            continue;
        }
        for (long r = 0; add && r < high; ++r) std::copy_n(c + (i + r) * c_row, columns, part + r * WIDE);
        tiles<narrow, HIGH>(high, from, row, step, b, deep, part, WIDE, add);
        for (long r = 0; r < high; ++r) std::copy_n(part + r * WIDE, columns, c + (i + r) * c_row);
    }
}

// x [rows, columns] as panels of `wide` columns, [units of rows, wide], zeros beyond the last row and column.
template <bool narrow, int wide>
static void pack(const void *x, long rows, long columns, unit *out, unit *line) {
    const long deep = units<narrow>(rows);
    for (long u = 0; u < deep; ++u) {
        const unit *from = (const unit *)x + u * columns;
        if (narrow) {
            const half *one = (const half *)x + 2 * u * columns, *other = one + columns;
            if (2 * u + 1 < rows)
                for (long j = 0; j < columns; ++j) line[j] = one[j] | (uint32_t)other[j] << 16;
            else
                for (long j = 0; j < columns; ++j) line[j] = one[j];
            from = line;
        }
        long j = 0;
        for (; j + wide <= columns; j += wide) std::memcpy(out + j * deep + u * wide, from + j, wide * 4);
        if (j < columns) {
            std::memcpy(out + j * deep + u * wide, from + j, (columns - j) * 4);
            std::memset(out + j * deep + u * wide + columns - j, 0, (wide - columns + j) * 4);
        }
    }
}

static long up(long x, long step) { return (x + step - 1) / step * step; }
static unit *room(long count) { return (unit *)std::aligned_alloc(64, up(count * 4, 64)); }

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
    int failed = !packed || !sums;
    if (!failed) pack<narrow, WIDE>(states, tokens, width, packed, packed + up(width, WIDE) * row);
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
                pack<narrow, HIGH>((const char *)weight + first * width * size, count, width, words, words + of_words);
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
