"""What an agent or a team is: the fingerprint of its states, and its masked component."""

from __future__ import annotations

import re
import warnings
from typing import Any

from autogen_agentchat.teams import BaseGroupChat
from autogen_core.tools import StaticWorkbench

from limpet.core.codec import plain
from limpet.errors import LimpetError
from limpet.integrations.autogen import internals
from limpet.integrations.autogen.recording import RecordingClient, RecordingWorkbench

__all__ = ["MASK", "component_of", "fingerprint_of", "masked"]

#: What ``dump_component()`` raises where a part of something cannot be described.
_NOT_DESCRIBED = (
    NotImplementedError,
    ValueError,
    TypeError,
    AttributeError,
    OSError,
    LimpetError,
)


async def fingerprint_of(it: Any) -> dict[str, Any]:
    """What a state that *it* saved depends on: names, classes, prompts, models, tools."""
    found: dict[str, Any] = {"name": it.name, "type": type(it).__name__}
    prompts = internals.system_messages(it)
    if prompts:
        found["prompt"] = "\n\n".join(str(message.content) for message in prompts)
    client = internals.model_client(it)
    if client is not None:
        found["model"] = model_name(client.inner if isinstance(client, RecordingClient) else client)
    tools: dict[str, Any] = {}
    for bench in internals.workbenches(it):
        inner = bench.inner if isinstance(bench, RecordingWorkbench) else bench
        if isinstance(inner, StaticWorkbench):
            tools |= {tool["name"]: dict(tool) for tool in await inner.list_tools()}
        else:  # what a server offers is not known before it is started
            tools[type(inner).__name__] = None
    if tools:
        found["tools"] = tools
    handoffs = internals.handoffs(it)
    if handoffs:
        found["handoffs"] = {name: handoff.target for name, handoff in handoffs.items()}
    is_team = isinstance(it, BaseGroupChat)
    members = internals.participants(it) if is_team else internals.inner(it).values()
    if members:
        found["members"] = {member.name: await fingerprint_of(member) for member in members}
    edges = internals.edges(it)
    if edges:
        found["graph"] = edges
    return found


def model_name(client: Any) -> str:
    """The model's name, as far as its client's configuration tells; else the client's class."""
    config = (_dumped(client) or {}).get("config", {})
    return str(config.get("model") or getattr(client, "model", None) or type(client).__name__)


def component_of(it: Any) -> dict[str, Any] | None:
    """``dump_component()`` of *it*, masked; None if a part of it has no description.

    It is for people, and never loaded: it names what to import.
    """
    found = _dumped(it)
    return None if found is None else masked(found)


def _dumped(it: Any) -> dict[str, Any] | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return plain(it.dump_component().model_dump(mode="json"))  # type: ignore[no-any-return]
    except _NOT_DESCRIBED:
        return None


# -- credentials -----------------------------------------------------------------------------------
# A client of AutoGen's masks its own ``api_key``, and nothing else. Here all is masked that may be
# a credential, by the name of its field or by what it looks like: too much rather than too little.

#: In place of a credential; the same as AutoGen's.
MASK = "**********"

#: Words in the name of a field whose text, or all text within it, is masked.
_CREDENTIAL_WORDS = re.compile(
    r"auth|authorization|bearer|cert|certificate|connection|cookies?|credentials?|dsn|env|environ"
    r"|environment|headers?|jwt|keys?|passphrase|passwd|passwords?|pat|pin|pwd|query|sas|secrets?"
    r"|session|sig|signature|tokens?"
)
#: The same, where a name is written in one word.
_CREDENTIAL_PARTS = ("apikey", "accesskey", "connectionstring", "password", "secret", "authtoken")
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")

#: The part of a URL before its host, which may have a password with whatever in it; and a query.
_USERINFO = re.compile(
    r"(?P<scheme>\b[a-z][a-z0-9+.-]*://)(?:[^/?#\s'\"@:]*:[^\s'\"]+|[^/?#\s'\"]+)@", re.IGNORECASE
)
_QUERY_VALUE = re.compile(r"(?P<name>[?&;][\w.~%\[\]-]+=)[^&;#\s'\"<>]+")
#: A name of a credential and its value in a text: an option, a connection string, an assignment,
#: where the value may come after a type.
_ASSIGNED = re.compile(
    r"(?P<name>(?:password|passwd|passphrase|pwd|secret|token|credential|api[_ -]?key"
    r"|access[_ -]?key|account[_ -]?key|private[_ -]?key|shared[_ -]?access[_ -]?\w+|authorization"
    r"|signature)[\"']?\s*(?::[\w.\[\]| ]+=|[:=])\s*)"
    r"(?:[bfru]{0,2}(?P<quote>[\"'])(?:(?!(?P=quote)).)*(?P=quote)?"
    r"|(?:(?:bearer|basic|token)\s+)?[^\s\"',;&]+)",
    re.IGNORECASE | re.DOTALL,
)
#: What is a credential by itself, whatever is around it.
_CREDENTIAL = re.compile(
    r"\b(?P<scheme>bearer|basic)\s+[\w+/=.~-]{16,}"
    r"|\b(?:sk|pk|rk)-[\w-]{6,}"
    r"|\b(?:gh[oprsu]_|github_pat_|glpat-|xox[abeprs]-|hf_)[\w-]{6,}"
    r"|\b(?:AKIA|ASIA)[A-Z0-9]{12,}"
    r"|\bAIza[\w-]{20,}"
    r"|\beyJ[\w-]{6,}\.[\w-]+\.[\w-]*"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
    re.IGNORECASE | re.DOTALL,
)
#: An option of a command whose value is the next argument.
_OPTION = re.compile(r"--?[\w-]+")


def masked(value: Any, *, is_credential: bool = False) -> Any:
    """*value*, of what JSON has, without what may be a credential; names of fields stay.

    >>> masked({"url": "https://u:p@host/x?sig=1", "default_headers": {"X-Team": "seven"}})
    {'url': 'https://**********@host/x?sig=**********', 'default_headers': {'X-Team': '**********'}}
    """
    if isinstance(value, dict):
        return {
            name: masked(item, is_credential=is_credential or _names_credential(name))
            for name, item in value.items()
        }
    if isinstance(value, list):
        found, before = [], ""
        for item in value:
            is_after_option = bool(_OPTION.fullmatch(before)) and _names_credential(before)
            found.append(masked(item, is_credential=is_credential or is_after_option))
            before = item if isinstance(item, str) else ""
        return found
    if not isinstance(value, str):
        return value  # such as ``max_tokens``: in AutoGen's configurations, credentials are text
    if is_credential:
        return MASK if value else value
    value = _USERINFO.sub(rf"\g<scheme>{MASK}@", value)
    if "://" in value or not re.search(r"\s", value):
        value = _QUERY_VALUE.sub(rf"\g<name>{MASK}", value)
    value = _CREDENTIAL.sub(lambda it: f"{it['scheme']} {MASK}" if it["scheme"] else MASK, value)
    return _ASSIGNED.sub(rf"\g<name>{MASK}", value)


def _names_credential(name: str) -> bool:
    words = [word.lower() for word in _WORDS.findall(name)]
    joined = "".join(words)
    return any(map(_CREDENTIAL_WORDS.fullmatch, words)) or any(
        part in joined for part in _CREDENTIAL_PARTS
    )
