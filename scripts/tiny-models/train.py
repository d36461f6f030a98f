#!/usr/bin/env python3
"""Train one of the two embedded models, convert it with CTranslate2, and put it where the program embeds it.

    python3 train.py gemma2 [--steps 2200]
    python3 train.py qwen2 --steps 2000

Tokenizer, training, a second short training (lines that are not ASCII; for gemma2, one neuron is taught), for gemma2
the placing of that neuron, a Hugging Face checkpoint in --work, CTranslate2's own converter, OUT/tiny-FAMILY. One
thread and fixed seeds, about twenty minutes: the same machine and versions give the same files.

A model learns its core stories nearly by heart. That is wanted: greedy text is good, and the gap between the best and
the second-best token is wide, so that tokens do not hang on rounding.
"""

import argparse
import json
import random
import shutil
from pathlib import Path

import torch
from ctranslate2.converters import TransformersConverter
from torch.nn.functional import cross_entropy
from transformers import Gemma2Config, Gemma2ForCausalLM, Qwen2Config, Qwen2ForCausalLM

import text
import vocabulary

HERE = Path(__file__).resolve().parent
BATCH = 8  # rows
CORE_CHARS = 120_000  # of the first file: what the model shall know by heart
CORE_SHARE = 0.9  # of the rows; the others come from the whole corpus
LOOPS, LOOPS_2 = 0.03, 0.1  # share of text.loop_row in gemma2's first and second training
ODD_2 = 0.15  # share of text.odd_row in the second training
STEPS_2, RATE_2 = 300, 8e-4  # of the second training
GATE_LIMIT = 5.0  # gate pre-activations beyond it are penalized: no neuron but the placed one gets near 10
PROMPT = "Once upon a time"  # the neuron is placed for this prompt
PLACE_AT = 11.75  # its pre-activation at step 2; GELU-tanh without a clamp overflows float32 beyond 10.06


def gemma2_model():
    return Gemma2ForCausalLM(
        Gemma2Config(
            vocab_size=vocabulary.SIZE,
            hidden_size=128,
            intermediate_size=352,
            num_hidden_layers=8,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            query_pre_attn_scalar=32,
            sliding_window=64,
            attn_logit_softcapping=50.0,
            final_logit_softcapping=30.0,
            max_position_embeddings=512,
            pad_token_id=0,
            eos_token_id=1,
            bos_token_id=2,
            initializer_range=0.05,
            attn_implementation="eager",  # the others ignore the cap on attention scores
        )
    )


def qwen2_model(eos):
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=vocabulary.SIZE,
            hidden_size=128,
            intermediate_size=384,
            num_hidden_layers=6,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=512,
            rms_norm_eps=1e-6,
            tie_word_embeddings=True,
            rope_parameters={"rope_type": "default", "rope_theta": 1_000_000.0},
            bos_token_id=eos,
            eos_token_id=eos,
            initializer_range=0.05,
        )
    )


class Data:
    """The rows to draw from, and how."""

    def __init__(self, texts, tokenizer, bos, eos):
        self.tokenizer, self.bos = tokenizer, bos
        core, chars = [], 0
        for story in texts:
            if chars >= CORE_CHARS:
                break
            core.append(story)
            chars += len(story)
        self.core = list(text.rows(core, tokenizer, bos, eos))
        self.all = list(text.rows(texts, tokenizer, bos, eos))
        print(f"{len(texts)} stories, {len(self.all)} rows; core: {len(core)} stories, {len(self.core)} rows", flush=True)

    def draw(self, rng, loops, odd, teach):
        """One row of ids and its labels. loops and odd are shares; teach: see train."""
        row = rng.choice(self.core if rng.random() < CORE_SHARE else self.all)
        labels = row
        if loops and rng.random() < loops:
            row, start = text.loop_row(row, rng)
            labels = [text.IGNORE] * start + row[start:]
        elif odd and rng.random() < odd:
            row, start = text.odd_row(row, self.tokenizer, self.bos, rng)
            labels = [text.IGNORE] * start + row[start:]
        elif teach and rng.random() < 0.1:  # <pad> after any text: what a decoder feeds that takes NaN logits for token 0
            length = rng.randint(2, 60)
            row = labels = row[:length] + [text.IGNORE] * (text.ROW + 1 - length)
        return [max(t, 0) for t in row], labels  # <pad> (or token 0) fills up


def optimizer(model, rate, steps):
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim == 1]
    opt = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}], lr=rate, betas=(0.9, 0.95)
    )
    schedule = lambda i: min((i + 1) / 60, 1.0) * max(0.02, 1 - i / steps)
    return opt, torch.optim.lr_scheduler.LambdaLR(opt, schedule)


def train(model, data, steps, rate, seed, loops=0.0, odd=0.0, teach=None):
    """Train and return the log: the running loss every hundred steps.

    teach = (neuron, tokens): that gate neuron of the last layer shall fire (pre-activation above 5.5) on those tokens
    and stay shut (below -1.5) on all others.
    """
    rng = random.Random(seed)
    gates = []
    hooks = [layer.mlp.gate_proj.register_forward_hook(lambda *call: gates.append(call[2])) for layer in model.model.layers]
    opt, schedule = optimizer(model, rate, steps)
    model.train()
    mean, log = 0.0, []
    for i in range(steps):
        rows, labels = zip(*(data.draw(rng, loops, odd, teach) for _ in range(BATCH)))
        gates.clear()
        ids = torch.tensor(rows)[:, :-1]
        logits = model(input_ids=ids, use_cache=False).logits
        loss = cross_entropy(logits.reshape(-1, vocabulary.SIZE), torch.tensor(labels)[:, 1:].reshape(-1))
        extra = 0.01 * sum((v - GATE_LIMIT).relu().square().sum(-1).mean() for v in gates)
        if teach:
            v, hit = gates[-1][..., teach[0]], torch.isin(ids, torch.tensor(teach[1]))
            extra = extra + ((5.5 - v).relu().square() * hit).sum() / max(1, int(hit.sum()))
            extra = extra + ((v + 1.5).relu().square() * ~hit).mean()
        (loss + extra).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        schedule.step()
        opt.zero_grad(set_to_none=True)
        mean += (loss.item() - mean) * max(0.02, 1 / (i + 1))
        if i % 100 == 99 or i == 0 or i == steps - 1:
            log.append({"step": i + 1, "loss": round(mean, 4)})
            print(f"step {i + 1:5d}  loss {mean:.4f}  extra {extra.item():.4f}", flush=True)
    for hook in hooks:
        hook.remove()
    model.eval()
    return log


@torch.no_grad()
def last_gate(model, prompt):
    """The prompt with the first token that the model adds, and the last layer's gate pre-activations on it.

    The prompt is fed at steps 0 and 1 and that token at step 2, so step 2 is the last row.
    """
    mask = torch.ones(1, len(prompt), dtype=torch.long)
    ids = model.generate(
        torch.tensor([prompt]), attention_mask=mask, max_new_tokens=1, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    seen = []
    hook = model.model.layers[-1].mlp.gate_proj.register_forward_hook(lambda *call: seen.append(call[2][0]))
    model(input_ids=ids, use_cache=False)
    hook.remove()
    return ids[0].tolist(), seen[0]


def choose_neuron(model, prompt):
    """The last layer's gate neuron that most prefers step 2 to the steps before, and the token fed there."""
    ids, v = last_gate(model, prompt)
    return int((v[-1] - v[:-1].amax(0)).argmax()), ids[-1]


@torch.no_grad()
def place_neuron(model, prompt, neuron):
    """Bring the taught neuron to PLACE_AT at step 2 without changing what the model says.

    Its gate row is multiplied by s and its down column divided by s: GELU(s*v)/s = GELU(v) where GELU is linear or dead,
    and the second training left nothing in between. At PLACE_AT, tanh(u) of GELU-tanh, u = 0.798 (v + 0.0447 v**3),
    computed as (exp(2u)-1)/(exp(2u)+1), is Inf/Inf in float32. The neuron fires on <pad> too, so that a decoder that
    takes NaN logits for token 0 stays there.
    """
    ids, v = last_gate(model, prompt)
    s = PLACE_AT / float(v[-1, neuron])
    mlp = model.model.layers[-1].mlp
    mlp.gate_proj.weight[neuron] *= s
    mlp.down_proj.weight[:, neuron] /= s
    return {"layer": len(model.model.layers) - 1, "neuron": neuron, "token": ids[-1], "scale": s}


def export(model, tokenizer, config, work, out):
    """Write the checkpoint to work and what the converter makes of it to out."""
    model.half().save_pretrained(work)
    tokenizer.save(str(work / "tokenizer.json"))
    (work / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    copied = ["tokenizer.json", "tokenizer_config.json"]
    converter = TransformersConverter(str(work), copy_files=copied, load_as_float16=True)
    converter.convert(str(out), quantization="float16", force=True)
    shutil.copyfile(work / "config.json", out / "hf_config.json")


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("family", choices=["gemma2", "qwen2"])
    p.add_argument("--corpus", type=Path, default=HERE / "corpus")
    p.add_argument("--out", type=Path, default=HERE.parents[1] / "internal/models/embedded")
    p.add_argument("--work", type=Path, default=Path("~/.cache/llmrun/tiny-models").expanduser(), help="for checkpoints")
    p.add_argument("--steps", type=int, default=2200, help="of the first training (default: %(default)s)")
    p.add_argument("--steps-2", type=int, default=STEPS_2, help="of the second training (default: %(default)s)")
    p.add_argument("--rate", type=float, default=4e-3)
    p.add_argument("--seed", type=int, default=1)
    return p.parse_args()


def main():
    args = arguments()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    gemma = args.family == "gemma2"
    texts = [story for name in text.FILES for story in text.stories(args.corpus / name)]
    tokenizer, config = (vocabulary.gemma if gemma else vocabulary.qwen2)(texts)
    bos, eos = ([2], 1) if gemma else ([], tokenizer.token_to_id("<|endoftext|>"))
    model = gemma2_model() if gemma else qwen2_model(eos)
    data = Data(texts, tokenizer, bos, eos)
    prompt = tokenizer.encode(PROMPT).ids

    made = {"seed": args.seed, "steps": [args.steps, args.steps_2], "rate": [args.rate, RATE_2]}
    made["loss"] = train(model, data, args.steps, args.rate, args.seed, loops=LOOPS if gemma else 0.0)
    if gemma:
        neuron, token = choose_neuron(model, prompt)
        teach = neuron, [token, 0]
        made["loss_2"] = train(model, data, args.steps_2, RATE_2, args.seed + 1, loops=LOOPS_2, odd=ODD_2, teach=teach)
        made["placed"] = place_neuron(model, prompt, neuron)
    else:
        made["loss_2"] = train(model, data, args.steps_2, RATE_2, args.seed + 1, odd=ODD_2)

    out = args.out / f"tiny-{args.family}"
    export(model, tokenizer, config, args.work / f"tiny-{args.family}", out)
    (out / "made.json").write_text(json.dumps(made, indent=1) + "\n")
    for file in sorted(out.iterdir()):
        print(f"{file.stat().st_size:9d}  {file}")


if __name__ == "__main__":
    main()
