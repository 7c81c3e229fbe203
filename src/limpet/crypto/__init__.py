"""Encryption at rest: a user's keys, the format, and a backend that seals what another stores."""
