"""What is redacted on the way in: found, marked, stable, and nowhere in the store."""

import asyncio
import contextlib
import dataclasses
import zlib
from base64 import b64encode
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import limpet
from limpet import redaction
from limpet.core.redaction import redactor_of
from limpet.errors import NotStorable

KEY = "sk-proj-Zq8vT1mN4xW7cB2kL9dF"
GITHUB = "ghp_16C7e42F292c6912E7710c838347Ae178B4a"
CARD = "4111 1111 1111 1111"
MAIL = "ada.lovelace@example.org"
PHONE = "+44 20 7946 0958"
EVERYTHING = ["secrets", "cards", "emails", "phones"]

#: A secret as it may stand in a text, and what of it must not be stored.
SECRETS = {
    KEY: KEY,
    GITHUB: GITHUB,
    "AKIAIOSFODNN7EXAMPLE": "AKIAIOSFODNN7EXAMPLE",
    "Authorization: Bearer t0k3n-of-ours": "t0k3n-of-ours",
    "authorization: Basic dXNlcjpwYXNzd29yZA==": "dXNlcjpwYXNzd29yZA",
    '{"Authorization": "Token abcd1234efgh"}': "abcd1234efgh",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.sflKxwRJSMeKKF2QT4": "eyJzdWIiOiIxMjM0In0",
    'SharedAccessSignature   =   "sv=2020sig=abcd"': "sv=2020sig=abcd",
    "postgresql://bob:hunter22@db.example/x": "hunter22",
    "https://0123456789abcdef0123@example.org/repo.git": "0123456789abcdef0123",
    "password=correct-horse": "correct-horse",
    '{"password": "correct horse"}': "correct horse",
    '"{\\"api_key\\": \\"a1b2c3d4e5f6\\"}"': "a1b2c3d4e5f6",
    "AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG": "wJalrXUtnFEMI",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\n-----END RSA PRIVATE KEY-----": "MIIEow",
}

#: What looks a little like one, and is none.
HARMLESS = [
    "550e8400-e29b-41d4-a716-446655440000",
    "9ce47e0bd1f2a3b4c5d6e7f80912a3b4c5d6e7f8",
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "order 4111111111111112",
    "order 2026-1119-000042",
    "2026-11-19T19:22:43.123456+00:00",
    "1763580163000000",
    "3.141592653589793238",
    "The secret of a basic token budget: keep it under 4,000 tokens.",
    "bearer certificates, basic understanding",
    "risk-adjusted task-oriented desk-research",
    "My secret: chocolate! The access_key: required by all",
    "authorization: required",
    "http://localhost:8080/@scope",
    "mem_0123456789abcdef01234567",
]


def everything_in(path: Path) -> bytes:
    """All bytes of the files below *path*, and of what is compressed in them."""
    found = b"".join(file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file())
    return found + inflated(found)


def inflated(data: bytes) -> bytes:
    """Whatever in *data* can be decompressed."""
    found = []
    at = data.find(b"\x78")
    while at >= 0:
        with contextlib.suppress(zlib.error):
            found.append(zlib.decompressobj().decompress(data[at:], 1 << 24))
        at = data.find(b"\x78", at + 1)
    return b"".join(found)


@pytest.mark.parametrize("text", SECRETS)
def test_a_secret_is_found(text: str) -> None:
    """Whatever is around it; and what remains is marked."""
    made = redaction.SECRETS(f"before {text} behind")
    assert SECRETS[text] not in made
    assert "[redacted: " in made
    assert made.startswith("before ")


@pytest.mark.parametrize("text", HARMLESS)
def test_what_is_none_stays(text: str) -> None:
    """A UUID, a hash, an order number, a time: things are found by them."""
    redactor = redactor_of(EVERYTHING)
    assert redactor is not None
    assert redactor.text(f"see {text} here") == f"see {text} here"


@pytest.mark.parametrize(
    ("number", "is_card"),
    [
        ("4111111111111111", True),
        ("4111-1111-1111-1111", True),
        ("5555 5555 5555 4444", True),
        ("2223003122003222", True),
        ("378282246310005", True),
        ("3056 9309 0259 04", True),
        ("6011111111111117", True),
        ("3530111333300000", True),
        ("4111\u00a01111\u00a01111\u00a01111", True),
        ("4111\u20131111\u20131111\u20131111", True),
        ("4111111111111112", False),
        ("1234567812345670", False),
        ("0000000000000000", False),
        ("a4111111111111111", False),
        ("4111111111111111f", False),
        ("0.4111111111111111", False),
    ],
)
def test_a_card_is_known_by_issuer_length_and_check_digit(number: str, is_card: bool) -> None:  # noqa: FBT001
    """Other numbers stay, and so does what is only a part of something longer."""
    made = redaction.CARDS(f"({number})")
    assert (made == "([redacted: card number])") == is_card
    if not is_card:
        assert made == f"({number})"


def test_a_card_among_other_numbers_is_found() -> None:
    """An expiry date before or behind it hides nothing."""
    made = redaction.CARDS("17 4111 1111 1111 1111 12 26")
    assert made == "17 [redacted: card number] 12 26"


@pytest.mark.parametrize("phone", [PHONE, "(415) 555-2671", "+14155552671", "030/1234567"])
def test_phones_and_addresses_are_found_if_asked_for(phone: str) -> None:
    """They are data of people, and many agents need them: nobody loses them unasked."""
    text = f"Write to {MAIL}, or call {phone}."
    assert redaction.SECRETS(redaction.CARDS(text)) == text
    made = redaction.PHONES(redaction.EMAILS(text))
    assert made == "Write to [redacted: e-mail], or call [redacted: phone number]."


words = st.text(st.characters(codec="utf-8"), max_size=60)


@given(before=words, text=st.sampled_from(sorted(SECRETS)), behind=words)
def test_no_text_around_a_secret_hides_it(before: str, text: str, behind: str) -> None:
    """Between spaces, a secret is found in anything."""
    made = redaction.SECRETS(f"{before} {text} {behind}")
    assert SECRETS[text] not in made


@given(st.lists(st.one_of(words, st.sampled_from([*SECRETS, *HARMLESS, CARD, MAIL, PHONE]))))
@example(["password: ", "[redacted: password]"])
@example(["+1000000"] * 50)
@example([f"{MAIL}@", MAIL])
def test_what_is_redacted_stays_as_it_is(parts: list[str]) -> None:
    """Done a second time it changes nothing: a retry stores the same bytes."""
    redactor = redactor_of(EVERYTHING)
    assert redactor is not None
    made = redactor.text("".join(parts))
    assert redactor.text(made) == made


values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), words, st.sampled_from([KEY, CARD, MAIL])),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(words, inner, max_size=4)),
    max_leaves=12,
)


@given(values)
def test_a_value_keeps_its_shape(value: Any) -> None:
    """And is itself where nothing was found; never is it changed in place."""
    redactor = redactor_of(EVERYTHING)
    assert redactor is not None
    before = repr(value)
    made = redactor.value(value)
    assert repr(value) == before
    assert redactor.value(made) == made
    if made == value:
        assert made is value
    assert KEY not in repr(made)


def test_types_stay() -> None:
    """A time is a time behind it, and a UUID a UUID: only texts are looked into."""
    value = {"at": datetime.now(UTC), "id": uuid4(), "n": 17, "ok": True, "raw": b"x", "text": KEY}
    redactor = redactor_of(["secrets"])
    assert redactor is not None
    made = redactor.value(value)
    assert made == {**value, "text": "[redacted: api key]"}
    assert {key: type(item) for key, item in made.items()} == {
        key: type(item) for key, item in value.items()
    }


def test_bytes_that_are_text_are_looked_into(tmp_path: Path) -> None:
    """They stay bytes; and what is no text is left alone, since a cut would break it."""
    redactor = redactor_of(["secrets"])
    assert redactor is not None
    packed = b"\x93\x01\xb8" + KEY.encode()
    value = {"body": f"key {KEY}".encode(), "password": b"swordfish", "packed": packed, "n": b"1"}
    made = {"body": b"key [redacted: api key]", "password": b"[redacted: password]"}
    assert redactor.value(value) == {**value, **made}
    assert redactor.value(redactor.value(value)) == redactor.value(value)
    with limpet.open(f"file:{tmp_path}/s", redact=["secrets"]) as store:
        store.journal("note", "n").append(("x", {"body": f"key {KEY}".encode()}))
    assert b64encode(f"key {KEY}".encode()) not in everything_in(tmp_path)


def test_a_password_is_known_by_its_name() -> None:
    """It looks like any word; names of other things are left alone."""
    redactor = redactor_of(["secrets"])
    assert redactor is not None
    made = redactor.value({"password": "swordfish", "max_tokens": 5, "token": "Hello", "x": "y"})
    assert made == {"password": "[redacted: password]", "max_tokens": 5, "token": "Hello", "x": "y"}


def test_two_keys_that_become_one_keep_both_values() -> None:
    """Nothing is lost where two addresses were keys."""
    redactor = redactor_of(["emails"])
    assert redactor is not None
    made = redactor.value({"a@example.org": 1, "b@example.org": 2})
    assert made == {"[redacted: e-mail]": 1, "[redacted: e-mail] 2": 2}


@dataclasses.dataclass
class Order:
    """Something of the user's."""

    number: int
    note: str


def fill(store: limpet.Store, text: str) -> None:
    """Put *text* wherever a store takes texts."""
    chat = store.conversation("c")
    chat.append(
        {"role": "user", "content": text}, {"role": "assistant", "content": f"I see {text}"}
    )
    chat.append({"role": "user", "content": [{"type": "text", "text": text}]}, pin=True)
    chat.compact(lambda _messages: f"Summary: {text}", keep_tokens=1)
    call: dict[str, Any] = {"id": "c1", "type": "function"}
    call["function"] = {"name": "f", "arguments": f'{{"a": "{text}"}}'}
    chat.append({"role": "assistant", "content": None, "tool_calls": [call]})
    chat.append({"role": "tool", "tool_call_id": "c1", "content": text})
    with store.task("t", f"Goal: {text}") as task:
        task.plan(["first", {"name": "second", "with": text}])
        assert task.step("first", lambda: Order(1, text)) == {"number": 1, "note": task.goal[6:]}
        task.step("second", lambda: [text] * 40_000)
        task.decide(f"Decided: {text}", because=text)
        task.discover(f"Found: {text}")
        with pytest.raises(RuntimeError):
            task.step("broken", failing(text))
        task.finish({"outcome": text}, remember=True)
    store.submit("kind", "s", f"Goal: {text}", input={"x": text})
    store.signal("s", "go", {"payload": text})
    store.pause("s", because=text)
    state = store.state("a")
    state.save({"memory": [text, text], "n": 1}, note=text)
    state.save({"memory": [text, text, f"more {text}"], "n": 2}, fingerprint={"prompt": text})
    memory = store.memory("m")
    made = memory.remember(f"Remember {text}", context=text)
    memory.update(made.id, f"Now it is {text}", because=text)
    store.journal("note", "n").append(("added", {"deep": [{"er": text}], "why": text}))


def failing(text: str) -> Callable[[], None]:
    """A function whose error quotes *text*."""

    def fail() -> None:
        raise RuntimeError(f"The server said: {text}")

    return fail


@pytest.mark.parametrize("scheme", ["sqlite", "file"])
@pytest.mark.parametrize("text", [KEY, "password=correct-horse", CARD, MAIL, PHONE])
def test_no_byte_of_it_is_in_the_store(scheme: str, text: str, tmp_path: Path) -> None:
    """Conversations, tasks, large results, errors, states, memories, indexes: in none of them."""
    url = f"{scheme}:{tmp_path}/store{'.db' if scheme == 'sqlite' else ''}"
    hidden = text.removeprefix("password=")
    with limpet.open(url, redact=EVERYTHING) as store:
        fill(store, text)
        store.memory("m").recall("remember")
        store.search_conversations("summary")
        assert hidden.encode() not in everything_in(tmp_path)
    assert b"[redacted: " in everything_in(tmp_path)
    assert hidden.encode() not in everything_in(tmp_path)


# -- what must go on working -----------------------------------------------------------------------


def test_a_repeated_append_is_the_same_one() -> None:
    """Under its id it is stored once, though it is redacted each time."""
    with limpet.open("memory:", redact=EVERYTHING) as store:
        chat = store.conversation("c")
        message = {"role": "user", "content": f"My key is {KEY}"}
        assert chat.append(message, id="m1") == chat.append(message, id="m1") == 1


def test_a_retry_of_what_was_stored_before_is_the_same_one(tmp_path: Path) -> None:
    """A program may begin to redact between the two."""
    message = {"role": "user", "content": f"My key is {KEY}"}
    with limpet.open(tmp_path / "s.db") as store:
        store.conversation("c").append(message, id="m1")
    with limpet.open(tmp_path / "s.db", redact=["secrets"]) as store:
        assert store.conversation("c").append(message, id="m1") == 1
        with store.task("t", f"Use {KEY}") as task:
            assert task.goal == "Use [redacted: api key]"
    with limpet.open(tmp_path / "s.db", redact=["secrets"]) as store, store.task("t", f"Use {KEY}"):
        pass


def test_steps_are_found_again_by_names_that_look_like_something(tmp_path: Path) -> None:
    """A step's name is an id, and so is that of a planned step: nothing happens twice."""
    done: list[str] = []
    name = f"mail {MAIL}"
    for _ in range(2):
        with (
            limpet.open(tmp_path / "s.db", redact=EVERYTHING) as store,
            store.task("t", f"Write to {MAIL}") as task,
        ):
            task.plan([name, {"name": f"call {PHONE}", "note": MAIL}])
            task.step(name, lambda: done.append("mail"), in_doubt="ask")
            task.step(f"call {PHONE}", lambda: done.append("call"))
            task.step("other", lambda: MAIL)
            assert task.results["other"] == "[redacted: e-mail]"
            assert task.plan.steps == [
                name,
                {"name": f"call {PHONE}", "note": "[redacted: e-mail]"},
            ]
    assert done == ["mail", "call"]


def test_a_failed_effect_is_resolved_by_its_name(tmp_path: Path) -> None:
    """The error in the head is redacted, the name by which a person answers is not."""
    name = f"mail {MAIL}"
    with limpet.open(tmp_path / "s.db", redact=EVERYTHING) as store:
        with pytest.raises(RuntimeError), store.task("t", "Write") as task:
            task.step(name, failing(f"no such user: {MAIL}"), in_doubt="ask")
        (doubt,) = store.in_doubt()
        assert doubt.call.id == name
        assert doubt.call.error is not None
        assert MAIL not in doubt.call.error
        store.resolve("t", name, "done", result={"sent to": MAIL})
        with store.task("t") as task:
            assert task.results[name] == {"sent to": "[redacted: e-mail]"}


def test_a_submitted_task_is_submitted_once() -> None:
    """With the same input, though what is stored of it is another."""
    with limpet.open("memory:", redact=["secrets"]) as store:
        for _ in range(2):
            store.submit("kind", "t", f"Use {KEY}", input={"key": KEY})


def test_a_memory_has_the_id_of_what_is_stored() -> None:
    """Two that differ by what was redacted only are one, and no id tells of a secret."""
    with limpet.open("memory:", redact=["secrets"]) as store:
        memory = store.memory("m")
        first = memory.remember(f"The key is {KEY}")
        assert memory.remember(f"The key is {GITHUB}").id == first.id
        assert memory.remember("The key is [redacted: api key]").id == first.id
        assert memory.get(first.id).text == "The key is [redacted: api key]"


def test_a_state_is_saved_and_loaded_by_patches(tmp_path: Path) -> None:
    """Each is proved against what is stored, and an unchanged document is no new save."""
    document: dict[str, Any] = {"log": [f"key {KEY}"] * 20, "password": "swordfish"}
    with limpet.open(tmp_path / "s.db", redact=EVERYTHING) as store:
        state = store.state("a")
        first = state.save(document)
        assert state.save(document) == first
        for number in range(5):
            document["log"].append(f"{number}: call {PHONE}")
            state.save(document)
    with limpet.open(tmp_path / "s.db", redact=EVERYTHING) as store:
        loaded = store.state("a").load()
        assert loaded["log"][-1] == "4: call [redacted: phone number]"
        assert loaded["password"] == redaction.marker("password")
        assert store.state("a").save(document) == 6


def test_a_function_of_ones_own_is_called_with_every_text() -> None:
    """Before the built-in ones; and it may be a pattern."""
    staff = redaction.pattern("staff number", r"STAFF-[0-9]{6}")

    def without_ada(text: str) -> str:
        return text.replace("Ada", "[redacted: name]")

    with limpet.open("memory:", redact=[without_ada, staff, "secrets"]) as store:
        chat = store.conversation("c")
        chat.append({"role": "user", "content": f"Ada is STAFF-004711, {KEY}"})
        assert chat.messages()[0]["content"] == (
            "[redacted: name] is [redacted: staff number], [redacted: api key]"
        )


def test_a_function_that_is_not_stable_is_refused() -> None:
    """The same message would be another one each time, and a retry be refused later."""
    with limpet.open("memory:", redact=[lambda text: f"{text}!"]) as store:
        chat = store.conversation("c")
        with pytest.raises(NotStorable, match="changes what it has returned"):
            chat.append({"role": "user", "content": "Hello"})
        assert chat.messages() == []


@pytest.mark.parametrize("wrong", ["secrets", ["secret"], [7], 7])
def test_what_is_no_detector_is_refused(wrong: Any) -> None:
    """Before anything is opened: a typing error must not leave everything as it is."""
    with pytest.raises((ValueError, TypeError), match="redact="):
        limpet.open("memory:", redact=wrong)


def test_async_stores_redact_too() -> None:
    """By the same code."""

    async def run() -> Any:
        async with limpet.open_async("memory:", redact=["cards"]) as store:
            chat = store.conversation("c")
            await chat.append({"role": "user", "content": CARD})
            return (await chat.messages())[0]["content"]

    assert asyncio.run(run()) == "[redacted: card number]"


def test_the_environment_may_say_what_is_redacted(monkeypatch: pytest.MonkeyPatch) -> None:
    """For programs that do not say, and commands; one that says otherwise is right."""
    monkeypatch.setenv("LIMPET_REDACT", "secrets,cards")
    for said, stored in ((None, "[redacted: card number]"), (["emails"], CARD), ([], CARD)):
        with limpet.open("memory:", redact=said) as store:
            store.conversation("c").append({"role": "user", "content": CARD})
            assert store.conversation("c").messages()[0]["content"] == stored
    monkeypatch.setenv("LIMPET_REDACT", "everything")
    with pytest.raises(ValueError, match="redact="):
        limpet.open("memory:")
