#!/usr/bin/env python3
"""Write a converted model's weights as a GGUF file, so that llama.cpp can run the same model.

    ct2_to_gguf.py MODEL_DIR OUT.gguf

Matrices keep the type that model.bin stores, and int8 becomes Q8_0; vectors are float32. Llama, Qwen2, Gemma 2 and Gemma 3 are known by their
variables. There is no tokenizer in the file: llama.cpp then takes and gives ids. Needs numpy and gguf.
"""

import argparse
import json
import math
import struct
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import GGUFWriter, quants

DTYPES = ["float32", "int8", "int16", "int32", "float16", "bfloat16"]  # by model.bin's ids
STORED = {"float32": Type.F32, "float16": Type.F16, "bfloat16": Type.BF16, "int8": Type.Q8_0}

# The names of one layer: model.bin's, and GGUF's by the form of the block.
LAYER = {"self_attention/linear_1": "attn_output", "ffn/linear_0": "ffn_gate", "ffn/linear_0_noact": "ffn_up", "ffn/linear_1": "ffn_down"}
SEQUENTIAL = LAYER | {"self_attention/layer_norm": "attn_norm", "ffn/layer_norm": "ffn_norm"}
FOUR_NORMS = LAYER | {
    "input_layer_norm": "attn_norm",
    "post_attention_layer_norm": "post_attention_norm",
    "pre_feedforward_layer_norm": "ffn_norm",
    "post_feedforward_layer_norm": "post_ffw_norm",
    "self_attention/q_norm": "attn_q_norm",
    "self_attention/k_norm": "attn_k_norm",
}


class Model:
    """The variables of a model.bin of binary version 6: name → (dtype, shape, offset)."""

    def __init__(self, directory):
        self.data = np.memmap(directory / "model.bin", np.uint8, "r")
        self.config = json.loads((directory / "config.json").read_text())
        self.variables = {}
        self.at = 0
        version = self.read("I")
        if version != 6:
            raise ValueError(f"{directory}: want binary version 6, file has {version}")
        self.name()
        self.read("I")  # revision
        for _ in range(self.read("I")):
            name = self.name()
            shape = tuple(self.read("I") for _ in range(self.read("B")))
            dtype, size = DTYPES[self.read("B")], self.read("I")
            self.variables[name] = dtype, shape, self.at
            self.at += size

    def read(self, code):
        size = struct.calcsize("<" + code)
        self.at += size
        return struct.unpack("<" + code, self.data[self.at - size : self.at])[0]

    def name(self):
        size = self.read("H")
        self.at += size
        return bytes(self.data[self.at - size : self.at]).rstrip(b"\0").decode()

    def __contains__(self, name):
        return name in self.variables

    def get(self, name):
        """The variable's values in float32; int8 weights times their scales."""
        dtype, shape, at = self.variables[name]
        kind = {"bfloat16": np.uint16}.get(dtype) or np.dtype(dtype)
        raw = self.data[at : at + math.prod(shape) * np.dtype(kind).itemsize].view(kind).reshape(shape)
        if dtype == "bfloat16":
            return (raw.astype(np.uint32) << 16).view(np.float32)
        if name + "_scale" in self:
            return raw.astype(np.float32) / self.get(name + "_scale").reshape(-1, 1)
        return raw.astype(np.float32)

    def number(self, name, absent=None):
        return self.get(name).item() if name in self else absent

    @property
    def stored(self):
        return self.variables["decoder/embeddings/weight"][0]

    @property
    def architecture(self):
        if "decoder/layer_0/ffn/linear_0_noact/weight" not in self or "decoder/layer_norm/beta" in self:
            raise ValueError("want Llama, Qwen2, Gemma 2 or Gemma 3")
        if "decoder/layer_0/pre_feedforward_layer_norm/gamma" in self:
            return "gemma3" if "decoder/layer_0/self_attention/q_norm/gamma" in self else "gemma2"
        return "qwen2" if "decoder/layer_0/self_attention/linear_0/bias" in self else "llama"


def interleaved(x, heads):
    """Rows of q or k in the order of llama.cpp's "llama", which rotates pairs (2i, 2i+1)."""
    return x.reshape(heads, 2, -1, x.shape[1]).swapaxes(1, 2).reshape(x.shape)


def write(m, out):
    arch = m.architecture
    gemma = arch.startswith("gemma")
    layer = "decoder/layer_{}/".format
    attention = layer(0) + "self_attention/"
    layers = next(i for i in range(10_000) if layer(i) + "ffn/linear_0/weight" not in m)
    vocabulary, dim = m.variables["decoder/embeddings/weight"][1]
    heads = int(m.number("decoder/num_heads"))
    kv_heads = int(m.number(attention + "num_heads_kv", heads))
    head_dim = m.variables[attention + "linear_1/weight"][1][1] // heads
    w = GGUFWriter(out, arch)
    w.add_block_count(layers)
    w.add_context_length(1 << 17)
    w.add_embedding_length(dim)
    w.add_feed_forward_length(m.variables[layer(0) + "ffn/linear_0/weight"][1][0])
    w.add_head_count(heads)
    w.add_head_count_kv(kv_heads)
    w.add_key_length(head_dim)
    w.add_value_length(head_dim)
    w.add_rope_dimension_count(head_dim)
    # Gemma 3 has two bases, and llama.cpp knows that of the layers with a window by itself.
    w.add_rope_freq_base(max(m.number(layer(i) + "self_attention/rotary_base", 10_000) for i in range(layers)))
    w.add_layer_norm_rms_eps(m.config.get("layer_norm_epsilon") or 1e-6)
    w.add_vocab_size(vocabulary)
    if gemma:
        w.add_sliding_window(int(m.number("decoder/sliding_window", 4096)))
    w.add_tokenizer_model("none")

    def add(name, x):
        kind = STORED[m.stored] if x.ndim > 1 else Type.F32
        w.add_tensor(name, quants.quantize(np.ascontiguousarray(x), kind), raw_dtype=kind)

    def gain(name):
        return m.get(name) + (1 if gemma else 0)  # Gemma's file has gain - 1

    add("token_embd.weight", m.get("decoder/embeddings/weight"))
    add("output_norm.weight", gain("decoder/layer_norm/gamma"))
    if "decoder/projection/weight" in m:
        add("output.weight", m.get("decoder/projection/weight"))
    for i in range(layers):
        for name, target in (FOUR_NORMS if gemma else SEQUENTIAL).items():
            if layer(i) + name + "/gamma" in m:
                add(f"blk.{i}.{target}.weight", gain(layer(i) + name + "/gamma"))
            elif layer(i) + name + "/weight" in m:
                add(f"blk.{i}.{target}.weight", m.get(layer(i) + name + "/weight"))
        cuts = [heads * head_dim, (heads + kv_heads) * head_dim]
        for leaf in ("weight", "bias"):
            if layer(i) + "self_attention/linear_0/" + leaf in m:
                q, k, v = np.split(m.get(layer(i) + "self_attention/linear_0/" + leaf), cuts)
                if arch == "llama":
                    q, k = interleaved(q, heads), interleaved(k, kv_heads)
                for part, x in (("q", q), ("k", k), ("v", v)):
                    add(f"blk.{i}.attn_{part}.{leaf}", x)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", type=Path)
    p.add_argument("out", type=Path)
    args = p.parse_args()
    write(Model(args.model), args.out)


if __name__ == "__main__":
    main()
