"""The tokenizers of the tiny models: small ones, in the form of Gemma's and of Qwen2's tokenizer.json."""

import json

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

SIZE = 1536
QWEN2_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def gemma(texts):
    """Spaces are U+2581, characters without a token become the tokens <0xNN> of their bytes, <bos> is added.

    Returns the tokenizer and its tokenizer_config.json.
    """
    special = ["<pad>", "<eos>", "<bos>", "<unk>"]
    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    t.normalizer = normalizers.Replace(" ", "▁")
    # Keeps merges within a word while the merges are learned; encoding needs no such help.
    t.pre_tokenizer = pre_tokenizers.Split(Regex(r"▁?[A-Za-z]+|\n+|[^A-Za-z\n]"), "isolated")
    byte_tokens = [f"<0x{b:02X}>" for b in range(256)]
    t.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=SIZE, special_tokens=special + byte_tokens, show_progress=False)
    )
    t.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    t.post_processor = processors.TemplateProcessing(
        single="<bos> $A", pair="<bos> $A <bos> $B", special_tokens=[("<bos>", 2)]
    )
    file = json.loads(t.to_str())
    file["added_tokens"] = [a for a in file["added_tokens"] if a["content"] in special]  # byte tokens are plain ones
    config = {
        "tokenizer_class": "GemmaTokenizer",
        "add_bos_token": True,
        "add_eos_token": False,
        "pad_token": "<pad>",
        "eos_token": "<eos>",
        "bos_token": "<bos>",
        "unk_token": "<unk>",
        "clean_up_tokenization_spaces": False,
        "model_max_length": 512,
    }
    return Tokenizer.from_str(json.dumps(file)), config


def qwen2(texts):
    """Byte-level, no unknown token, nothing added, the special tokens last.

    Returns the tokenizer and its tokenizer_config.json.
    """
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    t = Tokenizer(models.BPE())
    t.normalizer = normalizers.NFC()
    t.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN2_WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    t.decoder = decoders.ByteLevel()
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    t.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=SIZE - len(special), initial_alphabet=alphabet, show_progress=False)
    )
    t.add_special_tokens(special)
    config = {
        "tokenizer_class": "Qwen2Tokenizer",
        "add_bos_token": False,
        "add_prefix_space": False,
        "pad_token": "<|endoftext|>",
        "eos_token": "<|endoftext|>",
        "bos_token": None,
        "unk_token": None,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 512,
    }
    return t, config
