"""A server of the Model Context Protocol over one scope of a store: ``limpet mcp``.

`tools` is what it can do, `arguments` what a model may ask for, `rendering` what it is answered;
`server` is the only part that knows the SDK, which is imported when a server is started.
"""
