"""What happened in the demo, and whether that is what Limpet promises."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["KILLED", "RAN", "RUNNING", "SKIPPED", "Evidence", "Finding", "Run", "Story", "judge"]

# What became of a step in a run.
RUNNING = "running"
RAN = "ran"
KILLED = "killed here"
SKIPPED = "not repeated"


class Run(Struct):
    """One process: its steps so far, and how soon it had the task."""

    pid: int
    steps: dict[str, str] = field(default_factory=dict)
    took: float | None = None

    def end(self) -> None:
        """The process was killed: what it was at is cut short."""
        self.steps = {
            step: KILLED if state == RUNNING else state for step, state in self.steps.items()
        }


class Story(Struct):
    """Both runs as the agent told them; messages by their position, as they were acknowledged."""

    runs: list[Run] = field(default_factory=list)
    messages: dict[int, dict[str, Any]] = field(default_factory=dict)
    before_kill: int = 0
    answer: str | None = None

    def begin(self, pid: int) -> None:
        """A process was started."""
        self.runs.append(Run(pid))

    def take(self, event: dict[str, Any]) -> None:
        """Take in what the agent told."""
        run = self.runs[-1]
        match event:
            case {"event": "opened", "done": done, "took": took}:
                run.took = took
                run.steps = dict.fromkeys(done, SKIPPED)
            case {"event": "began", "step": step}:
                run.steps[step] = RUNNING
            case {"event": "done", "step": step}:
                run.steps[step] = RAN
            case {"event": "message", "position": position, "message": message}:
                self.messages[position] = message
            case {"event": "answer", "text": text}:
                self.answer = text

    def kill(self) -> None:
        """The process was killed."""
        self.runs[-1].end()
        self.before_kill = len(self.messages)


class Evidence(Struct):
    """What is there afterwards: the lines of the file of executions, and what the store holds."""

    log: list[str]
    messages: list[dict[str, Any]]
    status: str
    outcome: Any


class Finding(Struct, frozen=True):
    """One promise: whether it was kept, and what was seen."""

    kept: bool
    text: str


def judge(steps: Sequence[str], story: Story, evidence: Evidence) -> Iterator[Finding]:
    """Hold what happened against what is promised; numbers are counted, not believed."""
    counts = Counter(evidence.log)
    yield from _steps(steps, story, counts)
    planned = counts["planned"]
    yield Finding(planned == 1, f"the plan was made {_times(planned)}")
    yield _conversation(story, evidence.messages)
    if evidence.status != "done" or story.answer is None or evidence.outcome != story.answer:
        yield Finding(kept=False, text=f"the task is {evidence.status}, without the answer")


def _steps(steps: Sequence[str], story: Story, counts: Counter[str]) -> Iterator[Finding]:
    """Neighbours with the same fate in one line."""
    groups: list[tuple[Finding, list[int]]] = []
    for number, step in enumerate(steps, 1):
        fate = _fate(step, story, counts)
        if groups and groups[-1][0] == fate:
            groups[-1][1].append(number)
        else:
            groups.append((fate, [number]))
    for fate, numbers in groups:
        one = len(numbers) == 1
        which = f"step {numbers[0]}" if one else f"steps {numbers[0]}-{numbers[-1]}"
        yield Finding(fate.kept, f"{which} {fate.text}")


def _fate(step: str, story: Story, counts: Counter[str]) -> Finding:
    began, ended = counts[f"began {step}"], counts[f"ended {step}"]
    first = story.runs[0].steps.get(step)
    if first == KILLED and (began, ended) == (2, 1):
        return Finding(kept=True, text="was cut short, and ran again")
    again = ", and were not repeated" if first == RAN else ""
    if first != KILLED and (began, ended) == (1, 1):
        return Finding(kept=True, text=f"ran once{again}")
    return Finding(kept=False, text=f"ran {_times(began)}, finished {_times(ended)}")


def _conversation(story: Story, stored: list[dict[str, Any]]) -> Finding:
    lost = [
        position
        for position, message in story.messages.items()
        if not 0 < position <= len(stored) or stored[position - 1] != message
    ]
    doubled = len(stored) - len(story.messages)
    if lost or doubled:
        text = f"{len(lost)} acknowledged messages are not there, {doubled} are there twice"
        return Finding(kept=False, text=text)
    text = (
        f"{len(stored)} messages, none lost, none twice ({story.before_kill} from before the kill)"
    )
    return Finding(kept=True, text=text)


def _times(count: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(count, f"{count} times")
