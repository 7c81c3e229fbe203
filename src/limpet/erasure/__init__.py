"""To forget for good, across everything that a store holds; and what can be shown of that later."""

from limpet.erasure.receipt import Erasure, Gone, Mention

__all__ = ["Erasure", "Gone", "Mention"]
