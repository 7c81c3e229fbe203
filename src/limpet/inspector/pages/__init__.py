"""The pages, a module each: what it shows is a view of `limpet.views`, and a template."""

from limpet.inspector.pages import (
    doctor,
    doubts,
    events,
    export,
    home,
    journal,
    memory,
    search,
    state,
    task,
    versions,
)

__all__ = ["ACTIONS", "PAGES"]

_MODULES = (
    home,
    task,
    state,
    versions,
    memory,
    journal,
    doubts,
    export,
    search,
    doctor,
    events,
)

PAGES = tuple(page for module in _MODULES for page in module.PAGES)
ACTIONS = tuple(action for module in _MODULES for action in getattr(module, "ACTIONS", ()))
