"""The plan loop: plan once, do what is not done, and carry on after a crash.

    $ python plan_loop.py
    plan: collect, write
    collect …
    group …
    Killed                      (by kill -9, a deploy, a power cut; or press Ctrl-C)
    $ python plan_loop.py
    carries on after: collect
    group …
    write …
    5 open incidents: db 3, web 2
    $ python plan_loop.py
    5 open incidents: db 3, web 2

What was done is not done again, the plan is made once, and what the first process decided the
second one knows. `limpet --store reports.db show report-42` shows all of it.
"""

import os
import time
from typing import Any

import limpet

PACE = float(os.environ.get("PACE", "2"))  # seconds that a step takes

INCIDENTS = ["db: slow", "web: down", "db: full", "db: locked", "web: slow"]


def make_plan(_goal: str) -> list[str]:
    """Called once, ever. A model would be asked here."""
    plan = ["collect", "write"]
    print("plan:", ", ".join(plan), flush=True)
    return plan


def execute(step: limpet.Step) -> Any:
    """One step: a model would be given what has been done so far, and the step."""
    print(step.name, "…", flush=True)
    context = step.task.resume_context(max_tokens=2_000)
    return {"collect": collect, "group": group, "write": write}[step.name](step.task, context)


def collect(task: limpet.Task, _context: str) -> list[str]:
    """The plan may change while it is followed; why is on record.

    It is changed within the step that found out: should the process die before the step is
    recorded, the step comes again, and finds the change made.
    """
    time.sleep(PACE)
    task.plan.insert("group", after="collect", because=f"{len(INCIDENTS)} incidents are too many")
    task.discover("most incidents are of the database")
    return INCIDENTS


def group(task: limpet.Task, _context: str) -> dict[str, int]:
    """A step finds the results of those before it in the task."""
    time.sleep(PACE)
    task.decide("group by team", because="each team reads its own part")
    teams = [incident.partition(":")[0] for incident in task.results["collect"]]
    return {team: teams.count(team) for team in sorted(set(teams))}


def write(task: limpet.Task, _context: str) -> str:
    """The report."""
    time.sleep(PACE)
    parts = ", ".join(f"{team} {count}" for team, count in task.results["group"].items())
    return f"{len(task.results['collect'])} open incidents: {parts}"


def main() -> None:
    """The loop."""
    with (
        limpet.open("reports.db") as store,
        store.task("report-42", goal="Summarise the open incidents", agent="agent-01") as task,
    ):
        if task.results and not task.done:
            print("carries on after:", ", ".join(task.results), flush=True)
        task.plan(make_plan)
        for step in task.remaining():
            step.run(execute, step)
        print(task.finish(task.results["write"]))


if __name__ == "__main__":
    main()
