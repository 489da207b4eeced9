#include <cstdint>
#include <vector>

// To be compiled without fused multiply-add, which rounds once where GPT-NeoX rounds twice.
extern "C" void blend(const double* weights, int64_t datasets, int64_t samples, uint8_t* turns, int64_t* places) {
    std::vector<int64_t> taken(datasets, 0);
    for (int64_t sample = 0; sample < samples; ++sample) {
        const double before = sample > 1 ? static_cast<double>(sample) : 1.0;
        int64_t furthest = 0;
        double most = weights[0] * before - static_cast<double>(taken[0]);
        for (int64_t dataset = 1; dataset < datasets; ++dataset) {
            const double lag = weights[dataset] * before - static_cast<double>(taken[dataset]);
            if (lag > most) {
                most = lag;
                furthest = dataset;
            }
        }
        turns[sample] = static_cast<uint8_t>(furthest);
        places[sample] = taken[furthest]++;
    }
}
