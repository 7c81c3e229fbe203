"""The tools as a server of the MCP SDK: over standard input and output, or over HTTP."""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, Any

from limpet.errors import MissingExtra
from limpet.mcp.arguments import schema
from limpet.mcp.rendering import DATA
from limpet.mcp.tools import UnknownTool

try:
    import mcp_types as types
    import uvicorn
    from mcp.server.lowlevel import Server
    from mcp.server.stdio import stdio_server
    from mcp.server.transport_security import TransportSecuritySettings
    from mcp.shared.exceptions import MCPError
    from starlette.responses import PlainTextResponse
except ImportError as error:
    raise MissingExtra.of("limpet mcp", "mcp", "mcp") from error

import limpet

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterable

    from starlette.types import ASGIApp, Receive, Scope, Send

    from limpet.mcp.tools import Tools

__all__ = [
    "HTTP_PATH",
    "Guard",
    "application",
    "make_server",
    "serve_http",
    "serve_stdio",
]

HTTP_PATH = "/mcp"
#: Bytes of one request: room for the longest text that a tool takes, and more.
MOST_BYTES = 256 * 1024
#: Seconds that requests have to end in when the server is stopped; some never would.
GRACE = 3

INSTRUCTIONS = (
    "Memory that outlives this conversation: what earlier tasks and conversations have left. Call "
    "`recall` before you start on something and when you are about to ask the user for what may be "
    f"known; `snapshot` gives an overview. {DATA} It may be out of date: check what matters."
)
WRITING = (
    " Call `remember` for what later tasks will want to know: facts, decisions and their reasons, "
    "preferences; and `update` when one has changed."
)


def make_server(tools: Tools) -> Server[Any]:
    """*tools* as a server, to be connected to any transport of the SDK."""

    async def list_tools(
        _context: Any, params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        if params is not None and params.cursor is not None:
            msg = "That cursor is not of this server: all of its tools are on one page."
            raise MCPError(types.INVALID_PARAMS, msg)
        found = [
            types.Tool(
                name=spec.name,
                description=spec.description,
                input_schema=schema(spec.arguments),
                annotations=types.ToolAnnotations(
                    read_only_hint=not spec.writes,
                    destructive_hint=spec.destroys,
                    idempotent_hint=True,
                    open_world_hint=False,
                ),
            )
            for spec in tools.specs
        ]
        return types.ListToolsResult(tools=found)

    async def call_tool(_context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        try:
            answer = await tools.call(params.name, params.arguments or {})
        except UnknownTool as error:  # for the client's program; a tool's own failures are answers
            raise MCPError(types.INVALID_PARAMS, str(error)) from error
        content = [types.TextContent(type="text", text=answer.text)]
        return types.CallToolResult(content=[*content], is_error=answer.failed)

    return Server(
        "limpet",
        version=limpet.__version__,
        instructions=INSTRUCTIONS + (WRITING if tools.writes else ""),
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


async def serve_stdio(tools: Tools) -> None:
    """Serve the one client that has started this process, until it goes."""
    server = make_server(tools)
    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


# -- HTTP ------------------------------------------------------------------------------------------


class Guard:
    """Refuses requests without the token."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._wanted = token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "lifespan" or self._has_token(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            text = "This server wants its token: Authorization: Bearer …"
            refused = PlainTextResponse(text, 401, {"WWW-Authenticate": "Bearer"})
            await refused(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008})

    def _has_token(self, scope: Scope) -> bool:
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(given) != 1:
            return False
        scheme, _, token = given[0].partition(b" ")
        # In constant time, so that how long a refusal takes tells nothing of the token.
        return scheme.lower() == b"bearer" and hmac.compare_digest(token.strip(), self._wanted)


def application(tools: Tools, token: str, hosts: Iterable[str]) -> ASGIApp:
    """The server for HTTP: with *token*, and only under one of *hosts* (``name:port``).

    A web page could make its own name resolve to this machine (DNS rebinding); its requests then
    have that name as their Host, or another Origin.
    """
    hosts = list(hosts)
    security = TransportSecuritySettings(
        allowed_hosts=hosts,
        allowed_origins=[f"{how}://{host}" for host in hosts for how in ("http", "https")],
    )
    app = make_server(tools).streamable_http_app(
        streamable_http_path=HTTP_PATH,
        json_response=True,
        stateless_http=True,  # every request carries the token, and nothing else is remembered
        max_request_body_size=MOST_BYTES,
        transport_security=security,
    )
    return Guard(app, token)


async def serve_http(
    tools: Tools, listening: socket.socket, token: str, names: Iterable[str]
) -> None:
    """Serve whoever has the *token* and calls this machine by one of *names*, until a signal."""
    port = listening.getsockname()[1]
    hosts = [form for name in names for form in (f"{name}:{port}", name)]
    config = uvicorn.Config(
        application(tools, token, hosts),
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE,
    )
    await uvicorn.Server(config).serve(sockets=[listening])
