"""The rules of each provider, for `limpet.testing.providers`."""
