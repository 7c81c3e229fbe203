"""Where the project's files are."""

from pathlib import Path

__all__ = ["DATA", "ROOT"]

ROOT = Path(__file__).parent.parent.parent
DATA = ROOT / "tests" / "data"
