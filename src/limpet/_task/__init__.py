"""The parts of a task, each of which can be understood without the others."""
