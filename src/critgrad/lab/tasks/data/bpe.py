"""RoBERTa's tokenizer, and MultiWOZ through it.

Byte-level byte-pair encoding: each byte is a printable letter, text is cut into word-like pieces, and in each
piece the neighbours with the best rank are merged until no rank applies.
"""

from __future__ import annotations

import json
import re
import unicodedata
from functools import lru_cache
from itertools import pairwise

import numpy as np

from .dataset import Parts
from .dialogue import MULTIWOZ_NOTE, Dialogue, multiwoz_dialogues, pairs, tokens
from .files import Open
from .text import padded

BOS, PAD, EOS, UNK = 0, 1, 2, 3
LENGTH = 128

# GPT-2's pieces. Python's re has no \p{L}: the pattern runs over a stand-in where each character is its class.
PIECE = re.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+")


@lru_cache(maxsize=4096)
def stand_in(character: str) -> str:
    """Return an ASCII character of the same class: letter, number, space or other."""
    if character.isascii():
        return character
    if character.isspace():
        return "\t"  # not " ": only a true space may join the piece after it
    return {"L": "a", "N": "0"}.get(unicodedata.category(character)[0], "!")


def byte_letters() -> dict[int, str]:
    """Map each byte to a printable letter: itself where it is one, else the next of those from 256 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}


def pieces_of(text: str) -> list[str]:
    """Cut a text into the pieces inside which neighbours may be merged."""
    return [text[match.start() : match.end()] for match in PIECE.finditer("".join(map(stand_in, text)))]


def merged(parts: list[str], pair: tuple[str, str]) -> list[str]:
    """The parts with this pair of neighbours made one, everywhere."""
    out: list[str] = []
    for part in parts:
        if out and (out[-1], part) == pair:
            out[-1] += part
        else:
            out.append(part)
    return out


class BPE:
    """Encode text with a vocabulary and ranked merges."""

    def __init__(self, vocab: dict[str, int], merges: list[tuple[str, str]]) -> None:
        self.vocab = vocab
        self.ranks = {pair: rank for rank, pair in enumerate(merges)}
        self.letters = byte_letters()
        self.known: dict[str, list[int]] = {}

    @classmethod
    def from_files(cls, vocab: bytes, merges: bytes) -> BPE:
        """Read vocab.json and merges.txt; the first line of the latter is its version."""
        lines = [line for line in merges.decode().split("\n") if line and not line.startswith("#version")]
        pairs = [(left, right) for left, _, right in (line.partition(" ") for line in lines)]
        return cls(json.loads(vocab), pairs)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, without marks at its ends."""
        ids: list[int] = []
        for piece in pieces_of(text):
            if piece not in self.known:
                self.known[piece] = self.merge(piece)
            ids += self.known[piece]
        return ids

    def merge(self, piece: str) -> list[int]:
        """Merge neighbours, best rank first and everywhere at once, until none has a rank."""
        parts = [self.letters[byte] for byte in piece.encode()]
        while len(parts) > 1:
            best = min(pairwise(parts), key=lambda pair: self.ranks.get(pair, len(self.ranks)))
            if best not in self.ranks:
                break
            parts = merged(parts, best)
        return [self.vocab.get(part, UNK) for part in parts]


def rows_of(bpe: BPE, dialogues: list[Dialogue], length: int = LENGTH) -> tuple[np.ndarray, np.ndarray]:
    """Return rows ``<s> context </s> response </s>`` and where each response begins.

    The response is kept whole (cut only where it alone would fill the row); the context loses its oldest tokens.
    """
    rows: list[list[int]] = []
    begins: list[int] = []
    for history, answer in pairs(dialogues):
        said = [f" {'system' if i % 2 else 'user'}: {' '.join(tokens(turn))}" for i, turn in enumerate(history)]
        response = bpe.encode(" " + " ".join(tokens(answer)))[: length - 3]
        room = length - 3 - len(response)
        context = [token for turn in said for token in bpe.encode(turn)]
        row = [BOS, *context[len(context) - room if len(context) > room else 0 :], EOS]
        begins.append(len(row))
        rows.append([*row, *response, EOS])
    return padded(rows, length, PAD), np.array(begins, np.int32)


def multiwoz_roberta(read: Open) -> Parts:
    """MultiWOZ in RoBERTa's tokens, for a causal language model."""
    bpe = BPE.from_files(read("roberta_tokenizer/vocab.json"), read("roberta_tokenizer/merges.txt"))
    arrays: dict[str, np.ndarray] = {}
    for part, dialogues in multiwoz_dialogues(read).items():
        arrays[f"{part}_tokens"], arrays[f"{part}_response"] = rows_of(bpe, dialogues)
    info = {"vocab_size": len(bpe.vocab), "pad": PAD, "bos": BOS, "eos": EOS, "unk": UNK, "length": LENGTH}
    note = f"{MULTIWOZ_NOTE} Rows are <s> context </s> response </s> in at most {LENGTH} tokens, oldest context cut."
    return Parts(arrays, info, note)
