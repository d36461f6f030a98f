// widen.h: a weight's stored types

// The weight's types as float, one or four at a time. A bfloat16 is the upper half of a float.
inline float widen(float w) { return w; }
inline float widen(half w) { return float(w); }
inline float widen(ushort w) { return as_type<float>(uint(w) << 16); }
inline float widen(char w) { return float(w); }
inline float4 widen(half4 w) { return float4(w); }
inline float4 widen(ushort4 w) { return as_type<float4>(uint4(w) << 16u); }
inline float4 widen(char4 w) { return float4(w); }
#if __METAL_VERSION__ >= 310
inline float widen(bfloat w) { return float(w); } // an activation
inline float4 widen(bfloat4 w) { return float4(w); }
#endif
