// activation.h: the activation functions

// erf to 3 ulp: Metal has none. Below 1 it is x + x*P(x^2), above 1 - exp(-Q(x)); P and Q are minimax fits of erf(x)/x - 1 on
// [0, 1] and of -log(erfc(x)) on [1, 3.93], where float32 reaches 1. The fits and their rounding cost 1.2 ulp, the 4 ulp that
// Metal allows exp another 1.3.
inline float erf(float x) {
    float a = abs(x);
    if (a < 1.0f) {
        float z = x * x;
        float p = fma(7.853858e-05f, z, -8.0101925e-04f);
        p = fma(p, z, 5.1883277e-03f);
        p = fma(p, z, -2.6853811e-02f);
        p = fma(p, z, 1.12835854e-01f);
        p = fma(p, z, -3.7612626e-01f);
        p = fma(p, z, 1.2837917e-01f);
        return fma(x, p, x);
    }
    if (a > 3.93f) a = 3.93f;
    float q = fma(2.1697635e-05f, a, -4.4147286e-04f);
    q = fma(q, a, 4.2052856e-03f);
    q = fma(q, a, -2.5210341e-02f);
    q = fma(q, a, 1.0842210e-01f);
    q = fma(q, a, 6.3321638e-01f);
    q = fma(q, a, 1.1295803e+00f);
    q = fma(q, a, -1.8846762e-04f);
    float y = 1.0f - precise::exp(-q);
    return x < 0.0f ? -y : y;
}

// tanh's argument grows with the cube of x, and a fast tanh, (exp(2u)-1)/(exp(2u)+1), is Inf/Inf = NaN above u = 44.36
// (x = 10.06). At 15 tanh is 1 in float, so the clamp changes nothing else, and makes every variant right.
inline float gelu_tanh(float x) {
    float u = 0.7978845608f * (x + 0.044715f * x * x * x); // sqrt(2/pi)
    return 0.5f * x * (1.0f + tanh(clamp(u, -15.0f, 15.0f)));
}

inline float sigmoid(float x) { return 1.0f / (1.0f + precise::exp(-x)); }

// The functions by CTranslate2's code.
inline float activation(uint function, float x) {
    switch (function) {
    case 0: return x <= 0.0f ? 0.0f : x; // ReLU; a NaN stays one
    case 1: return gelu_tanh(x);
    case 2: return x / (1.0f + precise::exp(-x)); // SiLU
    case 3: return 0.5f * x * (1.0f + erf(x * 0.7071067812f)); // GELU; 1/sqrt(2)
    case 4: return x / (1.0f + precise::exp(-1.702f * x)); // GELUSigmoid
    case 5: return precise::tanh(x);
    default: return sigmoid(x);
    }
}
