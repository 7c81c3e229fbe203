"""A store in which every text would like to be something else than text."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from limpet import Retry, TaskWaiting
from limpet.backends.contract import Append
from limpet.core.ids import make_key
from tests.models.test_damage import seal
from tests.support.doubtful import leave_in_doubt

if TYPE_CHECKING:
    from limpet import Store

__all__ = ["HACKED", "IDS", "TEXT", "TEXTS", "fill"]

#: The host that pages would call, were they to obey.
HACKED = "hacked.example"

#: What browsers, terminals and templates might obey; what nobody sees, and what turns text round.
TEXTS = (
    f"<script src=//{HACKED}/a.js></script><script>alert('hacked')</script>",
    f"'\"><img src=//{HACKED}/b.png onerror=alert(1)><svg/onload=alert(2)>",
    f"<style>@import '//{HACKED}/c.css'</style><iframe srcdoc='<script>alert(3)</script>'>",
    f"javascript:alert(4) [a](javascript:alert(5)) ![b](//{HACKED}/d.png) data:text/html,<p>",
    f"<div hx-get='//{HACKED}/e' hx-trigger=load hx-on:load='alert(6)' data-follow='/f'>",
    "{{ 7 * 7 }} {% include 'base.html' %} ${7*7} #{7*7} <%= 7*7 %>",
    "</summary></details></pre></textarea></title></option></select></main></body></html>",
    "<form action=/signal method=post><input name=form_token autofocus onfocus=alert(7)>",
    "--> ]]> <!-- <![CDATA[ &lt;b&gt; &#x3c;script&#x3e; %3Cscript%3E \\u003cscript\\u003e",
    "\x1b[31mred \x1b]8;;http://hacked.example\x07link\x1b]8;;\x07 \x00\x07\x08\x7f\x9b1m",
    "\u202egnp.exe\u202c \u2066turned\u2069 \u200bze\u200dro\u200e \ufeff \U000e0041\u2028line",
    "Z\u0351\u036b\u0343\u036a\u0302\u036b\u033d\u034f\u0334\u0319" * 40,
    "%0d%0aSet-Cookie: a=b \r\nLocation: //hacked.example\r\n\r\n ../../etc/passwd",
    "W" * 3_000,
)
TEXT = " ".join(TEXTS)
#: Too long for any page.
LONG = f"{TEXT} {'m' * 1_000_000} {TEXT}"

#: What may be an id, and would like to be a path, a query, a tag or a header.
IDS = (
    "..",
    "../..",
    "a/../../b",
    "?kind=task&id=x#y",
    "%2e%2e%2f%00",
    "//hacked.example/",
    "javascript:alert(8)",
    "'\"><img src=x onerror=alert(9)>",
    "{{ 7 * 7 }}",
    "\u202egnp.exe \u200b\u200e\ufeff",
    "W" * 512,
    "\u0e01\u0e49" * 85,
)
AGENT = "<b onclick=alert(16)>\u202eagent"
#: What may be the name of a step, a signal or a tag.
NAMES = [
    name
    for text in TEXTS
    if (name := "".join(c for c in text if ord(c) > 31 and c not in "\x7f\x9b\u2028")[:80].strip())
]
LABELS = {
    "<b onmouseover=alert(10)>": "<script>alert(11)</script>",
    "a=b&c": "x=y#z",
    "\u202edlog": "\u200b",
    "W" * 256: "W" * 256,
}


def _deep(levels: int) -> Any:
    found: Any = TEXT
    for number in range(levels):
        found = {TEXTS[number % len(TEXTS)]: found} if number % 2 else [found]
    return found


def _fail() -> None:
    raise RuntimeError(LONG)


def _conversations(store: Store) -> None:
    chat = store.conversation(IDS[7], labels=LABELS)
    call = {
        "name": TEXTS[1],
        "arguments": '{"a": "\\ud800", "b": "' + TEXTS[0].replace("'", "") + '"}',
    }
    chat.append(
        {"role": "system", "content": TEXT},
        {"role": "user", "content": [
            {"type": "text", "text": TEXT},
            {"type": "image_url", "image_url": {"url": f"https://{HACKED}/track.png"}},
            {"type": "image_url", "image_url": {"url": "javascript:alert(12)"}},
            {"type": "image_url", "image_url": {"url": "data:image/svg+xml,<svg onload=alert(1)>"}},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        ]},
        {"role": "assistant", "content": TEXT, "tool_calls": [
            {"id": TEXTS[3], "type": "function", "function": call}
        ]},
        {"role": "tool", "tool_call_id": TEXTS[3], "content": LONG},
        {"role": "user", "content": LONG, "name": TEXTS[2]},
    )  # fmt: skip
    chat.append({"role": TEXTS[0], "content": {"a": [TEXT]}}, check=False)
    for number, id_ in enumerate(IDS):
        store.conversation(id_).append({"role": "user", "content": TEXTS[number]})
    many = {f"label-{number}": NAMES[number % len(NAMES)] for number in range(10_000)}
    store.conversation("many labels", labels=many).append({"role": "user", "content": "hi"})


def _tasks(store: Store) -> None:
    with store.task(IDS[7], TEXT, agent=AGENT, labels=LABELS) as task:
        task.plan(NAMES)
        for name in NAMES[:6]:
            task.step(name, lambda: {TEXT: [TEXT]})
        task.step("large", lambda: LONG)
        task.decide(TEXT, because=TEXT)
        task.discover(LONG)
        for name in NAMES:
            store.signal(IDS[7], name, {TEXT: LONG[:2_000]})
        task.plan.drop(NAMES[-1], because=TEXT)
        task.child(NAMES[5], lambda child: child.step(NAMES[4], lambda: TEXT))
    with suppress(RuntimeError), store.task("failed", LONG, agent=AGENT) as task:
        task.step(NAMES[0], _fail, retry=Retry(attempts=2, wait=0.001))
    with suppress(TaskWaiting), store.task("waits", TEXT) as task:
        task.wait_for(NAMES[1])
    with store.task("paused", TEXT):
        pass
    store.pause("paused", because=TEXT)
    with store.task("cancelled", TEXT):
        pass
    store.cancel("cancelled", because=LONG)
    store.submit(NAMES[5], "submitted", TEXT, input={TEXT: LONG})
    with store.task("done", TEXT) as task:
        task.finish({TEXT: LONG})
    with store.task("many", TEXT) as task:
        task.plan([f"{number} {NAMES[number % len(NAMES)]}" for number in range(300)])
        for number in range(120):
            task.step(f"{number} {NAMES[number % len(NAMES)]}", lambda: TEXT)
    for number, id_ in enumerate(IDS):
        with store.task(f"{id_[:160]} +", TEXTS[number]):
            pass


def _states(store: Store) -> None:
    state = store.state(IDS[7], labels=LABELS)
    for number in range(3):
        state.save(
            {
                "deep": _deep(120),
                "wide": {f"{TEXTS[n % 10]} {n}": n for n in range(5_000 + number)},
                "list": list(range(50_000)),
                "long": LONG + str(number),
                LONG: "a long key",
                "many lines": "\n".join([TEXT] * (20 + number)),
                "lines": "\n" * 10_000,
            }
        )
    for id_ in IDS:
        store.state(id_).save({TEXT: id_})


def _memories(store: Store) -> None:
    for namespace in (IDS[7], IDS[2]):
        memory = store.memory(namespace)
        first = memory.remember(
            f"{TEXT} okapi", tags=[*NAMES, "t" * 200], source=NAMES[1], by=NAMES[2], context=TEXT
        )
        memory.update(first.id, f"{TEXT} a newer okapi", because=TEXT)
        other = memory.remember(
            f"okapi {LONG[:980_000]}", kind="novel", tags=[f"t{n}" for n in range(500)]
        )
        memory.contradict(other.id, f"{TEXTS[0]} the other okapi")


def _others(store: Store) -> None:
    note = store.journal("note", IDS[7])
    for text in TEXTS:
        note.append((text, {text: [text]}))
    note.append((TEXT, LONG), labels=LABELS)
    note.append(*((f"{n}", n) for n in range(200)))
    leave_in_doubt(store, "order", IDS[7], *TEXTS)
    leave_in_doubt(store, "conversation", IDS[7], *TEXTS[:2])
    damaged = (b"\xff", b'[["x","\\ud800"]]', b'[["<script>alert(14)</script>",', b'[["x",NaN]]')
    for kind in ("conversation", "task", "state", "memory", "note", "thread", "run"):
        for number, body in enumerate(damaged):
            id_ = f"ill {number} <img src=x onerror=alert(15)>"
            key = make_key(store.tenant, kind, id_)
            store.backend.append(Append(key=key, body=seal(body) if number else body, count=1))
    for kind in ("conversation", "task", "state", "note"):
        store.journal(kind, "ill head").append(("x", TEXT), meta=b'{"calls": "<script>"')


def fill(store: Store) -> None:
    """Put all of it in."""
    _conversations(store)
    _tasks(store)
    _states(store)
    _memories(store)
    _others(store)
