"""The inspector: pages that show what agents know, did, and wait for; ``limpet inspect``.

`app` is the whole of it as an ASGI application, to be mounted into another::

    import limpet
    from limpet import inspector

    store = limpet.open("agents.db")
    application = inspector.app(store, authorize=lambda request: request.user.is_admin)

`security` is who may come in and what a browser is allowed to do, once for all pages; `site` is
what a page has of a request; `follow` tells a page that something has changed; `pages` has a module
for each page, and renders what `limpet.views` makes.
"""

from limpet.errors import MissingExtra

try:
    import jinja2  # noqa: F401 - named here, so that what is missing is said in one place
    import starlette  # noqa: F401
except ImportError as error:
    raise MissingExtra.of("The inspector", "starlette", "inspector") from error

from limpet.inspector.app import app
from limpet.inspector.security import Access

__all__ = ["Access", "app"]
