"""The parts of the file: backend."""
