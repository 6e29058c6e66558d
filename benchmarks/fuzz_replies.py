"""Broken replies by the thousand, through the gate: nothing may crash, and nothing may be said that was not meant.

Every reply is built around words that the simulator means to say, in the company of what models write beside them:
thoughts with drafts in them, markup, other people's parts, halves of characters, lists around lists; many are cut
somewhere. The builder knows the words, so each answer that comes out is checked against them.

    .venv/bin/python benchmarks/fuzz_replies.py --lists 100000 --replies 20000 --seed 0
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import Counter

from scope_lite.models.gate import heard
from scope_lite.models.verbalized import VerbalizedParseError, parse

WORDS = (
    "No, thanks.", "I can give 50 cents.", "Maybe 2 $, but <3 only once!", "How much of it reaches the children?",
    "Ça dépend… 10 ¢?", "好的，我捐一美元。", "Sure 👍🏽", "I'd rather not: my rent is due.", "Why [exactly] me?",
    "1. yes 2. no", "Let me think about it.", "a < b, so no", "My reasoning is simple: I am broke.", "Ok.\nBye!",
    'He said "give" and I won\'t.', "Order #W123, zip 10115; name: Ann", "e\u0301t\u0301, \u200dok", "###STOP###",
)  # fmt: skip
DRAFTS = ("draft: I give nothing", "draft: I will donate $2.", "draft, maybe: who are you?", "draft 好的")
THOUGHTS = (
    ("<think>", "</think>"), ("<thinking>", "</thinking>"), ("<THINK>\n", "\n</THINK>"), ("[THINK]", "[/THINK]"),
    ("◁think▷", "◁/think▷"), ("<reasoning>", "</reasoning>"), ("<thought>\n", "</thought>"),
    ("<seed:think>", "</seed:think>"), ("<|begin_of_thought|>", "<|end_of_thought|>"), ("< think >", "</ think >"),
    ("<|START_THINKING|>", "<|END_THINKING|>"), ("<scratchpad>", "</scratchpad>"),
    ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"),
)  # fmt: skip
MARKUP = (
    "<|im_start|>", "<|im_end|>", "<|assistant|>", "[INST]", "[/INST]", "<s>", "</s>", "<<SYS>>", "<start_of_turn>",
    "<tool_call>", "<｜User｜>", "<|eot_id|>", "<br>", "<|channel|>commentary", "[TOOL_CALLS]", "&lt;/think&gt;",
    "＜think＞", "<answer>",
)  # fmt: skip
OTHERS = (
    " Persuader: Hi.", "\nPersuader: Would you give $2?", "\nuser\nWhy?", "\nassistant\nSure.", "\n**Agent:** Hello",
    "\nsystem\n", "\nHuman: hello\nAI: hi", "\n### Assistant\nYes", '\n{"role": "assistant", "content": "x"}',
    "\nUser: no", "\n\nSystem: stop",
)  # fmt: skip


def thought(rng: random.Random, inside: str, cut: bool = False) -> str:
    """A closed thought, perhaps with another one in it, and perhaps with its beginning in the prompt.

    A thought without beginning that is cut before its end is nothing but words: only a sampler that knows its prompt
    could tell.
    """
    opening, closing = rng.choice(THOUGHTS)
    if rng.random() < 0.2:
        nested, end = rng.choice(THOUGHTS[:-1])
        inside = f"{inside} {nested}{rng.choice(DRAFTS)}{end} {rng.choice(DRAFTS)}"
    begun = not cut and opening in ("<think>", "[THINK]") and rng.random() < 0.2
    return f"{'' if begun else opening}{inside}{closing}"


def direct(rng: random.Random) -> tuple[str, bool, str]:
    """A reply, whether it ended by itself, and the words that are meant."""
    words, kind, cut = rng.choice(WORDS), rng.randrange(10), rng.random() < 0.5
    text = words
    if kind in (1, 2):
        text = (
            "".join(thought(rng, rng.choice(DRAFTS), cut) for _ in range(kind)) + rng.choice(("", "\n\n", " ")) + words
        )
    elif kind == 3:
        opening, _ = rng.choice(THOUGHTS)
        text, words = opening + " ".join(rng.choices(DRAFTS, k=3)), ""
    elif kind == 4:
        text = f"{words} {thought(rng, rng.choice(DRAFTS), True)} {rng.choice(DRAFTS)}"
    elif kind == 5:
        place = rng.choice((0, len(words)))
        text = words[:place] + rng.choice(MARKUP) + words[place:]
    elif kind == 6:
        text = words + "".join(rng.choices(OTHERS[not words.endswith((".", "!", "?")) :], k=rng.randint(1, 3)))
    elif kind == 7:
        text = words + rng.choice(("\ud83d", " \udc4d", "\ud83d\ud83d x"))
    elif kind == 8:
        text = rng.choice(("", " ", "\n", "\u200b", '""', "``", words + " and more" * 200))
    elif kind == 9:
        half = rng.choice("👍好é").encode()[:-1].decode(errors="replace")
        return f"{words} {half}", False, words
    if kind != 8 and cut:
        return text[: rng.randint(0, len(text))], False, words
    return text, True, words


def listing(rng: random.Random, texts: list[str]) -> str:
    """A list of these texts in one of the forms that models write."""
    names = rng.choice((("text", "probability"), ("reply", "p"), ("message", "prob")))
    values: list[object] = [0.2, 0.5, 1, "30%", "0.25", 0, 1e-9]
    if rng.random() < 0.1:
        values = [0.5, 10**400, 1e308, -1, True, None, "1e9", 2**70]
    items = [{names[0]: text, names[1]: rng.choice(values)} for text in texts]
    return json.dumps(items, ensure_ascii=rng.random() < 0.5, indent=rng.choice((None, None, 1)))


def verbalized(rng: random.Random) -> tuple[str, bool, list[str], int]:
    """An output, whether it ended by itself, the replies that are meant, and how many were asked for."""
    count = rng.randint(2, 5)
    texts = [f"{rng.choice(WORDS)} ({i})" if rng.random() < 0.8 else rng.choice(WORDS) for i in range(count)]
    if rng.random() < 0.15:  # one that must not be said
        texts[0] = rng.choice(
            (direct(rng)[0], rng.choice(MARKUP) + "x", "x" + rng.choice(OTHERS), thought(rng, "x") + "y")
        )
    text, draft = listing(rng, texts), listing(rng, rng.sample(DRAFTS, rng.randint(1, len(DRAFTS))))
    kind = rng.randrange(9)
    if kind in (1, 2):
        text = thought(rng, f"Maybe {draft}? No.") + "\n" + text
    elif kind == 3:
        text = f"Draft: {draft}\nBetter:\n```json\n{text}\n```"
    elif kind == 4:
        text = f"Sure [{{as you like}}]! Here it is:\n```json\n{text}\n```"
    elif kind == 5:
        text = f'{{"responses": {text}}}'
    elif kind == 6:
        text = f'Here: {{"draft": {draft}, "final": {text}}}'
    elif kind == 7:
        text, texts = rng.choice(THOUGHTS)[0] + f"Maybe {draft}, or {draft}", []
    elif kind == 8:
        place = rng.choice([0, len(text), *(i for i, char in enumerate(text) if char in "{}")])  # no text has one
        text = text[:place] + rng.choice(('"', "\\", "\x00", "[{", "}]", "\ud83d", rng.choice(MARKUP))) + text[place:]
    if rng.random() < 0.5:
        return text[: rng.randint(0, len(text))], False, texts, count
    return text, True, texts, count


def check_direct(rng: random.Random) -> str:
    """The reason why a reply was refused, or "said".

    Raises:
        AssertionError: it was said and not meant.
    """
    text, finished, words = direct(rng)
    said = heard(text, finished, 40)
    meant = said.words == words.strip() if finished else bool(said.words) and words.startswith(said.words)
    assert bool(said.failure) != bool(said.words) and (said.failure or meant), (text, finished, said, words)
    said.words.encode()
    return said.failure or "said"


def check_verbalized(rng: random.Random) -> str:
    """The same for a list."""
    text, finished, texts, count = verbalized(rng)
    try:
        read = parse(text, count, tokens=40, finished=finished)
    except VerbalizedParseError as error:
        return error.reason
    assert set(read.texts) <= {words.strip() for words in texts}, (text, read.texts)
    assert all(heard(words) == (words, "", False) and words.encode() for words in read.texts), (text, read.texts)
    return "said"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    for name, default in (("lists", 100_000), ("replies", 20_000), ("seed", 0)):
        options.add_argument(f"--{name}", type=int, default=default)
    asked = options.parse_args()
    for name, count, check in (("lists", asked.lists, check_verbalized), ("replies", asked.replies, check_direct)):
        began = time.perf_counter()
        found = Counter(check(random.Random(f"{asked.seed} {name} {i}")) for i in range(count))
        told = ", ".join(f"{reason} {number}" for reason, number in found.most_common())
        print(f"{count} {name} in {time.perf_counter() - began:.0f} s: {told}")


if __name__ == "__main__":
    main()
