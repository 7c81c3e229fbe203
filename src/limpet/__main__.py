"""``python -m limpet`` is the command ``limpet``."""

from limpet.cli import main

if __name__ == "__main__":
    main(prog_name="limpet")
