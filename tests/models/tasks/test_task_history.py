"""Tests of a task's history for people: its versions, their differences, and its effects."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import limpet
from limpet.core.checkpoint import Checkpoint, Decision
from limpet.core.journal import Entry
from limpet.tasks.state import Large, TaskState
from limpet.tasks.versions import TaskVersion, compare, describe_entries, effects_after

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def journal(*entries: tuple[str, Any]) -> list[Entry]:
    """Entries of these types and bodies, a second apart."""
    return [
        Entry(seq, NOW + timedelta(seconds=seq), kind, body)
        for seq, (kind, body) in enumerate(entries, 1)
    ]


def said(*entries: tuple[str, Any]) -> list[str]:
    """What the versions say."""
    return [version.what for version in describe_entries(journal(*entries))]


def point(**attributes: Any) -> Checkpoint:
    """A checkpoint with these attributes."""
    known = {"agent_id": "agent-01", "task_id": "report", "goal": "Report"} | attributes
    return Checkpoint(created_at=NOW, updated_at=NOW, **known)


def changes(a: Checkpoint, b: Checkpoint) -> list[str]:
    """The lines of a comparison, without its heading."""
    return compare(a, b).splitlines()[2:]


# -- versions --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "body", "what"),
    [
        ("created", {"goal": "g", "agent": None}, "created"),
        (
            "created",
            {"goal": "g", "agent": "a-1", "kind": "report", "parent": "big", "input": [1]},
            "created by a-1, of kind 'report', as a part of 'big'",
        ),
        (
            "created",
            {"goal": "g", "deadline": "2026-03-02T13:00:00+01:00"},
            "created, to be done by 2026-03-02 12:00:00 UTC",
        ),
        ("resumed", {"agent": "agent-02"}, "resumed by agent-02"),
        ("resumed", {"agent": None}, "resumed"),
        ("planned", {"steps": ["a", "b"]}, "planned: 2 steps"),
        ("replanned", {"steps": ["a"], "because": "less"}, "plan changed, now 1 step: less"),
        (
            "began",
            {"id": "send", "policy": "ask"},
            "step 'send' begins (if in doubt: ask)",
        ),
        (
            "began",
            {"id": "send", "policy": "verify", "attempt": 3},
            "step 'send' begins, attempt 3 (if in doubt: verify)",
        ),
        (
            "progress",
            {"name": "crawl", "fraction": 0.4, "note": "page 12", "data": "secret"},
            "step 'crawl' is at 40%: page 12",
        ),
        ("progress", {"name": "crawl", "fraction": None, "note": ""}, "step 'crawl' goes on"),
        (
            "tried",
            {"name": "send", "attempt": 2, "error": "Boom", "wait": 1.5},
            "attempt 2 at step 'send' failed: Boom; again in 1.5 s",
        ),
        ("step", {"name": "fetch", "result": "secret", "took": 0.21}, "step 'fetch' done in 0.2 s"),
        ("step", {"name": "fetch", "result": 1, "took": 0.0034}, "step 'fetch' done in 3 ms"),
        ("step", {"name": "fetch", "result": 1, "took": 1e-5}, "step 'fetch' done in under 1 ms"),
        ("step", {"name": "fetch", "result": 1, "took": 125}, "step 'fetch' done in 2 min 5 s"),
        (
            "step",
            {"name": "x", "large": {"seq": 1, "size": 2_500_000, "preview": "secret"}, "took": 1},
            "step 'x' done in 1.0 s (its result of 2.5 MB is kept apart)",
        ),
        ("step", {"name": "x", "result": "secret", "verified": True}, "step 'x' found to be done"),
        (
            "step",
            {"name": "ok#2", "result": "secret", "signal": "ok"},
            "step 'ok#2' took the signal 'ok'",
        ),
        ("step", {"name": "ok", "result": None, "timed_out": True}, "step 'ok' waited in vain"),
        ("skipped", {"name": "log", "because": "no use"}, "step 'log' skipped: no use"),
        (
            "resolved",
            {"id": "send", "how": "done", "result": "secret", "by": "alice"},
            "step 'send' resolved by alice: done",
        ),
        (
            "waiting",
            {"name": "ok", "kind": "signal", "until": "2026-03-01T12:00:00+00:00"},
            "waits for 'ok' until 2026-03-01 12:00:00 UTC",
        ),
        ("waiting", {"name": "ok", "kind": "signal", "until": None}, "waits for 'ok'"),
        (
            "waiting",
            {"name": "sleep", "kind": "sleep", "until": "2026-03-01T12:00:00+00:00"},
            "sleeps until 2026-03-01 12:00:00 UTC",
        ),
        (
            "waiting",
            {"name": "send", "kind": "ask"},
            "step 'send' in doubt: waits for a person to say what became of it",
        ),
        ("signalled", {"name": "ok", "payload": "secret"}, "signal 'ok' came"),
        ("decided", {"decision": "use SQL", "because": "fast"}, "decided: use SQL"),
        ("discovered", {"discovery": "100 calls"}, "discovered: 100 calls"),
        ("stopped", {"error": "Boom: no"}, "stopped: Boom: no"),
        ("paused", {"because": None}, "paused"),
        ("cancelled", {"because": "too late"}, "cancelled: too late"),
        ("forking", {"from": "other", "at": 12}, "becomes a fork of 'other' at 12"),
        ("forked", {"from": "other", "at": 12}, "forked from 'other' at 12"),
        ("rewound", {"to": 5, "forget": ["a", "b"]}, "went back to 5, 2 steps undone"),
        ("finished", {"outcome": "secret"}, "finished"),
        ("handed", {}, "outcome handed on"),
        ("failed", {"error": "Boom"}, "failed: Boom"),
    ],
)
def test_each_entry_is_a_sentence(kind: str, body: dict[str, Any], what: str) -> None:
    """Who did what, and why; nothing of what was stored as a value."""
    assert said((kind, body)) == [what]
    assert "secret" not in what


def test_every_type_of_entry_has_a_sentence() -> None:
    """One that was forgotten would be shown by its name only."""
    from limpet.tasks import versions  # noqa: PLC0415 - its table is looked into

    assert set(TaskState.CHANGES) <= set(versions._SENTENCES)


def test_a_version_has_the_number_and_the_time_of_its_entry() -> None:
    """`task.versions.at(seq)` takes the number."""
    assert describe_entries(journal(("finished", {"outcome": 1}))) == [
        TaskVersion(1, NOW + timedelta(seconds=1), "finished")
    ]


def test_a_resume_says_what_is_in_doubt() -> None:
    """What began and did not end, and was not resolved since."""
    began = {"policy": "ask"}
    entries = [
        ("began", {"id": "send", **began}),
        ("began", {"id": "pay", **began}),
        ("began", {"id": "call", **began}),
        ("step", {"name": "pay", "result": 1, "took": 1}),
        ("resumed", {"agent": "b"}),
        ("skipped", {"name": "call"}),
        ("resolved", {"id": "send", "how": "done"}),
        ("resumed", {"agent": "b"}),
    ]
    what = said(*entries)
    assert what[4] == "resumed by b; in doubt: step 'send', step 'call'"
    assert what[7] == "resumed by b"


@pytest.mark.parametrize(
    "entry",
    [
        ("newer", {"x": 1}),
        ("step", None),
        ("step", []),
        ("step", {}),
        ("planned", {"steps": 7}),
        ("waiting", {"name": 1, "kind": "signal", "until": "soon"}),
        ("progress", {"name": "a", "fraction": "half"}),
        ("tried", {"name": "a", "attempt": 1, "error": "e", "wait": "long"}),
    ],
    ids=["unknown", "none", "list", "empty", "number", "time", "fraction", "wait"],
)
def test_an_entry_of_another_shape_is_shown_by_its_type(entry: tuple[str, Any]) -> None:
    """A history that can be read must not end at what a newer release wrote."""
    assert said(entry) == [entry[0]]
    assert effects_after(journal(entry), 0) == []


@given(st.text(), st.text())
def test_a_sentence_is_one_short_line_that_no_terminal_obeys(name: str, error: str) -> None:
    """Names and errors are other people's text."""
    (what,) = said(("tried", {"name": name[:20], "attempt": 1, "error": error}))
    assert what.isprintable()
    assert len(what) < 350


def test_a_real_task_tells_its_story(tmp_path: Any) -> None:
    """From its creation to its end."""
    with limpet.open(tmp_path / "agents.db") as store:
        with store.task("report", "Report", agent="a-1") as task:
            task.plan(["fetch", "send"])
            task.step("fetch", lambda: "secret")
            task.decide("use SQL")
            task.step("send", lambda: "secret", in_doubt="ask")
            task.finish("secret")
        found = [re.sub(r"in .* m?s$", "in no time", v.what) for v in task.versions.list()]
        assert found == [
            "created by a-1",
            "planned: 2 steps",
            "step 'fetch' done in no time",
            "decided: use SQL",
            "step 'send' begins (if in doubt: ask)",
            "step 'send' done in no time",
            "finished",
        ]
        text = task.versions.compare(2, 6)
    assert "  + fetch: secret\n  + send: secret" in text


# -- differences -----------------------------------------------------------------------------------


def test_nothing_differs() -> None:
    """It says so, rather than nothing."""
    assert changes(point(), point()) == ["Nothing differs."]


def test_the_heading_names_both_versions() -> None:
    """As in any diff."""
    assert compare(point(), point(task_id="b")).splitlines()[:2] == [
        "--- report, 2026-03-01 12:00:00 UTC",
        "+++ b, 2026-03-01 12:00:00 UTC",
    ]


def test_steps_done_between_are_shown_with_their_results() -> None:
    """Also those that are not done any more, and those that came out otherwise."""
    a = point(results={"fetch": 1, "old": 2, "same": 3, "none": None})
    b = point(results={"fetch": {"rows": 5}, "same": 3, "new": "text", "none": False})
    assert changes(a, b) == [
        "steps",
        "  - old",
        "  - fetch: 1",
        '  + fetch: {"rows":5}',
        "  + new: text",
        "  - none: null",
        "  + none: false",
    ]


def test_plans_are_compared_step_by_step() -> None:
    """Added, dropped, changed, moved; what only made room is not called moved."""
    a = point(plan=["a", "b", {"name": "c", "how": "well"}, "d", "a", "e"])
    b = point(plan=["new", "e", "a", "b", {"name": "c", "how": "fast"}, "a"])
    assert changes(a, b) == [
        "plan",
        "  - d",
        "  + new (at 1)",
        "  ~ e (now at 2)",
        '  - {"name":"c","how":"well"}',
        '  + {"name":"c","how":"fast"}',
    ]


def test_what_was_learned_and_how_it_ended_are_compared() -> None:
    """Decisions with their reasons."""
    a = point(decisions=[Decision("old")], in_doubt=["send"], error="Boom")
    b = point(
        goal="Better",
        decisions=[Decision("old"), Decision("new", "why")],
        discoveries=["100 calls"],
        waiting_for=["ok"],
        status="done",
        outcome={"n": 7},
    )
    assert changes(a, b) == [
        *("goal", "  - Report", "  + Better"),
        *("status", "  - open", "  + done"),
        *("decisions", "  + new (because why)"),
        *("discoveries", "  + 100 calls"),
        *("in doubt", "  - send"),
        *("waits for", "  + ok"),
        *("error", "  - Boom"),
        *("outcome", '  + {"n":7}'),
    ]


def test_texts_are_compared_line_by_line() -> None:
    """A report of forty lines of which one has changed."""
    lines = [f"line {n}" for n in range(40)]
    other = [*lines[:20], "another", *lines[21:]]
    a, b = point(results={"write": "\n".join(lines)}), point(results={"write": "\n".join(other)})
    assert changes(a, b) == [
        *("steps", "  write:", "  @@ -20,3 +20,3 @@", "    line 19"),
        *("  - line 20", "  + another", "    line 21"),
    ]


def test_a_long_difference_is_cut_and_says_so() -> None:
    """Nobody reads the three hundredth line in a terminal."""
    a = point(goal="\n".join("ab" * 50))
    b = point(goal="\n".join("cd" * 50))
    found = changes(a, b)
    assert len(found) == 22
    assert re.fullmatch(r"  … and \d+ more lines", found[-1])


@pytest.mark.parametrize(
    "value", ["x" * 5000, {"rows": ["y" * 5000]}, "z\n" * 5000], ids=["text", "JSON", "lines"]
)
def test_big_values_are_short(value: Any) -> None:
    """They say how big they are."""
    (line,) = changes(point(), point(outcome=value))[1:]
    assert len(line) < 250
    assert re.search(r"… \([\d,]+ characters\)$", line)


def test_a_result_that_is_kept_apart_is_shown_by_its_beginning() -> None:
    """And by its size."""
    apart = Large(1, 2_500_000, '["a').summary()
    assert changes(point(), point(results={"crawl": apart}))[1:] == [
        '  + crawl: ["a (2.5 MB, kept apart)'
    ]


@given(st.permutations([f"s{n}" for n in range(8)]), st.integers(0, 8))
def test_only_what_must_have_moved_is_called_moved(order: list[str], kept: int) -> None:
    """The others are in order by themselves."""
    old = [f"s{n}" for n in range(8)]
    new = order[:kept]
    found = changes(point(plan=old), point(plan=new))
    moved = [line.split()[1] for line in found if line.startswith("  ~")]
    stayed = [name for name in new if name not in moved]
    assert stayed == sorted(stayed)
    dropped = [line.split()[1] for line in found if line.startswith("  - ")]
    assert sorted([*dropped, *new]) == old


# -- effects ---------------------------------------------------------------------------------------


def test_effects_after_a_point_are_named_once_each() -> None:
    """What began or ended after it; plain steps can be done again and are not named."""
    began = {"policy": "verify", "attempt": 1}
    entries = journal(
        ("created", {"goal": "g"}),
        ("began", {"id": "early", **began}),
        ("step", {"name": "early", "result": 1}),
        ("began", {"id": "across", **began}),
        ("step", {"name": "plain", "result": 1}),
        ("step", {"name": "across", "result": 1}),
        ("step", {"name": "tool", "result": 1, "effect": True}),
        ("began", {"id": "doubtful", **began}),
        ("began", {"id": "doubtful", **began}),
        ("finished", {"outcome": 1}),
    )
    assert effects_after(entries, 4) == ["across", "tool", "doubtful"]
    assert effects_after(entries, 0) == ["early", "across", "tool", "doubtful"]
    assert effects_after(entries, 10) == []


def test_a_person_who_says_that_a_step_happened_is_believed() -> None:
    """Only then: a step that is to be retried or skipped has not happened since."""
    began = ("began", {"id": "send", "policy": "ask"})
    for how, expected in (("done", ["send"]), ("retry", []), ("skip", [])):
        entries = journal(began, ("resolved", {"id": "send", "how": how}))
        assert effects_after(entries, 1) == expected
