"""Steps that may run twice, and steps that must not.

    $ python effects.py --die-in mail
    fetch
    charge
    mail
    Killed
    $ python effects.py
    asked whether the mail was sent: yes
    letter
    chat
    order-7 is settled

The process dies after the mail has gone out and before that is recorded: the worst moment there is.
What happens next is up to the step, because no store can know what happened outside of it:

    step     what can be done about it              so the step says
    fetch    run it again; it changes nothing       nothing: "retry" is the default
    charge   run it again; the bank knows the key   nothing, and it passes its key on
    mail     look whether it was sent               verify=was_sent
    letter   a person has to look                   "ask", the default of limpet.effect
    chat     it matters little                      in_doubt="skip"

Try the others too. After --die-in letter the task waits for a person, who says
`limpet --store orders.db task resolve order-7 letter:Ann done`, or retry, or skip.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import limpet

WORLD = Path("world.jsonl")  # stands for all that is outside: a bank, a mail server, a printer


def happened(key: str) -> dict[str, Any] | None:
    """What the world knows of a key."""
    lines = WORLD.read_text().splitlines() if WORLD.exists() else []
    return next((found for found in map(json.loads, lines) if found["key"] == key), None)


def happens(what: str) -> str:
    """Something happens out there, under the step's key; then, if it is to, the process dies."""
    key = limpet.current_step().idempotency_key
    with WORLD.open("a") as world:
        world.write(json.dumps({"key": key, "what": what}) + "\n")
    print(what, flush=True)
    if sys.argv[1:] == ["--die-in", what]:
        os.kill(os.getpid(), signal.SIGKILL)
    return key


def fetch(order: str) -> dict[str, Any]:
    """Harmless: it only reads."""
    happens("fetch")
    return {"order": order, "price": 120, "customer": "Ann"}


def charge(_price: int) -> str:
    """Idempotent: a bank that is given the same key again does nothing, and says what it did."""
    key = limpet.current_step().idempotency_key
    return key if happened(key) else happens("charge")


def mail(_customer: str) -> str:
    """Not idempotent, but one can look."""
    return happens("mail")


def was_sent(key: str) -> str | None:
    """The step's result if it happened, None if it did not. Asked only when that is in doubt."""
    found = happened(key)
    print(f"asked whether the mail was sent: {'yes' if found else 'no'}", flush=True)
    return key if found else None


@limpet.effect(key=lambda customer: customer)
def letter(_customer: str) -> str:
    """Not idempotent, and only a person can look.

    A decorated function is a step wherever it is called while a task is open: a tool that you hand
    to an agent framework. A call is known by its arguments, or by what *key* makes of them.
    """
    return happens("letter")


def chat() -> str:
    """Better left out than done twice."""
    return happens("chat")


def settle(task: limpet.Task) -> str:
    """The task."""
    order = task.step("fetch", fetch, task.id)
    task.step("charge", charge, order["price"])
    task.step("mail", mail, order["customer"], verify=was_sent)
    letter(order["customer"])
    task.step("chat", chat, in_doubt="skip")
    return f"{task.id} is settled"


if __name__ == "__main__":
    with limpet.open("orders.db") as store:
        try:
            print(store.task("order-7", goal="Settle the order").work(settle))
        except limpet.TaskWaiting as waiting:
            print(waiting)
