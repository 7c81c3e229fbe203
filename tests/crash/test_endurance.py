"""The experiment of `make endurance`, for a moment: every model at work, and processes killed."""

from pathlib import Path

import pytest

from limpet.testing.crash import seeded, soak
from tests.support.endurance import Gauge, Life


@pytest.mark.soak
@pytest.mark.parametrize("scheme", ["sqlite", "file"])
def test_a_store_lives_through_kills_sweeps_and_backups(
    scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing acknowledged is lost, and after each era it is as empty as it was."""
    monkeypatch.setenv("LIMPET_CACHE", f"{tmp_path}/cache")
    place = tmp_path / scheme
    place.mkdir()
    with seeded() as rng, Life(f"{scheme}:{place}/agents", place, rng) as life:
        for _ in range(2 * soak()):
            life.round()
            life.close_era()
        assert life.eras == 2 * soak()
        assert life.kills > 0
        assert life.operations > 0


def test_what_grows_is_told_from_what_goes_up_and_down() -> None:
    """A verdict that cannot be bad would say nothing."""
    gauge = Gauge()
    gauge.series = {
        "memory, MB": [30, 50, 52, 50, 51, 52, 50, 52],
        "descriptors": [10, 20, 20, 30, 30, 40, 40, 50],
    }
    assert gauge.growing() == ["descriptors: 30.0, then 50.0"]
