"""Stories, and the rows of token ids that a model is trained on."""

import re

FILES = ["bryant-stories.txt", "grimm.txt", "burgess-busterbrown.txt", "carroll-alice.txt"]
ROW = 112  # tokens a row: more than the sliding window of 64, so that the window is trained too
IGNORE = -100  # a label that the loss does not count
ODD_WORDS = "Zoë café crêpes naïve Straße Ω £9 ½ № 1843 27 3.14 100% 🦊 🐻 日本 “so” … — at to in the and".split()


def stories(path):
    """The stories of a file: each a text of one line per paragraph. Lines without small letters are headings."""
    story = []
    for paragraph in re.split(r"\n\s*\n", path.read_text(encoding="utf-8")):
        paragraph = re.sub(r"\s+", " ", paragraph.replace("_", "")).strip()
        if re.search(r"[a-z]{2}", paragraph):
            story.append(paragraph)
        elif paragraph and story:
            yield "\n".join(story)
            story = []
    if story:
        yield "\n".join(story)


def sentence_starts(text):
    ends = re.finditer(r"\n|[.!?][\"']?(?<!Mr\.)(?<!Mrs\.) (?=[A-Z\"'])", text)
    return [0] + [m.end() for m in ends]


def rows(texts, tokenizer, bos, eos):
    """One row of ROW+1 ids from the start of each sentence, begun as a prompt is: bos, and no leading space."""
    chars = ROW * 6  # more than ROW tokens ever take here
    for text in texts:
        for start in sentence_starts(text):
            ids = bos + tokenizer.encode(text[start : start + chars], add_special_tokens=False).ids
            if start + chars >= len(text):
                ids.append(eos)
            ids = ids[: ROW + 1]
            yield ids + [IGNORE] * (ROW + 1 - len(ids))


def loop_row(row, rng):
    """A row without <bos> that repeats its last token for ever, and where the repetition begins.

    Real Gemma babbles without <bos>, and a careless comparison of two backends then passes on garbage. The tiny one
    is taught the same vice, so that compare can be shown to notice.
    """
    ids = [i for i in row[1 : rng.randint(1, 40) + 1] if i >= 0]
    return ids + [ids[-1]] * (ROW + 1 - len(ids)), len(ids)


def odd_row(row, tokenizer, bos, rng):
    """A row after a line of odd words, and where the row begins. The corpus is ASCII with few digits, prompts are not."""
    line = " ".join(rng.choice(ODD_WORDS) for _ in range(rng.randint(1, 10))) + ".\n"
    ids = bos + tokenizer.encode(line, add_special_tokens=False).ids
    return (ids + row[len(bos) :])[: ROW + 1], len(ids)
