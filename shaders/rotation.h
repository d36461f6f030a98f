// rotation.h: rotary position embeddings

// How element i of a head turns. Of a pair (a, b) element a becomes a*c - b*s, and b becomes b*c + a*s, with (c, s) from a row of the table: half
// cosines, then half sines; s has its sign here. The first rotaryDim elements are pairs.
struct Turn { uint other; float c, s; };

inline Turn turn_of(device const float *table, uint i, uint rotaryDim, uint interleaved) {
    uint half_dim = rotaryDim / 2;
    uint pair = interleaved != 0 ? i / 2 : i % half_dim;
    bool first = interleaved != 0 ? i % 2 == 0 : i < half_dim;
    uint other = interleaved != 0 ? i ^ 1 : (first ? i + half_dim : i - half_dim);
    float c = table[pair], s = table[half_dim + pair];
    return {other, c, first ? -s : s};
}

inline float turned(float x, float other, Turn t) { return fma(x, t.c, other * t.s); }

// Element i of a head x, turned; elements from rotaryDim on are copied.
template <typename T>
inline T rotated(device const T *x, device const float *table, uint i, uint rotaryDim, uint interleaved) {
    if (i >= rotaryDim) return x[i];
    Turn t = turn_of(table, i, rotaryDim, interleaved);
    return T(turned(float(x[i]), float(x[t.other]), t));
}
