"""Stores to other stores and files, and back."""
