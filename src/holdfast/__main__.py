"""``python -m holdfast`` is the same as ``holdfast``."""

from holdfast.cli.app import main

main(prog_name="holdfast")
