"""``python -m limpet.cli`` is the same as ``limpet``."""

from limpet.cli.app import main

main(prog_name="limpet")
