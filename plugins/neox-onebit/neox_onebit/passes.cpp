// What neox_onebit/passes.py does, in one pass over memory each. Packed, a block is its signs, 32 to a word, and a
// word that is its scale.

static const long WORD = 32;

static void add(float *__restrict__ block, const unsigned *__restrict__ row, long words, float scale) {
    for (long w = 0; w < words; ++w)
#pragma omp simd
        for (long j = 0; j < WORD; ++j) block[w * WORD + j] += (row[w] >> j) & 1u ? scale : -scale;
}

extern "C" void pack(float *blocks, const float *used, unsigned *packed, long rows, long size, int threads) {
    const long words = size / WORD;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (long i = 0; i < rows; ++i) {
        float *__restrict__ block = blocks + i * size;
        unsigned *__restrict__ row = packed + i * (words + 1);
        const long count = (long)used[i];
        if (!count) {
            for (long w = 0; w <= words; ++w) row[w] = 0;
            continue;
        }
        float total = 0.0f;
#pragma omp simd reduction(+ : total)
        for (long j = 0; j < size; ++j) total += j < count ? __builtin_fabsf(block[j]) : 0.0f;
        for (long w = 0; w < words; ++w) {
            unsigned signs = 0;
#pragma omp simd reduction(| : signs)
            for (long j = 0; j < WORD; ++j) signs |= (block[w * WORD + j] >= 0.0f ? 1u : 0u) << j;
            row[w] = signs;
        }
        const float scale = total / (float)count;
        __builtin_memcpy(row + words, &scale, sizeof scale);
        add(block, row, words, -scale);
        for (long j = count; j < size; ++j) block[j] = 0.0f;
    }
}

extern "C" void unpack(const unsigned *packed, float *blocks, long ranks, long rows, long size, int threads) {
    const long words = size / WORD;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (long i = 0; i < rows; ++i)
        for (long rank = 0; rank < ranks; ++rank) {
            const unsigned *row = packed + (rank * rows + i) * (words + 1);
            float scale;
            __builtin_memcpy(&scale, row + words, sizeof scale);
            add(blocks + i * size, row, words, scale / (float)ranks);
        }
}

extern "C" void move(float *__restrict__ weight, const float *__restrict__ momentum, const float *__restrict__ variance,
                     long count, float kept, float rate, float root, float eps, int threads) {
#pragma omp parallel for simd num_threads(threads) schedule(static)
    for (long i = 0; i < count; ++i)
        weight[i] = kept * weight[i] - rate * momentum[i] / (__builtin_sqrtf(variance[i]) * root + eps);
}
