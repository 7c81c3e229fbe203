"""The rules of each provider, for `holdfast.testing.providers`."""
