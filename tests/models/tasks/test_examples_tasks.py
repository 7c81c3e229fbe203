"""The examples of tasks, and docs/tasks.md, run as a user would: killed, and run again."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import limpet
from limpet import Retry, TaskWaiting
from tests.support.dying import Killed, die
from tests.support.paths import ROOT
from tests.support.processes import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from limpet.backends.contract import Append, Appended
    from tests.support.servers import Server

EXAMPLES = ROOT / "examples"
PAGE = (ROOT / "docs" / "tasks.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE)
PYTHON = [code for language, code in BLOCKS if language == "python"]
CONSOLE = [text for language, text in BLOCKS if language == "console"]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a directory of one's own, and with nothing of the reader's setting."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LIMPET_URL", raising=False)
    monkeypatch.setenv("LIMPET_CACHE", str(tmp_path / "cache"))


@contextmanager
def started(
    example: str, *args: str, pace: float = 0, before: tuple[str, ...] = (), cwd: Path | None = None
) -> Iterator[subprocess.Popen[str]]:
    """An example that runs; it ends with the block."""
    command = [*before, sys.executable, str(EXAMPLES / example), *args]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env={**os.environ, "PACE": str(pace)},
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def said(example: str, *args: str, before: tuple[str, ...] = (), cwd: Path | None = None) -> str:
    """What an example prints until it ends, by itself or by its own hand."""
    with started(example, *args, before=before, cwd=cwd) as process:
        output, errors = process.communicate(timeout=120)
    assert process.returncode in (0, -signal.SIGKILL), errors
    return output


def killed_at(example: str, last: str, pace: float) -> str:
    """What an example prints until it is killed, as soon as it has printed the line *last*."""
    shown = ""
    with started(example, pace=pace) as process:
        assert process.stdout is not None
        while not shown.endswith(f"{last}\n"):
            line = process.stdout.readline()
            assert line, f"it ended before {last!r}: {shown}"
            shown += line
        process.send_signal(signal.SIGKILL)
    return shown


def session(example: str) -> list[tuple[list[str], str]]:
    """The commands in an example's first lines: their arguments, and what is shown below."""
    text = (EXAMPLES / example).read_text().split('"""')[1].split("\n\n")[1]
    lines = "\n".join(line[4:] for line in text.splitlines()) + "\n"
    found = [part.partition("\n") for part in lines.split("$ ")[1:]]
    return [(command.split()[2:], shown) for command, _, shown in found]


# -- the plan loop ---------------------------------------------------------------------------------

REPORT = "5 open incidents: db 3, web 2\n"


@pytest.mark.slow
def test_the_plan_loop_prints_what_it_shows() -> None:
    """Killed in its second step, it carries on there; done, it does nothing more."""
    (_, first), (_, second), (_, third) = session("plan_loop.py")
    before, _, how = first.partition("Killed")
    assert "kill -9" in how
    assert killed_at("plan_loop.py", "group …", pace=1) == before
    assert said("plan_loop.py") == second
    assert said("plan_loop.py") == third == REPORT


@pytest.mark.slow
@pytest.mark.parametrize(
    "last",
    ["plan: collect, write", "collect …", "group …", "write …"],
    ids=["plan", "collect", "group", "write"],
)
def test_the_plan_loop_may_be_killed_in_any_step(last: str) -> None:
    """What was recorded by then is not done again, and the end is the same."""
    killed_at("plan_loop.py", last, pace=0.2)
    with limpet.open("reports.db") as store:
        done = store.task("report-42").checkpoint().completed
    shown = said("plan_loop.py")
    left = [f"{name} …" for name in ("collect", "group", "write") if name not in done]
    assert [line for line in shown.splitlines() if line.endswith("…")] == left
    assert shown.endswith(REPORT)


# -- effects ---------------------------------------------------------------------------------------


def world() -> Counter[str]:
    """How often each thing happened out there."""
    lines = Path("world.jsonl").read_text().splitlines()
    return Counter(json.loads(line)["what"] for line in lines)


ONCE = Counter(["fetch", "charge", "mail", "letter", "chat"])


def test_the_effects_print_what_is_shown() -> None:
    """The process dies at the worst moment, and the mail is found to be sent."""
    (args, first), (no_args, second) = session("effects.py")
    assert said("effects.py", *args) + "Killed\n" == first
    assert said("effects.py", *no_args) == second
    assert world() == ONCE
    assert said("effects.py") == "order-7 is settled\n"


@pytest.mark.slow
@pytest.mark.parametrize("step", list(ONCE))
def test_what_must_not_happen_twice_does_not(step: str) -> None:
    """In whichever step it dies; only what changes nothing runs again."""
    said("effects.py", "--die-in", step)
    shown = said("effects.py")
    if step == "letter":
        assert "limpet task resolve order-7 letter:Ann done" in shown
        assert world()["letter"] == 1
        answer = ["--store", "orders.db", "resolve", "order-7", "letter:Ann", "done"]
        subprocess.run([sys.executable, "-m", "limpet", *answer], check=True)
        shown = said("effects.py")
    assert shown.endswith("order-7 is settled\n")
    assert world() == ONCE + Counter({"fetch": 1} if step == "fetch" else {})


def test_the_task_tells_what_it_asks() -> None:
    """The command is in what `limpet show` prints."""
    said("effects.py", "--die-in", "letter")
    said("effects.py")
    command = [sys.executable, "-m", "limpet", "--store", "orders.db", "show", "order-7"]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert "? letter:Ann  in doubt (ask) since " in shown
    assert "limpet task resolve order-7 letter:Ann done --result JSON --store" in shown


# -- memory ----------------------------------------------------------------------------------------


def test_what_one_task_found_out_the_next_one_is_told() -> None:
    """As it is shown; a second time a task is not told what it said itself."""
    (survey, first), (send, second) = session("remember.py")
    assert said("remember.py", *send).endswith("\nsent one by one, as no limit is known\n")
    assert said("remember.py", *survey) == first
    for _ in range(2):
        shown = said("remember.py", *send)
        assert re.sub(r"\d{4}-\d\d-\d\d", "2026-03-01", shown) == second
    with limpet.open("agents.db") as store:
        assert list(store.tasks()) == []
        assert store.memory("tasks").stats().kinds == {"outcome": 3, "decision": 1, "discovery": 1}


def test_what_the_user_wants_reaches_a_task_and_what_is_newest_comes_first() -> None:
    """As it is shown, on whatever day."""
    ((_, shown),) = session("preferences.py")
    for _ in range(2):
        assert re.sub(r"\d+ days", "1297 days", said("preferences.py")) == shown


# -- another machine -------------------------------------------------------------------------------

#: Another machine, as far as a process can tell: the kernel's word about ours is not to be had.
ELSEWHERE = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc")


def begun_and_killed(url: str, home: Path) -> int:
    """Let machine a work on the task until some of its long step is stored; how many pages."""
    stored = 0
    home.mkdir()
    with limpet.open(url) as store, started("another_machine.py", pace=1, cwd=home) as process:

        def far_enough() -> bool:
            nonlocal stored
            last = store.journal("task", "survey").read()[-1:]
            stored = last[0].body["data"]["pages"] if last and last[0].type == "progress" else 0
            return stored > 1 or process.poll() is not None

        assert until(far_enough)
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL, process.stderr
    return stored


def ended(shown: str, stored: int) -> bool:
    """Whether the second machine went on where the first one's last report was, to the end."""
    first, *pages, last = shown.splitlines()
    behind = int(first.removeprefix("goes on behind page "))
    return (
        behind >= stored
        and pages == [f"page {number}" for number in range(behind + 1, 7)]
        and last == "6 pages, 78 words"
    )


def test_a_task_on_dynamodb_is_picked_up_in_another_place(
    dynamodb_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process in another directory, which shares nothing but the URL."""
    url = dynamodb_server.place()
    monkeypatch.setenv("LIMPET_URL", url)
    stored = begun_and_killed(url, tmp_path / "a")
    (tmp_path / "b").mkdir()
    assert ended(said("another_machine.py", cwd=tmp_path / "b"), stored)
    assert said("another_machine.py", cwd=tmp_path / "b") == "6 pages, 78 words\n"
    assert list((tmp_path / "a").iterdir()) == list((tmp_path / "b").iterdir()) == []


@pytest.mark.slow
def test_a_task_on_dynamodb_is_picked_up_by_another_machine(
    dynamodb_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot know that the first one is dead, so it waits until the lease has ended."""
    if (
        shutil.which("unshare") is None
        or subprocess.run([*ELSEWHERE, "true"], check=False).returncode
    ):
        pytest.skip("this system lets nobody have processes of their own")
    url = dynamodb_server.place()
    monkeypatch.setenv("LIMPET_URL", url)
    stored = begun_and_killed(url, tmp_path / "a")
    impatient = "import limpet; limpet.open().task('survey').__enter__()"
    command = [*ELSEWHERE, sys.executable, "-c", impatient]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "TaskHeld" in refused.stderr
    assert ended(said("another_machine.py", before=ELSEWHERE), stored)


def test_without_a_url_the_example_says_what_to_do() -> None:
    """A store of its own on each machine would be no use."""
    with started("another_machine.py") as process:
        output, errors = process.communicate(timeout=60)
    assert (process.returncode, output) == (1, "")
    assert "LIMPET_URL" in errors


# -- the table of guarantees -----------------------------------------------------------------------

POLICIES = ("retry", "verify", "ask", "skip")
#: What becomes of a step when the process dies then, by its policy, and how often its body began.
TABLE = {
    "before began": ("done 1", "done 1", "done 1", "done 1"),
    "after began": ("done 1", "done 1", "waits 0", "left out 0"),
    "in the function": ("done 2", "done 1", "waits 1", "left out 1"),
    "before step": ("done 2", "done 1", "waits 1", "left out 1"),
    "after step": ("done 1", "done 1", "done 1", "done 1"),
    "in the wait": ("done 2", "done 2", "waits 1", "left out 1"),
}


class Mortal:
    """A step of an open task, and what it does out there; it dies with its process at a moment."""

    def __init__(self, policy: str) -> None:
        self.runs = 0
        self.happened: list[str] = []
        self.options: dict[str, Any] = {"in_doubt": policy}
        if policy == "verify":
            self.options["verify"] = lambda _key: "done" if self.happened else None

    def run(self, store: limpet.Store, moment: str = "") -> str:
        """Open the task, and run the step; what becomes of it."""
        retry = Retry(attempts=2, wait=0.01, on=ConnectionRefusedError)
        try:
            with store.task("t", "Do it once") as task:
                self._watch(task, moment)
                result = task.step("s", self._body, task, moment, retry=retry, **self.options)
        except TaskWaiting:
            return "waits"
        except Killed:
            return "killed"
        return "left out" if result is None else str(result)

    def _body(self, task: limpet.Task, moment: str) -> str:
        self.runs += 1
        if moment == "in the wait":
            raise ConnectionRefusedError
        self.happened.append("it")
        if moment == "in the function":
            die(task)
        return "done"

    def _watch(self, task: limpet.Task, moment: str) -> None:
        """Die before or after a write, or where the task would sleep."""
        record: Any = task.runner.record
        runtime, decode = record.runtime, record.journal.codec.decode

        class Watched:
            def __getattr__(self, name: str) -> Any:
                return getattr(runtime, name)

            async def append(self, request: Append) -> Appended:
                ((kind, _),) = decode(request.body)
                if moment == f"before {kind}":
                    die(task)
                done: Appended = await runtime.append(request)
                if moment in (f"after {kind}", "in the wait" if kind == "tried" else None):
                    die(task)
                return done

        record.runtime = Watched()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("moment", list(TABLE), ids=lambda moment: moment.replace(" ", "-"))
def test_what_happens_if_the_process_dies(moment: str, policy: str) -> None:
    """As the table says."""
    step = Mortal(policy)
    with limpet.open("memory:") as store:
        step.run(store, moment)
        assert f"{step.run(store)} {step.runs}" == TABLE[moment][POLICIES.index(policy)]


# -- the pages -------------------------------------------------------------------------------------

EXPECTED = """\
['collect', 'sort', 'write']
['draft', 'draft#2', 'chapter/outline', 'chapter', 'part one']
waits for approval
decided by Ann
1 created
2 step 'write' done in N ms
3 step 'send' begins (if in doubt: verify)
4 step 'send' done in N ms
5 resumed
6 step 'post' begins (if in doubt: ask)
7 attempt 1 at step 'post' failed: TimeoutError: the printer does not answer
8 stopped in step 'post': TimeoutError: the printer does not answer (all.py:LINE)
9 step 'post' resolved by Ann: done
--- invoice-7, TIME
+++ invoice-7, TIME
steps
  + send: sent as default:invoice-7:INCARNATION:send
learned: the API allows 100 calls a minute
learned: the API allows 100 calls a minute
Learn how often to call: every second
the API allows 100 calls a minute
"""


def test_every_example_is_in_the_list() -> None:
    """Somebody who looks for one finds it there."""
    listed = (EXAMPLES / "README.md").read_text()
    for example in EXAMPLES.iterdir():
        if not example.name.startswith(("README", "__", ".")):
            assert f"]({example.name})" in listed, example.name


def test_the_first_example_of_the_page_prints_what_is_shown() -> None:
    """Run twice, as it stands."""
    Path("letters.py").write_text(PYTHON[0])
    runs = CONSOLE[0].split("$ python letters.py\n")[1:]
    assert len(runs) == 2
    for shown in runs:
        done = subprocess.run(
            [sys.executable, "letters.py"], capture_output=True, text=True, check=True
        )
        assert done.stdout == shown


@pytest.mark.slow
def test_the_other_examples_of_the_page_run() -> None:
    """In one program, as somebody would who types them in; it prints what their comments say."""
    Path("all.py").write_text("\n".join(PYTHON[1:]))
    command = [sys.executable, "-W", "error", "all.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert _timeless(done.stdout) == EXPECTED


def _timeless(text: str) -> str:
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", "TIME", text)
    text = re.sub(r"\(all\.py:\d+\)", "(all.py:LINE)", text)
    text = re.sub(r":[0-9a-f]{16}:", ":INCARNATION:", text)
    return re.sub(r"(under 1|\d+) ms", "N ms", text)


def test_the_page_says_what_the_matrix_prints() -> None:
    """The command that it gives is one, and prints lines like these."""
    shown = CONSOLE[1].splitlines()
    assert shown[0] == "$ python -m tests.support.matrix sqlite:/tmp/m.db sync"
    matrix = (ROOT / "tests" / "support" / "matrix.py").read_text()
    assert "nothing ran twice" in matrix
    assert shown[-1].endswith("boundaries, 0 failures")
