// rms.h: what the norms of several kernels have in common

// 1 / sqrt(mean(x^2) + eps). A simdgroup computes it together: each lane adds up its stride of the squares, simd_sum adds the lanes.
template <typename T>
inline float inverse_rms(device const T *x, uint dim, float eps, uint lane) {
    float sum = 0.0f;
    for (uint i = lane; i < dim; i += 32) {
        float v = float(x[i]);
        sum = fma(v, v, sum);
    }
    return precise::rsqrt(simd_sum(sum) / float(dim) + eps);
}
