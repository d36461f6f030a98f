#!/usr/bin/env python3
"""Hold `llmrun generate` to golden.json on the models of make_models.py.

    go build ./cmd/llmrun && python3 scripts/oracles/check_generate.py [--only MODEL] [--dtype float32] [--kinds short ...]
        [-- further flags of generate, such as --device metal]

Every case is decoded twice: from its text, which tries the tokenizer too, and from its ids. The ids must be CTranslate2's;
where they part, the margin between Hugging Face's two best logits tells a near tie from a mistake. Needs Python only.
Exits with 1 if there was a mistake.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
NEAR_TIE = 0.02  # float16 and bfloat16 weights moved no greedy token of golden.json at a larger margin


def generate(args, model, prompt):
    command = [args.llmrun, "generate", "--model", str(model), "--json", "-n", "64", *args.flags, *prompt]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)[:200]}\nexit {done.returncode}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def judge(case, dtype, got):
    """ok, near tie or WRONG, and where the ids part."""
    want, hf = case["ct2"][dtype], case["hf_float32"]
    ids = got["ids"]
    if got["finish"] == "eos" and ids == want[:-1]:  # the end token may be reported or not
        return "ok", f"{len(want)} ids"
    if ids == want:
        return "ok", f"{len(want)} ids"
    at = next((i for i, (a, b) in enumerate(zip(ids, want)) if a != b), min(len(ids), len(want)))
    known = at < len(hf) and hf[:at] == want[:at]
    margin = case["hf_margins"][at] if known else None
    verdict = "near tie" if margin is not None and margin < NEAR_TIE else "WRONG"
    return verdict, f"parts at {at} of {len(want)}, margin {margin}: {ids[at : at + 3]}, want {want[at : at + 3]}"


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--llmrun", default="./llmrun")
    p.add_argument("--models", type=Path, default=Path("~/.cache/llmrun/oracles").expanduser())
    p.add_argument("--dtype", default="float32", help="which converted model, ct2-DTYPE (default: %(default)s)")
    p.add_argument("--only", metavar="MODEL")
    p.add_argument("--kinds", nargs="+", metavar="KIND", help="short, chat, corpus (default: all)")
    p.add_argument("flags", nargs="*", help="passed on to generate")
    args = p.parse_args()
    wrong = 0
    for case in json.loads((HERE / "golden.json").read_text())["cases"]:
        model = args.models / case["model"] / f"ct2-{args.dtype}"
        left_out = args.only not in (None, case["model"]) or args.kinds and case["kind"].split()[0] not in args.kinds
        if left_out or not model.exists():
            continue
        prompts = [["--ids", ",".join(map(str, case["prompt_ids"]))]]
        if case["prompt"] is not None:
            prompts.append(["-p", case["prompt"]])
        for prompt in prompts:
            got = generate(args, model, prompt)
            verdict, note = judge(case, args.dtype, got)
            if got["prompt_ids"] != case["prompt_ids"]:
                verdict, note = "WRONG", f"prompt ids {got['prompt_ids'][:8]} …, want {case['prompt_ids'][:8]} …"
            wrong += verdict == "WRONG"
            print(f"{case['model']} {case['kind']:12} {prompt[0]:5} {verdict:8} {note}", flush=True)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
