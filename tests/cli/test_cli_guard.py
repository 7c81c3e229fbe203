"""``limpet forget``, ``retention`` and ``audit``, and what is recorded of other commands."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import limpet
from limpet.backends.contract import Key
from limpet.cli import main
from limpet.core import audit
from limpet.core.codec import Codec
from limpet.core.runtime import run_to_end
from limpet.erasure.receipt import is_about
from limpet.workers.worker import Worker
from tests.support.commands import run
from tests.support.filled import fill_old

NAME = "Ada Lovelace"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with something of hers."""
    path = tmp_path / "s.db"
    with limpet.open(path) as store:
        store.conversation("hers", labels={"user": NAME}).append({"role": "user", "content": "Hi"})
        store.conversation("other").append({"role": "user", "content": f"I met {NAME}"})
        store.memory("m").remember(f"{NAME} likes tea")
        with store.task("t", "Do it") as task:
            task.finish("done")
    return path


def limpet_(path: Path, *words: str, answer: str | None = None) -> Result:
    """Run a command over the store at *path*; *answer* is what a person types."""
    return CliRunner().invoke(main, ["--store", str(path), *words], input=answer)


# -- forget ----------------------------------------------------------------------------------------


def test_a_dry_run_lists_and_changes_nothing(path: Path) -> None:
    """What goes, and where texts would be replaced."""
    before = path.read_bytes()
    done = limpet_(path, "forget", "--subject", NAME, "--dry-run")
    assert done.exit_code == 0
    assert "would forget conversation/hers" in done.output
    assert "would forget 1 memory of memory/m" in done.output
    assert "would replace 1 text in conversation/other" in done.output
    assert path.read_bytes() == before


def test_it_asks_first_and_keeps_a_receipt(path: Path, tmp_path: Path) -> None:
    """With nothing of the content; and it is never written over."""
    kept = tmp_path / "receipt.json"
    words = ("forget", "--subject", NAME, "--receipt", str(kept))
    assert limpet_(path, *words, answer="n\n").exit_code == 1
    assert not kept.exists()
    done = limpet_(path, *words, answer="y\n")
    assert done.exit_code == 0
    assert "replaced 1 text in conversation/other" in done.output
    receipt = json.loads(kept.read_text())
    assert is_about(receipt, NAME)
    assert "Ada" not in kept.read_text()
    assert limpet_(path, *words, "--yes").exit_code == 2
    assert limpet_(path, "forget", "--subject", NAME, "--yes").exit_code == 3


def test_a_receipt_of_what_was_cut_short_says_what_was_about_to_go(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes of the same command again is the rest only."""
    kept = tmp_path / "receipt.json"
    words = ("forget", "--label", "user", "--yes", "--receipt", str(kept))

    def killed(*_: object, **__: object) -> None:
        raise SystemExit(9)

    with monkeypatch.context() as patch:
        patch.setattr("limpet.erasure.forget.delete_journal", killed)
        assert limpet_(path, *words).exit_code == 9
    receipt = json.loads(kept.read_text())
    assert (receipt["at"], receipt["removed"]["conversation"]["journals"]) == (None, 1)
    assert limpet_(path, *words).exit_code == 2, "it is not written over"
    other = tmp_path / "other.json"
    assert limpet_(path, *words[:-1], str(other)).exit_code == 0
    assert json.loads(other.read_text())["at"] is not None
    assert other.stat().st_mode & 0o777 == 0o600


def test_a_receipt_is_not_left_where_nothing_was_forgotten(path: Path, tmp_path: Path) -> None:
    """Since somebody works on it: the same command is given again."""
    kept = tmp_path / "receipt.json"
    with limpet.open(path) as store, store.task("open", "Do it", labels={"user": NAME}):
        done = limpet_(path, "forget", "--label", "user", "--yes", "--receipt", str(kept))
        assert done.exit_code == 1
    assert not kept.exists()


def test_forget_prints_json(path: Path) -> None:
    """The lists, and the receipt."""
    done = limpet_(path, "forget", "--task", "t", "--yes", "--json")
    found = json.loads(done.output)
    assert [one["id"] for one in found["journals"]] == ["t"]
    assert found["receipt"]["removed"] == {"task": found["receipt"]["removed"]["task"]}


def test_forget_needs_one_option(path: Path) -> None:
    """Nobody forgets everything by leaving something out."""
    assert limpet_(path, "forget", "--yes").exit_code == 2
    assert limpet_(path, "forget", "--subject", "", "--yes").exit_code == 2
    assert limpet_(path, "forget", "--task", "t", "--label", "x", "--yes").exit_code == 2


# -- retention -------------------------------------------------------------------------------------


def old(path: Path, kind: str, id_: str, **attributes: Any) -> None:
    """A journal that was last written to long ago."""
    with limpet.open(path) as store:
        fill_old(store, kind, id_, **attributes)


def test_rules_are_listed_and_removed(path: Path) -> None:
    """One for each kind and label."""
    assert "no rules" in limpet_(path, "retention").output
    assert limpet_(path, "retention", "set", "conversation label:user 90d").exit_code == 0
    assert limpet_(path, "retention", "set", "conversation", "label:user", "30d").exit_code == 0
    assert limpet_(path, "retention", "set", "task", "1h").exit_code == 0
    assert limpet_(path, "retention").output.split("\n")[:2] == [
        "conversation label:user 30d",
        "task 1h",
    ]
    assert limpet_(path, "retention", "remove", "task 2h").exit_code == 3
    assert limpet_(path, "retention", "remove", "task 1h").exit_code == 0
    found = json.loads(limpet_(path, "retention", "--json").output)
    assert found == {"rules": ["conversation label:user 30d"]}


@pytest.mark.parametrize(
    "rule", ["conversation", "conversation 90", "Task 3d", "state 1d even-open"]
)
def test_what_is_no_rule_is_refused(path: Path, rule: str) -> None:
    """With an example of one."""
    assert limpet_(path, "retention", "set", rule).exit_code == 2


def test_a_rule_for_a_label_with_a_space_is_set_and_removed(path: Path) -> None:
    """As a shell has it; and a kind of which there is nothing is a word worth."""
    words = ("conversation", f"label:user={NAME}", "90d")
    done = limpet_(path, "retention", "set", *words)
    assert (done.exit_code, done.stderr) == (0, "")
    assert limpet_(path, "retention").output == f"conversation 'label:user={NAME}' 90d\n"
    assert limpet_(path, "retention", "remove", *words).exit_code == 0
    assert "nothing of the kind" in limpet_(path, "retention", "set", "chats 90d").stderr


def test_sweep_removes_what_is_older_than_a_rule_allows(path: Path) -> None:
    """Of the kind, with the label; and no task that has not ended, unless that was said."""
    old(path, "conversation", "a", labels={"channel": "web"})
    old(path, "conversation", "b", labels={"channel": "mail"})
    old(path, "task", "ended", status="done")
    old(path, "task-result", "ended")
    old(path, "task", "open", status="open")
    limpet_(path, "retention", "set", "conversation label:channel=web 90d")
    limpet_(path, "retention", "set", "task 30d")
    planned = limpet_(path, "retention", "--dry-run").output
    assert [line for line in planned.split("\n") if "would" in line] == [
        "would remove conversation/a",
        "would remove task/ended",
        "would remove task-result/ended",
    ]
    limpet_(path, "audit", "on")
    assert "Freed the room of 3" in limpet_(path, "sweep").output
    assert [act[0] for act in acts(path)][1:] == ["applied retention", "swept"]
    with limpet.open(path) as store:
        assert [one.id for one in store.conversations()] == ["b", "hers", "other"]
        assert [one.id for one in store.tasks()] == ["open", "t"]
    limpet_(path, "retention", "set", "task 30d even-open")
    limpet_(path, "sweep")
    with limpet.open(path) as store:
        assert [one.id for one in store.tasks()] == ["t"]


def test_memories_go_one_by_one(path: Path) -> None:
    """By when each was remembered."""
    with limpet.open(path) as store:
        store.set_retention("memory label:short 1s")
        store.memory("m").remember("It rains", tags=["short"])
        assert store.apply_retention(dry_run=True).count == 0
        store.set_retention("memory 1s")
    time.sleep(1.1)
    with limpet.open(path) as store:
        assert store.apply_retention().memories == {"m": 2}
        assert store.memory("m").list() == []


def test_a_worker_applies_the_rules(path: Path) -> None:
    """Whoever set them, and in whichever process."""
    old(path, "conversation", "a")
    limpet_(path, "retention", "set", "conversation 90d")
    registry = limpet.Registry()

    @registry.task("greet")
    def greet(task: limpet.Task) -> None:
        task.step("hello", lambda: 1)

    with limpet.open(path) as store:
        store.submit("greet", "g", "Greet")
        Worker(registry, store).run(until_idle=True)
        assert [one.id for one in store.conversations()] == ["hers", "other"]


def test_what_a_store_keeps_for_itself_is_listed_only_by_name(path: Path) -> None:
    """Rules and acts are nobody's data."""
    limpet_(path, "retention", "set", "task 90d")
    limpet_(path, "audit", "on")
    assert "limpet-" not in limpet_(path, "ls").output
    assert "limpet-audit" in limpet_(path, "ls", "limpet-audit", "--json").output
    assert limpet_(path, "doctor").exit_code == 0


# -- audit -----------------------------------------------------------------------------------------


def acts(path: Path) -> list[tuple[str, str | None, str | None]]:
    """What was recorded: what, kind and id."""
    with limpet.open(path) as store:
        return [(act.what, act.kind, act.id) for act in run_to_end(audit.acts(store.scope))]


def test_nothing_is_recorded_unasked(path: Path) -> None:
    """And reading a store writes nothing to it."""
    before = path.read_bytes()
    limpet_(path, "show", "other")
    assert path.read_bytes() == before
    assert limpet_(path, "audit", "show").exit_code == 3


def test_commands_are_recorded(path: Path, tmp_path: Path) -> None:
    """What each did, and to what; nothing of any content."""
    limpet_(path, "audit", "on")
    limpet_(path, "show", "conversation/other")
    limpet_(path, "task", "submit", "kind", "s", "--goal", "A secret goal")
    limpet_(path, "task", "signal", "s", "go", '{"secret": 1}')
    limpet_(path, "export", "other", "--output", str(tmp_path / "x.json"))
    limpet_(path, "memory", "add", "m", "A secret memory")
    limpet_(path, "delete", "conversation/other", "--yes")
    limpet_(path, "forget", "--subject", NAME, "--yes")
    limpet_(path, "show", "nothing")
    found = acts(path)
    assert found[:3] == [
        ("began to record", None, None),
        ("opened", "conversation", "other"),
        ("submitted", "task", "s"),
    ]
    assert ("signalled", "task", "s") in found
    assert ("exported", None, "other") in found
    assert ("remembered", "memory", "m") in found
    assert ("deleted", "conversation", "other") in found
    assert found[-1] == ("forgot", None, None)
    shown = limpet_(path, "audit", "show", "--json").output
    assert "secret" not in shown
    assert "Ada" not in shown
    assert "(command) deleted conversation/other" in limpet_(path, "audit", "show").output
    assert limpet_(path, "audit", "verify").exit_code == 0


@pytest.mark.parametrize(
    ("how", "number"),
    [
        *(("changed", number) for number in range(1, 6)),
        *(("swapped", number) for number in range(1, 6)),
        *(("removed", number) for number in range(1, 5)),  # the last one: see the next test
    ],
)
def test_tampering_with_any_act_is_found(tmp_path: Path, number: int, how: str) -> None:
    """Whichever it is: a word in it, the act itself, its place."""
    with limpet.open(tmp_path / "s.db") as store:
        run_to_end(audit.begin(store.scope, via="command", who="grace"))
        for id_ in "abcd":
            act = audit.record(store.scope, "deleted", via="command", who="x", kind="t", id=id_)
            run_to_end(act)
        good = run_to_end(audit.verify(store.scope))
        assert (good.acts, good.problem) == (5, None)
        key = Key("default", "limpet-audit", "acts")
        head = store.backend.head(key)
        assert head is not None
        bodies = {record.seq: record.body for record in store.backend.read(key)}
        other = 1 + number % 5
        if how == "changed":
            (kind, value), *_ = Codec().decode(bodies[number])
            changed = {number: Codec().encode([(kind, {**value, "who": "nobody"})])}
        elif how == "swapped":
            changed = {number: bodies[other], other: bodies[number]}
        else:
            changed = {n: bodies[min(n + 1, 5)] for n in range(number, 6)}
        store.backend.rewrite(key, changed, expect=head.expect)
        found = run_to_end(audit.verify(store.scope))
        assert found.problem is not None
    run("--store", str(tmp_path / "s.db"), "audit", "verify", code=1)


def test_a_hash_that_was_kept_elsewhere_shows_a_chain_that_was_made_anew(tmp_path: Path) -> None:
    """Or one whose end was cut off."""
    with limpet.open(tmp_path / "s.db", audit=True) as store:
        run_to_end(audit.record(store.scope, "deleted", via="command", who="x", id="1"))
        last = run_to_end(audit.verify(store.scope)).last
        assert run_to_end(audit.verify(store.scope, last=last)).problem is None
        store.journal("limpet-audit", "acts").delete()
        assert run_to_end(audit.verify(store.scope, last=last)).problem is not None
        run_to_end(audit.begin(store.scope, via="command", who="x"))
        assert run_to_end(audit.verify(store.scope)).problem is None
        assert run_to_end(audit.verify(store.scope, last=last)).problem is not None


def test_what_changes_all_of_a_store_is_recorded_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys that were rotated and retired, a copy, a restored backup, a search."""
    monkeypatch.setenv("LIMPET_KEYS", str(tmp_path / "keys"))
    path = tmp_path / "s.db"
    limpet_(path, "keys", "new")
    with limpet.open(path, audit=True) as store:
        store.conversation("c").append({"role": "user", "content": "hello"})
    for words in (
        ("search", "hello"),
        ("keys", "new"),
        ("keys", "rotate"),
        ("keys", "retire", "1"),
        ("backup", str(tmp_path / "backup.db")),
        ("restore", str(tmp_path / "backup.db"), "--replace"),
    ):
        assert limpet_(path, *words).exit_code == 0, words
    assert CliRunner().invoke(main, ["copy", str(path), str(tmp_path / "to.db")]).exit_code == 0
    assert [act[0] for act in acts(path)] == [
        "began to record",
        "searched",
        "rotated the keys",
        "retired a key",
        "restored",  # as the store was when the backup was begun
        "exported",
    ]
    assert limpet_(path, "audit", "verify").exit_code == 0


def test_what_a_repair_has_moved_away_is_recorded(tmp_path: Path) -> None:
    """And a repair that had nothing to do is not."""
    url = f"file:{tmp_path}/store"
    with limpet.open(url, audit=True) as store:
        chat = store.conversation("c")
        chat.append({"role": "user", "content": "hello"})
        chat.append({"role": "user", "content": "again"})
    run("--store", url, "doctor", "--repair", code=0)
    (file,) = (tmp_path / "store").rglob("c.jsonl")
    file.write_bytes(file.read_bytes().replace(b"again", b"agaim"))
    run("--store", url, "doctor", "--repair")
    with limpet.open(url) as store:
        found = run_to_end(audit.acts(store.scope))
    assert [act.what for act in found] == ["began to record", "repaired"]
