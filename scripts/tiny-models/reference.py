"""A forward pass in numpy of the tiny models as CTranslate2 wrote them, with a view of every gate.

Sums are float64 and results float32. With half=True, what each norm, linear, rotary embedding, activation and layer
returns is rounded to float16, as a backend with float16 activations would.
"""

import json
import struct

import numpy as np

f16, f32, f64 = np.float16, np.float32, np.float64
GELU_TANH = 1  # CTranslate2's ActivationType; the other one here is Swish


def read(path):
    """The variables of a model.bin of binary version 6, by name."""
    data = path.read_bytes()
    at = 0

    def take(form):
        nonlocal at
        value = struct.unpack_from("<" + form, data, at)[0]
        at += struct.calcsize("<" + form)
        return value

    def string():
        nonlocal at
        size = take("H")
        at += size
        return data[at - size : at - 1].decode()

    types = [np.float32, np.int8, np.int16, np.int32, np.float16]
    if take("I") != 6:
        raise SystemExit(f"{path}: want binary version 6")
    string(), take("I")
    variables = {}
    for _ in range(take("I")):
        name = string()
        shape = [take("I") for _ in range(take("B"))]
        dtype, size = types[take("B")], take("I")
        variables[name] = np.frombuffer(data, dtype, size // np.dtype(dtype).itemsize, at).reshape(shape)
        at += size
    for _ in range(take("I")):
        name, target = string(), string()
        variables[name] = variables[target]
    return variables


def gelu_tanh(v):
    v = v.astype(f64)
    return (0.5 * v * (1 + np.tanh(0.7978845608028654 * (v + 0.044715 * v**3)))).astype(f32)


def unclamped_gelu_tanh(v):
    """What a GPU's fast math makes of it: NaN once exp(2u) leaves float32, at v > 10.06."""
    v = v.astype(f32)
    u = f32(0.7978845608028654) * (v + f32(0.044715) * v * v * v)
    with np.errstate(over="ignore", invalid="ignore"):
        e = np.exp(f32(2) * u)
        return f32(0.5) * v * (f32(1) + (e - f32(1)) / (e + f32(1)))


def silu(v):
    v = v.astype(f64)
    return (v / (1 + np.exp(-v))).astype(f32)


class Model:
    def __init__(self, folder, unclamped=False, half=False):
        self.var = read(folder / "model.bin")
        self.half = half
        self.eps = json.loads((folder / "config.json").read_text())["layer_norm_epsilon"]
        self.heads = int(self.var["decoder/num_heads"])
        self.layers = sum(n.endswith("/self_attention/linear_0/weight") for n in self.var)
        if self.var["decoder/activation"] == GELU_TANH:
            self.act = unclamped_gelu_tanh if unclamped else gelu_tanh
        else:
            self.act = silu
        self.gates = []  # of the last forward pass: one [tokens, inner] a layer
        self.born = []  # a layer: its activation made NaN out of finite gates

    def store(self, x):
        return x.astype(f16).astype(f32) if self.half else x

    def norm(self, name, x):
        gamma = self.var[name + "/gamma"].astype(f32)
        if self.var.get(name + "/layer_norm_use_residual"):  # the file has gamma-1
            gamma = 1 + gamma
        x = x.astype(f64)
        return self.store((x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps) * gamma).astype(f32))

    def linear(self, name, x):
        y = (x.astype(f64) @ self.var[name + "/weight"].T.astype(f64)).astype(f32)
        if name + "/bias" in self.var:
            y = y + self.var[name + "/bias"].astype(f32)
        return y if name == "decoder/projection" else self.store(y)

    def rotary(self, name, x, start):
        """x: [heads, tokens, head_dim]; the two halves of a head rotate against each other."""
        half = x.shape[-1] // 2
        power = np.power(f32(self.var[name + "/rotary_base"]), (np.arange(half) * 2).astype(f32) / f32(2 * half))
        position = np.arange(start, start + x.shape[1]).astype(f32)
        angle = (position[:, None] * (f32(1) / power.astype(f32))).astype(f32).astype(f64)
        cos, sin = np.cos(angle), np.sin(angle)
        a, b = x[..., :half].astype(f64), x[..., half:].astype(f64)
        return self.store(np.concatenate([a * cos - b * sin, b * cos + a * sin], -1).astype(f32))

    def attention(self, name, x, cache, start):
        tokens, dim = len(x), self.var[name + "/linear_1/weight"].shape[1] // self.heads
        kv_heads = int(self.var[name + "/num_heads_kv"])
        qkv = self.linear(name + "/linear_0", x).reshape(tokens, -1, dim).swapaxes(0, 1)
        q, k, v = np.split(qkv, [self.heads, self.heads + kv_heads])
        q, k = self.rotary(name, q, start), self.rotary(name, k, start)
        if "k" in cache:
            k, v = np.concatenate([cache["k"], k], 1), np.concatenate([cache["v"], v], 1)
        cache["k"], cache["v"] = k, v
        k, v = (np.repeat(t, self.heads // kv_heads, 0).astype(f64) for t in (k, v))
        scores = q.astype(f64) @ k.swapaxes(1, 2) * f32(1 / np.sqrt(f32(dim)))
        later = np.arange(k.shape[1]) > start + np.arange(tokens)[:, None]
        scores[:, later] = -np.inf
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        context = (weights @ v).astype(f32).swapaxes(0, 1).reshape(tokens, -1)
        return self.linear(name + "/linear_1", context)

    def ffn(self, name, x):
        gate = self.linear(name + "/linear_0", x)
        activated = self.store(self.act(gate))
        self.gates.append(gate)
        self.born.append(bool(np.isfinite(gate).all() and not np.isfinite(activated).all()))
        return self.linear(name + "/linear_1", activated * self.linear(name + "/linear_0_noact", x))

    def layer(self, i, x, cache, start):
        name = f"decoder/layer_{i}"
        attention, ffn = name + "/self_attention", name + "/ffn"
        if name + "/pre_feedforward_layer_norm/gamma" in self.var:  # Gemma 2
            y = self.attention(attention, self.norm(name + "/input_layer_norm", x), cache, start)
            x = x + self.norm(name + "/post_attention_layer_norm", y)
            y = self.ffn(ffn, self.norm(name + "/pre_feedforward_layer_norm", x))
            return self.store(x + self.norm(name + "/post_feedforward_layer_norm", y))
        x = x + self.attention(attention, self.norm(attention + "/layer_norm", x), cache, start)
        return self.store(x + self.ffn(ffn, self.norm(ffn + "/layer_norm", x)))

    def forward(self, ids, caches, start):
        """The logits after the last of ids, which stand at positions start, start+1, …"""
        self.gates, self.born = [], []
        x = self.var["decoder/embeddings/weight"][ids].astype(f32)
        scale = self.var.get("decoder/embeddings/multiply_by_sqrt_depth")
        if scale is not None:
            x = x * f32(scale)
        for i in range(self.layers):
            x = self.layer(i, x, caches[i], start)
        return self.linear("decoder/projection", self.norm("decoder/layer_norm", x[-1:]))[0]

    def decode(self, ids, length, eos, launder=False):
        """Greedy, in steps as CTranslate2 takes them: 0 is all of ids but the last, 1 the last, 2 the first new token.

        NaN logits end it; with launder they become token 0, as in a careless decoder. Yields a Step for each.
        """
        caches = [{} for _ in range(self.layers)]
        if len(ids) > 1:
            self.forward(ids[:-1], caches, 0)
            yield Step(0, self)
        token = ids[-1]
        for step in range(1, length + 1):
            logits = self.forward([token], caches, len(ids) - 2 + step)
            s = Step(step, self)
            if np.isfinite(logits).all():
                second, best = np.sort(logits)[-2:]
                s.margin, s.token = float(best - second), int(logits.argmax())
            elif launder:
                s.token = 0
            yield s
            if s.token is None or s.token == eos:
                return
            token = s.token


class Step:
    """What a step fed and found; token is None at step 0 and where the logits are NaN."""

    def __init__(self, number, model):
        self.number, self.gates = number, model.gates
        self.born = [i for i, b in enumerate(model.born) if b]  # the layers where NaN was born
        self.token = self.margin = None
