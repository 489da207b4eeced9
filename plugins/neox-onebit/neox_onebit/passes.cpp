// What neox_onebit/passes.py does, in one pass over memory each. A row is 512 signs and a scale: 17 words of 32 bits.

static const long BLOCK = 512, WORD = 32, WORDS = BLOCK / WORD, ROW = WORDS + 1;

static float scale_of(const unsigned *row) {
    float scale;
    __builtin_memcpy(&scale, row + WORDS, sizeof scale);
    return scale;
}

static void add(float *__restrict__ block, const unsigned *__restrict__ row, float scale) {
    for (long w = 0; w < WORDS; ++w)
#pragma omp simd
        for (long j = 0; j < WORD; ++j) block[w * WORD + j] += (row[w] >> j) & 1u ? scale : -scale;
}

extern "C" void pack(float *blocks, const float *used, unsigned *packed, long rows, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (long i = 0; i < rows; ++i) {
        float *__restrict__ block = blocks + i * BLOCK;
        unsigned *__restrict__ row = packed + i * ROW;
        const long count = (long)used[i];
        if (!count) {
            for (long w = 0; w < ROW; ++w) row[w] = 0;
            continue;
        }
        float total = 0.0f;
#pragma omp simd reduction(+ : total)
        for (long j = 0; j < BLOCK; ++j) total += j < count ? __builtin_fabsf(block[j]) : 0.0f;
        for (long w = 0; w < WORDS; ++w) {
            unsigned signs = 0;
#pragma omp simd reduction(| : signs)
            for (long j = 0; j < WORD; ++j) signs |= (block[w * WORD + j] >= 0.0f ? 1u : 0u) << j;
            row[w] = signs;
        }
        const float scale = total / (float)count;
        __builtin_memcpy(row + WORDS, &scale, sizeof scale);
        add(block, row, -scale);
        for (long j = count; j < BLOCK; ++j) block[j] = 0.0f;
    }
}

extern "C" void unpack(const unsigned *packed, float *blocks, long ranks, long rows, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (long i = 0; i < rows; ++i)
        for (long rank = 0; rank < ranks; ++rank) {
            const unsigned *row = packed + (rank * rows + i) * ROW;
            add(blocks + i * BLOCK, row, scale_of(row) / (float)ranks);
        }
}

extern "C" void move(float *__restrict__ weight, const float *__restrict__ momentum, const float *__restrict__ variance,
                     long count, float kept, float rate, float root, float eps, int threads) {
#pragma omp parallel for simd num_threads(threads) schedule(static)
    for (long i = 0; i < count; ++i)
        weight[i] = kept * weight[i] - rate * momentum[i] / (__builtin_sqrtf(variance[i]) * root + eps);
}
