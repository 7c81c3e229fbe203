"""Limpet in the frameworks people use: one module a framework, which needs its package."""
