// SM3 over the rows of a matrix, one pass: reads weight and gradient, writes weight; momentum may be null.
//
// rows: bound of each row, read and written. columns: bound of each column. grown: [threads, width], the new bounds of
// the columns as each thread saw them; zero at the start, or with beta the old bounds in those of one thread: then
// fresh is below 1, and a bound keeps its largest so far.

static void move(float *__restrict__ weight, const float *__restrict__ grad, const float *__restrict__ columns,
                 float *__restrict__ grown, float *__restrict__ row, long width, float lr, float kept, float old,
                 float fresh, float eps) {
    const float bound = *row;
    float highest = fresh < 1.0f ? bound : 0.0f;
#pragma omp simd reduction(max : highest)
    for (long j = 0; j < width; ++j) {
        const float slope = grad[j];
        const float square = old * (bound < columns[j] ? bound : columns[j]) + fresh * slope * slope;
        highest = highest > square ? highest : square;
        grown[j] = grown[j] > square ? grown[j] : square;
        weight[j] = kept * weight[j] - lr * slope / __builtin_sqrtf(square + eps);
    }
    *row = highest;
}

static void move_on(float *__restrict__ weight, const float *__restrict__ grad, const float *__restrict__ columns,
                    float *__restrict__ grown, float *__restrict__ row, float *__restrict__ momentum, long width,
                    float lr, float kept, float old, float fresh, float eps, float again) {
    const float bound = *row;
    float highest = fresh < 1.0f ? bound : 0.0f;
#pragma omp simd reduction(max : highest)
    for (long j = 0; j < width; ++j) {
        const float slope = grad[j];
        const float square = old * (bound < columns[j] ? bound : columns[j]) + fresh * slope * slope;
        highest = highest > square ? highest : square;
        grown[j] = grown[j] > square ? grown[j] : square;
        momentum[j] = again * momentum[j] + (1.0f - again) * slope / __builtin_sqrtf(square + eps);
        weight[j] = kept * weight[j] - lr * momentum[j];
    }
    *row = highest;
}

extern "C" void sm3(float *weight, const float *grad, float *rows, const float *columns, float *grown, float *momentum,
                    long height, long width, float lr, float kept, float beta, float eps, float again, int threads) {
    const float old = beta > 0.0f ? beta : 1.0f, fresh = 1.0f - beta;
#pragma omp parallel for num_threads(threads) schedule(static, 1)
    for (int thread = 0; thread < threads; ++thread) {
        const long first = height * thread / threads, last = height * (thread + 1) / threads;
        for (long i = first; i < last; ++i) {
            float *own = grown + thread * width;
            if (momentum)
                move_on(weight + i * width, grad + i * width, columns, own, rows + i, momentum + i * width, width, lr,
                        kept, old, fresh, eps, again);
            else
                move(weight + i * width, grad + i * width, columns, own, rows + i, width, lr, kept, old, fresh, eps);
        }
    }
}
