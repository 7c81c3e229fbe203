"""A server of the Model Context Protocol over one scope of a store: ``limpet mcp``.

`tools` is what it can do, `asking` what a model may ask for, `telling` what it is told; `server` is
the only part that knows the SDK, which is imported when a server is started.
"""
