// Cross-entropy of a chunk of tokens over the rows of a vocabulary, in two passes over blocks of rows.
//
// `loss_powers` takes the logits of a block while they are in cache to exp(logit - the block's highest) of each token,
// and keeps those. `loss_gradients` takes them, scaled to probabilities, to both gradients: each logit is computed once
// and exponentiated once. Products are in fp32. Threads share blocks and fixed runs of blocks, whose sums are added in
// order, so the result does not depend on their number.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>

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

// c [high, WIDE] (+)= a [high, deep] b [deep, WIDE]; the strides of a are given, b is packed.
template <int high>
static inline void tile(const float *a, long a_row, long a_step, const float *b, long deep, float *c, long c_row,
                        bool add) {
    vec sum[high][2];
#pragma GCC unroll 16
    for (int i = 0; i < high; ++i) {
        sum[i][0] = sum[i][1] = vec{};
        __builtin_prefetch(c + i * c_row, 1);
    }
    for (long k = 0; k < deep; ++k) {
        const vec b0 = load(b + k * WIDE), b1 = load(b + k * WIDE + LANES);
#pragma GCC unroll 16
        for (int i = 0; i < high; ++i) {
            const vec x = vec{} + a[i * a_row + k * a_step];
            sum[i][0] += x * b0;
            sum[i][1] += x * b1;
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

template <int high>
static void tiles(long left, const float *a, long a_row, long a_step, const float *b, long deep, float *c, long c_row,
                  bool add) {
    if constexpr (high > 0) {
        if (left >= high) tile<high>(a, a_row, a_step, b, deep, c, c_row, add);
        else tiles<high - 1>(left, a, a_row, a_step, b, deep, c, c_row, add);
    }
}

// c [rows, columns <= WIDE] (+)= a b for one packed panel b.
static void panel(long rows, long columns, const float *a, long a_row, long a_step, const float *b, long deep, float *c,
                  long c_row, bool add) {
    float part[HIGH * WIDE];
    for (long i = 0; i < rows; i += HIGH) {
        const long high = std::min<long>(HIGH, rows - i);
        if (columns == WIDE) {
            tiles<HIGH>(high, a + i * a_row, a_row, a_step, b, deep, c + i * c_row, c_row, add);
            continue;
        }
        for (long r = 0; add && r < high; ++r) std::copy_n(c + (i + r) * c_row, columns, part + r * WIDE);
        tiles<HIGH>(high, a + i * a_row, a_row, a_step, b, deep, part, WIDE, add);
        for (long r = 0; r < high; ++r) std::copy_n(part + r * WIDE, columns, c + (i + r) * c_row);
    }
}

// Columns of x [rows, columns] as panels [rows, WIDE], zeros beyond the last.
static void pack(const float *x, long rows, long columns, float *out) {
    for (long j = 0; j < columns; j += WIDE)
        for (long i = 0; i < rows; ++i, out += WIDE) {
            const long count = std::min<long>(WIDE, columns - j);
            std::memcpy(out, x + i * columns + j, count * 4);
            std::memset(out + count, 0, (WIDE - count) * 4);
        }
}

static long up(long x, long step) { return (x + step - 1) / step * step; }
static float *room(long count) { return (float *)std::aligned_alloc(64, up(count * 4, 64)); }

extern "C" {

long loss_step() { return WIDE; }
long loss_blocks(long rows) { return (rows + ROWS - 1) / ROWS; }

// states: [tokens, width], weight: [rows, width], labels: [tokens], a row or -1. tokens: a multiple of loss_step().
// powers: [rows, tokens], or null where no gradient is taken. highest, total: [blocks, tokens]. own: [tokens], the
// logit of the label where it is one of the rows.
int loss_powers(const float *states, const float *weight, const int64_t *labels, long tokens, long rows, long width,
                float *powers, float *highest, float *total, float *own, int threads) {
    float *turned = room(tokens * width);  // panels of tokens, [width, WIDE] each
    if (!turned) return 1;
    for (long t = 0; t < tokens; ++t)
        for (long k = 0; k < width; ++k) turned[(t / WIDE * width + k) * WIDE + t % WIDE] = states[t * width + k];
    const long blocks = loss_blocks(rows);
    int failed = 0;
#pragma omp parallel num_threads(threads) reduction(| : failed)
    {
        float *mine = powers ? nullptr : room(ROWS * tokens);
        failed |= !powers && !mine;
#pragma omp for schedule(dynamic, 1)
        for (long block = 0; block < blocks; ++block) {
            if (failed) continue;
            const long first = block * ROWS, count = std::min(ROWS, rows - first);
            float *logits = powers ? powers + first * tokens : mine;
            for (long k = 0; k < width; k += DEEP)
                for (long t = 0; t < tokens; t += WIDE)
                    panel(count, WIDE, weight + first * width + k, width, 1, turned + t * width + k * WIDE,
                          std::min(DEEP, width - k), logits + t, tokens, k > 0);
            for (long t = 0; t < tokens; ++t)
                if (labels[t] >= first && labels[t] < first + count) own[t] = logits[(labels[t] - first) * tokens + t];
            for (long t = 0; t < tokens; t += LANES) {
                vec most = load(logits + t), sum{};
                for (long v = 1; v < count; ++v) most = higher(most, load(logits + v * tokens + t));
                for (long v = 0; v < count; ++v) {
                    const vec x = power(load(logits + v * tokens + t) - most);
                    store(logits + v * tokens + t, x);
                    sum += x;
                }
                store(highest + block * tokens + t, most);
                store(total + block * tokens + t, sum);
            }
        }
        std::free(mine);
    }
    std::free(turned);
    return failed;
}

// scale: [blocks, tokens], what makes probabilities of the powers, 0 where a token does not count.
// grad_states: [tokens, width]. grad_weight: [rows, width], added to; or null.
int loss_gradients(const float *states, const float *weight, const int64_t *labels, const float *scale, long tokens,
                   long rows, long width, const float *powers, float *grad_states, float *grad_weight, int threads) {
    const long blocks = loss_blocks(rows), padded = up(width, WIDE);
    const long runs = std::min(RUNS, blocks);
    float *packed = room(tokens * padded), *sums = room(runs * tokens * width);
    int failed = !packed || !sums;
    if (!failed) pack(states, tokens, width, packed);
#pragma omp parallel num_threads(threads) reduction(| : failed)
    {
        float *probs = room(ROWS * tokens), *panels = room(ROWS * padded);
        failed |= !probs || !panels;
#pragma omp for schedule(dynamic, 1)
        for (long run = 0; run < runs; ++run) {
            if (failed) continue;
            float *sum = sums + run * tokens * width;
            const long begin = run * blocks / runs, end = (run + 1) * blocks / runs;
            for (long block = begin; block < end; ++block) {
                const long first = block * ROWS, count = std::min(ROWS, rows - first);
                const float *given = powers + first * tokens, *of_block = scale + block * tokens;
                for (long v = 0; v < count; ++v)
                    for (long t = 0; t < tokens; t += LANES)
                        store(probs + v * tokens + t, load(given + v * tokens + t) * load(of_block + t));
                for (long t = 0; t < tokens; ++t)
                    if (labels[t] >= first && labels[t] < first + count)
                        probs[(labels[t] - first) * tokens + t] -= 1.0f;
                pack(weight + first * width, count, width, panels);
                for (long j = 0; j < width; j += WIDE)
                    panel(tokens, std::min<long>(WIDE, width - j), probs, 1, tokens, panels + j * count, count, sum + j,
                          width, block > begin);
                if (grad_weight)
                    for (long j = 0; j < width; j += WIDE)
                        panel(count, std::min<long>(WIDE, width - j), probs, tokens, 1, packed + j * tokens, tokens,
                              grad_weight + first * width + j, width, true);
            }
        }
        std::free(probs);
        std::free(panels);
#pragma omp for schedule(static)
        for (long t = 0; t < tokens; ++t) {
            if (failed) continue;
            float *sum = grad_states + t * width;
            std::copy_n(sums + t * width, width, sum);
            for (long run = 1; run < runs; ++run)
                for (long k = 0; k < width; ++k) sum[k] += sums[(run * tokens + t) * width + k];
        }
    }
    std::free(packed);
    std::free(sums);
    return failed;
}
}
