#!/usr/bin/env python3
"""Measure llmrun, CTranslate2 and llama.cpp on the same models, in the same run, on the CPU, and write docs/performance.md.

    bench_peers.py [MODEL_DIR ...] --json peers.json --write docs/performance.md
    bench_peers.py --from peers.json --write docs/performance.md       the page again, of what was measured

A MODEL_DIR holds a model.bin; without any, all that scripts/oracles made are taken. llama.cpp gets the same weights, by ct2_to_gguf.py.
Every figure is a process of its own, and a round goes over all programs, so that what disturbs the machine disturbs all alike: ratios are those
of the same round. A peer that is not installed is named, not passed over. Packages: numpy, gguf, ctranslate2, llama-cpp-python.

prefill  a prompt of --prompt tokens, without the step that chooses a token
decode   --gen tokens after --context others, greedily
load     until the first token can be fed; the file is in the page cache, where it was read from the disk
"""

import argparse
import importlib.metadata
import importlib.util
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
PEERS = {"CTranslate2": "ctranslate2", "llama.cpp": "llama_cpp"}
SAME = 16, 8  # tokens of a prompt, and after it: programs that run the same model agree on most of these
PACKAGES = {"ctranslate2": "ctranslate2", "llama_cpp": "llama-cpp-python"}


# ---- one measurement of a peer, in a process of its own


def prompt_ids(n, vocabulary):
    return [(100 + i * 7919) % vocabulary for i in range(n)]  # as llmrun bench; what ids cost is the same


# Each gives the load time, what it computes in, and run(prompt, new), which generates from a prompt of so many tokens: [(seconds, id)].


def ctranslate2(job):
    import ctranslate2

    start = time.perf_counter()
    kind = "int8" if job["stored"] == "int8" else "float32"
    g = ctranslate2.Generator(job["model"], device="cpu", compute_type=kind, intra_threads=job["threads"], inter_threads=1)
    load = time.perf_counter() - start
    tokens = json.loads(Path(job["model"], "vocabulary.json").read_text())

    def run(prompt, new):
        steps = []
        ids = [tokens[i] for i in prompt_ids(prompt, len(tokens))]
        start = time.perf_counter()

        def step(result):
            steps.append((time.perf_counter() - start, result.token_id))
            return False

        g.generate_batch([ids], beam_size=1, max_length=new, min_length=new, include_prompt_in_result=False, callback=step)
        return steps

    return load, run, g.compute_type


def llama_cpp(job):
    import ctypes

    import llama_cpp as l
    import numpy as np

    quiet = l.llama_log_callback(lambda level, text, data: None)
    l.llama_log_set(quiet, ctypes.c_void_p(0))
    start = time.perf_counter()
    l.llama_backend_init()
    model = l.llama_model_load_from_file(job["gguf"].encode(), l.llama_model_default_params())
    p = l.llama_context_default_params()
    p.n_ctx = p.n_batch = max([job["prompt"], sum(SAME), *job["contexts"]]) + job["gen"] + 8
    p.n_threads = p.n_threads_batch = job["threads"]
    ctx = l.llama_init_from_model(model, p)
    load = time.perf_counter() - start
    vocabulary = l.llama_vocab_n_tokens(l.llama_model_get_vocab(model))

    def step(ids):
        array = (l.llama_token * len(ids))(*ids)  # named, because the batch only points to it
        if l.llama_decode(ctx, l.llama_batch_get_one(array, len(ids))):
            raise RuntimeError("llama_decode failed")
        return int(np.ctypeslib.as_array(l.llama_get_logits_ith(ctx, -1), (vocabulary,)).argmax())

    def run(prompt, new):
        steps, ids = [], prompt_ids(prompt, vocabulary)
        l.llama_memory_clear(l.llama_get_memory(ctx), True)
        start = time.perf_counter()
        while len(steps) < new:
            ids = [step(ids)]
            steps.append((time.perf_counter() - start, ids[0]))
        return steps

    run.log = quiet  # llama.cpp keeps a pointer to it
    return load, run, {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "int8": "Q8_0"}[job["stored"]]


def measure_peer(job):
    load, run, kind = {"CTranslate2": ctranslate2, "llama.cpp": llama_cpp}[job["program"]](job)
    ids = [token for _, token in run(*SAME)]  # also wakes threads up, and touches the weights
    decode = {}
    for context in job["contexts"]:
        at = [seconds for seconds, _ in run(context + 1, job["gen"] + 1)]
        decode[context] = job["gen"] / (at[-1] - at[0])
    # The first token comes with the prompt, and llmrun's prefill ends before it.
    first, second = (seconds for seconds, _ in run(job["prompt"], 2))
    prefill = job["prompt"] / max(first / 2, first - (second - first))
    return {"computes": kind, "load_seconds": load, "prefill": prefill, "decode": decode, "ids": ids}


# ---- one measurement of any program


def busy_seconds():
    """What all cores have done, for anybody, and what the host took from them; None where there is no /proc."""
    try:
        user, nice, system, _, _, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
    except OSError:
        return None
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def child(command):
    """Run it; its standard output, its peak memory, and how many cores others used meanwhile."""
    env = os.environ | {"OMP_NUM_THREADS": command["threads"]}
    start, busy = time.perf_counter(), busy_seconds()
    with tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(command["argv"], stdout=subprocess.PIPE, stderr=err, env=env, text=True)
        out = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            err.seek(0)
            raise RuntimeError(f"{' '.join(command['argv'])}\nexit {process.returncode}: {err.read().strip()[-2000:]}")
    seconds = time.perf_counter() - start
    others = None if busy is None else max(0, (busy_seconds() - busy - usage.ru_utime - usage.ru_stime) / seconds)
    return out, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024), others


def llmrun(args, directory, threads, **flags):
    argv = [args.llmrun, "bench", "--json", "--model", str(directory), "--threads", str(threads)]
    for name, value in flags.items():
        argv += [f"--{name}"] + ([] if value is True else [",".join(map(str, value)) if isinstance(value, list) else str(value)])
    out, _, others = child({"argv": argv, "threads": str(threads)})
    return json.loads(out), others


def first_ids(args, directory, vocabulary):
    prompt, new = SAME
    ids = ",".join(map(str, prompt_ids(prompt, vocabulary)))
    argv = [args.llmrun, "generate", "--json", "--device", "cpu", "--model", str(directory), "--ids", ids, "-n", str(new), "--ignore-eos"]
    return json.loads(child({"argv": argv, "threads": "1"})[0])["ids"]


def measure(args, program, model, threads):
    """One process: what it computes in, load_seconds, prefill, decode by context, peak_bytes, other_cores; llmrun's read limit, too."""
    if program == "llmrun":
        r, others = llmrun(args, model["directory"], threads, repeat=1, prompt=args.prompt, gen=args.gen, context=args.context)
        rate = {(row["phase"], row["context"]): row["tokens_per_second"]["median"] for row in r["rows"]}
        # The memory that the limit is measured on is no part of the program's: bench says what was used before.
        return {
            "computes": r["rows"][0]["compute_type"],
            "load_seconds": r["load"]["ready_seconds"]["median"],
            "prefill": rate["prefill", 0],
            "decode": {c: rate["decode", c] for c in args.context},
            "loaded_bytes": r["load"]["peak_bytes"],
            "peak_bytes": r["peak_bytes"],
            "other_cores": others,
            "limit": r["limit_bytes_per_second"][str(threads)]["median"],
            "bytes_per_token": {row["context"]: row["bytes_per_token"] for row in r["rows"] if row["phase"] == "decode"},
            "flop_per_token": r["rows"][0]["flop_per_token"],
            "env": r["env"],
        }
    job = {"program": program, "model": str(model["directory"]), "gguf": str(model["gguf"]), "stored": model["stored"]}
    job |= {"threads": threads, "prompt": args.prompt, "gen": args.gen, "contexts": args.context}
    out, peak, others = child({"argv": [sys.executable, __file__, "--worker", json.dumps(job)], "threads": str(threads)})
    return json.loads(out.splitlines()[-1]) | {"peak_bytes": peak, "other_cores": others}


# ---- the run


def find_models(args):
    directories = args.models or sorted(args.oracles.glob("**/model.bin"))
    if not directories:
        raise SystemExit(f"no models: name directories with a model.bin, or make those of scripts/oracles, which are looked for below {args.oracles}")
    models = []
    for d in directories:
        d = d.parent if d.name == "model.bin" else d
        name = d.parent.name if d.name.startswith("ct2-") else d.name
        models.append({"name": name, "directory": d, "file_bytes": (d / "model.bin").stat().st_size, "failed": {}})
    return models


def prepare(model, args, left_out):
    """What is stored, and the same weights for llama.cpp."""
    import ct2_to_gguf

    m = ct2_to_gguf.Model(model["directory"])
    model["stored"], model["gguf"] = m.stored, None
    model["ids"] = first_ids(args, model["directory"], m.variables["decoder/embeddings/weight"][1][0])
    if "llama.cpp" not in left_out:
        args.gguf.mkdir(parents=True, exist_ok=True)
        model["gguf"] = args.gguf / f"{model['name']}-{model['stored']}.gguf"
        if not model["gguf"].exists():
            part = model["gguf"].with_suffix(".part")
            # In a process of its own: the kernel counts a parent's peak memory as its later children's.
            made = subprocess.run([sys.executable, HERE / "ct2_to_gguf.py", model["directory"], part], stderr=subprocess.PIPE, text=True)
            if made.returncode:  # a block that llama.cpp has under no name known here, or no memory
                why = (made.stderr.strip().splitlines() or [f"exit {made.returncode}"])[-1]
                model["failed"]["llama.cpp"], model["gguf"] = f"no GGUF file: {why}", None
            else:
                part.rename(model["gguf"])


def into_page_cache(model):
    """As a machine has it that was started since the files were made. What was written, or was forgotten for want of memory and read again here and there, lies
    in smaller pages than what was read at once, and is read up to a tenth more slowly from them."""
    for file in filter(None, [model["directory"] / "model.bin", model["gguf"]]):
        with open(file, "rb") as f:
            if hasattr(os, "posix_fadvise"):
                os.fsync(f.fileno())
                os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            while f.read(1 << 24):
                pass


def run(args):
    left_out = {}
    for name, module in PEERS.items():
        if name in args.without:
            left_out[name] = "not asked for"
        elif importlib.util.find_spec(module) is None:
            left_out[name] = f"not installed: pip install {PACKAGES[module]}"
    for name, why in left_out.items():
        print(f"left out: {name}, {why}", file=sys.stderr)
    programs = ["llmrun"] + [p for p in PEERS if p not in left_out]
    models = find_models(args)
    result = {
        "schema": "llmrun.peers/1",
        "versions": {p: importlib.metadata.version(PACKAGES[PEERS[p]]) for p in programs[1:]} | {"Python": platform.python_version()},
        "left_out": left_out,
        "settings": {"prompt": args.prompt, "gen": args.gen, "contexts": args.context, "rounds": args.rounds, "threads": args.threads},
        "models": [],
    }
    for model in models:
        prepare(model, args, left_out)
        entry = {"name": model["name"], "stored": model["stored"], "file_bytes": model["file_bytes"], "ids": model["ids"], "failed": model["failed"], "runs": []}
        result["models"].append(entry)
    for r in range(args.rounds):
        turn = programs[r % len(programs) :] + programs[: r % len(programs)]
        for model, entry in zip(models, result["models"]):
            into_page_cache(model)
            for threads, program in itertools.product(args.threads, turn):
                if program in entry["failed"]:
                    continue
                try:
                    one = measure(args, program, model, threads)
                except RuntimeError as e:
                    if program == "llmrun":
                        raise SystemExit(str(e)) from None
                    entry["failed"][program] = str(e).strip().splitlines()[-1]
                    print(f"{entry['name']} {entry['stored']}: {program} failed: {e}", file=sys.stderr)
                    continue
                result["env"] = one.pop("env", result.get("env"))
                entry["runs"].append({"round": r, "program": program, "threads": threads} | one)
                decode = ", ".join(f"{v:.1f} at {c}" for c, v in one["decode"].items())
                print(f"round {r + 1}: {entry['name']} {entry['stored']} {program} {threads}t: prefill {one['prefill']:.1f}, decode {decode}", file=sys.stderr, flush=True)
        save(args, result)
    for model, entry in zip(models, result["models"]):
        if args.growth:
            into_page_cache(model)
            entry["growth"], _ = llmrun(args, model["directory"], max(args.threads), repeat=args.rounds, prompt=args.prompt, gen=args.gen, context=args.growth, profile=True)
            print(f"contexts: {entry['name']} {entry['stored']}", file=sys.stderr, flush=True)
            save(args, result)
    return json.loads(json.dumps(result))  # keys as they are in a file


def save(args, result):
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")


# ---- the page


def values(entry, program, threads, get):
    """By round."""
    return {r["round"]: get(r) for r in entry["runs"] if r["program"] == program and r["threads"] == threads}


def middle(entry, program, threads, get):
    v = values(entry, program, threads, get)
    return statistics.median(v.values()) if v else None


def ratio(entry, peer, threads, get):
    """llmrun to the peer: the median of the rounds' ratios, and the extremes."""
    ours, theirs = values(entry, "llmrun", threads, get), values(entry, peer, threads, get)
    r = [ours[k] / theirs[k] for k in ours if k in theirs]
    return (statistics.median(r), min(r), max(r)) if r else None


def digits(v):
    return "–" if v is None else f"{v:.0f}" if v >= 100 else f"{v:.1f}" if v >= 10 else f"{v:.2f}"


def times(r):
    return "–" if r is None else f"**{r[0]:.2f}** ({r[1]:.2f}–{r[2]:.2f})"


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def speed_rows(result, get, own):
    """One row for each model, stored type and number of threads; own gives llmrun's columns."""
    for e in result["models"]:
        for t in result["settings"]["threads"]:
            row = [e["name"], e["stored"], str(t), *own(e, t)]
            for peer in PEERS:
                if peer not in result["left_out"]:
                    row += [digits(middle(e, peer, t, get)), times(ratio(e, peer, t, get))]
            yield row


def decode_table(result, context):
    def get(r):
        return r["decode"][str(context)]

    def own(e, t):
        share = values(e, "llmrun", t, lambda r: get(r) * r["bytes_per_token"][str(context)] / r["limit"])
        return [digits(middle(e, "llmrun", t, get)), f"{100 * statistics.median(share.values()):.0f} %"]

    return table(["model", "stored", "threads", "llmrun tok/s", "of limit", *peer_heads(result)], speed_rows(result, get, own))


def prefill_table(result):
    def own(e, t):
        rate = middle(e, "llmrun", t, lambda r: r["prefill"])
        return [digits(rate), digits(rate * middle(e, "llmrun", t, lambda r: r["flop_per_token"]) / 1e9)]

    return table(["model", "stored", "threads", "llmrun tok/s", "GFLOP/s", *peer_heads(result)], speed_rows(result, lambda r: r["prefill"], own))


def peer_heads(result):
    return [h for p in PEERS if p not in result["left_out"] for h in (p, "llmrun ×")]


def load_table(result):
    programs = ["llmrun"] + [p for p in PEERS if p not in result["left_out"]]
    rows = []
    for e in result["models"]:
        t = max(result["settings"]["threads"])
        row = [e["name"], e["stored"], f"{e['file_bytes'] / 1e6:.0f}"]
        row += [digits(x and 1e3 * x) for x in (middle(e, p, t, lambda r: r["load_seconds"]) for p in programs)]
        memory = [middle(e, "llmrun", t, lambda r: r["loaded_bytes"])] + [middle(e, p, t, lambda r: r["peak_bytes"]) for p in programs]
        rows.append(row + [digits(x and x / e["file_bytes"]) for x in memory])
    return table(["model", "stored", "file MB", *[f"{p} ms" for p in programs], "llmrun loaded / file", *[f"{p} at most / file" for p in programs]], rows)


def agreement(result):
    """How many of the first ids are llmrun's, for each model and peer."""
    lines = []
    for e in result["models"]:
        same = {}
        for r in e["runs"]:
            if r["program"] != "llmrun":
                equal = [a == b for a, b in zip(e["ids"], r["ids"])]
                same[r["program"]] = (equal + [False]).index(False)
        lines.append(f"{e['name']} {e['stored']}: " + (", ".join(f"{p} {n}" for p, n in same.items()) or "none"))
    return f"Of the first {SAME[1]} ids after a prompt of {SAME[0]}, before one differs from llmrun's: " + "; ".join(lines) + "."


def growth_table(result):
    rows = []
    for e in result["models"]:
        if "growth" not in e:
            continue
        g = e["growth"]
        decode = [r for r in g["rows"] if r["phase"] == "decode"]
        for r in decode:
            row = [e["name"], e["stored"], str(r["context"]), digits(r["tokens_per_second"]["median"]), f"{r['bytes_per_token'] / 1e6:.0f}",
                   f"{r['cache_bytes_per_token'] / 1e6:.1f}", f"{100 * r['share_of_limit']:.0f} %"]
            more = r["bytes_per_token"] - decode[0]["bytes_per_token"]
            if more > 0:
                row += [digits(1e3 * r["growth_seconds"]), f"{r['growth']:.2f}"]
            else:
                row += ["–"] * 2
            rows.append(row)
    head = ["model", "stored", "context", "tok/s", "MB a token", "of it cache", "of limit", "ms more", "×"]
    return table(head, rows) if rows else "Not measured."


def profile_table(profile):
    families = {}
    for s in profile["sites"]:
        f = families.setdefault(s["family"] or "between ops", {"ms": 0, "share": 0, "bytes": 0, "limit": 0, "sites": []})
        f["ms"] += 1e3 * s["seconds"]
        f["share"] += s["share"]
        f["bytes"] += s["bytes"]
        f["sites"] += [s["site"]] if s["site"] else []
    return table(["family", "sites", "ms", "share", "MB"],
                 [[k, " ".join(f["sites"]), f"{f['ms']:.2f}", f"{100 * f['share']:.1f} %", f"{f['bytes'] / 1e6:.1f}"] for k, f in families.items()])


def page(result):
    s, env = result["settings"], result["env"]
    others = [r["other_cores"] for e in result["models"] for r in e["runs"] if r["other_cores"] is not None]
    limits = {t: [r["limit"] for e in result["models"] for r in e["runs"] if r["program"] == "llmrun" and r["threads"] == t] for t in s["threads"]}
    text = [
        "# Performance",
        "Made by `python3 scripts/bench_peers.py --write docs/performance.md`; nothing here is written by hand.",
        f"Machine: {env['cpu']['model']}, {env['cpu']['cores']} cores, {' '.join(env['cpu']['features'])}, {env['os']}. llmrun {env['version']}, {env['go']}, kernels {env['cpu']['kernels']}; "
        + ", ".join(f"{k} {v}" for k, v in result["versions"].items()) + ".",
    ]
    text += [f"Left out: {name}, {why}." for name, why in result["left_out"].items()]
    text += [f"{e['name']} {e['stored']}: {name} failed: {why}" for e in result["models"] for name, why in e["failed"].items()]
    text += [
        f"Batch 1, greedy. {s['rounds']} rounds over everything in turn, every figure of a process of its own; tok/s are medians of the rounds, and ratios (**median**, lowest–highest) are "
        "taken round by round, llmrun's to the other's. CTranslate2 computes in float32 whatever floats are stored, and in int8 where int8 is; llama.cpp runs the same weights as "
        "F32, F16, BF16 or Q8_0, with its KV cache in float16, where ours is float32.",
        "The limit is what threads get from memory that only read, four streams each, in the same rounds: "
        + "; ".join(f"{digits(statistics.median(v) / 1e9)} GB/s with {t} thread{'s' if t > 1 else ''} ({digits(min(v) / 1e9)}–{digits(max(v) / 1e9)})" for t, v in limits.items())
        + ". The share of it counts the weights and the KV cache that a token must read, from the operands of its ops.",
    ]
    if others:
        note = " The figures are not to be trusted: measure again on a quiet machine." if max(others) > 0.1 else ""
        text.append(f"Other programs and other guests of the host used {statistics.median(others):.2f} cores meanwhile, at most {max(others):.2f}.{note}")
    if len(result["left_out"]) < len(PEERS):
        text.append(agreement(result))
    for c in s["contexts"]:
        text += [f"## Decode, {s['gen']} tokens after {c}", decode_table(result, c)]
    text += [f"## Prefill, {s['prompt']} tokens", prefill_table(result)]
    text += ["## Loading", "Until the first token can be fed, the file in the page cache, llmrun with its tokenizer if the model has one; and memory over the size of model.bin: llmrun's when it has loaded, and the most that was ever resident, with the KV cache and the prompt's activations. A peer's includes its Python.", load_table(result)]
    text += ["## Longer contexts", "What a token costs more than at the first context, and how many times the time that its cache's bytes need at the read limit; both are medians of the rounds, each with its own limit. The cache is filled with the prompt's keys and values over and over.", growth_table(result)]
    for e in result["models"]:
        profiles = e.get("growth", {}).get("profile", [])
        for p in profiles[:1] + profiles[1:][-1:]:  # the shortest context, and the longest
            title = f"## One token of {e['name']}, {e['stored']}, at {p['context']}: {digits(1e3 * p['seconds'])} ms with {p['threads']} threads"
            text += [title, profile_table(p)]
    return "\n\n".join(text) + "\n"


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cache = Path("~/.cache/llmrun").expanduser()
    p.add_argument("models", type=Path, nargs="*", metavar="MODEL_DIR")
    p.add_argument("--oracles", type=Path, default=cache / "oracles", help="where models are looked for if none is named (default: %(default)s)")
    p.add_argument("--gguf", type=Path, default=cache / "gguf", help="keeps llama.cpp's copies (default: %(default)s)")
    p.add_argument("--llmrun", default="./llmrun")
    p.add_argument("--threads", type=int, nargs="+", default=[1, os.cpu_count()])
    p.add_argument("--prompt", type=int, default=512)
    p.add_argument("--gen", type=int, default=64)
    p.add_argument("--context", type=int, nargs="+", default=[16], help="of the comparison with others")
    p.add_argument("--growth", type=int, nargs="*", default=[16, 1024, 8192, 32768], help="contexts that llmrun alone is measured at; none: nothing")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--without", nargs="+", default=[], choices=PEERS, metavar="PEER", help="leave one out: CTranslate2, llama.cpp")
    p.add_argument("--json", type=Path, help="what was measured, written after every round")
    p.add_argument("--from", dest="earlier", type=Path, metavar="FILE", help="measure nothing, take an earlier --json")
    p.add_argument("--write", type=Path, metavar="FILE", help="write the page (default: to standard output)")
    p.add_argument("--worker", help=argparse.SUPPRESS)
    args = p.parse_args()
    if args.worker:
        print(json.dumps(measure_peer(json.loads(args.worker))))
        return
    result = json.loads(args.earlier.read_text()) if args.earlier else run(args)
    if args.write:
        args.write.write_text(page(result))
    else:
        print(page(result), end="")


if __name__ == "__main__":
    main()
