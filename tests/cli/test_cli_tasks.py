"""Tests of `limpet task`, of calls in doubt of any kind, and of `limpet work`."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import limpet
from limpet.core.ids import make_key
from limpet.core.leases import holder_name
from tests.support.commands import run
from tests.support.doubtful import leave_in_doubt
from tests.support.processes import in_a_process

if TYPE_CHECKING:
    from collections.abc import Iterator

APP = """
import limpet

registry = limpet.Registry()
other = {}


@registry.task("report")
def report(task):
    task.step("look", lambda: "seen")
    return [task.input, task.wait_for("approval")]
"""


@pytest.fixture(autouse=True)
def _own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In an empty directory, and without the modules that were imported from it afterwards."""
    monkeypatch.chdir(tmp_path)
    for name in ("LIMPET_URL", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    known = set(sys.modules)
    yield
    for name in set(sys.modules) - known:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def shown(task_id: str) -> Any:
    """What ``limpet show`` gives to programs."""
    return json.loads(run("show", task_id, "--json").stdout)


def types(task_id: str) -> list[str]:
    """The types of a task's entries."""
    with limpet.open() as store:
        return [entry.type for entry in store.journal("task", task_id).read()]


# -- submit ----------------------------------------------------------------------------------------


def test_submit_creates_a_task_for_a_worker() -> None:
    """And the store, if this is the first."""
    given = '{"customer": "Ann"}'
    result = run("task", "submit", "report", "r-1", "--goal", "Report", "--input", given)
    assert result.stdout == "r-1 is open, for a worker that runs 'report'.\n"
    with limpet.open() as store:
        info = store.task("r-1").info()
        assert (info.kind, info.status) == ("report", "open")
        (created,) = store.journal("task", "r-1").read()
    assert (created.body["goal"], created.body["input"]) == ("Report", {"customer": "Ann"})


def test_submit_again_changes_nothing() -> None:
    """A script may be run twice; but an id means one task."""
    for _ in range(2):
        run("task", "submit", "report", "r-1", "--goal", "Report")
    assert types("r-1") == ["created"]
    result = run("task", "submit", "report", "r-1", "--goal", "Something else", code=1)
    assert "GoalMismatch" in result.stderr


def test_submit_knows_a_deadline() -> None:
    """As the library does."""
    run("task", "submit", "report", "r-1", "--goal", "Report", "--deadline", "60")
    with limpet.open() as store:
        (created,) = store.journal("task", "r-1").read()
    assert created.body["deadline"]
    run("task", "submit", "report", "r-2", "--goal", "Report", "--deadline", "0", code=2)


def test_submit_needs_a_goal() -> None:
    """It is what people, and models, know a task by."""
    assert "--goal" in run("task", "submit", "report", "r-1", code=2).stderr


@pytest.mark.parametrize("text", ["hello", "{'a': 1}", "NaN", ""])
def test_what_is_not_json_is_refused_with_advice(text: str) -> None:
    """Shells eat quotes, so this is the commonest mistake."""
    result = run("task", "submit", "report", "r-1", "--goal", "Report", "--input", text, code=2)
    assert "is not JSON" in result.stderr
    assert f"write '{json.dumps(text)}'" in " ".join(result.stderr.split())
    assert not Path("limpet.db").exists()


# -- what people say to tasks ----------------------------------------------------------------------


@pytest.fixture
def waiting() -> None:
    """A task that waits for an approval."""
    Path("app.py").write_text(APP)
    run("task", "submit", "report", "r-1", "--goal", "Report", "--input", "7")
    run("work", "app:registry", "--until-idle", "--poll", "0.05")


@pytest.mark.parametrize(
    ("url", "tenant", "where"),
    [
        ("limpet.db", "default", ""),
        ("my agents.db", "default", " --store 'sqlite:my agents.db'"),
        ("limpet.db", "acme", " --tenant acme"),
    ],
)
def test_the_command_that_an_error_names_can_be_pasted(url: str, tenant: str, where: str) -> None:
    """With the store and the tenant, where they are not those that it finds by itself."""
    with (
        limpet.open(url, tenant=tenant) as store,
        pytest.raises(limpet.TaskWaiting) as caught,
        store.task("r 1", goal="Report") as task,
    ):
        task.wait_for("approval")
    command = f"limpet task signal 'r 1' approval{where}"
    assert f"`{command}`" in str(caught.value)
    assert run(*shlex.split(command)[1:]).stdout == "Sent 'approval' to r 1.\n"


@pytest.mark.usefixtures("waiting")
def test_a_person_lets_a_task_go_on() -> None:
    """It says what it waits for, and by which command it goes on; the next worker does."""
    text = run("show", "r-1").stdout
    assert "task r-1 · waiting" in text
    assert "it waits for a signal: limpet task signal r-1 approval\n" in text
    assert (
        run("task", "signal", "r-1", "approval", '{"by": "Ann"}').stdout
        == "Sent 'approval' to r-1.\n"
    )
    run("work", "app", "--until-idle", "--poll", "0.05")
    assert shown("r-1")["outcome"] == [7, {"by": "Ann"}]
    assert types("r-1").count("step") == 2


@pytest.mark.usefixtures("waiting")
def test_a_signal_that_a_task_does_not_wait_for_is_refused_unless_it_is_meant() -> None:
    """A typo would be answered with "Sent", and the task would wait for ever."""
    result = run("task", "signal", "r-1", "aproval", code=1)
    assert "waits for 'approval', and not for a signal 'aproval'" in " ".join(result.stderr.split())
    assert "signalled" not in types("r-1")
    result = run("task", "signal", "r-1", "aproval", "--any")
    assert result.stdout == "Sent 'aproval' to r-1. It does not wait for that now.\n"
    assert shown("r-1")["status"] == "waiting"


@pytest.mark.usefixtures("waiting")
def test_a_signal_may_carry_nothing_and_be_sent_twice() -> None:
    """With an id, the second time does nothing."""
    for _ in range(2):
        run("task", "signal", "task/r-1", "approval", "--id", "mail-17")
    assert types("r-1").count("signalled") == 1
    run("work", "app:registry", "--until-idle", "--poll", "0.05")
    assert shown("r-1")["outcome"] == [7, None]


@pytest.mark.usefixtures("waiting")
def test_a_task_is_paused_and_resumed() -> None:
    """Signals are kept meanwhile."""
    assert run("task", "pause", "r-1", "--because", "holidays").stdout == "Paused r-1.\n"
    run("task", "signal", "r-1", "approval")
    run("work", "app:registry", "--until-idle", "--poll", "0.05")
    text = run("show", "r-1").stdout
    assert "task r-1 · paused" in text
    assert "limpet task resume r-1" in text
    assert run("task", "resume", "r-1").stdout == "r-1 is open again.\n"
    run("work", "app:registry", "--until-idle", "--poll", "0.05")
    assert shown("r-1")["status"] == "done"


@pytest.mark.usefixtures("waiting")
def test_a_task_is_cancelled() -> None:
    """No worker takes it up."""
    assert (
        run("task", "cancel", "r-1", "--because", "the customer has left").stdout
        == "Cancelled r-1.\n"
    )
    run("work", "app:registry", "--until-idle", "--poll", "0.05")
    assert shown("r-1")["status"] == "cancelled"
    result = run("task", "signal", "r-1", "approval", code=1)
    assert "is cancelled" in result.stderr


@pytest.mark.parametrize(
    "command",
    [
        ["task", "signal", "r-1", "x"],
        ["task", "cancel", "r-1"],
        ["task", "pause", "r-1"],
        ["task", "resume", "r-1"],
    ],
    ids=lambda command: command[1],
)
def test_commands_for_a_task_that_is_not_there_end_with_3(command: list[str]) -> None:
    """And create nothing: neither task nor store."""
    run(*command, code=1)
    assert not Path("limpet.db").exists()
    with limpet.open() as store:
        assert "There is no task 'r-1'" in run(*command, code=3).stderr
        assert list(store.tasks()) == []


@pytest.fixture
def doubtful() -> None:
    """A task whose process died within a step that must not be done twice."""
    with limpet.open() as store:
        store.submit("mail", "m 1", "Send a mail")
        with pytest.raises(KeyboardInterrupt), store.task("m 1") as task:
            task.step("send", _interrupted, in_doubt="ask")
        with pytest.raises(limpet.TaskWaiting), store.task("m 1") as task:
            task.step("send", _interrupted, in_doubt="ask")


def _interrupted() -> None:
    raise KeyboardInterrupt


@pytest.mark.usefixtures("doubtful")
@pytest.mark.parametrize("how", ["done", "retry", "skip"])
def test_a_person_says_what_became_of_a_step(how: str) -> None:
    """The task names the step, and the command."""
    command = "limpet task resolve 'm 1' send done --result JSON (or retry, or skip)"
    assert command in run("show", "m 1").stdout
    options = ["--result", '{"id": 17}', "--by", "Ann"] if how == "done" else []
    assert (
        run("task", "resolve", "m 1", "send", how, *options).stdout
        == f"Step 'send' of m 1: {how}.\n"
    )
    with limpet.open() as store, store.task("m 1") as task:
        found = task.step("send", lambda: "sent again", in_doubt="ask")
        last = store.journal("task", "m 1").read()
    assert found == {"done": {"id": 17}, "retry": "sent again", "skip": None}[how]
    said = next(entry.body for entry in last if entry.type == "resolved")
    assert said["by"] == "Ann" if how == "done" else said["by"]


@pytest.mark.usefixtures("doubtful")
def test_what_cannot_be_resolved_is_refused() -> None:
    """A step that is not in doubt, an answer that is none, a result of nothing."""
    assert "not in doubt" in run("task", "resolve", "m 1", "other", "done", code=3).stderr
    run("task", "resolve", "m 1", "send", "perhaps", code=2)
    run("task", "resolve", "m 1", "send", "skip", "--result", "1", code=2)


# -- calls in doubt of any kind --------------------------------------------------------------------

KINDS = ("agents-run", "conversation", "note", "state", "task")


@pytest.fixture
def calls_in_doubt() -> None:
    """A call of each kind that began and did not end."""
    with limpet.open() as store:
        for kind in KINDS:
            leave_in_doubt(store, kind, "the order", "pay")


@pytest.mark.usefixtures("calls_in_doubt")
def test_what_is_in_doubt_is_listed_with_the_command_that_resolves_it() -> None:
    """Whatever its kind; each command can be pasted, and there is nothing in doubt at the end."""
    lines = run("in-doubt").stdout.splitlines()
    assert lines[::4] == [f"{kind}/the order  pay (c1)  ask" for kind in KINDS]
    found = json.loads(run("in-doubt", "--json").stdout)
    assert [(one["kind"], one["id"], one["call"]["id"]) for one in found] == [
        (kind, "the order", "c1") for kind in KINDS
    ]
    for kind, line in zip(KINDS, lines[1::4], strict=True):
        assert line == f"  limpet resolve '{kind}/the order' c1 done --result JSON"
        said = run(*shlex.split(line.replace("JSON", "7"))[1:], "--by", "Ann").stdout
        assert said == f"Call 'c1' of {kind}/the order: done.\n"
    result = run("in-doubt")
    assert result.stdout == ""
    assert "Nothing is in doubt in limpet.db for tenant 'default'." in result.stderr
    with limpet.open() as store:
        answers = [
            entry.body
            for kind in KINDS
            for entry in store.journal(kind, "the order").read()
            if entry.type == "resolved"
        ]
    assert answers == [{"id": "c1", "how": "done", "result": 7, "by": "Ann"}] * len(KINDS)


@pytest.mark.usefixtures("calls_in_doubt")
def test_a_call_that_cannot_be_resolved_is_refused() -> None:
    """One that is not in doubt, an id that means several things or nothing, a result of nothing."""
    assert "In doubt: c1" in run("resolve", "state/the order", "c2", "done", code=3).stderr
    assert "Say which" in run("resolve", "the order", "c1", "done", code=2).stderr
    run("resolve", "state/nothing", "c1", "done", code=3)
    run("resolve", "state/the order", "c1", "retry", "--result", "7", code=2)
    run("resolve", "state/the order", "c1", "perhaps", code=2)
    assert len(json.loads(run("in-doubt", "--json").stdout)) == len(KINDS)


@pytest.mark.parametrize("command", [["in-doubt"], ["resolve", "x", "c1", "done"]], ids=" ".join)
def test_asking_what_is_in_doubt_creates_no_store(command: list[str]) -> None:
    """A misspelt name is an error, not an empty store."""
    assert run(*command, code=1).stderr.startswith("StoreNotFound: ")
    assert not Path("limpet.db").exists()


def test_a_task_whose_process_is_dead_is_not_shown_as_held() -> None:
    """It is anybody's at once: the kernel knows, and so do people who look."""
    with limpet.open() as store:
        with store.task("t", "Send a mail") as task:
            task.step("send", lambda: 1)
        dead = in_a_process(lambda: holder_name("agent-02"))[1]
        store.backend.acquire(make_key(store.tenant, "task", "t"), dead, 600)
        shown = run("show", "t").stdout
        assert shown.splitlines()[2].startswith("its process is dead (agent-02 on ")
        assert "open it, and it goes on" in " ".join(shown.split())


# -- work ------------------------------------------------------------------------------------------


def test_a_worker_says_what_it_does() -> None:
    """A line an event, with nothing of what the task was given."""
    Path("app.py").write_text(APP)
    run("task", "submit", "report", "r-1", "--goal", "Secret", "--input", '"secret"')
    lines = run("work", "app:registry", "--until-idle", "--poll", "0.05").stderr.splitlines()
    assert [line.partition("  ")[2] for line in lines] == [
        "working on limpet.db for tenant default: app:registry",
        "r-1: begins (report)",
        "r-1: waits (approval)",
        "ended",
    ]


def test_a_worker_says_below_a_failure_where_it_came_from() -> None:
    """A line for each place, whole, as people read them."""
    Path("app.py").write_text(APP.replace("return [", "return 1 / len([]) or ["))
    run("task", "submit", "report", "r-1", "--goal", "Secret")
    lines = run("work", "app:registry", "--until-idle", "--poll", "0.05").stderr.splitlines()
    assert lines[2].endswith(" s: ZeroDivisionError: division by zero")
    assert lines[3].strip() == f"{Path('app.py').resolve()}:11 in report"


def test_a_worker_runs_only_the_kinds_it_is_told() -> None:
    """And says which there are, if that one is not."""
    Path("app.py").write_text(APP)
    run("task", "submit", "report", "r-1", "--goal", "Report")
    run("work", "app:registry", "--until-idle", "--kinds", "report, report", "--poll", "0.05")
    assert shown("r-1")["status"] == "waiting"
    result = run("work", "app:registry", "--until-idle", "--kinds", "reports", code=2)
    assert "it has: 'report'" in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("app", "message"),
    [
        ("nowhere:registry", "There is no module 'nowhere' in "),
        ("nowhere.at.all:registry", "There is no module 'nowhere.at.all' in "),
        ("app.py:registry", "nor installed. A module is named without its .py."),
        ("app:nothing", "The module app has no 'nothing'. It has: registry."),
        ("empty", "The module empty has no 'registry'. It has no limpet.Registry at all."),
        ("app:other", "app:other is a dict, and a worker needs a limpet.Registry."),
        ("broken:registry", "ZeroDivisionError: division by zero"),
        ("hungry:registry", "No module named 'food'"),
        ("leaving:registry", "SystemExit: 3"),
    ],
)
def test_what_cannot_be_run_is_said_clearly(app: str, message: str) -> None:
    """One message, and no traceback but that of the user's own module."""
    Path("app.py").write_text(APP)
    Path("empty.py").touch()
    Path("broken.py").write_text("registry = 1 / 0")
    Path("hungry.py").write_text("import food")
    Path("leaving.py").write_text("raise SystemExit(3)")
    result = run("work", app, "--until-idle", code=1)
    assert message in result.stderr
    assert "importlib" not in result.stderr
    assert not Path("limpet.db").exists()


def test_a_broken_module_is_shown_where_it_is_broken() -> None:
    """Its file and line."""
    Path("broken.py").write_text("\n\nregistry = 1 / 0\n")
    assert 'broken.py", line 3' in run("work", "broken:registry", code=1).stderr


# -- export and import -----------------------------------------------------------------------------


@pytest.mark.usefixtures("doubtful")
def test_tasks_are_exported_and_imported_as_the_same() -> None:
    """With what is in doubt, and what a worker finds them by."""
    run("task", "submit", "report", "r-1", "--goal", "Report")
    done = run("export", "--kind", "task", "-o", "all.jsonl")
    assert done.stderr == "2 tasks written to all.jsonl.\n"
    shown = run("--store", "other.db", "import", "all.jsonl").stdout
    assert "task/r-1: 1 entry; imported" in shown
    in_doubt, listed = (run(*words, "--json").stdout for words in (["in-doubt"], ["ls"]))
    assert run("--store", "other.db", "in-doubt", "--json").stdout == in_doubt
    assert run("--store", "other.db", "ls", "--json").stdout == listed
    again = run("--store", "other.db", "import", "all.jsonl", "--as", "task").stdout
    assert "task/r-1: 1 entry; there already" in again
    assert "not a list of" in run("import", "all.jsonl", "--as", "conversation", code=1).stderr


@pytest.mark.parametrize("wrong", [["--messages"], ["--state", "x"]])
def test_what_a_task_has_not_is_not_exported(wrong: list[str]) -> None:
    """A mistake in the options is told before anything is written."""
    run("task", "submit", "report", "r-1", "--goal", "Report")
    run("export", "--kind", "task", *wrong, code=2)
    assert "no task 'r-2'" in run("export", "--kind", "task", "r-2", code=3).stderr
