#!/usr/bin/env python3
"""Write internal/tokenizer/testdata/cases.json: what Hugging Face's tokenizers library makes of small tokenizers.

Each case is a tokenizer.json put together from one of a few tiny models and the components under test, with texts and
their ids, and lists of ids and their text. Needs the tokenizers package (0.23.3 wrote the file in the repository).

    python3 tokenizer_cases.py [--random N] [--seed S] [--out FILE]

--random adds N random texts and id lists to every case, to look for differences beyond the file in the repository:
    python3 tokenizer_cases.py --random 2000 --out /tmp/cases.json && go test ./internal/tokenizer -cases /tmp/cases.json
"""

import argparse
import itertools
import json
import pathlib
import random

import tokenizers

ROOT = pathlib.Path(__file__).resolve().parents[2]

O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3 = QWEN2.replace(r"\p{N}|", r"\p{N}{1,3}|")

TEXTS = [
    "",
    " ",
    "The cat's the other  one,\n\n  then   12345 abc12 \t end ",
    "I'LL they'Re 'ſ 'S we'd'm ''s",
    "e\u0301 A\u030a \u212b \ufb01 \u1e9b\u0323 \uac00 \u1112\u1161\u11ab \u0958 ① ½ Ⅷ",
    "a" + "\u0301\u0316\u0345" * 14 + "b",
    "<s>the<tag> <tag>the  <tag>  x<tag>y <TAG>éx<e\u0301><é> the</s>",
    "naïve 日本 🦊 \x00\u2028\u3000x\r\n\r\n y\u00a0z\u0085.",
    "x▁the▁▁cat ▁",
    "...!?--==  ??\n  the,the, the",
]
PIECES = [
    *"abcthe  THE'''sStdmrvl0129,.!?-\n\r\t",
    " ", " ", "the", "cat", "\u0301", "\u0316", "é", "ſ", "K", "ﬁ", "각", "日", "🦊", "\u0316\u0345\u0301\u0344" * 7, "ế", "ガ", "\u1112\u1161\u11ab", "\u200d", "\u00a0", "\u3000", "½", "٣", "▁",
    "<tag>", "<s>", "</s>", "<é>", "<TAG>", "'s", "'LL", "_", "\x00", "\ufffd", "\u0130", "<0x41>",
]


def byte_level_alphabet():
    """GPT-2's characters, byte by byte."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in plain]
    return [chr(b) if b in plain else chr(0x100 + others.index(b)) for b in range(256)]


def bpe(alphabet, merges, **options):
    tokens = list(dict.fromkeys([*alphabet, *("".join(m) for m in merges), *options.pop("more", [])]))
    model = {"type": "BPE", "vocab": {t: i for i, t in enumerate(tokens)}, "merges": [" ".join(m) for m in merges]}
    return model | options


def models():
    words = [("t", "h"), ("th", "e"), ("c", "a"), ("ca", "t"), ("a", "a"), ("aa", "a"), ("n", "d"), ("o", "th")]
    byte = [*words, ("Ġ", "the"), ("Ġ", "c"), ("Ġc", "at"), ("a", "t"), ("Ġ", "Ġ"), ("1", "2"), ("12", "3"), ("Ã", "©"), ("'", "s")]
    space = [*words, ("▁", "the"), ("▁", "▁"), ("▁", "c"), ("▁c", "at"), ("a", "t"), ("1", "2"), ("e", "\u0301")]
    letters = [chr(c) for c in range(0x20, 0x7F)] + ["▁", "é", "\u0301"]
    hexes = [f"<0x{b:02X}>" for b in range(256)]
    return {
        "byte": bpe(byte_level_alphabet(), byte),
        "byte-whole": bpe(byte_level_alphabet(), byte, more=["other", "Ġother", "Ċ"], ignore_merges=True),
        "fallback": bpe(["<unk>", *hexes, *letters], space, unk_token="<unk>", fuse_unk=True, byte_fallback=True),
        "half": bpe(["<unk>", *hexes[:0xE0], *letters], space, unk_token="<unk>", fuse_unk=True, byte_fallback=True),
        "unk": bpe(["<unk>", *letters], space, unk_token="<unk>", fuse_unk=False),
        "unk-fused": bpe(["<unk>", *letters], space, unk_token="<unk>", fuse_unk=True),
        "drop": bpe(letters, space),
    }


def split(pattern, behavior="Isolated", invert=False):
    return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}


def sequence(key, *parts):
    return {"type": "Sequence", key: list(parts)}


def byte_level(prefix=False, regex=True):
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": regex}


def added(content, **flags):
    off = dict(single_word=False, lstrip=False, rstrip=False, normalized=False, special=False)
    return {"content": content} | off | flags


def template(before, after=()):
    part = lambda name: {"SpecialToken": {"id": name, "type_id": 0}}
    a, b = {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}
    names = [*before, *after]
    return {
        "type": "TemplateProcessing",
        "single": [*map(part, before), a, *map(part, after)],
        "pair": [a, b],
        "special_tokens": {n: {"id": n, "ids": [n], "tokens": [n]} for n in names},  # make puts the ids in
    }


BYTES = byte_level()


def cases():
    """name, model, added tokens, components."""
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    prepend = {"type": "Prepend", "prepend": "▁"}
    back = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    fuse, fallback = {"type": "Fuse"}, {"type": "ByteFallback"}
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    gemma = dict(normalizer=replace, decoder=sequence("decoders", back, fallback, fuse))
    bos = [added("<s>", special=True), added("</s>", special=True)]
    byte = dict(decoder=BYTES)
    yield "gpt2", "byte", bos, byte | dict(pre_tokenizer=BYTES, post_processor=BYTES)
    yield "gpt2 with prefix space", "byte", bos, byte | dict(pre_tokenizer=byte_level(prefix=True))
    yield "smollm2", "byte", bos, byte | dict(
        pre_tokenizer=sequence("pretokenizers", {"type": "Digits", "individual_digits": True}, BYTES))
    yield "digits together", "byte", [], byte | dict(
        pre_tokenizer=sequence("pretokenizers", {"type": "Digits", "individual_digits": False}, byte_level(regex=False)))
    for name, pattern in ("qwen2", QWEN2), ("llama3", LLAMA3), ("o200k", O200K):
        yield name, "byte-whole", bos, byte | dict(
            normalizer={"type": "NFC"} if name == "qwen2" else None,
            pre_tokenizer=sequence("pretokenizers", split({"Regex": pattern}), byte_level(regex=False)),
            post_processor=sequence("processors", BYTES, template(["<s>"])) if name != "qwen2" else None)
    yield "gemma", "fallback", bos, gemma | dict(
        pre_tokenizer=split({"String": " "}, "MergedWithPrevious"), post_processor=template(["<s>"]))
    yield "llama2", "fallback", bos, dict(
        normalizer=sequence("normalizers", prepend, replace),
        decoder=sequence("decoders", back, fallback, fuse, strip),
        post_processor=template(["<s>", "<s>"], ["</s>"]))
    for model in "half", "unk", "unk-fused", "drop":
        yield model, model, [], gemma
    yield "no decoder", "unk", bos, {}
    yield "strip tokens", "unk", [], dict(decoder=sequence("decoders", {"type": "Strip", "content": "a", "start": 2, "stop": 0}, fuse))
    for form in "NFC", "NFD", "NFKC", "NFKD":
        yield form, "byte", [], byte | dict(normalizer={"type": form}, pre_tokenizer=byte_level(regex=False))
    yield "normalizers", "byte", [], byte | dict(
        normalizer=sequence("normalizers", {"type": "Strip", "strip_left": True, "strip_right": True},
                            {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": "_$1"}),
        pre_tokenizer=byte_level(regex=False))
    for behavior in "Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous":
        for invert in False, True:
            yield f"{behavior} {invert}", "byte", [], byte | dict(
                pre_tokenizer=sequence("pretokenizers", split({"Regex": r"t|\s"}, behavior, invert), byte_level(regex=False)))
    # No token is normalized and special at once: the library forgets that one is special if normalizing changes it.
    flags = [
        added("<tag>", single_word=True), added("<e\u0301>", normalized=True), added("<é", normalized=True),
        added("</s>", lstrip=True, special=True), added("<TAG>", rstrip=True), added("<s>", lstrip=True, rstrip=True, special=True),
        added("the", single_word=True, lstrip=True), added("the,", normalized=True), added("é"), added("a b"), added("??", rstrip=True),
    ]
    yield "flags", "byte", flags, byte | dict(normalizer={"type": "NFC"}, pre_tokenizer=BYTES)
    yield "flags prepended", "fallback", flags, gemma | dict(normalizer=sequence("normalizers", prepend, replace))


def random_text(r):
    return "".join(r.choice(PIECES) for _ in range(r.randrange(1, 24)))


def make(name, model, tokens, components, options):
    r = random.Random(f"{options.seed} {name}")
    fresh = itertools.count(len(model["vocab"]))
    tokens = [{"id": model["vocab"].get(t["content"]) or next(fresh)} | t for t in tokens]
    components = json.loads(json.dumps(components))
    processor = components.get("post_processor") or {}
    for p in processor.get("processors", [processor]):
        for special in p.get("special_tokens", {}).values():
            special["ids"] = [t["id"] for t in tokens if t["content"] == special["id"]]
    file = {"version": "1.0", "added_tokens": tokens, "model": model} | components
    t = tokenizers.Tokenizer.from_str(json.dumps(file))
    assert all(t.token_to_id(a["content"]) == a["id"] for a in tokens), name
    texts = TEXTS + [random_text(r) for _ in range(options.random)]
    lists = [[r.randrange(t.get_vocab_size()) for _ in range(r.randrange(1, 12))] for _ in range(5 + options.random)]
    encode = lambda s, special: t.encode(s, add_special_tokens=special).ids
    texts = [{"text": s, "ids": encode(s, False), "ids_special": encode(s, True)} for s in texts]
    lists = [{"ids": l, "text": t.decode(l, skip_special_tokens=False), "text_skip": t.decode(l)} for l in lists]
    return {"added_tokens": tokens, "components": components, "texts": texts, "lists": lists}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--random", type=int, default=0)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--out", type=pathlib.Path, default=ROOT / "internal/tokenizer/testdata/cases.json")
    options = p.parse_args()
    all_models = models()
    lines = []
    for name, model, tokens, components in cases():
        case = make(name, all_models[model], tokens, components, options)
        lines.append(json.dumps({"name": name, "model": model} | case, ensure_ascii=False))
    head = json.dumps(all_models, ensure_ascii=False)
    options.out.write_text('{"models": ' + head + ',\n"cases": [\n' + ",\n".join(lines) + "\n]}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
