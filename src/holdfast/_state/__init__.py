"""The parts of `holdfast.state`."""
