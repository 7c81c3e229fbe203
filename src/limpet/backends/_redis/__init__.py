"""The parts of the Redis and Valkey backend."""
