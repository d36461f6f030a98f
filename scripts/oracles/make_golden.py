#!/usr/bin/env python3
"""Decode the models of make_models.py greedily with CTranslate2 and with Hugging Face, and write golden.json.

    python3 make_golden.py [--models DIR] [--out FILE]

A case has the ids by CTranslate2 for every stored dtype that is there (as this CPU computes it), the ids by Hugging Face
in float32 with eager attention, its margin between the two best logits at every step, and, where the prompt fits in
Gemma 3's window, the largest difference of any logit between the two in float32, both fed the same sequence.
"""

import argparse
import json
from pathlib import Path

import ctranslate2
import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

HERE = Path(__file__).resolve().parent
SHORT = [
    "The capital of France is",
    "Once upon a time, in a small village by the sea,",
    "def is_prime(n):\n",
    "In 1969, 3 astronauts flew to the Moon:",
    "Ich möchte heute Abend ins Kino gehen, weil",
]
CHAT = "Explain in two sentences why the sky is blue."
BOOK, FROM = HERE.parent / "tiny-models/corpus/carroll-alice.txt", "Alice was beginning to get very tired"
LENGTHS = [480, 600, 1200]  # of prompts from the book: on both sides of Gemma 3's window of 512
STEPS = 64


def prompts(tokenizer):
    """Yield (kind, text or None, ids)."""
    for text in SHORT:
        yield "short", text, tokenizer(text).input_ids
    if tokenizer.chat_template:
        turn = [{"role": "user", "content": CHAT}]
        text = tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
        yield "chat", text, tokenizer(text, add_special_tokens=False).input_ids
    book = BOOK.read_text(encoding="utf-8")
    start = book.index(FROM)
    ids = tokenizer(book[start : start + 10000]).input_ids
    for n in LENGTHS:
        yield f"corpus {n}", None, ids[:n]


def huggingface_greedy(model, ids):
    out = model.generate(
        torch.tensor([ids]), do_sample=False, max_new_tokens=STEPS, output_logits=True, return_dict_in_generate=True
    )
    best = torch.stack(out.logits)[:, 0].topk(2).values
    return out.sequences[0, len(ids) :].tolist(), [round(m, 5) for m in (best[:, 0] - best[:, 1]).tolist()]


def ct2_greedy(generator, tokens):
    result = generator.generate_batch(
        [tokens], beam_size=1, max_length=STEPS, include_prompt_in_result=False, return_end_token=True
    )
    return result[0].sequences_ids[0]


def logit_difference(model, generator, ids):
    with torch.no_grad():
        want = model(torch.tensor([ids])).logits[0].numpy()
    return float(np.abs(np.array(generator.forward_batch([ids]))[0] - want).max())


def leading(a, b):
    """How many ids a and b have in common from the first on."""
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


def model_cases(root):
    """The cases of one model: root holds hf and ct2-DTYPE."""
    tokenizer = AutoTokenizer.from_pretrained(root / "hf")
    model = AutoModelForCausalLM.from_pretrained(root / "hf", dtype=torch.float32, attn_implementation="eager")
    cases = []
    for kind, text, ids in prompts(tokenizer):
        hf, margins = huggingface_greedy(model, ids)
        case = {"model": root.name, "kind": kind, "prompt": text, "prompt_ids": ids}
        cases.append(case | {"hf_float32": hf, "hf_margins": margins, "ct2": {}})
    for path in sorted(root.glob("ct2-*")):
        generator = ctranslate2.Generator(str(path), device="cpu", intra_threads=2)
        dtype = path.name.removeprefix("ct2-")
        for c in cases:
            got = c["ct2"][dtype] = ct2_greedy(generator, tokenizer.convert_ids_to_tokens(c["prompt_ids"]))
            if dtype == "float32" and len(c["prompt_ids"]) < 400:
                c["max_logit_difference"] = logit_difference(model, generator, c["prompt_ids"] + got[:-1])
            n, total = leading(got, c["hf_float32"]), len(c["hf_float32"])
            where = f", margin there {c['hf_margins'][n]}" if n < total else ""
            print(f"{root.name} {c['kind']:12} {dtype:13} ({generator.compute_type}) {n} of {total} as Hugging Face{where}")
    return cases


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--models", type=Path, default=Path("~/.cache/llmrun/oracles").expanduser())
    p.add_argument("--out", type=Path, default=HERE / "golden.json")
    args = p.parse_args()
    cases = [c for hf in sorted(args.models.glob("*/hf")) for c in model_cases(hf.parent)]
    versions = {"ctranslate2": ctranslate2.__version__, "torch": torch.__version__}
    flat = json.dumps({"versions": versions, "cases": cases}, ensure_ascii=False, separators=(",", ":"))
    for key in ',"hf_', ',"ct2"':  # a line for each list: the file is read in review
        flat = flat.replace(key, ",\n " + key[1:])
    args.out.write_text(flat.replace('{"model"', '\n{"model"') + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
