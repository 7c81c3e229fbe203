"""To forget for good: what goes, what stays, what a receipt says, and that no byte is left."""

import json
import multiprocessing
import re
import shutil
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet.core import audit
from limpet.core.runtime import run_to_end
from limpet.erasure.receipt import is_about
from limpet.errors import ConversationNotFound, LeaseHeld, StateNotFound
from limpet.testing.boundaries import Boundaries
from tests.models.test_redaction import everything_in, fill
from tests.support.paths import ROOT
from tests.support.places import EVERYWHERE, Where, find

NAME = "Ada Lovelace"
#: Long enough to be compressed, and told from all else.
ODD_WORD = "Xyloquartz-77 "


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Indexes lie where they are searched too."""
    monkeypatch.setenv("LIMPET_CACHE", str(tmp_path / "cache"))


@pytest.fixture(params=["sqlite", "file", "sqlite encrypted", "file encrypted"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A store in files, encrypted or not."""
    kind, _, encrypted = request.param.partition(" ")
    if encrypted:
        limpet.Keys.generate().save(tmp_path / "keys")
        monkeypatch.setenv("LIMPET_KEYS", str(tmp_path / "keys"))
    return f"{kind}:{tmp_path}/store{'.db' if kind == 'sqlite' else ''}"


@pytest.fixture(params=EVERYWHERE)
def everywhere(request: pytest.FixtureRequest) -> Where:
    """An empty place of each backend."""
    return find(request.param, request)


def test_nothing_of_a_subject_is_in_any_file(url: str, tmp_path: Path) -> None:
    """Of all that took its name: not in the store, its log, the indexes, nor compressed."""
    with limpet.open(url) as store:
        fill(store, f"{NAME} lives in London")
        store.conversation("hers", labels={"user": NAME}).append(
            {"role": "user", "content": ODD_WORD * 2_000}
        )
        store.memory("m").recall("London")
        store.search_conversations("London")
        before = everything_in(tmp_path)
        assert NAME.encode() in before  # labels are not encrypted
        assert (ODD_WORD.encode() in before) != store.backend.private
        planned = store.forget(subject=NAME, dry_run=True)
        assert planned.at is None
        assert NAME.encode() in everything_in(tmp_path)
        done = store.forget(subject=NAME)
        assert done.scrubbed
        assert [one.id for one in done.journals] == ["hers"]
        assert done.journals == planned.journals
        assert done.mentions == planned.mentions
        assert [one for one in done.mentions if one.stays] == []
        after = everything_in(tmp_path)
        assert NAME.encode() not in after
        assert ODD_WORD.encode() not in after
    assert NAME.encode() not in everything_in(tmp_path)
    with limpet.open(url) as store:
        assert store.forget(subject=NAME).receipt()["removed"] == {}


def test_what_mentioned_a_subject_goes_on_working(url: str) -> None:
    """Positions, roles, tool calls, steps and versions are as they were."""
    with limpet.open(url) as store:
        fill(store, f"{NAME} lives in London")
        before = store.conversation("c").messages(everything=True)
        saves = [(one.position, one.full) for one in store.state("a").history()]
        store.forget(subject=NAME)
        chat = store.conversation("c")
        after = chat.messages(everything=True)
        assert [one["role"] for one in after] == [one["role"] for one in before]
        assert after[0]["content"] == "[forgotten]"
        (call,) = after[3]["tool_calls"]
        assert (call["id"], json.loads(call["function"]["arguments"])) == (
            "c1",
            {"a": "[forgotten]"},
        )
        assert chat.window(max_tokens=1000, repair="raise")
        chat.append({"role": "user", "content": "And now?"})
        with store.task("t") as task:
            assert task.results["first"] == {"number": 1, "note": "[forgotten]"}
            assert task.outcome == {"outcome": "[forgotten]"}
        state = store.state("a")
        assert state.load() == {"memory": ["[forgotten]"] * 3, "n": 2}
        assert [(one.position, one.full) for one in state.history()] == saves
        assert state.at(1)["n"] == 1
        assert state.save({"memory": [], "n": 3}) == 3
        assert store.journal("note", "n").read()[0].body["deep"] == [{"er": "[forgotten]"}]


def test_another_writer_learns_that_a_state_is_another(url: str) -> None:
    """It has the old document in mind, and must not write a patch upon that."""
    with limpet.open(url) as store, limpet.open(url) as other:
        mine = store.state("a")
        mine.save({"log": [f"{NAME} came", *map(str, range(500))], "n": 1})
        other.forget(subject=NAME)
        with pytest.raises(limpet.Conflict):
            mine.save({"log": [f"{NAME} came", *map(str, range(500))], "n": 2})
        assert other.state("a").load()["log"][0] == "[forgotten]"


def test_a_conversation_goes_with_its_copies_and_what_was_remembered_of_it(url: str) -> None:
    """A fork of a fork, too; others stay."""
    with limpet.open(url) as store:
        for name in ("a", "b"):
            store.conversation(name).append({"role": "user", "content": "Hello"})
        store.conversation("a").fork("a2").fork("a3")
        store.memory("m").remember("He said hello", source="a")
        store.memory("m").remember("She said hello", source="b")
        kept = store.forget(conversation="a", forks=False, dry_run=True)
        assert [one.id for one in kept.journals] == ["a"]
        done = store.forget(conversation="a")
        assert sorted(one.id for one in done.journals) == ["a", "a2", "a3"]
        assert [one.id for one in store.conversations()] == ["b"]
        assert [one.source for one in store.memory("m").list()] == ["b"]
        with pytest.raises(ConversationNotFound):
            store.conversation("a").fork("x")


def test_a_task_goes_with_its_steps_results_and_forks(url: str) -> None:
    """All that only it needs."""
    with limpet.open(url) as store:
        with store.task("t", "Do it") as task:
            task.step("large", lambda: ["x" * 1000] * 200)
            task.child("child", lambda child: child.step("s", lambda: 1))
            task.versions.fork("t2")
        store.submit("kind", "other", "Another")
        done = store.forget(task="t")
        assert {(one.kind, one.id) for one in done.journals} == {
            ("task", "t"),
            ("task", "t2"),
            ("task", "t/child"),
            ("task-result", "t"),
            ("task-result", "t2"),
        }
        assert [one.id for one in store.tasks()] == ["other"]
        assert store.backend.kinds() == [("default", "task")]


def test_a_label_takes_all_that_has_it(url: str) -> None:
    """Of whatever kind."""
    with limpet.open(url) as store:
        store.conversation("c", labels={"customer": "17"}).append({"role": "user", "content": "x"})
        store.state("s", labels={"customer": "17"}).save({"a": 1})
        store.state("s2", labels={"customer": "18"}).save({"a": 1})
        assert len(store.forget(label="customer", dry_run=True).journals) == 3
        assert len(store.forget(label={"customer": "17"}).journals) == 2
        assert [one.id for one in store.states()] == ["s2"]
        with pytest.raises(StateNotFound):
            store.state("s").load()


def test_a_session_is_whatever_has_its_id(url: str) -> None:
    """A conversation, a state and a task of one user's, say."""
    with limpet.open(url) as store:
        store.conversation("u").append({"role": "user", "content": "x"})
        store.state("u").save({"a": 1})
        store.state("other").save({"a": 1})
        done = store.forget(session="u")
        assert {(one.kind, one.id) for one in done.journals} == {
            ("conversation", "u"),
            ("state", "u"),
        }


def test_what_is_in_use_is_left_alone(url: str) -> None:
    """All of it, whatever else was meant."""
    with limpet.open(url) as store:
        store.conversation("x", labels={"of": "me"}).append({"role": "user", "content": "x"})
        with store.task("t", "Do it", labels={"of": "me"}):
            with pytest.raises(LeaseHeld, match="nothing was forgotten"):
                store.forget(label="of=me")
            assert [one.id for one in store.conversations()] == ["x"]
        with store.task("t2", f"Ask {NAME}"):
            (mention,) = store.forget(subject=NAME).mentions
            assert mention.stays is not None
        (mention,) = store.forget(subject=NAME).mentions
        assert mention.stays is None


def test_what_is_found_by_its_name_is_listed_and_stays(url: str) -> None:
    """A step, an id: to rename them would be to do things twice."""
    with limpet.open(url) as store:
        with store.task("t", "Write letters") as task:
            task.step(f"write to {NAME}", lambda: 1)
        store.conversation(f"with {NAME}").append({"role": "user", "content": "x"})
        done = store.forget(subject=NAME)
        assert {(one.kind, one.stays) for one in done.mentions} == {
            ("task", "names and ids mention it: a step, a call, a key, an append"),
            ("conversation", "its id mentions it"),
        }
        assert done.receipt()["stays"] != []


ESCAPED = [
    ("Zoë Müller", f"It said {json.dumps({'who': {'name': ['Zoë Müller']}})}."),
    ("Zoë Müller", f"It said {json.dumps(json.dumps({'who': 'Zoë Müller'}))}."),
    ("😀 Smith", f"It said {json.dumps('😀 Smith')}."),
    (NAME, f"It said {json.dumps(f'Dear all,{chr(10)}{NAME} is here')}."),
    (NAME, "See https://example.org/people?name=Ada%20Lovelace"),
    ("Tom & Sons", "<p>Tom &amp; Sons</p>"),
    ("O'Brien (x+.*)[a]", "Ask O'Brien (x+.*)[a] again"),
    ("李小龍", "我見到李小龍了"),
    ("STRASSE", "Straße"),
    ("Élan", "e\u0301lan"),
]


@pytest.mark.parametrize(("name", "text"), ESCAPED)
def test_a_name_is_found_however_it_is_written_in_a_text(name: str, text: str) -> None:
    """Tools answer in JSON within JSON, where an ë is written out; others in HTML and URLs."""
    call: dict[str, Any] = {"id": "c1", "type": "function"}
    call["function"] = {"name": "f", "arguments": json.dumps({"a": {"b": [text]}})}
    with limpet.open("memory:") as store:
        chat = store.conversation("c")
        chat.append({"role": "user", "content": text}, {"role": "assistant", "tool_calls": [call]})
        store.state("s").save({"deep": [{text: text}], "n": 1})
        store.memory("m").remember(f"It rains, and {text}")
        store.forget(subject=name)
        said, called = chat.messages()
        assert said["content"] == "[forgotten]"
        assert json.loads(called["tool_calls"][0]["function"]["arguments"]) == {
            "a": {"b": ["[forgotten]"]}
        }
        assert store.state("s").load() == {"deep": [{"[forgotten]": "[forgotten]"}], "n": 1}
        assert store.memory("m").list() == []


def test_a_text_that_mentions_others_stays() -> None:
    """Whatever signs are in it."""
    texts = ["50% off", r"C:\new\table", "AT&T; &nbsp;", r"\u00zz \n", "Lovelace", "aGVsbG8gQWRh"]
    with limpet.open("memory:") as store:
        store.state("s").save({"texts": texts})
        assert not store.forget(subject=NAME)
        assert store.state("s").load() == {"texts": texts}


def test_bytes_that_are_text_lose_it_too(url: str, tmp_path: Path) -> None:
    """They are stored as base64, and stay bytes to whoever reads them as such."""
    with limpet.open(url) as store:
        journal = store.journal("note", "n")
        journal.append(("x", {"body": f"{NAME} was here".encode(), "other": b"\0\1\2\3"}))
        store.forget(subject=NAME)
        (entry,) = store.journal("note", "n").read()
        assert b64decode(entry.body["body"]) == b"[forgotten]"
        assert b64decode(entry.body["other"]) == b"\0\1\2\3"
    assert b64encode(f"{NAME} was here".encode()) not in everything_in(tmp_path)


def test_all_that_stays_is_listed(url: str) -> None:
    """Labels, where memories come from, acts and rules: nobody believes that it is gone."""
    with limpet.open(url, audit=True) as store:
        store.conversation("c", labels={"who": f"a friend of {NAME}"}).append(
            {"role": "user", "content": "Hi"}
        )
        store.memory("m").remember("It rains", source=f"a mail of {NAME}", by="hers")
        store.memory(f"of {NAME}").remember("It snows")
        store.set_retention(f"conversation 'label:user={NAME}' 90d")
        act = audit.record(store.scope, "opened", via="command", who="grace", id=NAME)
        run_to_end(act)
        expected = {
            ("conversation", "c", "labels mention it"),
            ("memory", "m", "the source, the tags or the like of memories mention it"),
            ("memory", f"of {NAME}", "its id mentions it"),
            ("limpet-audit", "acts", "it is what the store records of itself, and is not changed"),
            (
                "limpet-retention",
                "rules",
                "it is what the store records of itself, and is not changed",
            ),
        }
        for dry_run in (True, False, False):
            done = store.forget(subject=NAME, dry_run=dry_run)
            assert {(one.kind, one.id, one.stays) for one in done.mentions} == expected
            assert done.receipt()["stays"] != []
        assert run_to_end(audit.verify(store.scope)).problem is None


def test_a_label_may_have_an_equals_sign_in_it() -> None:
    """In its name or in its value."""
    with limpet.open("memory:") as store:
        store.state("a", labels={"x=y": "z"}).save(1)
        store.state("b", labels={"x": "y=z"}).save(1)
        store.state("c", labels={"x": "y"}).save(1)
        for label in ({"x=y": "z"}, {"x": "y=z"}, "x=y=z"):
            found = store.forget(label=label, dry_run=True).journals
            assert [one.id for one in found] == ["a", "b"]
        assert [one.id for one in store.forget(label="x=y", dry_run=True).journals] == ["a", "c"]


def test_what_is_damaged_keeps_nothing_from_being_forgotten(tmp_path: Path) -> None:
    """It is listed, since it may be about anybody; and if it is what is named, it goes."""
    url = f"file:{tmp_path}/store"
    with limpet.open(url) as store:
        for id_ in ("good", "bad"):
            store.conversation(id_).append({"role": "user", "content": f"{id_}: {NAME}"})
            store.conversation(id_).append({"role": "user", "content": "and more"})
        store.memory("bad").remember("It rains")
        store.memory("good").remember(f"{NAME} likes tea")
    for file in (tmp_path / "store").rglob("bad.jsonl"):
        file.write_bytes(file.read_bytes().replace(b"rains", b"reins").replace(b"bad: ", b"bed: "))
    shutil.rmtree(tmp_path / "cache", ignore_errors=True)
    with limpet.open(url) as store:
        done = store.forget(subject=NAME)
        unread = {(one.kind, one.id) for one in done.mentions if one.stays == "it cannot be read"}
        assert unread == {("conversation", "bad"), ("memory", "bad")}
        assert store.conversation("good").messages()[0]["content"] == "[forgotten]"
        assert list(done.memories) == ["good"]
        assert [one.id for one in store.forget(conversation="bad").journals] == ["bad"]
    assert NAME.encode() not in everything_in(tmp_path)


def test_what_others_write_to_meanwhile_is_rewritten_all_the_same(tmp_path: Path) -> None:
    """One that is always busy must not keep its texts; and nothing that is added is lost."""
    with limpet.open(tmp_path / "s.db") as store, limpet.open(tmp_path / "s.db") as other:
        store.conversation("c").append({"role": "user", "content": NAME})
        added: list[int] = []
        real = store.backend.rewrite

        def rewrite(*args: Any, **options: Any) -> int:
            if len(added) < 3:
                message = {"role": "user", "content": f"{len(added)}: and {NAME}"}
                added.append(other.conversation("c").append(message))
            return real(*args, **options)

        store.backend.rewrite = rewrite  # type: ignore[method-assign]
        (mention,) = store.forget(subject=NAME).mentions
        assert (mention.texts, mention.stays) == (4, None)
        assert [one["content"] for one in store.conversation("c").messages()] == ["[forgotten]"] * 4


def test_a_receipt_says_how_much_and_nothing_of_the_content() -> None:
    """No name, no id, no text; but whoever has the name can find out that it is about it."""
    with limpet.open("memory:") as store:
        fill(store, NAME)
        store.conversation("hers", labels={"user": NAME}).append({"role": "user", "content": "Hi"})
        receipt = store.forget(subject=NAME, by="grace").receipt()
    text = json.dumps(receipt)
    assert "hers" not in text
    assert "Ada" not in text
    assert receipt["removed"]["conversation"]["journals"] == 1
    assert receipt["replaced"]["journals"] > 3
    assert (receipt["by"], receipt["rule"], receipt["store"]) == ("grace", "subject", "memory")
    assert len(receipt["digest"]) == 64
    assert is_about(receipt, NAME)
    assert not is_about(receipt, "Grace Hopper")


@pytest.mark.parametrize("wrong", [{}, {"task": "a", "state": "b"}, {"task": " "}, {"label": {}}])
def test_one_selector_is_needed(wrong: dict[str, Any]) -> None:
    """To forget everything, nobody should only have to leave something out."""
    with limpet.open("memory:") as store, pytest.raises(ValueError, match=r"takes|Say what"):
        store.forget(**wrong)


def test_other_tenants_keep_what_is_theirs(url: str) -> None:
    """Whoever's name it is."""
    with limpet.open(url) as store:
        for one in (store, store.as_tenant("other")):
            one.conversation("c").append({"role": "user", "content": NAME})
        store.forget(subject=NAME)
        other = store.as_tenant("other").conversation("c").messages()
        assert other == [{"role": "user", "content": NAME}]


def forget_until(directory: Path, url: str, kill_at: int) -> None:
    """Forget, in a process that ends at one of its boundaries."""
    with limpet.open(url) as store:
        boundaries = Boundaries(store.backend, kill_at)
        store.forget(subject=NAME)
        (directory / "passed").write_text(str(len(boundaries.passed)))


@pytest.mark.slow
def test_whoever_is_killed_begins_again_and_finishes(url: str, tmp_path: Path) -> None:
    """At every moment, before and after each write."""
    filled = tmp_path / "filled"
    filled.mkdir()
    there = url.replace(str(tmp_path), str(filled))
    with limpet.open(there) as store:
        store.conversation("c").append({"role": "user", "content": NAME})
        store.state("a").save({"n": 2, "log": [NAME]})
        store.memory("m").remember(f"I met {NAME}")
        hers = store.conversation("hers", labels={"user": NAME})
        hers.append({"role": "user", "content": "x"})
        hers.fork("copy").label(user=None)
        store.memory("m").remember("She said x", source="hers")
    number, passed = 0, None
    while passed is None:
        number += 1
        place = tmp_path / str(number)
        shutil.copytree(filled, place)
        here = url.replace(str(tmp_path), str(place))
        process = multiprocessing.get_context("spawn").Process(
            target=forget_until, args=(place, here, number)
        )
        process.start()
        process.join()
        done = place / "passed"
        passed = int(done.read_text()) if done.exists() else None
        with limpet.open(here) as store:
            store.forget(subject=NAME)
            assert {one.id for one in store.conversations()} == {"c"}
            assert len(store.conversation("c").messages()) == 1
            assert store.state("a").load()["n"] == 2
            assert [one.text for one in store.memory("m").list()] == []
        assert NAME.encode() not in everything_in(place), f"killed at boundary {number}"
        shutil.rmtree(place)
    assert number == passed + 1 > 10


def test_the_examples_of_the_guide_print_what_they_show(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each block, and the lines behind it."""
    page = (ROOT / "docs" / "privacy.md").read_text("utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE)
    assert len(blocks) == 3
    names: dict[str, Any] = {}
    for block in blocks:
        code, _, shown = block.rpartition("\n\n#")
        exec(code, names)  # noqa: S102 - our own page
        printed = capsys.readouterr().out
        assert printed == "".join(f"{line[2:]}\n" for line in f"#{shown}".splitlines())


def test_on_every_backend_what_is_named_goes_and_what_stays_is_said(everywhere: Where) -> None:
    """Servers too; and those that cannot change what is stored list what mentions a subject."""
    with limpet.open(everywhere.url) as store:
        store.conversation("hers", labels={"user": NAME}).append({"role": "user", "content": "Hi"})
        store.conversation("other").append({"role": "user", "content": f"I met {NAME}"})
        store.state("a").save({"log": [f"{NAME} came"], "n": 1})
        store.state("a").save({"log": [f"{NAME} came", "and went"], "n": 1})
        store.memory("m").remember(f"{NAME} likes tea")
        done = store.forget(subject=NAME)
        assert [one.id for one in done.journals] == ["hers"]
        assert list(done.memories) == ["m"]
        assert done.remains != ()
        (chat,) = store.conversation("other").messages()
        changes = store.backend.rewrites
        assert chat["content"] == ("[forgotten]" if changes else f"I met {NAME}")
        assert {one.stays is None for one in done.mentions} == {changes}
        assert len(done.mentions) == 2
        assert store.state("a").load()["log"][1] == "and went"
        assert store.state("a").save({"log": [], "n": 2}) == 3


@pytest.mark.parametrize("scheme", ["memory", "sqlite", "file"])
def test_an_encrypted_store_forgets_too(scheme: str, tmp_path: Path) -> None:
    """Nothing is read there without the keys; texts are replaced, in tasks too."""
    place = {"memory": "", "sqlite": f"{tmp_path}/s.db", "file": f"{tmp_path}/s"}[scheme]
    with limpet.open(f"{scheme}:{place}", keys=limpet.Keys.generate()) as store:
        chat = store.conversation("other")
        for number in range(5):
            chat.append({"role": "user", "content": f"{number}: {NAME if number == 2 else 'I'}"})
        store.conversation("hers", labels={"user": NAME}).append({"role": "user", "content": "Hi"})
        store.state("a").save({"log": [f"{NAME} came"]})
        store.submit("kind", "t", f"Write to {NAME}")
        done = store.forget(subject=NAME)
        assert [one.id for one in done.journals] == ["hers"]
        assert {one.kind for one in done.mentions} == {"conversation", "state", "task"}
        assert {one.stays for one in done.mentions} == {None}
        assert store.task("t").checkpoint().goal == "[forgotten]"
        chat.append({"role": "user", "content": "5: on"})
        texts = [message["content"] for message in store.conversation("other").messages()]
        assert texts == ["0: I", "1: I", "[forgotten]", "3: I", "4: I", "5: on"]
        assert store.state("a").load() == {"log": ["[forgotten]"]}
        assert store.forget(task="t").journals != ()
        assert "data keys" in " ".join(done.remains)
