// gate_up.metal
#include <metal_stdlib>
using namespace metal;
#pragma METAL fp math_mode(safe)
#pragma METAL fp contract(off)

#include "gemv.h"
#include "activation.h"

struct GateUpArgs { uint rows, cols, function; };

// The gate's and the up projection of one token and the activation in one: out[n] = function(x . gate[n]) * (x . up[n]). A simdgroup computes
// four rows n of each, in linear.metal's order; what the three kernels would have written is rounded to T here, too: the bits are theirs.
// Weights without scale bind their scales to themselves.
template <typename T, typename W>
[[kernel]] void gate_up(device T *out [[buffer(0)]], device const T *x [[buffer(1)]],
                        device const W *gate [[buffer(2)]], device const float *gateScale [[buffer(3)]],
                        device const W *up [[buffer(4)]], device const float *upScale [[buffer(5)]],
                        constant GateUpArgs &args [[buffer(6)]], uint group [[threadgroup_position_in_grid]],
                        uint simd [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
    constexpr uint ROWS = 4;
    threadgroup float4 partial[4 * 2 * ROWS * LANES]; // by simdgroup
    uint apart = (args.rows + ROWS - 1) / ROWS, n = group * 4 + simd;
    if (n >= apart) return;
    Rows<W, ROWS> gates = rows_of<W, ROWS>(gate, gateScale, n, apart, args.rows, args.cols);
    Rows<W, ROWS> ups = rows_of<W, ROWS>(up, upScale, n, apart, args.rows, args.cols);
    Rows<W, 2 * ROWS> rows;
    for (uint i = 0; i < ROWS; i++) {
        rows.at[i] = gates.at[i];
        rows.scale[i] = gates.scale[i];
        rows.at[ROWS + i] = ups.at[i];
        rows.scale[ROWS + i] = ups.scale[i];
    }
    Rows<T, 1> token = rows_of<T, 1>(x, gateScale, 0, 1, 1, args.cols);
    threadgroup float4 *mine = partial + simd * 2 * ROWS * LANES;
    put(mine, products(token, rows, args.cols, lane), lane);
    simdgroup_barrier(mem_flags::mem_threadgroup);
    uint row = n + lane * apart;
    if (lane < ROWS && row < args.rows) {
        float v = activation(args.function, float(T(total(mine, lane))));
        out[row] = T(v * float(T(total(mine, ROWS + lane))));
    }
}

template [[host_name("gate_up_f32_f32")]] [[kernel]] decltype(gate_up<float, float>) gate_up<float, float>;
template [[host_name("gate_up_f32_f16")]] [[kernel]] decltype(gate_up<float, half>) gate_up<float, half>;
template [[host_name("gate_up_f32_bf16")]] [[kernel]] decltype(gate_up<float, ushort>) gate_up<float, ushort>;
template [[host_name("gate_up_f32_i8")]] [[kernel]] decltype(gate_up<float, char>) gate_up<float, char>;
template [[host_name("gate_up_f16_f32")]] [[kernel]] decltype(gate_up<half, float>) gate_up<half, float>;
template [[host_name("gate_up_f16_f16")]] [[kernel]] decltype(gate_up<half, half>) gate_up<half, half>;
template [[host_name("gate_up_f16_bf16")]] [[kernel]] decltype(gate_up<half, ushort>) gate_up<half, ushort>;
template [[host_name("gate_up_f16_i8")]] [[kernel]] decltype(gate_up<half, char>) gate_up<half, char>;

#if __METAL_VERSION__ >= 310 // bfloat
template [[host_name("gate_up_bf16_f32")]] [[kernel]] decltype(gate_up<bfloat, float>) gate_up<bfloat, float>;
template [[host_name("gate_up_bf16_f16")]] [[kernel]] decltype(gate_up<bfloat, half>) gate_up<bfloat, half>;
template [[host_name("gate_up_bf16_bf16")]] [[kernel]] decltype(gate_up<bfloat, ushort>) gate_up<bfloat, ushort>;
template [[host_name("gate_up_bf16_i8")]] [[kernel]] decltype(gate_up<bfloat, char>) gate_up<bfloat, char>;
#endif
