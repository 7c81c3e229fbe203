"""Tests of the command line: what it prints, what it refuses, and how it ends."""

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import click
import pytest
from click.testing import CliRunner
from rich.cells import cell_len

import limpet
from limpet.backends.contract import from_micros
from limpet.cli import main
from limpet.cli.docs import reference
from limpet.cli.options import StoreOptions
from limpet.core.ids import make_key
from limpet.views.messages import parts, summary
from limpet.views.text import safe, timestamp
from tests.support.commands import run
from tests.support.dying import ended_by
from tests.support.paths import ROOT

#: The command as it was installed.
LIMPET = str(Path(sys.executable).parent / "limpet")

#: What a terminal would obey: colour, title, a C1 control, text that runs backwards; and markup;
#: and what it would not show: zero-width characters, and the tags that a model reads.
HOSTILE = (
    "a\x1b[31mb\x1b]0;title\x07c\x9b2Jd\u202ee[bold]f[/bold]\rg\x00"
    "h\u200bi\u200dj\ufeffk\u00adl\u2060m\ufe0fn\U000e0041\U000e007fo\u3164"
)

OBEYED = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e"
    "\u200b-\u200f\ufeff\u00ad\u2060-\u2064\ufe00-\ufe0f\u3164\U000e0000-\U000e0fff]"
)
ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.fixture(autouse=True)
def _own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the reader's own setting leaks in."""
    monkeypatch.chdir(tmp_path)
    for name in ("LIMPET_URL", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A store with a bit of everything."""
    url = str(tmp_path / "agents.db")
    with limpet.open(url) as store:
        fill(store)
    return url


def fill(store: limpet.Store) -> None:
    """Two conversations, one of them "twin"; four tasks, one of them "twin"; and a note."""
    chat = store.conversation("alice", labels={"channel": "web"})
    chat.append({"role": "user", "content": "Where is my order?"})
    function = {"name": "lookup", "arguments": '{"order": "A-17"}'}
    call = {"id": "c1", "type": "function", "function": function}
    chat.append(
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "shipped on Monday"},
        {"role": "assistant", "content": "It was shipped on Monday. " + "Patience. " * 12},
    )
    store.conversation("twin").append({"role": "user", "content": "Hello"})
    with store.task("report", goal="Summarise incidents", agent="agent-01") as task:
        task.plan(["fetch", "count", "write"])
        task.step("fetch", lambda: {"rows": list(range(200))})
        task.decide("use the replica", because="the API is rate limited")
        task.discover("the API allows 100 calls")
    with store.task("finished", goal="Say seven") as task:
        task.finish({"answer": 7})
    with pytest.raises(ZeroDivisionError), store.task("twin", goal="Divide"):
        raise ZeroDivisionError("by zero")
    with store.task("broken", goal="Fail", labels={"team": "red"}) as task:
        task.fail("the disk is on fire")
    store.journal("note", "todo").append(("added", {"text": "water the plants"}))


def data(*args: str) -> Any:
    """What the command gives to programs."""
    return json.loads(run(*args, "--json").stdout)


def in_terminal(*args: str, columns: int = 80, **environ: str) -> str:
    """All that the installed command writes to a terminal of that width."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    # The width is the terminal's, whatever the one is that the tests run in.
    inherited = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    child = subprocess.Popen(
        [LIMPET, *args],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        env={**inherited, "TERM": "xterm-256color", **environ},
    )
    os.close(theirs)
    written = b""
    try:
        while chunk := _read(ours):
            written += chunk
    finally:
        os.close(ours)
        child.wait(timeout=60)
    return written.decode().replace("\r\n", "\n")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65_536)
    except OSError:  # how Linux says that nobody has the other end any more
        return b""


def lines_of(shown: str) -> list[str]:
    """The lines, without colours."""
    return ANSI.sub("", shown).splitlines()


def damage(path: str, old: bytes, new: bytes) -> None:
    """Change bytes in a file that nobody has open."""
    content = Path(path).read_bytes()
    assert content.count(old) == 1
    assert len(old) == len(new)
    Path(path).write_bytes(content.replace(old, new))


# -- the command itself ----------------------------------------------------------------------------


def test_installed_command_says_its_version() -> None:
    """`pip install` gives a command that works."""
    done = subprocess.run([LIMPET, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"limpet {limpet.__version__}\n"


def test_package_runs_as_a_module_too(path: str) -> None:
    """Where the script is not on the path, Python still finds it."""
    command = [sys.executable, "-m", "limpet", "--store", path, "ls", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert len(json.loads(done.stdout)) == 7


def test_docs_are_what_help_says() -> None:
    """To bring them up to date: python -m limpet.cli.docs > docs/cli.md."""
    assert (ROOT / "docs" / "cli.md").read_text("utf-8") == reference()


def commands(group: click.Group) -> Iterator[click.Command]:
    """The group, and all that is in it."""
    yield group
    for command in group.commands.values():
        yield from commands(command) if isinstance(command, click.Group) else [command]


@pytest.mark.parametrize("command", list(commands(main)), ids=lambda c: str(c.name))
def test_every_command_and_option_has_help(command: click.Command) -> None:
    """An option that nobody can look up is not there."""
    assert command.help
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, parameter.name
        else:
            assert str(parameter.metavar).strip("[]") in command.help, parameter.name


def test_help_names_every_exit_code() -> None:
    """Scripts rely on them."""
    shown = run("--help").stdout
    assert [line.split()[0] for line in shown.splitlines()[-4:]] == ["0", "1", "2", "3"]


@pytest.mark.parametrize("where", ["before", "behind", "environment"])
def test_store_may_be_named_in_three_ways(
    path: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Options are where the hand puts them."""
    if where == "environment":
        monkeypatch.setenv("LIMPET_URL", path)
    before = ["--store", path] if where == "before" else []
    behind = ["--store", path] if where == "behind" else []
    assert len(data(*before, "ls", *behind)) == 7


@pytest.mark.parametrize("command", [["ls"], ["show", "alice"], ["tail", "alice"], ["doctor"]])
def test_reading_does_not_create_a_store(tmp_path: Path, command: list[str]) -> None:
    """A misspelt name is an error, not an empty store."""
    result = run("--store", "missing.db", *command, code=1)
    assert result.stderr.startswith("StoreNotFound: ")
    assert "--store" in result.stderr
    assert "create=True" not in result.stderr
    assert result.stdout == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", [["ls"], ["show", "alice"], ["tail", "alice"], ["doctor"]])
def test_reading_does_not_write_into_somebody_elses_database(
    tmp_path: Path, command: list[str]
) -> None:
    """A database without our tables is left as it is."""
    script = (
        "import apsw; c = apsw.Connection('other.db'); c.execute('CREATE TABLE t (a)'); c.close()"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
    before = Path("other.db").read_bytes()
    result = run("--store", "other.db", *command, code=1)
    assert "no Limpet store in it. Check the name.\n" in result.stderr
    assert Path("other.db").read_bytes() == before


@pytest.mark.parametrize("url", ["missing.db", "file:missing"])
def test_advice_for_programs_is_for_programs_only(url: str) -> None:
    """A command has no arguments of Python; the error itself names them, after its message."""
    with pytest.raises(limpet.errors.StoreNotFound) as caught:
        limpet.open(url, create=False)
    error = caught.value
    assert str(error) == f"{error.message} To begin one there, open it with create=True."
    assert run("--store", url, "ls", code=1).stderr == (
        f"StoreNotFound: {error.message}\n"
        "  Name a store with --store or $LIMPET_URL; `limpet demo` makes one.\n"
    )


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        ("nodir/missing.db", "x.db", r"The directory \S*nodir does not exist"),
        ("missing.db", "x.db", r"There is no store at \S*missing\.db\. Check the name\."),
    ],
)
@pytest.mark.usefixtures("path")
def test_copy_gives_no_advice_on_an_option_that_it_has_not(
    source: str, target: str, message: str
) -> None:
    """Its stores are FROM and TO."""
    error = run("copy", source, target, code=1).stderr
    assert re.match(f"StoreNotFound: {message}", error)
    assert "--store" not in error
    assert "create=True" not in error


def test_reading_changes_nothing_in_the_file(path: str) -> None:
    """A look at what a dead agent left behind must not disturb it."""
    before = Path(path).read_bytes()
    for command in (["ls"], ["show", "report"], ["tail", "alice"], ["doctor"]):
        run("--store", path, *command)
    assert Path(path).read_bytes() == before


def test_store_of_a_killed_writer_can_be_read(tmp_path: Path) -> None:
    """What is still in the log that nobody has cleared away is shown like all else."""
    script = (
        "import limpet, os, signal; s = limpet.open('killed.db');"
        "s.conversation('c').append({'role': 'user', 'content': 'Last words'});"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -9
    assert (tmp_path / "killed.db-wal").stat().st_size > 0
    assert "Last words" in run("--store", "killed.db", "show", "c").stdout
    run("--store", "killed.db", "doctor")


def test_tenants_do_not_see_each_other(path: str) -> None:
    """--tenant chooses whose state is shown."""
    with limpet.open(path, tenant="acme") as store:
        store.conversation("bob").append({"role": "user", "content": "Hi"})
    assert [row["id"] for row in data("--store", path, "--tenant", "acme", "ls")] == ["bob"]
    assert "bob" not in run("--store", path, "ls").stdout
    assert run("--store", path, "--tenant", "acme", "show", "alice", code=3).stdout == ""


def test_a_command_that_is_suggested_can_be_pasted(path: str) -> None:
    """It is for the store and the tenant that were named, and shows no password."""
    said = run("--store", path, "--tenant", "the acme", "show", "nobody", code=3).stderr
    assert f"`limpet ls --store {path} --tenant 'the acme'` lists what there is." in said
    assert "`limpet ls` lists" in run("show", "nobody", "--store", path, code=3).stderr.replace(
        f" --store {path}", "", 1
    )
    options = StoreOptions()
    options.url = "redis://ann:secret@host"
    expected = "see `limpet doctor --store 'redis://ann:***@host'`"
    assert options.in_commands("see `limpet doctor`") == expected
    assert options.in_commands("`limpet demo` makes one") == "`limpet demo` makes one"


def test_unknown_scheme_is_explained() -> None:
    """An error of ours is a message, not a traceback."""
    result = run("--store", "nosuch://x", "ls", code=1)
    assert result.stderr.startswith("InvalidURL: nosuch: is not a kind of store")
    assert "the entry point group limpet.backends" in result.stderr


@pytest.mark.parametrize(
    "wrong", [["nosuch"], ["ls", "--nosuch"], ["show"], ["tail", "x", "-n", "y"], ["ls", "a", "b"]]
)
def test_wrong_usage_ends_with_2(wrong: list[str]) -> None:
    """The shell's own convention."""
    assert "Usage:" in run(*wrong, code=2).stderr


# -- ls --------------------------------------------------------------------------------------------


def test_ls_lists_conversations_and_tasks(path: str) -> None:
    """The first thing one wants to know of a store."""
    shown = run("--store", path, "ls").stdout.splitlines()
    assert [line.split()[0] for line in shown] == [
        *("id", "conversation/alice", "conversation/twin"),
        *("task/broken", "task/finished", "task/report", "task/twin", "note/todo"),
    ]
    assert "channel=web" in shown[1]
    assert "done" in shown[4]
    assert "agent=agent-01" in shown[5]


def test_ls_gives_the_same_to_programs(path: str) -> None:
    """One JSON list, with exact times and sizes."""
    found = {(row["kind"], row["id"]): row for row in data("--store", path, "ls")}
    row = found["conversation", "alice"]
    assert set(row) == {
        *("kind", "id", "status", "labels", "entries", "position", "size"),
        *("created_at", "updated_at", "expires_at", "held_by", "held_until"),
        *("holder_alive", "in_doubt"),
    }
    assert (row["entries"], row["labels"], row["status"]) == (4, {"channel": "web"}, None)
    assert found["task", "finished"]["status"] == "done"


@pytest.mark.parametrize(
    ("filters", "ids"),
    [
        (["tasks"], ["broken", "finished", "report", "twin"]),
        (["task"], ["broken", "finished", "report", "twin"]),
        (["conversations"], ["alice", "twin"]),
        (["note"], ["todo"]),
        (["--prefix", "t"], ["twin", "twin", "todo"]),
        (["--status", "failed"], ["broken"]),
        (["--label", "team=red"], ["broken"]),
        (["--label", "team=red", "--label", "channel=web"], []),
        (["task", "--status", "open", "--prefix", "rep"], ["report"]),
    ],
)
def test_ls_shows_only_what_was_asked_for(path: str, filters: list[str], ids: list[str]) -> None:
    """Filters are those of the store; all of them must hold."""
    assert [row["id"] for row in data("--store", path, "ls", *filters)] == ids


def test_ls_reads_every_page(tmp_path: Path) -> None:
    """A store with more than one page of journals is listed whole."""
    with limpet.open("many.db") as store:
        for number in range(230):
            store.conversation(f"c{number:03}").append({"role": "user", "content": "Hi"})
    found = [row["id"] for row in data("--store", "many.db", "ls")]
    assert found == [f"c{number:03}" for number in range(230)]


def test_ls_of_an_empty_store_says_so_beside_the_output() -> None:
    """A script that counts lines counts none."""
    limpet.open("empty.db").close()
    result = run("--store", "empty.db", "ls")
    assert result.stdout == ""
    assert "nothing yet" in result.stderr
    assert data("--store", "empty.db", "ls") == []
    assert "nothing like that" in run("--store", "empty.db", "ls", "tasks").stderr
    assert "There is nothing yet." in run("--store", "empty.db", "ls", "foo", code=3).stderr


def test_ls_says_who_holds_a_task(path: str) -> None:
    """For people by name and process; the mark for machines stays in the JSON."""
    with limpet.open(path) as store, store.task("report", agent="agent-02"):
        shown = run("--store", path, "ls", "tasks").stdout
        row = next(row for row in data("--store", path, "ls") if row["id"] == "report")
    holder = f"agent-02 on {os.uname().nodename}, process {os.getpid()}"
    assert re.search(rf"{re.escape(holder)} +at count +Summarise incidents\n", shown)
    assert row["held_by"].startswith("agent-02 on ")
    assert row["held_until"] > row["updated_at"]
    assert row["holder_alive"] is True


def test_ls_says_that_a_holder_was_killed(path: str) -> None:
    """Its lease goes on for a while, and nobody works on the task: the next may take it at once."""
    script = (
        f"import limpet, os, signal; limpet.open({path!r}).task('report', agent='a-2').__enter__();"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -9
    shown = run("--store", path, "ls", "tasks").stdout
    assert re.search(r"nobody: a-2 on .*, process \d+ has ended +next: count ", shown)
    row = next(row for row in data("--store", path, "ls") if row["id"] == "report")
    assert row["holder_alive"] is False


def test_ls_says_until_when_somebody_on_another_machine_holds_a_task(path: str) -> None:
    """Whether that process lives, nobody here can know."""
    with limpet.open(path) as store:
        until = store.backend.acquire(make_key("default", "task", "report"), "a-3 far away", 60)
    shown = run("--store", path, "ls", "tasks").stdout
    assert f"a-3 far away, until {timestamp(from_micros(until.until))} " in shown
    row = next(row for row in data("--store", path, "ls") if row["id"] == "report")
    assert (row["held_by"], row["holder_alive"]) == ("a-3 far away", None)


def test_label_without_a_value_is_refused(path: str) -> None:
    """--label team would match nothing, silently."""
    assert "NAME=VALUE" in run("--store", path, "ls", "--label", "team", code=2).stderr


# -- show ------------------------------------------------------------------------------------------


def test_show_prints_a_conversation_as_chat(path: str) -> None:
    """Roles, tool calls and results can be read without knowing the JSON."""
    shown = re.sub(r"  #\d+ · [-\dT:]+Z\n", "\n", run("--store", path, "show", "alice").stdout)
    assert "user\n  Where is my order?\n" in shown
    assert 'assistant\n  → lookup(order="A-17")\n  ← shipped on Monday\n' in shown


def test_show_prints_only_the_last_messages(path: str) -> None:
    """A long conversation is usually looked at from its end."""
    shown = run("--store", path, "show", "alice", "--last", "1").stdout
    assert "Patience" in shown
    assert "Where is my order?" not in shown


def test_show_gives_a_conversation_to_programs(path: str) -> None:
    """The messages come as they were stored."""
    found = data("--store", path, "show", "alice")
    assert found["kind"] == "conversation"
    assert [message["role"] for message in found["messages"]] == [
        *("user", "assistant", "tool", "assistant")
    ]


def test_show_prints_a_task_as_the_record_of_its_work(path: str) -> None:
    """Goal, plan with ticks, shortened results, decisions with reasons, discoveries."""
    shown = run("--store", path, "show", "report").stdout
    assert shown.startswith("task report · open\n")
    assert "Goal\n  Summarise incidents\n" in shown
    assert "  · count  (next)\n  · write\n" in shown
    assert "  - use the replica (because the API is rate limited)\n" in shown
    assert "  - the API allows 100 calls\n" in shown
    (step,) = (line for line in shown.splitlines() if line.startswith("  ✓ fetch  "))
    assert step.endswith("…")
    assert len(step) < 200


def test_show_prints_outcomes_and_errors(path: str) -> None:
    """How it ended, or what stopped it."""
    assert 'Outcome\n  {"answer":7}\n' in run("--store", path, "show", "finished").stdout
    assert "Last error\n  the disk is on fire\n" in run("--store", path, "show", "broken").stdout
    stopped = run("--store", path, "show", "task/twin").stdout
    assert "Last error\n  ZeroDivisionError: by zero\n" in stopped


def test_show_names_the_step_that_failed(tmp_path: Path) -> None:
    """Whoever is to mend it wants to know where; also if it was tried but once, and not planned."""
    url = str(tmp_path / "failed.db")
    with limpet.open(url) as store:
        with ended_by(ZeroDivisionError, store.task("t", "Divide")) as task:
            task.step("outer", lambda: task.step("inner", lambda: 1 / 0))
        with ended_by(ZeroDivisionError, store.task("retried", "Divide")) as task:
            task.step("divide", lambda: 1 / 0, retry=limpet.Retry(attempts=1))
    shown = run("--store", url, "show", "t").stdout
    assert "Last error\n  in step outer/inner: ZeroDivisionError: division by zero\n" in shown
    shown = run("--store", url, "show", "retried").stdout
    assert "task retried · failed" in shown
    assert "Last error\n  in step divide: ZeroDivisionError: division by zero\n" in shown
    assert data("--store", url, "show", "retried")["failed_step"] == "divide"


def test_show_calls_a_step_the_next_one_only_if_it_is(path: str) -> None:
    """Nothing comes next of a task that is done; and while somebody works on it, it may run."""
    with limpet.open(path) as store, store.task("report") as task:
        assert "  · count  (under way, or next)\n" in run("--store", path, "show", "report").stdout
        task.finish("enough is known")
    assert "  · count\n  · write\n" in run("--store", path, "show", "report").stdout


def test_show_says_who_holds_a_task(path: str) -> None:
    """Whether somebody works on it is the first question about an open task."""
    assert (
        "nobody works on it; last agent: agent-01" in run("--store", path, "show", "report").stdout
    )
    with limpet.open(path) as store, store.task("report", agent="agent-02"):
        assert "held by agent-02 on " in run("--store", path, "show", "report").stdout


def test_show_gives_a_task_to_programs(path: str) -> None:
    """The checkpoint whole, and what is beside it."""
    found = data("--store", path, "show", "report")
    point = limpet.Checkpoint.from_dict(found["checkpoint"])
    assert point.results == {"fetch": {"rows": list(range(200))}}
    assert (found["status"], found["outcome"], found["error"]) == ("open", None, None)


def test_show_context_prints_what_a_model_resumes_from(path: str) -> None:
    """The text of `task.resume_context()`, ready to be pasted."""
    with limpet.open(path) as store:
        expected = store.task("report").resume_context()
    assert run("--store", path, "show", "report", "--context").stdout == expected + "\n"
    assert data("--store", path, "show", "report", "--context")["context"] == expected


def reporting(text: str) -> None:
    """A step's body that says how far it is, and fails."""
    limpet.current_step().progress(0.4, text, now=True)
    raise RuntimeError(text)


@pytest.fixture
def doubtful(tmp_path: Path) -> str:
    """A store with a task that has seen better days: one step is skipped, one is in doubt."""
    url = str(tmp_path / "doubtful.db")
    with limpet.open(url) as store:
        store.submit("refund", "t", "Refund the customer", input={"order": 7}, deadline=3600)
        with ended_by(RuntimeError, store.task("t")) as task:
            task.plan(["look", "send", "file"])
            task.step("look", lambda: [f"row {n} {n * n}" for n in range(3000)])
            task.plan.drop("file", because="nobody reads it")
            store.signal("t", "approval", "yes")
            assert task.wait_for("approval") == "yes"
            task.step("send", reporting, "page 12", in_doubt="ask")
    return url


def test_show_says_what_became_of_each_step(doubtful: str) -> None:
    """Done, large, in doubt and how far, and why the plan is another now."""
    shown = run("--store", doubtful, "show", "t").stdout
    assert "\nto be done by 2" in shown
    assert 'Input\n  {"order":7}\n' in shown
    assert re.search(r'  ✓ look  \["row 0 0","row 1 1",.*… \(54\.5 KB\)\n', shown)
    assert "\nSteps that were not planned\n  ✓ approval  yes\n" in shown
    assert re.search(r"\nPlan\n  ✓ look .*\n  \? send .*\n\n", shown)
    doubt = r"  \? send  \(next\); in doubt \(ask\) since \S+; 40% done, page 12; 1 attempt failed"
    assert re.search(doubt, shown)
    assert "The plan was changed, because\n  - nobody reads it\n" in shown


def test_show_calls_a_step_in_doubt_only_when_nobody_runs_it(doubtful: str) -> None:
    """While somebody does, it is under way."""
    with limpet.open(doubtful) as store:
        store.resolve("t", "send", "retry")
        with store.task("t") as task:
            shown = task.step(
                "send", lambda: run("--store", doubtful, "show", "t").stdout, in_doubt="ask"
            )
    assert "  ? send  under way since " in shown


def test_show_says_which_steps_were_left_out(doubtful: str) -> None:
    """And the same to programs."""
    with limpet.open(doubtful) as store:
        store.resolve("t", "send", "skip")
        with pytest.raises(limpet.errors.WaitTimedOut), store.task("t") as task:
            task.wait_for("word", timeout=0.01, block=60)
        store.cancel("t", because="a duplicate")
    shown = run("--store", doubtful, "show", "t").stdout
    assert "  - send  skipped: a person said so\n" in shown
    assert "  - word  waited in vain\n" in shown
    assert f"To go on\n  limpet task resume t --store {doubtful}\n" in shown
    assert "Cancelled, because\n  a duplicate\n" in shown
    assert data("--store", doubtful, "show", "t")["skipped"] == {"send": "a person said so"}


def test_show_gives_what_is_known_of_each_step_to_programs(doubtful: str) -> None:
    """What a checkpoint leaves out."""
    found = data("--store", doubtful, "show", "t")
    assert found["submitted"] == {"kind": "refund", "input": {"order": 7}}
    assert found["in_doubt"]["send"]["policy"] == "ask"
    assert (found["progress"]["send"]["note"], len(found["tried"]["send"])) == ("page 12", 1)
    assert [change["because"] for change in found["replans"]] == ["nobody reads it"]


@pytest.mark.parametrize(("id_", "option"), [("alice", "--context"), ("report", "--last=1")])
def test_show_refuses_options_that_mean_nothing_there(path: str, id_: str, option: str) -> None:
    """An option that is ignored is a question that was not answered."""
    assert option[:6] in run("--store", path, "show", id_, option, code=2).stderr


def test_show_prints_a_journal_of_ones_own_kind(path: str) -> None:
    """Models that users make of journals can be looked at too."""
    assert "1 added\n" in run("--store", path, "show", "note/todo").stdout
    (entry,) = data("--store", path, "show", "note/todo")["journal"]
    assert entry["body"] == {"text": "water the plants"}


def test_id_of_two_things_is_ambiguous(path: str) -> None:
    """Guessing would show the wrong one half of the time."""
    result = run("--store", path, "show", "twin", code=2)
    assert "conversation/twin or task/twin" in result.stderr
    assert "Hello" in run("--store", path, "show", "conversation/twin").stdout
    assert "Divide" in run("--store", path, "show", "task/twin").stdout


def test_kind_before_an_id_wins_over_an_id_that_looks_so(path: str) -> None:
    """Everything can be named: an id with a slash is reached with its kind in front."""
    with limpet.open(path) as store:
        store.conversation("task/report").append({"role": "user", "content": "Slashes"})
        store.conversation("acme/support").append({"role": "user", "content": "Acme"})
    assert "Summarise" in run("--store", path, "show", "task/report").stdout
    assert "Slashes" in run("--store", path, "show", "conversation/task/report").stdout
    assert "Acme" in run("--store", path, "show", "acme/support").stdout


@pytest.mark.slow
@pytest.mark.parametrize("id_", ["nobody", "task/alice", "note/x", "task/", "a\x1bb", "\udcff"])
@pytest.mark.parametrize("command", ["show", "tail"])
def test_missing_id_ends_with_3(path: str, command: str, id_: str) -> None:
    """Scripts can tell "not there" from "went wrong"."""
    result = run("--store", path, command, id_, code=3)
    assert result.stderr.startswith("Not found: ")
    assert not OBEYED.search(result.stderr)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"role": "user", "content": "Hi"}, [("", "Hi")]),
        ({"role": "assistant", "content": ""}, [("", '{"content":""}')]),
        ({"role": "user"}, []),
        (
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "name": "f", "input": {"a": 1}}],
            },
            [("→ ", "f(a=1)")],
        ),
        (
            {"role": "user", "content": [{"type": "tool_result", "content": [{"type": "x"}]}]},
            [("← ", '{"type":"x"}')],
        ),
        ({"type": "function_call", "name": "f", "arguments": "not JSON"}, [("→ ", "f(not JSON)")]),
        ({"type": "function_call_output", "output": "42"}, [("← ", "42")]),
        ({"role": "assistant", "tool_calls": ["odd"]}, [("→ ", "odd")]),
        ({"role": "assistant", "tool_calls": "odd"}, [("", '{"tool_calls":"odd"}')]),
        ({"role": "user", "content": {"any": "thing"}}, [("", '{"any":"thing"}')]),
        ({"role": "user", "content": ["text", 7, None]}, [("", "text"), ("", "7"), ("", "null")]),
    ],
)
def test_messages_of_any_shape_can_be_read(
    message: dict[str, Any], expected: list[tuple[str, str]]
) -> None:
    """Each framework has its own, and none may break the view."""
    assert parts(message) == expected


# -- tail ------------------------------------------------------------------------------------------


def test_tail_prints_the_newest_entries_one_line_each(path: str) -> None:
    """Number, time, type, summary."""
    shown = run("--store", path, "tail", "report", "-n", "2").stdout
    pattern = r" +4  \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ  decided +use the replica \(because .*\)\n.*\n"
    assert re.fullmatch(pattern, shown)
    assert len(run("--store", path, "tail", "alice").stdout.splitlines()) == 4


def test_tail_gives_json_lines_to_programs(path: str) -> None:
    """One object an entry, with the whole body."""
    lines = run("--store", path, "tail", "report", "--json").stdout.splitlines()
    found = [json.loads(line) for line in lines]
    assert [(entry["seq"], entry["type"]) for entry in found] == [
        (1, "created"),
        (2, "planned"),
        (3, "step"),
        (4, "decided"),
        (5, "discovered"),
    ]
    assert found[2]["body"]["result"] == {"rows": list(range(200))}


def test_tail_tells_what_happened_to_a_task(doubtful: str) -> None:
    """In a sentence, or with what was given and found; never as our JSON."""
    lines = run("--store", doubtful, "tail", "t", "-n", "20").stdout.splitlines()
    told = [re.sub(r"\(0.0\d s", "(N s", line[29:]) for line in lines]
    assert told[0] == "created     Refund the customer"
    assert told[2] == "planned     3 steps: look, send, file"
    assert re.fullmatch(
        r'step        look ← \["row 0 0",.*… \(N s; 54\.5 KB, kept apart\)', told[3]
    )
    assert told[4:] == [
        "replanned   2 steps: look, send (because nobody reads it)",
        "signalled   approval ← yes",
        "step        approval ← yes",
        "began       step 'send' begins (if in doubt: ask)",
        "progress    step 'send' is at 40%: page 12",
        "tried       attempt 1 at step 'send' failed: RuntimeError: page 12",
        "stopped     RuntimeError: page 12",
    ]


@pytest.mark.parametrize(
    "entry",
    [
        *[("step", {"name": "x"}), ("message", 7), ("planned", {"steps": 3}), ("forked", None)],
        *[
            ("began", {"id": 1}),
            ("resolved", {"id": "c1", "how": "so"}),
            ("step", {"name": "x", "large": 7}),
            ("tried", "often"),
        ],
        *[("progress", {"fraction": "far"}), ("signalled", []), ("waiting", None)],
    ],
    ids=lambda entry: f"{entry[0]}-{type(entry[1]).__name__}",
)
def test_entries_of_an_unknown_shape_can_be_read(entry: tuple[str, Any]) -> None:
    """A journal of one's own may use our words for other things."""
    with limpet.open("memory:") as store:
        journal = store.journal("mine", "x")
        journal.append(entry)
        for kind in ("mine", "conversation", "task"):
            assert isinstance(summary(journal.read()[0], kind), str)


@pytest.fixture
def follower(path: str) -> Iterator[subprocess.Popen[str]]:
    """`tail -f` that has printed the one entry there was."""
    command = [LIMPET, "--store", path, "tail", "-f", "--json", "-n", "1", "conversation/twin"]
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8"
    )
    assert child.stdout is not None
    assert child.stderr is not None
    try:
        assert json.loads(child.stdout.readline())["seq"] == 1
        yield child
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
        child.stderr.close()


def test_following_prints_what_comes_and_ends_cleanly(
    path: str, follower: subprocess.Popen[str]
) -> None:
    """Ctrl-C is how following ends: exit code 0 and no traceback."""
    assert follower.stdout is not None
    with limpet.open(path) as store:
        for number in (2, 3):
            store.conversation("twin").append({"role": "user", "content": str(number)})
            entry = json.loads(follower.stdout.readline())
            assert (entry["seq"], entry["body"]["content"]) == (number, str(number))
    follower.send_signal(signal.SIGINT)
    assert follower.communicate(timeout=60) == ("", "")
    assert follower.returncode == 0


@pytest.mark.slow
def test_following_something_that_is_deleted_ends_with_3(
    path: str, follower: subprocess.Popen[str]
) -> None:
    """It would wait for ever otherwise."""
    with limpet.open(path) as store:
        store.conversation("twin").delete()
    _, errors = follower.communicate(timeout=60)
    assert follower.returncode == 3
    assert "conversation/twin is no longer there" in errors


@pytest.mark.slow
def test_following_something_that_begins_anew_prints_it_from_the_start(
    path: str, follower: subprocess.Popen[str]
) -> None:
    """Numbers that start again at 1 are new entries all the same."""
    assert follower.stdout is not None
    with limpet.open(path) as store:
        chat = store.conversation("twin")
        follower.send_signal(signal.SIGSTOP)  # so that it looks only when both are done
        chat.delete()
        chat.append({"role": "user", "content": "Anew"})
        follower.send_signal(signal.SIGCONT)
        assert json.loads(follower.stdout.readline())["body"]["content"] == "Anew"


def test_following_ends_quietly_when_its_reader_has_gone(path: str) -> None:
    """`limpet tail -f … | head -1` leaves neither a process nor a traceback."""
    ours, theirs = os.pipe()
    command = [LIMPET, "--store", path, "tail", "-f", "conversation/twin"]
    with subprocess.Popen(command, stdout=theirs, stderr=subprocess.PIPE, text=True) as child:
        os.close(theirs)
        os.read(ours, 1)
        os.close(ours)
        with limpet.open(path) as store:
            store.conversation("twin").append({"role": "user", "content": "Anybody?"})
        _, errors = child.communicate(timeout=60)
    assert errors == ""


# -- doctor ----------------------------------------------------------------------------------------


def test_doctor_finds_a_healthy_store_well(path: str) -> None:
    """Engine, journal mode, durability, integrity, sizes, records."""
    shown = run("--store", path, "doctor").stdout
    for name in ("engine", "journal mode", "durability", "integrity", "size", "records"):
        assert re.search(rf"^✓ {name} ", shown, re.MULTILINE), name
    assert shown.endswith("All is well.\n")


def test_doctor_finds_a_store_well_that_nobody_can_write(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a read-only disk SQLite says of its log what is not so."""
    monkeypatch.setattr("os.access", lambda *_: False)  # root may write everywhere
    shown = run("--store", path, "doctor").stdout
    assert re.search("journal mode +wal; read as it is", shown)
    assert shown.endswith("All is well.\n")


def test_doctor_reports_to_programs(path: str) -> None:
    """One document: what monitoring wants to know."""
    found = data("--store", path, "doctor")
    assert found["ok"] is True
    assert (found["store"], found["tenant"], found["error"]) == (path, "default", None)
    assert (found["journals"], found["unreadable"]) == (7, [])
    assert {"name", "value", "ok", "advice", "unsure"} == set(found["facts"][0])


def test_doctor_gives_advice_on_what_is_not_well(path: str) -> None:
    """A file that everybody can read is a problem, and chmod is the answer."""
    os.chmod(path, 0o644)  # noqa: PTH101 - the text of the advice is a command of that name
    shown = run("--store", path, "doctor", code=1).stdout
    assert "✗ file mode" in shown
    assert f"  → Other users of this machine can open it: chmod 600 {path}\n" in shown
    assert re.search(r"\n1 of \d+ checks found a problem.\n$", shown)


def test_doctor_names_the_record_that_cannot_be_read(path: str) -> None:
    """SQLite does not notice a changed byte in a body; the checksum does."""
    damage(path, b'shipped on Monday"', b'shipped on Sunday"')
    shown = run("--store", path, "doctor", code=1).stdout
    assert "✓ integrity" in shown
    assert re.search(r"✗ unreadable +conversation/alice at 2: .*checksum", shown)
    found = run("--store", path, "doctor", "--json", code=1).stdout
    (problem,) = json.loads(found)["unreadable"]
    assert (problem["journal"], problem["seq"]) == ("conversation/alice", 2)


def test_doctor_notices_entries_that_are_missing(path: str) -> None:
    """A record that is gone leaves a gap in the numbers."""
    script = (
        "import apsw, sys; apsw.Connection(sys.argv[1]).execute("
        '"DELETE FROM limpet_records WHERE seq = 3 AND journal = '
        "(SELECT journal FROM limpet_journals WHERE id = 'report')\")"
    )
    subprocess.run([sys.executable, "-c", script, path], check=True)
    shown = run("--store", path, "doctor", code=1).stdout
    assert re.search(r"✗ unreadable +task/report at 3: Entries are missing here", shown)


def test_unreadable_record_sends_its_reader_to_the_doctor(path: str) -> None:
    """One damaged message is one clear error, and says where to find out more."""
    damage(path, b'shipped on Monday"', b'shipped on Sunday"')
    result = run("--store", path, "show", "alice", code=1)
    assert result.stderr.startswith("Unreadable: ")
    assert "limpet doctor" in result.stderr


@pytest.mark.parametrize("content", [b"hello " * 2000, b"SQLite format 3\x00" + b"\xff" * 8000])
@pytest.mark.parametrize("command", [["ls"], ["show", "alice"], ["tail", "alice"], ["doctor"]])
def test_file_that_is_no_store_gives_one_clear_message(
    tmp_path: Path, command: list[str], content: bytes
) -> None:
    """No traceback, and the file is as it was."""
    (tmp_path / "bad.db").write_bytes(content)
    result = run("--store", "bad.db", *command, code=1)
    assert "bad.db" in result.stderr
    assert "Traceback" not in result.stderr
    assert (tmp_path / "bad.db").read_bytes() == content


def test_doctor_of_a_broken_file_still_answers_programs(tmp_path: Path) -> None:
    """Monitoring reads the document, people read the message."""
    (tmp_path / "bad.db").write_bytes(b"hello " * 2000)
    result = run("--store", "bad.db", "doctor", "--json", code=1)
    found = json.loads(result.stdout)
    assert found["ok"] is False
    assert found["error"].startswith("NotAStore: ")


@pytest.mark.slow
@pytest.mark.parametrize("page", range(1, 12))
def test_damaged_pages_never_end_in_a_traceback(path: str, page: int) -> None:
    """Whatever the disk has done, doctor says that something is wrong, and the rest says what."""
    with closing(apsw.Connection(path)) as connection:
        connection.execute("VACUUM")  # in a page that nobody uses, nothing can be wrong
    content = bytearray(Path(path).read_bytes())
    start = page * 4096
    content[start : start + 4096] = b"\xa5" * len(content[start : start + 4096])
    Path(path).write_bytes(content)
    run("--store", path, "doctor", code=1)
    for command in (["ls"], ["show", "alice"], ["tail", "report"]):
        result = CliRunner().invoke(main, ["--store", path, *command])
        assert isinstance(result.exception, SystemExit | None), result.exception


def test_password_in_a_url_is_not_repeated() -> None:
    """Reports are pasted into tickets."""
    result = run("--store", "nosuch://joe:secret@host/db", "doctor", "--json", code=1)
    assert json.loads(result.stdout)["store"] == "nosuch://joe:***@host/db"
    assert "secret" not in result.output


# -- terminals -------------------------------------------------------------------------------------


@pytest.fixture
def hostile(path: str) -> str:
    """A store whose texts would like to take over the terminal."""
    with limpet.open(path) as store:
        said = {"role": HOSTILE, "content": HOSTILE, "name": HOSTILE}
        store.conversation("evil").append(said, check=False)
        with store.task("evil-task", goal=HOSTILE, agent="agent") as task:
            task.plan(["x"])
            task.step("x", lambda: {HOSTILE: [HOSTILE]})
            task.decide(HOSTILE, because=HOSTILE)
            task.discover(HOSTILE)
            task.plan.insert("y", because=HOSTILE)
            store.signal("evil-task", "go", HOSTILE)
            with pytest.raises(RuntimeError):
                task.step("y", reporting, HOSTILE, in_doubt="ask")
            task.finish(HOSTILE)
        store.journal("note", "evil").append((HOSTILE, HOSTILE))
        store.memory("evil-memory").remember(HOSTILE, kind="fact", tags=["x"], source="s")
        for document in ({HOSTILE: 1}, {HOSTILE: HOSTILE}):
            store.state("evil-state").save(document, note="x\u200by")
    return path


SHOWING = [
    *(["show", id_] for id_ in ("evil", "evil-task", "note/evil")),
    *(["tail", id_] for id_ in ("evil", "evil-task", "note/evil")),
    ["memory", "show", "evil-memory"],
]
#: The same as JSON, or with an excerpt of it.
QUOTING = [["show", "evil-state"], ["search", "31mb"], ["history", "evil-state", "--diff"]]


@pytest.mark.parametrize("command", [*SHOWING, *QUOTING], ids=" ".join)
@pytest.mark.parametrize("option", [[], ["--json"]], ids=["text", "json"])
def test_control_characters_never_reach_the_terminal(
    hostile: str, command: list[str], option: list[str]
) -> None:
    """Stored text is other people's text: it is shown, not obeyed."""
    shown = run("--store", hostile, *command, *option).stdout
    assert not OBEYED.search(shown)
    assert "[bold]f[/bold]" in shown
    assert "31mb" in shown


@pytest.mark.slow
@pytest.mark.parametrize("command", SHOWING, ids=" ".join)
def test_control_characters_are_written_out_in_a_real_terminal(
    hostile: str, command: list[str]
) -> None:
    """The only escape sequences there are our own colours."""
    shown = in_terminal("--store", hostile, *command, columns=200)
    assert not OBEYED.search(ANSI.sub("", shown))
    assert "\x1b[31m" not in shown
    assert "\\e[31mb" in shown


@pytest.mark.parametrize(
    "command",
    [
        ["task", "signal", "evil-task", "go", f'{{"{HOSTILE}": }}'],
        ["task", "signal", "evil-task", "go\x9b31m\u200b", "1"],
        ["task", "signal", "task\x1b[31m\u200b", "go"],
        ["task", "submit", "kind", "report", "--goal", "\x1b[31m\u200b"],
        ["ls", "\x1b[31m\u200b"],
        ["ls", "--prefix", "\x1b[31m\u200b"],
        ["ls", "--status", "\x1b[31m\u200b"],
        ["ls", "--label", "\x1b[31m\u200b"],
        ["ls", "--older-than", "\x1b[31m\u200b"],
        ["ls", "--\x1b[31m\u200b"],
        ["ls", "tasks", "\x1b[31m\u200b"],
        ["ls", "--tenant", "acme\u200b"],
        ["search", "\x1b[31m\u200b"],
        ["search", "nothing", "--tenant", "acme\u200b"],
        ["show", "\x1b[31m\u200b"],
        ["export", "\x1b[31m\u200b"],
        ["import", "\x1b[31m\u200b"],
        ["copy", "\x1b[31m\u200b", "file:\x1b[31m\u200b"],
        ["doctor", "--store", "\x1b[31m\u200b"],
        ["doctor", "--store", "nosuch\x1b[31m\u200b:x"],
        ["\x1b[31m\u200b"],
        ["--\x1b[31m\u200b"],
        ["memory", "recall", "x\u200b", "nothing"],
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_what_a_command_was_given_is_not_obeyed_either(hostile: str, command: list[str]) -> None:
    """An argument may have been copied from anywhere, and a message repeats it."""
    args = command if "--store" in command or "copy" in command else ["--store", hostile, *command]
    result = CliRunner().invoke(main, args)
    assert isinstance(result.exception, SystemExit | None), result.exception
    assert not OBEYED.search(result.output)


def test_joiners_and_selectors_where_people_write_them_are_shown() -> None:
    """In Persian, Hindi and emoji they are part of the writing; behind ASCII, or several, not."""
    for text in (
        "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",
        "👩\u200d💻",
        "❤\ufe0f\u200d🔥",
        "☎\ufe0e",
    ):
        assert safe(text) == text
    assert safe("a\u200db é\u200d\u200d❤\ufe0f\ufe0f") == "a\\u200db é\u200d\\u200d❤\ufe0f\\ufe0f"


def test_json_of_hostile_text_is_the_text_itself(hostile: str) -> None:
    """Escaped on the way out, the same after parsing."""
    (message,) = data("--store", hostile, "show", "evil")["messages"]
    assert message["content"] == HOSTILE


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [["ls"], ["show", "alice"], ["show", "report"], ["tail", "report"], ["doctor"], ["show", "no"]],
    ids=" ".join,
)
def test_output_fits_a_narrow_terminal(path: str, command: list[str]) -> None:
    """Forty columns, and every id can still be read whole."""
    shown = lines_of(in_terminal("--store", path, *command, columns=40))
    assert max(map(cell_len, shown)) <= 40
    assert "".join(shown).strip()


@pytest.mark.slow
def test_ls_in_a_narrow_terminal_cuts_no_id_off() -> None:
    """An id is there to be copied."""
    long = "customer-" + "0123456789" * 10
    with limpet.open("long.db") as store:
        store.conversation(long).append({"role": "user", "content": "Hi"})
        store.conversation("日本語" * 20).append({"role": "user", "content": "こんにちは" * 20})
    for columns in (40, 80):
        shown = lines_of(in_terminal("--store", "long.db", "ls", columns=columns))
        assert max(map(cell_len, shown)) <= columns
    assert f"conversation/{long} " in run("--store", "long.db", "ls").stdout
    assert long in "".join(lines_of(in_terminal("--store", "long.db", "ls", columns=40)))


def test_tail_in_a_terminal_is_one_line_an_entry(path: str) -> None:
    """What does not fit is cut, and the cut can be seen."""
    shown = lines_of(in_terminal("--store", path, "tail", "report", columns=50))
    assert len(shown) == 5
    assert shown[2].endswith("…")


@pytest.mark.slow
def test_piped_output_is_plain_and_whole(path: str) -> None:
    """No colours, no padding, nothing wrapped: what reads it there wants whole lines."""
    long = "Patience. " * 12
    for command in (["ls"], ["show", "alice"], ["show", "report"], ["tail", "alice"], ["doctor"]):
        done = subprocess.run(
            [LIMPET, "--store", path, *command], capture_output=True, text=True, check=True
        )
        assert "\x1b" not in done.stdout
        assert all(line == line.rstrip() for line in done.stdout.splitlines())
    assert long.strip() in run("--store", path, "show", "alice").stdout


def test_colours_can_be_turned_off(path: str) -> None:
    """NO_COLOR is respected."""
    colour = re.compile(r"\x1b\[(\d+;)*(3\d|9\d)")
    assert colour.search(in_terminal("--store", path, "show", "alice"))
    assert not colour.search(in_terminal("--store", path, "show", "alice", NO_COLOR="1"))


def test_terminal_without_unicode_gets_numbers_for_characters(path: str) -> None:
    """An old locale is no reason for a traceback."""
    done = subprocess.run(
        [LIMPET, "--store", path, "show", "report"],
        capture_output=True,
        check=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
    )
    assert b"\\u2713 fetch" in done.stdout


def test_expired_lease_is_not_shown(path: str) -> None:
    """Only who holds it now is a holder."""
    with limpet.open(path) as store:
        key = store.journal("task", "report").key
        store.backend.acquire(key, "somebody [mark]", 0.01)
        time.sleep(0.05)
    assert "somebody" not in run("--store", path, "ls").stdout
