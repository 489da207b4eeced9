// Tiles of matrix products in registers, for one processor's vectors, and what they read: packed numbers.
//
// Products are of fp32, or of bf16 where the processor multiplies it, and added up in fp32. They take their operands in
// units of 32 bits: a number of fp32, or two of bf16 that are neighbours in the sum.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
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
constexpr long DEEP = 256;      // of a sum, at once

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

// Of a row of fp32 or of bf16.
template <bool narrow>
static inline float number_at(const void *row, long k) {
    if (!narrow) return ((const real *)row)[k];
    const int32_t bits = (int32_t)((const half *)row)[k] << 16;
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
}

// Units of so many numbers that are added up.
template <bool narrow>
constexpr long units(long count) {
    return narrow ? (count + 1) / 2 : count;
}

// c [high, WIDE] (+)= a [high, deep] b [deep, WIDE], in units; the strides of a are given, b is packed. Where a row of
// a goes on in another panel of WIDE numbers, that is `skip` units behind the end of the one before.
template <bool narrow, int high>
static inline void tile(const unit *a, long a_row, long a_step, const unit *b, long deep, float *c, long c_row,
                        bool add, long skip) {
    vec sum[high][2];
#pragma GCC unroll 16
    for (int i = 0; i < high; ++i) {
        sum[i][0] = sum[i][1] = vec{};
        __builtin_prefetch(c + i * c_row, 1);
        __builtin_prefetch(c + i * c_row + LANES, 1);
    }
    for (long k = 0; k < deep; ++k) {
        const vec b0 = *(const vec *)(b + k * WIDE), b1 = *(const vec *)(b + k * WIDE + LANES);
        const unit *column = a + k * a_step + k / units<narrow>(WIDE) * skip;
#pragma GCC unroll 16
        for (int i = 0; i < high; ++i) {
            const unit *at = column + i * a_row;
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

// In bf16 a function of its own: GCC 12 keeps the sums in registers there, and not in every caller.
template <int high>
__attribute__((noinline)) static void tile_of_pairs(const unit *a, long a_row, long a_step, const unit *b, long deep,
                                                    float *c, long c_row, bool add, long skip) {
    tile<true, high>(a, a_row, a_step, b, deep, c, c_row, add, skip);
}

// Of the last rows: not part of each caller, of which a compiler makes one for each number of rows.
template <bool narrow, int high>
__attribute__((noinline)) static void last_tile(long left, const unit *a, long a_row, long a_step, const unit *b,
                                                long deep, float *c, long c_row, bool add, long skip) {
    if constexpr (high > 0) {
        if (left >= high) tile<narrow, high>(a, a_row, a_step, b, deep, c, c_row, add, skip);
        else last_tile<narrow, high - 1>(left, a, a_row, a_step, b, deep, c, c_row, add, skip);
    }
}

// The same of `left` rows, of which it takes HIGH at most.
template <bool narrow>
static void tiles(long left, const unit *a, long a_row, long a_step, const unit *b, long deep, float *c, long c_row,
                  bool add, long skip = 0) {
    if (left < HIGH) last_tile<narrow, HIGH - 1>(left, a, a_row, a_step, b, deep, c, c_row, add, skip);
    else if constexpr (narrow) tile_of_pairs<HIGH>(a, a_row, a_step, b, deep, c, c_row, add, skip);
    else tile<narrow, HIGH>(a, a_row, a_step, b, deep, c, c_row, add, skip);
}

// Memory that is needed next, fetched into the cache a little at each of so many tiles.
struct Ahead {
    const char *at;
    long left, step;

    Ahead(const void *from, long bytes, long tiles) : at((const char *)from), left(bytes), step(bytes / tiles + 64) {}

    void fetch() {
        for (const char *end = at + std::min(step, left); at < end; at += 64, left -= 64) __builtin_prefetch(at, 0, 2);
    }
};

// c [rows, columns <= WIDE] (+)= a b for one packed panel b. a: rows of `a_row` units, or packed, panels of HIGH rows.
template <bool narrow>
static void panel(long rows, long columns, const unit *a, long a_row, const unit *b, long deep, float *c, long c_row,
                  bool add, long skip = 0, std::initializer_list<Ahead *> ahead = {}) {
    const bool packed = a_row == 0;
    float part[HIGH * WIDE];
    for (long i = 0; i < rows; i += HIGH) {
        for (Ahead *each : ahead) each->fetch();
        const unit *from = a + i * (packed ? deep : a_row);
        const long high = std::min<long>(HIGH, rows - i), row = packed ? 1 : a_row, step = packed ? HIGH : 1;
        if (columns == WIDE) {
            tiles<narrow>(high, from, row, step, b, deep, c + i * c_row, c_row, add, skip);
            continue;
        }
        for (long r = 0; add && r < high; ++r) std::copy_n(c + (i + r) * c_row, columns, part + r * WIDE);
        tiles<narrow>(high, from, row, step, b, deep, part, WIDE, add, skip);
        for (long r = 0; r < high; ++r) std::copy_n(part + r * WIDE, columns, c + (i + r) * c_row);
    }
}

// x [rows, columns], with `row` numbers from one row to the next, as panels of `wide` columns, [units of rows, wide],
// zeros beyond the last row and column. line: room for `columns` units.
template <bool narrow, int wide>
static void pack(const void *x, long rows, long columns, long row, unit *out, unit *line) {
    const long deep = units<narrow>(rows);
    for (long u = 0; u < deep; ++u) {
        const unit *from = (const unit *)x + u * row;
        if (narrow) {
            const half *one = (const half *)x + 2 * u * row, *other = one + row;
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
