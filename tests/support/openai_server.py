"""A local server that speaks OpenAI's Chat Completions and Responses, and is as strict.

It says what it is told to say: an `Answer` a request, from a list or from a function of the
request. A history that the provider would refuse is refused, with its status 400, whatever was to
be said; and every request is kept::

    with Server(Answer("Hello!"), Trouble(429)) as server:
        client = OpenAI(base_url=server.url, api_key="none")
"""

from __future__ import annotations

import itertools
import json
import socket
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, ClassVar

from limpet.testing.providers import Refused, check_chat, check_responses

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Self

__all__ = ["Answer", "Request", "Server", "Trouble"]

HOST = "127.0.0.1"
PIECE = 8  # characters to an event
CREATED = 1_700_000_000

#: What follows from how an answer ends, in Responses.
STATUS = {"length": "max_output_tokens", "content_filter": "content_filter"}


@dataclass(frozen=True, slots=True)
class Answer:
    """What the model says: text, or calls of tools as (name, arguments), or both.

    Arguments are a dict, or text as it stands; all calls have the *call_id*, if there is one, as of
    a provider that numbers them anew. A stream is *dropped* after so many pieces, and then
    *quietly*, as if that were its end; or it waits *pause* seconds before each.
    """

    text: str | None = None
    calls: tuple[tuple[str, Mapping[str, Any] | str], ...] = ()
    refusal: str | None = None
    finish: str | None = None
    reasoning: str | None = None
    dropped: int | None = None
    quietly: bool = False
    pause: float = 0.0
    call_id: str | None = None

    @property
    def reason(self) -> str:
        """Why the model stopped."""
        return self.finish or ("tool_calls" if self.calls else "stop")

    @property
    def words(self) -> int:
        """What this server counts as tokens."""
        return len((self.text or self.refusal or "").split()) + 2 * len(self.calls)


@dataclass(frozen=True, slots=True)
class Trouble:
    """What goes wrong in place of an answer: a status, a wait of *hang* seconds, a lost connection.

    With *failed*, a Responses reply that says itself that it failed; with a *page*, that text and
    its type, as of a proxy, in place of what the API says.
    """

    status: int | None = None
    hang: float = 0.0
    failed: str | None = None
    page: tuple[str, str] | None = None


@dataclass(slots=True)
class Request:
    """A request, and with what status it was answered."""

    api: str
    body: dict[str, Any]
    status: int = 200
    faults: list[str] = field(default_factory=list)

    @property
    def history(self) -> list[dict[str, Any]]:
        """The messages or items that were sent."""
        sent = self.body["messages" if self.api == "chat" else "input"]
        return [{"role": "user", "content": sent}] if isinstance(sent, str) else sent

    @property
    def stream(self) -> bool:
        """Whether the answer is wanted in pieces."""
        return bool(self.body.get("stream"))

    @property
    def asked(self) -> str:
        """What the user said last."""
        users = [m for m in self.history if m.get("role") == "user"]
        content = users[-1]["content"] if users else ""
        return content if isinstance(content, str) else json.dumps(content)

    @property
    def results(self) -> list[str]:
        """What the tools have said since then."""
        found: list[str] = []
        for message in self.history:
            if message.get("role") == "user":
                found.clear()
            elif message.get("role") == "tool":
                found.append(message["content"])
            elif message.get("type") == "function_call_output":
                found.append(message["output"])
        return found


class Server:
    """Listens on a port of its own while it is entered. A list of answers is used up in order."""

    def __init__(
        self, *answers: Answer | Trouble, brain: Callable[[Request], Answer | Trouble] | None = None
    ) -> None:
        self.requests: list[Request] = []
        self._answers = iter(answers)
        self._brain = brain
        self._lock = threading.Lock()
        self.numbers = itertools.count(1)
        self.closing = threading.Event()
        self.errors: list[BaseException] = []
        self._http = _HTTP((HOST, 0), type("Handler", (_Handler,), {"server_": self}))
        self._http.errors = self.errors
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)

    @property
    def url(self) -> str:
        """What a client is given as its base."""
        return f"http://{HOST}:{self._http.server_port}/v1"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()
        assert not self.errors, f"the server itself failed: {self.errors}"

    @property
    def accepted(self) -> list[Request]:
        """The requests that were answered."""
        return [request for request in self.requests if request.status == 200]

    @property
    def refused(self) -> list[Request]:
        """Those whose history no provider would take."""
        return [request for request in self.requests if request.status == 400]

    def answer(self, request: Request) -> Answer | Trouble:
        """What is to be said to *request*, which is kept."""
        with self._lock:
            self.requests.append(request)
            request.faults = faults_of(request)
            if request.faults:
                request.status = 400
                return Trouble(400)
            found = self._brain(request) if self._brain else next(self._answers, None)
            if found is None:
                raise AssertionError(f"nothing is left to be said to {request.asked!r}")
            if isinstance(found, Trouble) and found.status:
                request.status = found.status
            return found


def faults_of(request: Request) -> list[str]:
    """Why a provider would refuse *request*."""
    sent = request.body.get("messages" if request.api == "chat" else "input")
    if not sent:
        return ["nothing was sent"]
    if not request.body.get("model"):
        return ["no model was named"]
    try:
        (check_chat if request.api == "chat" else check_responses)(request.history)
    except Refused as refused:
        return [str(refused)]
    return list(_tool_faults(request))


def _tool_faults(request: Request) -> Iterator[str]:
    for tool in request.body.get("tools") or ():
        if tool.get("type") != "function":
            continue
        if request.api == "chat" and not isinstance(tool.get("function"), dict):
            yield "a tool without a function"
            continue
        function = tool["function"] if request.api == "chat" else tool
        if not function.get("name"):
            yield "a tool without a name"
        if function.get("parameters", {}).get("type", "object") != "object":
            yield f"the parameters of {function['name']} are no object"


class _HTTP(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64
    errors: list[BaseException]

    def handle_error(self, request: object, client_address: object) -> None:
        """Keep what went wrong; that a client is gone is nothing."""
        error = sys.exception()
        if error is not None and not isinstance(error, ConnectionError):
            self.errors.append(error)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_: ClassVar[Server]

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as its base has it
        """Say nothing."""

    def do_POST(self) -> None:
        """Answer one request; a client that is gone is no trouble."""
        with suppress(ConnectionError):
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            api = {"/v1/chat/completions": "chat", "/v1/responses": "responses"}.get(self.path)
            if api is None:
                self._json(404, _error(f"there is no {self.path}"))
                return
            request = Request(api, body)
            found = self.server_.answer(request)
            if isinstance(found, Trouble):
                self._fail(found, request)
            else:
                self._say(_made(found, request, self.server_.numbers), found, request)

    def _fail(self, trouble: Trouble, request: Request) -> None:
        if trouble.hang:
            self.server_.closing.wait(trouble.hang)
        if trouble.failed:
            body = _failed(trouble.failed, next(self.server_.numbers))
            if request.stream:
                self._stream([{"type": "response.failed", "sequence_number": 0, "response": body}])
            else:
                self._json(200, body)
        elif trouble.page:
            self._text(200, *trouble.page)
        elif trouble.status:
            self._json(trouble.status, _error("; ".join(request.faults) or "try again later"))
        else:
            self._drop()

    def _say(self, body: dict[str, Any], answer: Answer, request: Request) -> None:
        if not request.stream:
            time.sleep(answer.pause)
            self._json(200, body)
        elif request.api == "chat":
            self._stream(_chunks(body, request), answer)
        else:
            self._stream(_events(body), answer)

    def _headers(self, status: int, kind: str) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("x-request-id", f"req_{next(self.server_.numbers)}")

    def _json(self, status: int, body: dict[str, Any]) -> None:
        self._text(status, "application/json", json.dumps(body))

    def _text(self, status: int, kind: str, text: str) -> None:
        data = text.encode()
        self._headers(status, kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, events: list[dict[str, Any]], answer: Answer | None = None) -> None:
        answer = answer or Answer()
        self._headers(200, "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        pieces = 0
        for event in events:
            if _is_piece(event):
                time.sleep(answer.pause)
                pieces += 1
                if answer.dropped is not None and pieces > answer.dropped:
                    self._chunk(b"") if answer.quietly else self._drop()
                    return
            self._event(event)
        if "choices" in events[0]:
            self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")

    def _event(self, event: dict[str, Any]) -> None:
        kind = f"event: {event['type']}\n" if "type" in event else ""
        self._chunk(f"{kind}data: {json.dumps(event)}\n\n".encode())

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def _drop(self) -> None:
        self.close_connection = True
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)


def _is_piece(event: dict[str, Any]) -> bool:
    if "choices" in event:
        return any(choice["delta"].get("content") for choice in event["choices"])
    return event.get("type") == "response.output_text.delta"


# -- what is said, in the provider's words ---------------------------------------------------------


def _error(message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error", "code": None}}


def _made(answer: Answer, request: Request, numbers: Iterator[int]) -> dict[str, Any]:
    make = _completion if request.api == "chat" else _response
    return make(answer, request, numbers)


def _arguments(given: Mapping[str, Any] | str) -> str:
    return given if isinstance(given, str) else json.dumps(given)


def _completion(answer: Answer, request: Request, numbers: Iterator[int]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": answer.text}
    message |= {"refusal": answer.refusal, "annotations": []}
    if answer.calls:
        message["tool_calls"] = [
            {
                "id": answer.call_id or f"call_{next(numbers)}",
                "type": "function",
                "function": {"name": name, "arguments": _arguments(given)},
            }
            for name, given in answer.calls
        ]
    sent = _sent(request)
    return {
        "id": f"chatcmpl-{next(numbers)}",
        "object": "chat.completion",
        "created": CREATED,
        "model": request.body["model"],
        "choices": [
            {"index": 0, "message": message, "finish_reason": answer.reason, "logprobs": None}
        ],
        "usage": {
            "prompt_tokens": sent,
            "completion_tokens": answer.words,
            "total_tokens": sent + answer.words,
            "prompt_tokens_details": {"cached_tokens": 1},
            "completion_tokens_details": {"reasoning_tokens": 2},
        },
    }


def _sent(request: Request) -> int:
    return len(json.dumps(request.history).split())


def _chunks(body: dict[str, Any], request: Request) -> list[dict[str, Any]]:
    """A completion in pieces."""
    (choice,) = body["choices"]
    message = choice["message"]
    empty = None if message["content"] is None else ""
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": empty, "refusal": None}]
    deltas += [{"content": piece} for piece in _pieces(message["content"])]
    deltas += [{"refusal": piece} for piece in _pieces(message["refusal"])]
    for index, call in enumerate(message.get("tool_calls", ())):
        function = call["function"]
        begun = {"name": function["name"], "arguments": ""}
        deltas.append({"tool_calls": [{**call, "index": index, "function": begun}]})
        deltas += [
            {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}
            for piece in _pieces(function["arguments"])
        ]
    frame = {**body, "object": "chat.completion.chunk", "usage": None}
    found = [
        {**frame, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        for delta in deltas
    ]
    last = {"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}
    found.append({**frame, "choices": [last]})
    if (request.body.get("stream_options") or {}).get("include_usage"):
        found.append({**frame, "choices": [], "usage": body["usage"]})
    return found


def _response(answer: Answer, request: Request, numbers: Iterator[int]) -> dict[str, Any]:
    sent = _sent(request)
    cut = STATUS.get(answer.reason)
    return {
        **_frame(next(numbers), request.body["model"]),
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": cut} if cut else None,
        "output": list(_items(answer, numbers)),
        "usage": {
            "input_tokens": sent,
            "input_tokens_details": {"cached_tokens": 1, "cache_write_tokens": 0},
            "output_tokens": answer.words,
            "output_tokens_details": {"reasoning_tokens": 2},
            "total_tokens": sent + answer.words,
        },
    }


def _frame(number: int, model: str) -> dict[str, Any]:
    return {
        "id": f"resp_{number}",
        "object": "response",
        "created_at": CREATED,
        "model": model,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "output": [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": None,
    }


def _failed(message: str, number: int) -> dict[str, Any]:
    error = {"code": "server_error", "message": message}
    return {**_frame(number, "failing"), "status": "failed", "error": error}


def _items(answer: Answer, numbers: Iterator[int]) -> Iterator[dict[str, Any]]:
    if answer.reasoning is not None:
        summary = [{"type": "summary_text", "text": answer.reasoning}]
        yield {"id": f"rs_{next(numbers)}", "type": "reasoning", "summary": summary}
    if answer.text is not None or answer.refusal is not None:
        part: dict[str, Any] = {"type": "refusal", "refusal": answer.refusal}
        if answer.text is not None:
            part = {"type": "output_text", "text": answer.text, "annotations": [], "logprobs": []}
        yield {
            "id": f"msg_{next(numbers)}",
            "type": "message",
            "role": "assistant",
            "status": "incomplete" if answer.reason in STATUS else "completed",
            "content": [part],
        }
    for name, given in answer.calls:
        yield {
            "id": f"fc_{next(numbers)}",
            "type": "function_call",
            "call_id": answer.call_id or f"call_{next(numbers)}",
            "name": name,
            "arguments": _arguments(given),
            "status": "completed",
        }


def _events(body: dict[str, Any]) -> list[dict[str, Any]]:
    """A response in pieces."""
    begun = {**body, "status": "in_progress", "output": [], "usage": None}
    found: list[dict[str, Any]] = [{"type": "response.created", "response": begun}]
    for index, item in enumerate(body["output"]):
        place = {"output_index": index, "item_id": item["id"]}
        empty = {**item, "status": "in_progress"}
        empty |= {
            key: empty_ for key, empty_ in (("content", []), ("arguments", "")) if key in item
        }
        found.append({"type": "response.output_item.added", **place, "item": empty})
        found += [{**event, **place} for event in _item_events(item)]
        found.append({"type": "response.output_item.done", **place, "item": item})
    end = "response.completed" if body["status"] == "completed" else "response.incomplete"
    found.append({"type": end, "response": body})
    return [{**event, "sequence_number": number} for number, event in enumerate(found)]


def _item_events(item: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if item["type"] == "function_call":
        for piece in _pieces(item["arguments"]):
            yield {"type": "response.function_call_arguments.delta", "delta": piece}
        done = {"name": item["name"], "arguments": item["arguments"]}
        yield {"type": "response.function_call_arguments.done", **done}
    if item["type"] == "message":
        (part,) = item["content"]
        kind = part["type"]
        key = "text" if kind == "output_text" else "refusal"
        at = {"content_index": 0}
        yield {"type": "response.content_part.added", **at, "part": {**part, key: ""}}
        for piece in _pieces(part[key]):
            yield {"type": f"response.{kind}.delta", **at, "delta": piece, "logprobs": []}
        yield {"type": f"response.{kind}.done", **at, key: part[key], "logprobs": []}
        yield {"type": "response.content_part.done", **at, "part": part}


def _pieces(text: str | None) -> list[str]:
    text = text or ""
    return [text[at : at + PIECE] for at in range(0, len(text), PIECE)]
