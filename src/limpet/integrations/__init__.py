"""Limpet in the frameworks people use: a package each, which needs the framework's own."""
