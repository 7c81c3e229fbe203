"""The pages, a module each: what it shows is a view of `limpet.views`, and a template."""

from limpet.inspector.pages import doubts, events, home, journal, task

__all__ = ["ACTIONS", "PAGES"]

_MODULES = (
    home,
    task,
    journal,
    doubts,
    events,
)

PAGES = tuple(page for module in _MODULES for page in module.PAGES)
ACTIONS = tuple(action for module in _MODULES for action in getattr(module, "ACTIONS", ()))
