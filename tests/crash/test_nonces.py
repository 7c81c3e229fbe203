"""Nonces: no two records of a journal have the same, over forks and restored backups."""

from __future__ import annotations

import os
from array import array
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from limpet.backends.contract import Key
from limpet.crypto.envelope import START, DataKey
from limpet.testing.crash import soak

if TYPE_CHECKING:
    from pathlib import Path

KEY = Key("acme", "conversation", "alice")
PROCESSES = 10
#: Records in all, times $LIMPET_SOAK: 50 for ten million.
RECORDS = 200_000


def record(path: Path, count: int, wrapped: bytes) -> None:
    """Seal *count* records as the journal goes on here, and note their nonces."""
    data = DataKey(wrapped, KEY)
    with path.open("wb") as file:
        for seq in range(1, count + 1):
            file.write(data.seal(b"", seq=seq, count=1, chain=START)[20:32])


@pytest.mark.soak
def test_no_nonce_repeats_over_forks_and_restored_backups(tmp_path: Path) -> None:
    """Each process goes on from the same backup, at the same number, with the same data key."""
    secret = os.urandom(32)
    each = RECORDS * soak() // PROCESSES
    children = []
    for number in range(PROCESSES):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                record(tmp_path / str(number), each, secret)
                code = 0
            finally:
                os._exit(code)
        children.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * PROCESSES
    # Two thirds of each nonce: if they are all different, so are the nonces.
    found = array("Q")
    for number in range(PROCESSES):
        nonces = (tmp_path / str(number)).read_bytes()
        assert len(nonces) == 12 * each
        words = array("I", nonces)
        found.extend(
            first << 32 | second for first, second in zip(words[::3], words[1::3], strict=True)
        )
    ordered = sorted(found)
    repeated = sum(one == other for one, other in pairwise(ordered))
    assert repeated == 0
    # No bit of them is always the same, or half the space would not be used.
    ones = [sum(nonce >> bit & 1 for nonce in found[:20_000]) for bit in range(64)]
    assert max(ones) > 0
    assert min(ones) > 0
