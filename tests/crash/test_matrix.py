"""Killed at every write boundary: no finished step runs again, and the end is always the same."""

import subprocess
import sys
from pathlib import Path

import pytest

PLACES = [
    "sqlite",
    pytest.param("file", marks=pytest.mark.long),
    pytest.param("postgresql", marks=pytest.mark.server),
]


@pytest.mark.parametrize("face", ["sync", "async"])
@pytest.mark.parametrize("backend", PLACES)
def test_a_task_survives_being_killed_at_any_write(
    backend: str, face: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """It has every kind of step, and the matrix says what became of each boundary."""
    url = f"{backend}:{tmp_path / 'place'}"
    if backend == "postgresql":
        url = request.getfixturevalue("postgresql_server").place()
    command = [sys.executable, "-m", "tests.support.matrix", url, face]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    *lines, total = done.stdout.splitlines()
    assert len(lines) >= 60
    assert total == f"{len(lines)} boundaries, 0 failures"
