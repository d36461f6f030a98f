// rotation.h: rotary position embeddings

// Element i of a head x, of whose pairs (a, b) the first rotaryDim elements are made: a*c - b*s or b*c + a*s, with (c, s) from a row of
// the table: half cosines, then half sines. Elements from rotaryDim on are copied.
template <typename T>
inline T rotated(device const T *x, device const float *table, uint i, uint rotaryDim, uint interleaved) {
    if (i >= rotaryDim) return x[i];
    uint half_dim = rotaryDim / 2;
    uint pair = interleaved != 0 ? i / 2 : i % half_dim;
    bool first = interleaved != 0 ? i % 2 == 0 : i < half_dim;
    uint other = interleaved != 0 ? i ^ 1 : (first ? i + half_dim : i - half_dim);
    float c = table[pair], s = table[half_dim + pair];
    return T(fma(float(x[i]), c, float(x[other]) * (first ? -s : s)));
}
