// Softmax attention in causal order, forward and backward, without a matrix of scores (FlashAttention, arXiv:2307.08691).
//
// 32 queries (one panel) meet a block of keys at a time. Scores are held turned, [keys, queries], so that a query is one
// lane of a vector: the highest score and the sum need no sums across lanes, and the products read scores as they are.
// A task is a panel of a head in the forward pass, and all heads of a key's head in the backward pass, so the result
// does not depend on the number of threads.

#include "../tiles.h"

constexpr long KEYS = 96;       // a block: a multiple of HIGH, and even
constexpr float LOW = -1e30f;   // a score that nothing is below

// Sizes, and of each tensor the numbers from one sample, head and token to the next.
struct Shape {
    long batch, heads, kv_heads, seq, width;
    const int64_t *strides;

    template <bool narrow>
    const char *at(const void *x, int tensor, long sample, long head, long token) const {
        const int64_t *by = strides + 3 * tensor;
        return (const char *)x + (sample * by[0] + head * by[1] + token * by[2]) * (narrow ? 2 : 4);
    }
    long step(int tensor) const { return strides[3 * tensor + 2]; }
    long group() const { return heads / kv_heads; }
};

// Rows of `width` numbers as rows of whole units.
template <bool narrow>
static void copy_rows(const char *x, long step, long rows, long width, unit *out) {
    const long deep = units<narrow>(width), size = narrow ? 2 : 4;
    for (long i = 0; i < rows; ++i) {
        if (narrow) out[i * deep + deep - 1] = 0;
        std::memcpy(out + i * deep, x + i * step * size, width * size);
    }
}

// [rows, width] as [units of the width, WIDE], zeros beyond the last row.
template <bool narrow>
static void turn(const char *x, long step, long rows, long width, unit *out) {
    const long deep = units<narrow>(width), size = narrow ? 2 : 4;
    if (rows < WIDE) std::memset(out, 0, deep * WIDE * 4);
    for (long i = 0; i < rows; ++i) {
        const char *row = x + i * step * size;
        const long whole = width * size / 4;
        for (long k = 0; k < whole; ++k) std::memcpy(out + k * WIDE + i, row + k * 4, 4);
        if (whole < deep) out[whole * WIDE + i] = ((const half *)row)[width - 1];
    }
}

// `x * scale` [rows, width], whose rows begin `wide` apart, to where rows are `step` apart.
template <bool narrow>
static void write_rows(const float *x, long wide, long rows, long width, const float *scale, char *out, long step) {
    for (long i = 0; i < rows; ++i) {
        const float by = scale ? scale[i] : 1.0f;
        const float *from = x + i * wide;
        long k = 0;
        if (narrow) {
            half *to = (half *)out + i * step;
            for (; k + LANES <= width; k += LANES) *(halves *)(to + k) = rounded(load(from + k) * by);
            for (; k < width; ++k) to[k] = rounded(from[k] * by);
        } else {
            real *to = (real *)out + i * step;
            for (; k < width; ++k) to[k] = from[k] * by;
        }
    }
}

// c [count, width] (+)= a b, where a is turned: [deep, WIDE] units. b: panels of `panel_size` units.
template <bool narrow>
static void turned_product(long count, long wide, const unit *a, const unit *b, long panel_size, long deep, float *c,
                           bool add) {
    for (long d = 0; d < wide; d += WIDE)
        for (long i = 0; i < count; i += HIGH)
            tiles<narrow>(count - i, a + i, 1, WIDE, b + d / WIDE * panel_size, deep, c + i * wide + d, wide, add);
}

// Scores [rows, WIDE] of keys and turned queries.
template <bool narrow>
static void scores_of(long rows, long deep, const unit *keys, const unit *queries, float *scores) {
    for (long k = 0; k < deep; k += DEEP)
        panel<narrow>(rows, WIDE, keys + k, deep, queries + k * WIDE, std::min(DEEP, deep - k), scores, WIDE, k > 0);
}

// Where a key is no later than the queries of LANES lanes, of which the first is `ahead` tokens after it.
static inline ints seen(long ahead) {
    ints lane;
    for (int i = 0; i < LANES; ++i) lane[i] = i;
    return lane + (int32_t)ahead >= 0;
}

template <bool narrow>
static int forward_of(const Shape &shape, const void *query, const void *key, const void *value, void *out, float *tops,
                      float scale, int threads) {
    const long seq = shape.seq, width = shape.width, deep = units<narrow>(width), wide = up(width, WIDE);
    const long pairs = units<narrow>(seq), heads = shape.batch * shape.heads, pools = shape.batch * shape.kv_heads;
    const long panels = (seq + WIDE - 1) / WIDE;
    const float sign = scale < 0 ? -1.0f : 1.0f, by = scale * sign;
    unit *keys = room(pools * seq * deep), *values = room(pools * wide * pairs);
    if (!keys || !values) {
        std::free(keys);
        std::free(values);
        return 1;
    }
    int failed = 0;
#pragma omp parallel num_threads(threads) reduction(| : failed)
    {
        const long most = deep * WIDE + 2 * KEYS * WIDE + WIDE * wide + width;
        unit *mine = room(most);
        failed |= !mine;
#pragma omp for schedule(static)
        for (long pool = 0; pool < pools; ++pool) {
            if (failed) continue;
            const long sample = pool / shape.kv_heads, head = pool % shape.kv_heads;
            copy_rows<narrow>(shape.at<narrow>(key, 1, sample, head, 0), shape.step(1), seq, width,
                              keys + pool * seq * deep);
            pack<narrow, WIDE>(shape.at<narrow>(value, 2, sample, head, 0), seq, width, shape.step(2),
                               values + pool * wide * pairs, mine);
        }
        unit *queries = mine, *powers = queries + deep * WIDE;
        float *scores = narrow ? (float *)(powers + KEYS * WIDE) : (float *)powers;
        float *sums = (float *)(powers + 2 * KEYS * WIDE);
#pragma omp for schedule(dynamic, 1)
        for (long task = 0; task < heads * panels; ++task) {
            if (failed) continue;
            const long sample = task / panels / shape.heads, head = task / panels % shape.heads;
            const long first = (panels - 1 - task % panels) * WIDE, count = std::min<long>(WIDE, seq - first);
            const long pool = sample * shape.kv_heads + head / shape.group();
            turn<narrow>(shape.at<narrow>(query, 0, sample, head, first), shape.step(0), count, width, queries);
            vec most[2] = {vec{} + LOW, vec{} + LOW}, total[2] = {vec{}, vec{}};
            for (long begin = 0; begin < first + count; begin += KEYS) {
                const long rows = std::min(KEYS, first + count - begin);
                scores_of<narrow>(rows, deep, keys + (pool * seq + begin) * deep, queries, scores);
                vec before[2] = {most[0], most[1]};
                for (long r = 0; r < rows; ++r)
                    for (int j = 0; j < 2; ++j) {
                        float *at = scores + r * WIDE + j * LANES;
                        vec x = load(at) * sign;
                        if (begin + r > first) x = seen(first + j * LANES - begin - r) ? x : vec{} + LOW;
                        store(at, x);
                        most[j] = higher(most[j], x);
                    }
                for (long r = 0; r < up(rows, 2); r += 2)
                    for (int j = 0; j < 2; ++j) {
                        vec two[2] = {vec{}, vec{}};
                        for (long i = r; i < std::min(r + 2, rows); ++i) {
                            vec x = power((load(scores + i * WIDE + j * LANES) - most[j]) * by);
                            if (begin + i > first) x = seen(first + j * LANES - begin - i) ? x : vec{};
                            total[j] = (i == 0 ? total[j] * power((before[j] - most[j]) * by) : total[j]) + x;
                            two[i - r] = x;
                            if (!narrow) store(scores + i * WIDE + j * LANES, x);
                        }
                        if (narrow)
                            *(ints *)(powers + r / 2 * WIDE + j * LANES) =
                                widened(rounded(two[0])) | widened(rounded(two[1])) << 16;
                    }
                if (begin > 0) {
                    alignas(64) float less[WIDE];
                    for (int j = 0; j < 2; ++j) store(less + j * LANES, power((before[j] - most[j]) * by));
                    for (long i = 0; i < count; ++i)
                        for (long d = 0; d < wide; d += LANES)
                            store(sums + i * wide + d, load(sums + i * wide + d) * less[i]);
                }
                turned_product<narrow>(count, wide, powers, values + pool * wide * pairs + units<narrow>(begin) * WIDE,
                                       pairs * WIDE, units<narrow>(rows), sums, begin > 0);
            }
            alignas(64) float top[WIDE], sum[WIDE];
            for (int j = 0; j < 2; ++j) {
                store(top + j * LANES, most[j]);
                store(sum + j * LANES, total[j]);
            }
            for (long i = 0; i < count; ++i) sum[i] = 1.0f / sum[i];
            float *kept = tops + (sample * shape.heads + head) * seq + first;
            std::copy_n(top, count, kept);
            std::copy_n(sum, count, kept + heads * seq);
            write_rows<narrow>(sums, wide, count, width, sum, (char *)shape.at<narrow>(out, 3, sample, head, first),
                               shape.step(3));
        }
        std::free(mine);
    }
    std::free(keys);
    std::free(values);
    return failed;
}

template <bool narrow>
static int backward_of(const Shape &shape, const void *query, const void *key, const void *value, const void *out,
                       const void *grad, const float *tops, void *grad_query, void *grad_key, void *grad_value,
                       float scale, int threads) {
    const long seq = shape.seq, width = shape.width, deep = units<narrow>(width), wide = up(width, WIDE);
    const long pairs = units<narrow>(seq), pools = shape.batch * shape.kv_heads, row = units<narrow>(WIDE);
    const float sign = scale < 0 ? -1.0f : 1.0f, by = scale * sign;
    int failed = 0;
#pragma omp parallel num_threads(threads) reduction(| : failed)
    {
        const long ours[] = {seq * deep,   seq * deep,   wide * pairs, seq * wide,    seq * wide,
                             deep * WIDE,  deep * WIDE,  wide * WIDE,  wide * WIDE,   KEYS * WIDE,
                             KEYS * WIDE,  KEYS * WIDE,  KEYS * WIDE,  KEYS * WIDE,   WIDE * wide + width};
        unit *parts[15], *mine;
        long most = 0;
        for (long each : ours) most += up(each, 16);
        mine = room(most);
        failed |= !mine;
        for (long i = 0, at = 0; i < 15; at += up(ours[i++], 16)) parts[i] = mine + at;
        unit *keys = parts[0], *values = parts[1], *by_key = parts[2];
        float *key_sums = (float *)parts[3], *value_sums = (float *)parts[4];
        unit *queries = parts[5], *grads = parts[6], *by_query = parts[7], *by_grad = parts[8];
        float *scores = (float *)parts[9], *slopes = (float *)parts[10];
        unit *turned = narrow ? parts[11] : (unit *)slopes;  // slopes, in units along the keys
        unit *powers = narrow ? parts[12] : (unit *)scores, *sloped = narrow ? parts[13] : (unit *)slopes;  // by key
        float *sums = (float *)parts[14];
        unit *line = parts[14] + WIDE * wide;
#pragma omp for schedule(dynamic, 1)
        for (long pool = 0; pool < pools; ++pool) {
            if (failed) continue;
            const long sample = pool / shape.kv_heads, own = pool % shape.kv_heads;
            copy_rows<narrow>(shape.at<narrow>(key, 1, sample, own, 0), shape.step(1), seq, width, keys);
            copy_rows<narrow>(shape.at<narrow>(value, 2, sample, own, 0), shape.step(2), seq, width, values);
            pack<narrow, WIDE>(shape.at<narrow>(key, 1, sample, own, 0), seq, width, shape.step(1), by_key, line);
            std::memset(key_sums, 0, seq * wide * 4);
            std::memset(value_sums, 0, seq * wide * 4);
            for (long head = own * shape.group(); head < (own + 1) * shape.group(); ++head)
                for (long first = 0; first < seq; first += WIDE) {
                    const long count = std::min<long>(WIDE, seq - first), some = units<narrow>(count);
                    const char *asked = shape.at<narrow>(query, 0, sample, head, first);
                    const char *found = shape.at<narrow>(out, 3, sample, head, first);
                    const char *slope = shape.at<narrow>(grad, 4, sample, head, first);
                    turn<narrow>(asked, shape.step(0), count, width, queries);
                    turn<narrow>(slope, shape.step(4), count, width, grads);
                    pack<narrow, WIDE>(asked, count, width, shape.step(0), by_query, line);
                    pack<narrow, WIDE>(slope, count, width, shape.step(4), by_grad, line);
                    alignas(64) float top[WIDE] = {}, share[WIDE] = {}, less[WIDE] = {};
                    const float *kept = tops + (sample * shape.heads + head) * seq + first;
                    std::copy_n(kept, count, top);
                    std::copy_n(kept + shape.batch * shape.heads * seq, count, share);
                    for (long i = 0; i < count; ++i) {
                        const char *one = found + i * shape.step(3) * (narrow ? 2 : 4);
                        const char *other = slope + i * shape.step(4) * (narrow ? 2 : 4);
                        vec sum{};
                        long k = 0;
                        for (; k + LANES <= width; k += LANES)
                            sum += narrow ? number(*(const halves *)(one + 2 * k)) * number(*(const halves *)(other + 2 * k))
                                          : load((const float *)one + k) * load((const float *)other + k);
                        for (; k < width; ++k) less[i] += number_at<narrow>(one, k) * number_at<narrow>(other, k);
                        for (int lane = 0; lane < LANES; ++lane) less[i] += sum[lane];
                    }
                    for (long begin = 0; begin < first + count; begin += KEYS) {
                        const long rows = std::min(KEYS, first + count - begin);
                        scores_of<narrow>(rows, deep, keys + begin * deep, queries, scores);
                        scores_of<narrow>(rows, deep, values + begin * deep, grads, slopes);
                        for (long r = 0; r < up(rows, 2); r += 2)
                            for (int j = 0; j < 2; ++j) {
                                const vec most = load(top + j * LANES), part = load(share + j * LANES);
                                const vec minus = load(less + j * LANES);
                                halves two[2] = {halves{}, halves{}};
                                for (long i = r; i < std::min(r + 2, rows); ++i) {
                                    const long at = i * WIDE + j * LANES;
                                    vec x = power((load(scores + at) * sign - most) * by) * part;
                                    if (begin + i > first) x = seen(first + j * LANES - begin - i) ? x : vec{};
                                    const vec y = x * (load(slopes + at) - minus) * scale;
                                    if (narrow) {
                                        *(halves *)((half *)powers + at) = rounded(x);
                                        *(halves *)((half *)sloped + at) = two[i - r] = rounded(y);
                                    } else {
                                        store(scores + at, x);
                                        store(slopes + at, y);
                                    }
                                }
                                if (narrow)
                                    *(ints *)(turned + r / 2 * WIDE + j * LANES) = widened(two[0]) | widened(two[1]) << 16;
                            }
                        for (long d = 0; d < wide; d += WIDE) {
                            const long at = begin * wide + d;
                            panel<narrow>(rows, WIDE, powers, row, by_grad + d * some, some, value_sums + at, wide, true);
                            panel<narrow>(rows, WIDE, sloped, row, by_query + d * some, some, key_sums + at, wide, true);
                        }
                        turned_product<narrow>(count, wide, turned, by_key + units<narrow>(begin) * WIDE, pairs * WIDE,
                                               units<narrow>(rows), sums, begin > 0);
                    }
                    write_rows<narrow>(sums, wide, count, width, nullptr,
                                       (char *)shape.at<narrow>(grad_query, 5, sample, head, first), shape.step(5));
                }
            write_rows<narrow>(key_sums, wide, seq, width, nullptr,
                               (char *)shape.at<narrow>(grad_key, 6, sample, own, 0), shape.step(6));
            write_rows<narrow>(value_sums, wide, seq, width, nullptr,
                               (char *)shape.at<narrow>(grad_value, 7, sample, own, 0), shape.step(7));
        }
        std::free(mine);
    }
    return failed;
}

extern "C" {

int attention_of_bf16() { return NARROW; }

// query, out: [batch, heads, seq, width], key, value: [batch, kv_heads, seq, width], of fp32 or, if narrow, of bf16; the
// width is contiguous. sizes: batch, heads, kv_heads, seq, width. strides: see Shape, of query, key, value and out. tops:
// [2, batch, heads, seq], of each query the highest score before it is scaled, and 1 over the sum of powers below it: a
// score is the same in both passes, so what is left of it below the highest has no error of a large score.
int attention_forward(const void *query, const void *key, const void *value, void *out, float *tops,
                      const int64_t *sizes, const int64_t *strides, float scale, int threads, int narrow) {
    const Shape shape{sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], strides};
    return (narrow ? forward_of<NARROW> : forward_of<false>)(shape, query, key, value, out, tops, scale, threads);
}

// grad: like out. strides: also of grad and of the three gradients, which are like query, key and value.
int attention_backward(const void *query, const void *key, const void *value, const void *out, const void *grad,
                       const float *tops, void *grad_query, void *grad_key, void *grad_value, const int64_t *sizes,
                       const int64_t *strides, float scale, int threads, int narrow) {
    const Shape shape{sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], strides};
    return (narrow ? backward_of<NARROW> : backward_of<false>)(shape, query, key, value, out, grad, tops, grad_query,
                                                               grad_key, grad_value, scale, threads);
}
}
