"""Dialogues as pairs: what was said so far, and the system's answer."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

import numpy as np

from .dataset import Parts, vocabulary
from .files import Open
from .text import PAD, UNK, padded, vocabulary_of

#: What user and system said, in turn, beginning with the user. A last user turn without an answer makes no pair.
Dialogue = list[str]

SOS, EOS = 2, 3
USER, SYSTEM = "<user>", "<system>"
SPECIAL = ("<pad>", "<unk>", "<sos>", "<eos>", USER, SYSTEM)
SOURCE_LENGTH = 64
TARGET_LENGTH = 40
MIN_COUNT = 2

# The 2.1 texts come lower-cased, without full stops, commas and apostrophes; the 2.0 tables come as typed.
# What both agree on once cut: words, times and prices as one token each, question and exclamation marks.
TOKEN = re.compile(r"\d+(?:[:.]\d+)+|[^\W_]+|[?!]")


def tokens(utterance: str) -> list[str]:
    """Cut an utterance so that both origins of MultiWOZ give the same words.

    >>> tokens("It's 16.50 pounds, at 12:45. OK?") == tokens("it s 16.50 pounds at 12:45 ok ?")
    True
    """
    return TOKEN.findall(utterance.lower())


def plain(text: str) -> list[Dialogue]:
    """Read blocks of ``n user<TAB>system`` lines; lines of other kinds (``#domain#``) are skipped."""
    dialogues: list[Dialogue] = []
    for block in text.split("\n\n"):
        turns: Dialogue = []
        for line in block.split("\n"):
            if line[:1].isdigit():
                user, _, system = line.split(" ", 1)[1].partition("\t")
                turns += [user, system]
        if turns:
            dialogues.append(turns)
    return dialogues


def table(text: str) -> list[Dialogue]:
    """Read the TSV: dialogue, turn, user, and the system turn that came BEFORE that user turn.

    The answer to a line is therefore on the dialogue's next line, and the last answer is not there.
    """
    dialogues: dict[str, Dialogue] = {}
    for line in text.split("\n")[1:]:
        if line:
            name, _, user, before = line.split("\t")[:4]
            turns = dialogues.setdefault(name, [])
            turns += [before, user] if turns else [user]
    return list(dialogues.values())


def without(dialogues: list[Dialogue], other: list[Dialogue]) -> list[Dialogue]:
    """Leave out the dialogues whose user turns are those of a dialogue in ``other``, punctuation aside."""

    def key(turns: Dialogue) -> tuple[str, ...]:
        return tuple(re.sub(r"[\W_]", "", user.lower()) for user in turns[::2])

    known = {key(turns) for turns in other}
    return [turns for turns in dialogues if key(turns) not in known]


def pairs(dialogues: list[Dialogue]) -> list[tuple[list[str], str]]:
    """Return (all turns up to a user turn, the answer) for every answer."""
    return [(turns[:i], turns[i]) for turns in dialogues for i in range(1, len(turns), 2)]


def words(dialogues: list[list[list[str]]]) -> list[tuple[list[str], list[str]]]:
    """The pairs of dialogues already cut into words: the last 64 of the marked history, the first 39 of the answer."""
    result = []
    for turns in dialogues:
        history: list[str] = []
        for i, turn in enumerate(turns):
            if i % 2 == 1:
                result.append((history[-SOURCE_LENGTH:], turn[: TARGET_LENGTH - 1]))
            history += [SYSTEM if i % 2 else USER, *turn]
    return result


def arrays_of(parts: Mapping[str, list[Dialogue]], note: str) -> Parts:
    """Number the words of the training turns and lay the pairs out as rows."""
    turns = {part: [[tokens(turn) for turn in turns] for turns in dialogues] for part, dialogues in parts.items()}
    # A word counts once for each turn it stands in, not once for each history that repeats the turn.
    ids = vocabulary_of((turn for dialogue in turns["train"] for turn in dialogue), SPECIAL, MIN_COUNT)
    cut = {part: words(dialogues) for part, dialogues in turns.items()}
    arrays: dict[str, np.ndarray] = {}
    for part, rows in cut.items():
        source = [[ids.get(word, UNK) for word in history] for history, _ in rows]
        target = [[*(ids.get(word, UNK) for word in answer), EOS] for _, answer in rows]
        arrays[f"{part}_source"] = padded(source, SOURCE_LENGTH)
        arrays[f"{part}_target"] = padded(target, TARGET_LENGTH)
    arrays["vocab"] = vocabulary(list(ids))
    info = {"vocab_size": len(ids), "pad": PAD, "unk": UNK, "sos": SOS, "eos": EOS}
    info |= {"source_length": SOURCE_LENGTH, "target_length": TARGET_LENGTH}
    counts = " / ".join(f"{len(rows):,}" for rows in cut.values())
    note += f" {counts} pairs; words seen at least {MIN_COUNT} times in train."
    return Parts(arrays, info, note)


MULTIWOZ_NOTE = (
    "train: 2.1 single-domain train and the 2.0 dev dialogues that are not in single-domain valid; "
    "valid: 2.1 single-domain valid; test: 2.0 test; the multi-domain train set is missing."
)


def multiwoz_dialogues(read: Open) -> dict[str, list[Dialogue]]:
    """The three parts of what there is of MultiWOZ."""
    train, valid = (plain(read(f"multiwoz/multiwoz2.1_single_domain_{p}.txt").decode()) for p in ("train", "valid"))
    dev, test = (table(read(f"multiwoz/multiwoz2.0_{part}.tsv").decode()) for part in ("dev", "test"))
    return {"train": train + without(dev, valid), "valid": valid, "test": test}


def multiwoz(read: Open) -> Parts:
    """MultiWOZ, in words."""
    return arrays_of(multiwoz_dialogues(read), MULTIWOZ_NOTE)


def sgd(read: Open) -> Parts:
    """Schema-Guided Dialogue, in words, with its own three parts."""
    parts = {}
    for part, name in (("train", "train"), ("valid", "dev"), ("test", "test")):
        lines = read(f"sgd/sgd_{name}_text.jsonl").splitlines()
        parts[part] = [list(json.loads(line)["turns"]) for line in lines]
    return arrays_of(parts, "About three quarters of the set's files, in its own parts train, dev and test.")
