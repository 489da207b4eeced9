// Lion over a run of elements, one pass: reads weight, gradient and buffer, writes weight and buffer.

extern "C" void lion(float *__restrict__ weight, const float *__restrict__ grad, float *__restrict__ buffer, long count,
                     float lr, float kept, float beta1, float beta2, int threads) {
#pragma omp parallel for simd num_threads(threads) schedule(static)
    for (long i = 0; i < count; ++i) {
        const float mean = beta1 * buffer[i] + (1.0f - beta1) * grad[i];
        const float sign = (mean > 0.0f ? 1.0f : 0.0f) - (mean < 0.0f ? 1.0f : 0.0f);
        weight[i] = kept * weight[i] - lr * sign;
        buffer[i] = beta2 * buffer[i] + (1.0f - beta2) * grad[i];
    }
}
