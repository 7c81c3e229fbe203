"""A refund that a person has to approve, without a process that waits for them.

    $ python approval.py
    refund-17 waits for approval
    $ limpet --store refunds.db task signal refund-17 approval '{"approved": true, "by": "Ann"}'
    $ limpet --store refunds.db work approval:registry --until-idle
    $ python approval.py
    refund-17: paid 120 for A-17, approved by Ann

The first run ends at the wait: days may pass, the machine may go. The signal can come from
anywhere: the command line, a web page, a mail handler that calls store.signal(). Then any worker
carries on behind the wait, and pays once.
"""

import json
from pathlib import Path
from typing import Any

import limpet

registry = limpet.Registry()
PAYMENTS = Path("payments.jsonl")
WEEK = 7 * 24 * 60 * 60
NOBODY = {"approved": False, "by": "nobody, in a week"}


@registry.task("refund")
def refund(task: limpet.Task) -> str:
    """Look at the order, ask if it is much, pay."""
    order = task.step("look-up", look_up, task.input["order"])
    answer = {"approved": True, "by": "the rules"}
    if order["price"] > 100:
        answer = task.wait_for("approval", timeout=WEEK, default=NOBODY)
    task.decide("refund" if answer["approved"] else "no refund", because=f"said {answer['by']}")
    if not answer["approved"]:
        return f"not paid, said {answer['by']}"
    task.step("pay", pay, order, in_doubt="verify", verify=paid)
    return f"paid {order['price']} for {order['id']}, approved by {answer['by']}"


def look_up(order: str) -> dict[str, Any]:
    """What the shop knows."""
    return {"id": order, "price": 120}


def pay(order: dict[str, Any]) -> str:
    """The effect: a bank would be given the key too, and refuse it a second time."""
    key = limpet.current_step().idempotency_key
    with PAYMENTS.open("a") as file:
        file.write(json.dumps({"key": key, "amount": order["price"]}) + "\n")
    return key


def paid(key: str) -> str | None:
    """Whether it was paid, if a process died just then."""
    payments = PAYMENTS.read_text().splitlines() if PAYMENTS.exists() else []
    return key if any(json.loads(line)["key"] == key for line in payments) else None


def main() -> None:
    """Submit the refund, and do of it what can be done now."""
    with limpet.open("refunds.db") as store:
        store.submit("refund", "refund-17", "Refund order A-17", input={"order": "A-17"})
        ran = registry.run(store, "refund-17")
    print(f"{ran.id} waits for {ran.waits_for}" if ran.waits_for else f"{ran.id}: {ran.outcome}")


if __name__ == "__main__":
    main()
