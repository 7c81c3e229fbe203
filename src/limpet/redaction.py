"""What ``limpet.open(…, redact=[…])`` takes: built-in detectors, and what makes one of your own."""

from limpet.core.redaction import (
    CARDS,
    EMAILS,
    PHONES,
    SECRETS,
    Detector,
    Redactor,
    marker,
    pattern,
)

__all__ = [
    "CARDS",
    "EMAILS",
    "PHONES",
    "SECRETS",
    "Detector",
    "Redactor",
    "marker",
    "pattern",
]
