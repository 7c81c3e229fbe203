"""Functions that a model may call: how they are described to it, and what it calls them with."""

from __future__ import annotations

import inspect
import json
import re
from typing import TYPE_CHECKING, Annotated, Any, NotRequired, get_type_hints, overload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

__all__ = ["BadArguments", "Tool", "sort_tools", "tool"]

#: What the providers take for a name.
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
# "place: where to look" or "place (str): …" as Google has it; Sphinx has ":param place: …".
_GOOGLE = re.compile(r"^\s+(\w+)\s*(?:\([^)]*\))?:\s+(.+)$")
_SPHINX = re.compile(r"^\s*:param\s+(?:[^:]*\s)?(\w+):\s*(.+)$")
_SECTION = re.compile(r"^\s*(Args|Arguments|Parameters|Returns|Raises|Yields|Examples?):\s*$")


class BadArguments(ValueError):
    """What the model called a tool with cannot be what the tool takes."""


class Tool:
    """A function that the model may call, and what the model is told of it. Made by `tool`."""

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        description: str,
        parameters: dict[str, Any],
        *,
        read: Callable[[str], dict[str, Any]],
        idempotent: bool,
        strict: bool,
    ) -> None:
        self.function = function
        self.name = name
        self.description = description
        self.parameters = parameters
        self.idempotent = idempotent
        self.strict = strict
        self._read = read

    def __repr__(self) -> str:
        return f"Tool({self.name!r}, idempotent={self.idempotent})"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function itself."""
        return self.function(*args, **kwargs)

    @property
    def awaits(self) -> bool:
        """Whether it is async."""
        return inspect.iscoroutinefunction(self.function)

    def arguments(self, text: str) -> dict[str, Any]:
        """What the model has written, as the function takes it; `BadArguments`, if that fails."""
        if not text and self.parameters.get("properties"):
            # Where there is something to say, nothing is a reply that was cut off before it.
            raise BadArguments("there are no arguments, not even {}.")
        return self._read(text)


@overload
def tool(
    function: Callable[..., Any],
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    schema: Mapping[str, Any] | None = None,
    idempotent: bool = False,
    strict: bool = False,
) -> Tool: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    schema: Mapping[str, Any] | None = None,
    idempotent: bool = False,
    strict: bool = False,
) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    schema: Mapping[str, Any] | None = None,
    idempotent: bool = False,
    strict: bool = False,
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make *function*, plain or async, a tool; also as a decorator.

    Name, description and parameters come from its name, docstring and signature, or from *schema*:
    that of its parameters, or a whole tool as either API has it. *idempotent*: to run it twice does
    no harm, so a call that a crash has cut short is simply run again. *strict*: the provider holds
    the model to the schema, which must then be of the kind that it calls strict.
    """
    if function is None:
        return lambda found: tool(
            found,
            name=name,
            description=description,
            schema=schema,
            idempotent=idempotent,
            strict=strict,
        )
    given = _as_tool(schema or {})
    name = str(name or given.get("name") or getattr(function, "__name__", ""))
    if not _NAME.fullmatch(name):
        msg = f"{name!r} cannot be a tool's name: give it one of letters, digits, _ and -."
        raise ValueError(msg)
    summary, notes = _read_docstring(function)
    by_hand = (dict(given["parameters"]), _read_unchecked) if "parameters" in given else None
    parameters, read = by_hand or _parameters(function, notes)
    return Tool(
        function,
        name,
        description or given.get("description") or summary,
        parameters,
        read=read,
        idempotent=idempotent,
        strict=strict or bool(given.get("strict")),
    )


def sort_tools(given: Iterable[Any]) -> tuple[dict[str, Tool], list[dict[str, Any]]]:
    """The functions among *given* by name, and the tools that the provider has itself."""
    found: dict[str, Tool] = {}
    hosted: list[dict[str, Any]] = []
    for each in given:
        if isinstance(each, dict):
            if each.get("type") == "function":
                msg = (
                    f"There is no function behind the tool {_as_tool(each).get('name')!r}. Give "
                    "both: tool(function, schema=…)."
                )
                raise ValueError(msg)
            hosted.append(each)
            continue
        made = each if isinstance(each, Tool) else tool(each)
        if made.name in found:
            raise ValueError(
                f"Two tools are named {made.name!r}. Give one another: tool(…, name=…)."
            )
        found[made.name] = made
    return found, hosted


def _as_tool(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A tool as the Responses API has it, of whatever *schema* is."""
    if schema.get("type") == "function":
        return dict(schema.get("function") or schema)
    return {"parameters": schema} if schema else {}


# -- from the signature ----------------------------------------------------------------------------


def _parameters(
    function: Callable[..., Any], notes: Mapping[str, str]
) -> tuple[dict[str, Any], Callable[[str], dict[str, Any]]]:
    """The schema of what *function* takes, and what reads it. By pydantic, which openai brings."""
    from pydantic import (  # noqa: PLC0415 - comes with openai
        ConfigDict,
        Field,
        TypeAdapter,
        ValidationError,
        with_config,
    )
    from typing_extensions import TypedDict  # noqa: PLC0415 - and so does this

    fields: dict[str, Any] = {}
    hints = get_type_hints(inspect.unwrap(function), include_extras=True)
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            msg = (
                f"A model cannot give {parameter} to {function.__name__}: it names every argument. "
                "Write out its parameters, or say what it takes: tool(function, schema=…)."
            )
            raise TypeError(msg)
        hint = hints.get(parameter.name, Any)
        if note := notes.get(parameter.name):
            hint = Annotated[hint, Field(description=note)]
        required = parameter.default is parameter.empty
        fields[parameter.name] = hint if required else NotRequired[hint]
    # Not a model: a parameter may have any name, also one that a model has for itself.
    shape = TypedDict(function.__name__, fields)  # type: ignore[misc] # it is made as we go
    adapter: TypeAdapter[Any] = TypeAdapter(with_config(ConfigDict(extra="forbid"))(shape))
    schema = adapter.json_schema()
    schema.pop("title", None)
    schema.setdefault("properties", {})
    for field in schema["properties"].values():
        field.pop("title", None)

    def read(text: str) -> dict[str, Any]:
        try:
            return dict(adapter.validate_json(text or "{}"))
        except ValidationError as error:
            faults = [(".".join(map(str, fault["loc"])), fault["msg"]) for fault in error.errors()]
            msg = "; ".join(": ".join(filter(None, fault)) for fault in faults)
            raise BadArguments(msg) from error

    return schema, read


def _read_unchecked(text: str) -> dict[str, Any]:
    """What the model has written, for a function whose schema was given: that checks it itself."""
    try:
        found = json.loads(text or "{}")
    except ValueError as error:
        raise BadArguments(f"Invalid JSON: {error}") from error
    if not isinstance(found, dict):
        raise BadArguments(f"Arguments are an object, not {text[:40]}")
    return found


def _read_docstring(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """What a docstring says of the function, and of each parameter."""
    lines = (inspect.getdoc(function) or "").splitlines()
    notes = {}
    for line in lines:
        if found := _SPHINX.match(line) or _GOOGLE.match(line):
            notes[found[1]] = found[2].strip()
    ends = (n for n, line in enumerate(lines) if _SECTION.match(line) or _SPHINX.match(line))
    return "\n".join(lines[: next(ends, len(lines))]).strip(), notes
