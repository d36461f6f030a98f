// attention.metal
#include <metal_stdlib>
using namespace metal;
#pragma METAL fp math_mode(safe)
#pragma METAL fp contract(off)

#include "gemv.h"

struct AttentionArgs { uint first, rows, group, dim, qStride, kStride; float scale; };

// Elements i to i+3 of a row of n, 0 from n on.
template <typename T>
inline float4 quad(device const T *row, uint i, uint n) { return i + 4 <= n ? load(row + i) : load_last(row + i, n - i); }

// What a lane has of a query's weighted sum of values: four elements, and four more from element 128 on.
struct Sum { float4 low, high; };

inline void add_value(thread Sum &sum, float weight, float4 low, float4 high) {
    sum.low = fma(float4(weight), low, sum.low);
    sum.high = fma(float4(weight), high, sum.high);
}

inline void scale_by(thread Sum &sum, float factor) {
    sum.low *= factor;
    sum.high *= factor;
}

// scores, softmax and context in one, without the matrix of scores: out[t,h] = sum over j of p[j] * v[j,h/group], where p is the softmax
// of scale * (q[t,h] . k[j,h/group]) over the keys [0, first+t) that row t attends to. A softmax may be taken against any number
// in place of the maximum: this takes the largest score so far, and scales down what it has when a larger one comes (Milakov and
// Gimelshein, arXiv:1805.02867; Dao et al., arXiv:2205.14135).
//
// A query is a head of a row; all queries of a KV head, row by row, are numbered. A threadgroup takes QUERIES of them, 1 or 4, and its
// simdgroups take turns at blocks of keys. In a block each lane scores 4 pairs: 4 keys of a single query, or 4 queries with one key.
// Then the lanes change parts: `wide` of them hold the elements of a value, four each and four more, and there are 32/wide such parts, which
// take turns at the block's keys. In the end all parts of all simdgroups are brought to one maximum and added. No row sees a key, or a
// value, that it does not attend to, be it NaN. dim is at most 256; k and v begin at the first key that any row attends to.
template <typename T, uint QUERIES>
[[kernel]] void attention(device T *out [[buffer(0)]], device const T *q [[buffer(1)]], device const T *k [[buffer(2)]],
                          device const T *v [[buffer(3)]], constant AttentionArgs &args [[buffer(4)]],
                          uint2 at [[threadgroup_position_in_grid]], uint2 groups [[threadgroups_per_grid]],
                          uint simd [[simdgroup_index_in_threadgroup]],
                          uint simds [[simdgroups_per_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
    threadgroup float4 queries[QUERIES * 64];
    threadgroup float4 shared[8 * 64]; // of each simdgroup: the weights of two blocks, then its sums
    threadgroup float4 tops[8];
    threadgroup float4 totals[8];
    uint dim = args.dim, quads = (dim + 3) / 4, kv = at.x, thread_index = simd * 32 + lane, last = args.rows * args.group - 1;
    for (uint i = thread_index; i < QUERIES * quads; i += simds * 32) {
        uint query = min(at.y * QUERIES + i / quads, last), e = i % quads * 4;
        device const T *row = q + ulong(query / args.group) * args.qStride + (kv * args.group + query % args.group) * dim;
        queries[i / quads * 64 + e / 4] = quad(row, e, dim);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    uint wide = 32;
    while (wide > 1 && wide * 2 >= dim) wide /= 2;
    uint part = lane / wide, element = lane % wide * 4, parts = 32 / wide;
    uint4 ends = uint4(args.first + min(at.y * QUERIES, last) / args.group); // a query attends to the keys before
    if (QUERIES == 4) ends = args.first + min(at.y * QUERIES + uint4(0, 1, 2, 3), uint4(last)) / args.group;
    k += kv * dim;
    v += kv * dim;
    const float lowest = -3.4028235e38f; // float's least finite number
    float4 top = float4(lowest), total = float4(0.0f);
    Sum sum0 = {float4(0.0f), float4(0.0f)}, sum1 = sum0, sum2 = sum0, sum3 = sum0;
    const uint block = QUERIES == 1 ? 128 : 32;
    for (uint begin = simd * block; begin < ends.w; begin += simds * block) {
        // Blocks take turns at two places for weights, so that one barrier a block keeps readers and writers apart.
        threadgroup float4 *weights = shared + simd * 64 + begin / block / simds % 2 * 32;
        threadgroup float *flat = reinterpret_cast<threadgroup float *>(weights);
        uint4 key = QUERIES == 1 ? begin + lane + uint4(0, 32, 64, 96) : uint4(begin + lane);
        uint4 row = min(key, uint4(ends.w - 1)); // past the end, the last key again
        device const T *k0 = k + ulong(row.x) * args.kStride, *k1 = k + ulong(row.y) * args.kStride;
        device const T *k2 = k + ulong(row.z) * args.kStride, *k3 = k + ulong(row.w) * args.kStride;
        float4 dot0 = float4(0.0f), dot1 = dot0, dot2 = dot0, dot3 = dot0;
        for (uint i = 0; i < dim; i += 4) {
            float4 a = queries[i / 4], x = quad(k0, i, dim);
            dot0 = fma(a, x, dot0);
            if (QUERIES == 1) {
                dot1 = fma(a, quad(k1, i, dim), dot1);
                dot2 = fma(a, quad(k2, i, dim), dot2);
                dot3 = fma(a, quad(k3, i, dim), dot3);
            } else {
                dot1 = fma(queries[64 + i / 4], x, dot1);
                dot2 = fma(queries[128 + i / 4], x, dot2);
                dot3 = fma(queries[192 + i / 4], x, dot3);
            }
        }
        float4 score = args.scale * float4(across(dot0), across(dot1), across(dot2), across(dot3));
        bool4 seen = key < ends;
        float4 highest = select(float4(lowest), score, seen);
        if (QUERIES == 1) highest = float4(max(max(highest.x, highest.y), max(highest.z, highest.w)));
        float4 next = max(top, simd_max(highest));
        if (any(next > top)) { // the same for all lanes
            float4 shrink = precise::exp(top - next);
            total *= shrink;
            scale_by(sum0, shrink.x);
            if (QUERIES == 4) {
                scale_by(sum1, shrink.y);
                scale_by(sum2, shrink.z);
                scale_by(sum3, shrink.w);
            }
            top = next;
        }
        float4 p = select(float4(0.0f), precise::exp(score - top), seen);
        total += p;
        if (QUERIES == 1) {
            flat[lane] = p.x;
            flat[lane + 32] = p.y;
            flat[lane + 64] = p.z;
            flat[lane + 96] = p.w;
        } else {
            weights[lane] = p;
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);
        uint end = min(begin + block, ends.w);
        for (uint j = begin + part; j < end && element < dim; j += parts) {
            device const T *value = v + ulong(j) * args.kStride;
            float4 low = quad(value, element, dim), high = float4(0.0f);
            if (element + 128 < dim) high = quad(value, element + 128, dim);
            if (QUERIES == 1) {
                add_value(sum0, flat[j - begin], low, high);
            } else {
                float4 w = weights[j - begin];
                if (j < ends.x) add_value(sum0, w.x, low, high);
                if (j < ends.y) add_value(sum1, w.y, low, high);
                if (j < ends.z) add_value(sum2, w.z, low, high);
                add_value(sum3, w.w, low, high);
            }
        }
    }

    if (QUERIES == 1) total = float4(across(total));
    total = simd_sum(total);
    if (lane == 0) {
        tops[simd] = top;
        totals[simd] = total;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float4 all = tops[0];
    for (uint s = 1; s < simds; s++) all = max(all, tops[s]);
    total = float4(0.0f);
    for (uint s = 0; s < simds; s++) total = fma(totals[s], precise::exp(tops[s] - all), total);
    float4 shrink = precise::exp(top - all);
    for (uint c = 0; c < QUERIES; c++) {
        Sum mine = c == 0 ? sum0 : c == 1 ? sum1 : c == 2 ? sum2 : sum3;
        shared[simd * 64 + lane] = mine.low * shrink[c];
        if (parts == 1) shared[simd * 64 + 32 + lane] = mine.high * shrink[c];
        threadgroup_barrier(mem_flags::mem_threadgroup);
        uint query = at.y * QUERIES + c;
        for (uint u = thread_index; u < quads && query <= last; u += simds * 32) {
            float4 sum = float4(0.0f);
            for (uint s = 0; s < simds; s++) {
                for (uint i = 0; i < parts; i++) sum += shared[s * 64 + i * wide + u];
            }
            sum /= total[c];
            device T *to = out + ((ulong(query / args.group) * groups.x + kv) * args.group + query % args.group) * dim + u * 4;
            to[0] = T(sum.x);
            if (u * 4 + 1 < dim) to[1] = T(sum.y);
            if (u * 4 + 2 < dim) to[2] = T(sum.z);
            if (u * 4 + 3 < dim) to[3] = T(sum.w);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
}

template [[host_name("attention_f32")]] [[kernel]] decltype(attention<float, 1>) attention<float, 1>;
template [[host_name("attention_f16")]] [[kernel]] decltype(attention<half, 1>) attention<half, 1>;
template [[host_name("attention4_f32")]] [[kernel]] decltype(attention<float, 4>) attention<float, 4>;
template [[host_name("attention4_f16")]] [[kernel]] decltype(attention<half, 4>) attention<half, 4>;

#if __METAL_VERSION__ >= 310 // bfloat
template [[host_name("attention_bf16")]] [[kernel]] decltype(attention<bfloat, 1>) attention<bfloat, 1>;
template [[host_name("attention4_bf16")]] [[kernel]] decltype(attention<bfloat, 4>) attention<bfloat, 4>;
#endif
