"""See `RedisBackend`."""

from limpet.backends.redis.backend import RedisBackend

__all__ = ["RedisBackend"]
