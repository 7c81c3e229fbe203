"""The pages, a module each: what it shows is a view of `limpet.views`, and a template."""

from limpet.inspector.pages import doubts, events, export, home, journal, state, task, versions

__all__ = ["ACTIONS", "PAGES"]

_MODULES = (
    home,
    task,
    state,
    versions,
    journal,
    doubts,
    export,
    events,
)

PAGES = tuple(page for module in _MODULES for page in module.PAGES)
ACTIONS = tuple(action for module in _MODULES for action in getattr(module, "ACTIONS", ()))
