// Lamb over a run of elements, in two passes: the trust ratio is of the whole update.

static inline float update_of(float weight, float mean, float square, float correct1, float correct2, float eps,
                              float decay) {
    return mean / correct1 / (__builtin_sqrtf(square / correct2) + eps) + decay * weight;
}

// The moments; returns in `sums` the squared norms of weight and update.
extern "C" void lamb_moments(const float *__restrict__ weight, const float *__restrict__ grad, float *__restrict__ mean,
                             float *__restrict__ square, double *sums, long count, float beta1, float beta2,
                             float correct1, float correct2, float eps, float decay, int threads) {
    double weights = 0.0, updates = 0.0;
#pragma omp parallel for simd num_threads(threads) schedule(static) reduction(+ : weights, updates)
    for (long i = 0; i < count; ++i) {
        mean[i] = beta1 * mean[i] + (1.0f - beta1) * grad[i];
        square[i] = beta2 * square[i] + (1.0f - beta2) * grad[i] * grad[i];
        const float update = update_of(weight[i], mean[i], square[i], correct1, correct2, eps, decay);
        weights += (double)weight[i] * weight[i];
        updates += (double)update * update;
    }
    sums[0] = weights;
    sums[1] = updates;
}

extern "C" void lamb_move(float *__restrict__ weight, const float *__restrict__ mean, const float *__restrict__ square,
                          long count, float rate, float correct1, float correct2, float eps, float decay, int threads) {
#pragma omp parallel for simd num_threads(threads) schedule(static)
    for (long i = 0; i < count; ++i)
        weight[i] -= rate * update_of(weight[i], mean[i], square[i], correct1, correct2, eps, decay);
}
