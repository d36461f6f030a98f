#!/usr/bin/env python3
"""Write a converted model with random weights at the exact shape of a real one: for speed, memory and loading.

    python3 real_shape.py SHAPE DTYPE OUT [--seed 0]

Needs numpy only and never holds more than a block of rows. The same seed gives the same files: every tensor has a
generator of its own, seeded by (seed, crc32 of its name), and all dtypes are rounded from the same float32 values.

Matrices are N(0, 1/fan_in), gains of norms 1 + N(0, 0.1), biases N(0, 0.1). The gain of the last norm is N(0, 3): its
random signs keep tied embeddings from echoing the input, its size spreads the logits (standard deviation near 3), so
that greedy decoding has clear winners.
"""

import argparse
import json
import math
import struct
import zlib
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

TYPE_IDS = {"float32": 0, "int8": 1, "int16": 2, "int32": 3, "float16": 4, "bfloat16": 5}  # of binary version 6
SIZES = {"float32": 4, "int8": 1, "int16": 2, "int32": 4, "float16": 2, "bfloat16": 2}
DTYPES = {  # matrices, and the rest
    "float32": ("float32", "float32"),
    "float16": ("float16", "float16"),
    "bfloat16": ("bfloat16", "bfloat16"),
    "int8": ("int8", "float32"),
    "int8_float16": ("int8", "float16"),
    "int8_bfloat16": ("int8", "bfloat16"),
}
BLOCK = 1 << 22  # elements


@dataclass(frozen=True)
class Shape:
    family: str  # gemma2, qwen2 or gpt2
    layers: int
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    special: dict = field(default_factory=dict)  # id → token; all others are t0, t1, …
    bos: str = ""
    eos: str = ""
    unk: str = ""
    rope_base: float = 0  # gemma2, qwen2
    positions: int = 0  # gpt2
    eps: float | None = None


GEMMA = dict(special={0: "<pad>", 1: "<eos>", 2: "<bos>", 3: "<unk>"}, bos="<bos>", eos="<eos>", unk="<unk>", eps=1e-6)
QWEN = dict(bos="<|endoftext|>", eos="<|im_end|>", eps=1e-6)
GPT2 = dict(bos="<|endoftext|>", eos="<|endoftext|>", unk="<|endoftext|>")


def qwen_special(first):
    return {first: "<|endoftext|>", first + 1: "<|im_start|>", first + 2: "<|im_end|>"}


SHAPES = {
    "gemma-2-2b": Shape("gemma2", 26, 2304, 9216, 8, 4, 256, 256000, rope_base=1e4, **GEMMA),
    "qwen2.5-0.5b": Shape("qwen2", 24, 896, 4864, 14, 2, 64, 151936, qwen_special(151643), rope_base=1e6, **QWEN),
    "distilgpt2": Shape("gpt2", 6, 768, 3072, 12, 12, 64, 50257, {50256: "<|endoftext|>"}, positions=1024, **GPT2),
}
SMALL = dict(layers=2, hidden=64, inner=256, heads=4, vocabulary=1000)  # the same families, for trying things out
SHAPES |= {
    "small-gemma2": replace(SHAPES["gemma-2-2b"], kv_heads=2, head_dim=32, **SMALL),
    "small-qwen2": replace(SHAPES["qwen2.5-0.5b"], kv_heads=2, head_dim=16, special=qwen_special(997), **SMALL),
    "small-gpt2": replace(
        SHAPES["distilgpt2"], kv_heads=4, head_dim=16, positions=128, special={999: "<|endoftext|>"}, **SMALL
    ),
}


@dataclass(frozen=True)
class Scalar:
    dtype: str
    value: float


@dataclass(frozen=True)
class Random:
    """A tensor of normal values."""

    mean: float
    std: float
    shape: tuple


def variables(s):
    """The variables of the decoder by name: Scalar or Random."""
    gemma, gpt2 = s.family == "gemma2", s.family == "gpt2"
    gelu_tanh, swish = 1, 2
    v = {
        "activation": Scalar("int8", swish if s.family == "qwen2" else gelu_tanh),
        "alibi": Scalar("int8", 0),
        "alibi_use_positive_positions": Scalar("int8", 0),
        "alignment_heads": Scalar("int16", 1),
        "alignment_layer": Scalar("int16", -1),
        "num_heads": Scalar("int16", s.heads),
        "pre_norm": Scalar("int8", 1),
        "scale_alibi": Scalar("int8", 0),
        "scale_embeddings": Scalar("int8", int(gemma)),
        "start_from_zero_embedding": Scalar("int8", 0),
    }

    def matrix(name, rows, columns, bias=False):
        v[name + "/weight"] = Random(0, columns**-0.5, (rows, columns))
        if bias:
            v[name + "/bias"] = Random(0, 0.1, (rows,))

    def norm(name, mean=1, std=0.1):
        v[name + "/gamma"] = Random(mean - gemma, std, (s.hidden,))  # Gemma's file has gain-1
        if gemma:
            v[name + "/layer_norm_use_residual"] = Scalar("int8", 1)
        if gpt2:
            v[name + "/beta"] = Random(0, 0.1, (s.hidden,))

    matrix("embeddings", s.vocabulary, s.hidden)
    norm("layer_norm", mean=0, std=3)
    if gemma:
        v["embeddings/multiply_by_sqrt_depth"] = Scalar("float32", s.hidden**0.5)
    if gpt2:
        v["position_encodings/encodings"] = Random(0, 0.02, (s.positions, s.hidden))
    for i in range(s.layers):
        layer, attention, ffn = f"layer_{i}/", f"layer_{i}/self_attention/", f"layer_{i}/ffn/"
        matrix(attention + "linear_0", (s.heads + 2 * s.kv_heads) * s.head_dim, s.hidden, bias=not gemma)
        matrix(attention + "linear_1", s.hidden, s.heads * s.head_dim, bias=gpt2)
        matrix(ffn + "linear_0", s.inner, s.hidden, bias=gpt2)
        matrix(ffn + "linear_1", s.hidden, s.inner, bias=gpt2)
        if not gpt2:
            matrix(ffn + "linear_0_noact", s.inner, s.hidden)
            v[attention + "num_heads_kv"] = Scalar("int32", s.kv_heads)
            v[attention + "rotary_base"] = Scalar("float32", s.rope_base)
            v[attention + "rotary_dim"] = Scalar("int32", 0)  # all of a head
            v[attention + "rotary_interleave"] = Scalar("int8", 0)
        if gemma:
            v[attention + "head_dim"] = Scalar("int32", s.head_dim)
            for name in "input", "post_attention", "pre_feedforward", "post_feedforward":
                norm(f"{layer}{name}_layer_norm")
        else:
            norm(attention + "layer_norm")
            norm(ffn + "layer_norm")
    return {"decoder/" + name: x for name, x in v.items()}


def blocks(name, tensor, seed):
    """Yield the float32 values in blocks of rows."""
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    rows, columns = tensor.shape[0], math.prod(tensor.shape[1:])
    step = max(1, BLOCK // columns)
    for start in range(0, rows, step):
        x = rng.standard_normal((min(step, rows - start), columns), dtype=np.float32)
        yield x * np.float32(tensor.std) + np.float32(tensor.mean)


def encode(x, dtype):
    if dtype == "bfloat16":  # the upper half, rounded to nearest even
        bits = x.view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16).tobytes()
    return x.astype(dtype).tobytes()


class Writer:
    """A model.bin of binary version 6."""

    def __init__(self, out, count):
        self.out = out
        self.pack("I", 6)
        self.string("TransformerDecoderSpec")
        self.pack("II", 8, count)  # revision, number of variables

    def pack(self, form, *values):
        self.out.write(struct.pack("<" + form, *values))

    def string(self, s):
        self.pack("H", len(s) + 1)
        self.out.write(s.encode() + b"\0")

    def head(self, name, dtype, shape):
        self.string(name)
        self.pack(f"B{len(shape)}IBI", len(shape), *shape, TYPE_IDS[dtype], math.prod(shape) * SIZES[dtype])

    def scalar(self, name, s):
        self.head(name, s.dtype, ())
        self.out.write(np.dtype(s.dtype).type(s.value).tobytes())

    def tensor(self, name, tensor, dtype, seed):
        self.head(name, dtype, tensor.shape)
        for x in blocks(name, tensor, seed):
            self.out.write(encode(x, dtype))

    def quantized(self, name, tensor, seed):
        """int8 rows, then the factor that each row was multiplied by."""
        self.head(name, "int8", tensor.shape)
        scales = []
        for x in blocks(name, tensor, seed):
            scale = np.float32(127) / np.abs(x).max(axis=1, keepdims=True)
            self.out.write(np.rint(x * scale).astype(np.int8).tobytes())
            scales.append(scale)
        self.head(name + "_scale", "float32", tensor.shape[:1])
        self.out.write(np.concatenate(scales).tobytes())


def write_model(shape, dtype, path, seed):
    matrix_dtype, dtype = DTYPES[dtype]
    todo = variables(shape)
    is_matrix = lambda name: name.endswith("/weight")
    quantized = matrix_dtype == "int8"
    with open(path, "wb") as out:
        w = Writer(out, len(todo) + quantized * sum(map(is_matrix, todo)))
        for name, x in sorted(todo.items()):  # NAME/weight_scale sorts right behind NAME/weight
            if isinstance(x, Scalar):
                w.scalar(name, x)
            elif is_matrix(name) and quantized:
                w.quantized(name, x, seed)
            else:
                w.tensor(name, x, matrix_dtype if is_matrix(name) else dtype, seed)
        w.pack("I", 1)  # one alias: the embeddings are tied
        w.string("decoder/projection/weight")
        w.string("decoder/embeddings/weight")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("shape", choices=SHAPES)
    p.add_argument("dtype", choices=DTYPES)
    p.add_argument("out", type=Path, help="the model's directory")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--layers", type=int, help="so many instead of the shape's: true width, less depth")
    args = p.parse_args()
    s = SHAPES[args.shape]
    if args.layers:
        s = replace(s, layers=args.layers)
    args.out.mkdir(parents=True, exist_ok=True)
    write_model(s, args.dtype, args.out / "model.bin", args.seed)
    config = {"bos_token": s.bos, "eos_token": s.eos, "layer_norm_epsilon": s.eps, "multi_query_attention": True}
    (args.out / "config.json").write_text(json.dumps(config | {"unk_token": s.unk}, indent=2) + "\n")
    tokens = [s.special.get(i, f"t{i}") for i in range(s.vocabulary)]
    (args.out / "vocabulary.json").write_text(json.dumps(tokens, indent=2) + "\n")
    print(f"{args.out}: {(args.out / 'model.bin').stat().st_size} bytes")


if __name__ == "__main__":
    main()
