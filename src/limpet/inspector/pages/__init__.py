"""The pages, a module each: what it shows is a view of `limpet.views`, and a template."""

from limpet.inspector.pages import (
    chat,
    doctor,
    doubts,
    events,
    export,
    fork,
    home,
    journal,
    memory,
    search,
    state,
    task,
    versions,
    window,
)

__all__ = ["ACTIONS", "PAGES"]

#: In the order in which a journal's tabs are: the first one is where links lead.
_MODULES = (
    home,
    task,
    chat,
    window,
    fork,
    state,
    memory,
    versions,
    journal,
    doubts,
    export,
    search,
    doctor,
    events,
)

PAGES = tuple(page for module in _MODULES for page in module.PAGES)
ACTIONS = tuple(action for module in _MODULES for action in getattr(module, "ACTIONS", ()))
