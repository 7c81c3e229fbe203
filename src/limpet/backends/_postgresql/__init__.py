"""The parts of the PostgreSQL backend."""
