"""The parts of `limpet.state`."""
