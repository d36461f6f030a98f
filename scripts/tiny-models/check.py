#!/usr/bin/env python3
"""Check the embedded models against three other programs, and write golden.json.

    python3 check.py [--out FILE] [--only gemma2|qwen2]

For every built-in prompt: greedy ids by CTranslate2 in float32, by the numpy reference (with the margin between the two
best logits), by Hugging Face as the original model means it and with what the converter drops switched off. For
tiny-gemma2 also what an unclamped fast-math GELU does. Exits with 1 if any of those that must agree do not.
"""

import argparse
import json
from pathlib import Path

import ctranslate2
import numpy as np
import torch
import yaml
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoModelForCausalLM

import reference

ROOT = Path(__file__).resolve().parents[2]
STEPS = 48
LAUNDERED = 24


def checkpoint(model):
    """The Hugging Face names and weights of a model.bin."""
    var, gemma = model.var, "decoder/layer_0/input_layer_norm/gamma" in model.var
    state = {
        "model.embed_tokens.weight": var["decoder/embeddings/weight"],
        "lm_head.weight": var["decoder/embeddings/weight"],
        "model.norm.weight": var["decoder/layer_norm/gamma"],
    }
    norms = {"input_layernorm": "self_attention/layer_norm", "post_attention_layernorm": "ffn/layer_norm"}
    if gemma:
        norms = {n + "_layernorm": n + "_layer_norm" for n in ("input", "post_attention", "pre_feedforward", "post_feedforward")}
    linears = {"mlp.gate_proj": "ffn/linear_0", "mlp.up_proj": "ffn/linear_0_noact", "mlp.down_proj": "ffn/linear_1"}
    linears["self_attn.o_proj"] = "self_attention/linear_1"
    for i in range(model.layers):
        hf, ours = f"model.layers.{i}.", f"decoder/layer_{i}/"
        for a, b in norms.items():
            state[hf + a + ".weight"] = var[ours + b + "/gamma"]
        for a, b in linears.items():
            state[hf + a + ".weight"] = var[ours + b + "/weight"]
        q = var[ours + "self_attention/linear_1/weight"].shape[1]
        for kind in "weight", "bias":
            fused = var.get(f"{ours}self_attention/linear_0/{kind}")
            if fused is not None:
                kv = (len(fused) - q) // 2
                for name, part in zip("qkv", np.split(fused, [q, q + kv])):
                    state[f"{hf}self_attn.{name}_proj.{kind}"] = part
    return {name: torch.from_numpy(w.astype(np.float32)) for name, w in state.items()}


def huggingface(folder, state, as_converted):
    config = AutoConfig.from_pretrained(folder / "hf_config.json")
    if as_converted and config.model_type == "gemma2":
        config.attn_logit_softcapping = config.final_logit_softcapping = None
        config.layer_types = ["full_attention"] * config.num_hidden_layers
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    model.load_state_dict(state)
    return model.eval()


@torch.no_grad()
def huggingface_greedy(model, ids):
    mask = torch.ones(1, len(ids), dtype=torch.long)
    out = model.generate(torch.tensor([ids]), attention_mask=mask, max_new_tokens=STEPS, do_sample=False)
    return out[0, len(ids) :].tolist()


def tokens(steps):
    return [s.token for s in steps if s.token is not None]


class Checked:
    """One model, loaded into all programs."""

    def __init__(self, folder):
        self.folder = folder
        self.name = folder.name
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.vocabulary = json.loads((folder / "vocabulary.json").read_text())
        assert [self.tokenizer.id_to_token(i) for i in range(len(self.vocabulary))] == self.vocabulary
        config = json.loads((folder / "config.json").read_text())
        self.bos, self.eos = (self.tokenizer.token_to_id(config[k]) for k in ("bos_token", "eos_token"))
        self.placed = json.loads((folder / "made.json").read_text()).get("placed")
        self.ct2 = ctranslate2.Generator(str(folder), compute_type="float32", intra_threads=1)
        self.exact = reference.Model(folder)
        state = checkpoint(self.exact)
        self.converted = huggingface(folder, state, as_converted=True)
        self.original = huggingface(folder, state, as_converted=False)
        self.failed = False

    def must(self, what, got, want):
        same = next((i for i, (a, b) in enumerate(zip(got, want)) if a != b), min(len(got), len(want)))
        print(f"  {what}: {same} of {len(want)} agree")
        self.failed |= got != want

    def ct2_greedy(self, ids):
        result = self.ct2.generate_batch(
            [[self.vocabulary[i] for i in ids]],
            max_length=STEPS,
            sampling_topk=1,
            include_prompt_in_result=False,
            return_end_token=True,
        )
        return result[0].sequences_ids[0]

    def check(self, prompt):
        """The prompt's row of golden.json."""
        ids = self.tokenizer.encode(prompt["text"]).ids
        if prompt.get("bos") is False and ids[0] == self.bos:  # YAML reads off as false
            ids = ids[1:]
        greedy = self.ct2_greedy(ids)
        steps = list(self.exact.decode(ids, STEPS, self.eos))
        margins = [round(s.margin, 4) for s in steps if s.margin is not None]
        expect = prompt.get("expect", "match")
        row = {"id": prompt["id"], "text": prompt["text"], "expect": expect, "ids": ids, "greedy": greedy}
        row |= {"decoded": self.tokenizer.decode(greedy, skip_special_tokens=False), "margins": margins}
        print(f"{self.name} {prompt['id']}: {len(ids)} tokens, then {row['decoded']!r}")
        print(f"  smallest margin of 24 {min(margins[:24]):.3f}; {len(set(greedy))} distinct ids")
        self.must("numpy", tokens(steps), greedy)
        self.must("Hugging Face as converted", huggingface_greedy(self.converted, ids), greedy)
        original = huggingface_greedy(self.original, ids)
        if prompt["id"] != "long":  # longer than the window
            self.must("Hugging Face as the model means it", original, greedy)
        half = tokens(reference.Model(self.folder, half=True).decode(ids, STEPS, self.eos))
        self.must("numpy with float16 activations", half, greedy)
        if self.placed:
            self.check_placed(row, ids, steps)
        return row

    def check_placed(self, row, ids, steps):
        layer, neuron = self.placed["layer"], self.placed["neuron"]
        row["placed_v"] = {str(s.number): round(float(s.gates[layer][:, neuron].max()), 3) for s in steps}
        others = [np.delete(g, neuron, 1) if i == layer else g for s in steps for i, g in enumerate(s.gates)]
        print(f"  placed neuron {list(row['placed_v'].values())[:4]} …; all other gates ≤ {max(float(g.max()) for g in others):.2f}")
        broken = reference.Model(self.folder, unclamped=True)
        fast = list(broken.decode(ids, STEPS, self.eos))
        self.must("unclamped GELU until NaN", tokens(fast), row["greedy"][: len(tokens(fast))])
        born = next(({"step": s.number, "layers": s.born} for s in fast if s.born), None)
        laundered = tokens(broken.decode(ids, LAUNDERED, self.eos, launder=True))
        row["unclamped"] = {"nan_born": born, "laundered": laundered}
        print(f"  NaN born {born}, laundered {laundered[:6]} …")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--models", type=Path, default=ROOT / "internal/models/embedded")
    p.add_argument("--prompts", type=Path, default=ROOT / "prompts/builtin.yaml")
    p.add_argument("--out", type=Path, default=ROOT / "internal/models/testdata/golden.json")
    p.add_argument("--only", choices=["gemma2", "qwen2"])
    args = p.parse_args()
    torch.set_num_threads(1)
    prompts = yaml.safe_load(args.prompts.read_text())
    golden, failed = {}, False
    for family in [args.only] if args.only else ["gemma2", "qwen2"]:
        model = Checked(args.models / f"tiny-{family}")
        mine = [q for q in prompts if model.name in q.get("models", [model.name])]
        golden[model.name] = [model.check(q) for q in mine]
        failed |= model.failed
    if failed:
        raise SystemExit("some that must agree do not")
    if not args.only:
        parts = []
        for name, rows in golden.items():
            lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
            parts.append(f'"{name}": [\n{lines}\n]')
        args.out.write_text("{" + ",\n".join(parts) + "}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
