"""The page about encryption: the programs on it do what it says."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

import limpet
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from pathlib import Path

PAGE = (ROOT / "docs/encryption.md").read_text("utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE)


def names_in(block: str) -> dict[str, Any]:
    """What a program defines."""
    names: dict[str, Any] = {}
    exec(block, names)  # noqa: S102 - it is the page's
    return names


def test_the_first_example_writes_an_encrypted_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With keys from a file."""
    monkeypatch.chdir(tmp_path)
    limpet.Keys.generate().save("limpet-keys")
    names_in(BLOCKS[0])
    with limpet.open("agents.db", keys="limpet-keys") as store:
        (message,) = store.conversation("alice").messages()
    assert message["content"] == "My health is my own affair."


def test_a_key_may_come_from_a_function() -> None:
    """As the page has it."""
    assert names_in(BLOCKS[1])["keys"].secret(1) == b"k" * 32


def test_the_decryptor_reads_a_real_store(tmp_path: Path) -> None:
    """All of it, also what was rotated, compressed and compacted; in about forty lines."""
    block = BLOCKS[-1]
    assert len([line for line in block.split("def decrypt")[1].splitlines() if line]) <= 40
    keys = limpet.Keys.generate()
    path = tmp_path / "agents.db"
    with limpet.open(path, keys=keys) as store:
        chat = store.conversation("alice", labels={"team": "red"})
        for number in range(40):
            chat.append({"role": "user", "content": f"Grüße {number}"})
        store.journal("note", "several").append(("a", 1), ("b", [2]), ("b", None), ("c", {"d": 3}))
        store.state("large").save({"text": "so much " * 10_000})
        cut = store.journal("note", "cut")
        for number in range(20):
            cut.append(("n", number))
        cut.compact(11)
    secrets = {number: keys.secret(number) for number in keys.numbers}
    decrypt = names_in(block)["decrypt"]
    found: dict[tuple[str, ...], list[Any]] = {}
    for name, number, type_, value in decrypt(path, secrets):
        found.setdefault(name, []).append((number, type_, value))
    with limpet.open(path, keys=keys) as store:
        for kind, id_ in (
            *(("conversation", "alice"), ("note", "several"), ("note", "cut"), ("state", "large")),
        ):
            entries = store.journal(kind, id_).read()
            assert found["default", kind, id_] == [(e.seq, e.type, e.body) for e in entries]
    assert len(found["default", "note", "cut"]) == 10
    with pytest.raises(Exception):  # noqa: B017, PT011 - of the package cryptography
        list(decrypt(path, {1: b"no" * 16}))
