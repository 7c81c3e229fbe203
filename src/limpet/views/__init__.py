"""What people are shown of a store, whoever shows it: commands, pages, MCP.

A view is plain data: frozen structs, made of heads and entries, without colour, markup or a word of
who asked. What renders it makes stored text harmless (`limpet.views.text.safe`, or escaping).

*Paged by number.* A page costs what is on it: the work for it is bounded, however long the journal
and however full the store. Pages go backwards from the newest: ``older`` of a page is what to give
as ``before`` for the next one, None at the beginning.

*Whole only where that is small.* What only a fold of the whole journal can say is there for
journals of up to `WHOLE` entries; of longer ones a view says so, and reads all of it when asked.
"""

__all__ = ["PAGE", "WHOLE"]

#: Items on a page, and the entries up to which a journal is read whole without being asked.
PAGE = 50
WHOLE = 1_000
