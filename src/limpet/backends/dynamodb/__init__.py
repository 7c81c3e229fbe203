"""See `DynamoBackend`."""

from limpet.backends.dynamodb.backend import DynamoBackend

__all__ = ["DynamoBackend"]
