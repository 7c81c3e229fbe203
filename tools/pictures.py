"""``make pictures``: a store as a support team's agents leave it, and what the inspector shows of it.

The pages are taken with the real Chromium, each as docs/ has it. The clock of this process is put
back while the store is filled, so that what happened has taken its time.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core import FunctionCall
from msgspec import Struct
from PIL import Image
from playwright.sync_api import Page

import limpet
from limpet.errors import TaskWaiting
from limpet.integrations import autogen
from tests.support.autogen_teams import played
from tests.support.browser import chromium, connected, inspected, page_of
from tests.support.processes import in_a_process

if TYPE_CHECKING:
    from collections.abc import Sequence


DOCS = Path(__file__).resolve().parent.parent / "docs"
#: Where the store is: the doctor's page says it, the same each time.
PLACE = Path("/tmp/desk")  # noqa: S108 - nothing of it stays
WIDTH, HEIGHT = 1200, 900
COLOURS = 160
QUICKLY = limpet.Retry(attempts=3, wait=0.01)
MINUTE, HOUR, DAY = 60.0, 3_600.0, 86_400.0

REFUND, CHARGE, DIGEST, TRIAGE = "refund-4711", "charge-2043", "digest-w46", "triage-0912"
CUSTOMER, TEAM, DESK, FACTS = "customer-4711", "answer-4711", "desk", "support"


# -- the clock -------------------------------------------------------------------------------------


class Clock:
    """The time of this process, which passes as it is told to."""

    def __init__(self) -> None:
        now, ticks = time.time_ns, time.monotonic
        self._behind = self._passed = 0.0
        time.time_ns = lambda: now() - int(self._behind * 1e9)
        time.time = lambda: time.time_ns() / 1e9
        time.monotonic = lambda: ticks() + self._passed

    def back(self, seconds: float) -> None:
        """Be so long ago."""
        self._behind = seconds

    def passes(self, seconds: float, result: Any = None) -> Any:
        """Let time go by; for a tool that takes as long, and returns *result*."""
        self._behind -= seconds
        self._passed += seconds
        return result


# -- what agents have left -------------------------------------------------------------------------


def fill(store: limpet.Store, clock: Clock) -> None:
    """A week at a support desk."""
    _done(store, clock)
    _facts(store, clock)
    _desk(store, clock)
    _failed(store, clock)
    _team(store, clock)
    _doubtful(clock)
    _refund(store, clock)
    _customer(store, clock)


def _done(store: limpet.Store, clock: Clock) -> None:
    """What went well."""
    orders = (4655, 4668, 4671, 4689, 4690, 4702, 4705, 4708)
    for number, order in enumerate(orders):
        clock.back((len(orders) - number) * 0.8 * DAY)
        labels = {"channel": "mail" if number % 3 else "chat"}
        with store.task(f"refund-{order}", f"Refund order {order}", labels=labels) as task:
            task.plan(["look up the order", "refund", "tell the customer"])
            for step in task.remaining():
                step.run(clock.passes, 1.5 + number, {"order": order})
            task.finish(f"{20 + 7 * number} EUR were paid back")
    clock.back(2 * DAY)
    with store.task("import-prices", "Take over the prices of the new catalogue") as task:
        task.plan(["download", "compare", "write"])
        task.step("download", clock.passes, 40, "2,114 prices")
    store.pause("import-prices", because="the catalogue is corrected first")


def _facts(store: limpet.Store, clock: Clock) -> None:
    """What was learned."""
    memory = store.memory(FACTS)
    clock.back(6 * DAY)
    learned = (
        ("Refunds over 50 EUR need the approval of a team lead", ["refund"], "refund-4655"),
        ("The carrier answers on weekdays until 16:00", ["carrier"], "refund-4668"),
        ("Lamps of the series Nova break at the joint: a photo is enough as proof", ["returns"],
         "refund-4671"),
        ("Customers in Switzerland get their refund without the duty", ["refund", "duty"],
         "refund-4689"),
        ("The payment service takes up to a minute after 18:00", ["payment"], "refund-4690"),
        ("A refund to a card that has expired goes to the bank of the customer", ["refund", "payment"],
         "refund-4702"),
        ("Order numbers that begin with 9 are samples, and have no price", ["orders"], "refund-4705"),
    )  # fmt: skip
    for text, tags, source in learned:
        clock.passes(0.6 * DAY)
        memory.remember(text, tags=tags, source=source, by="desk agent")
    clock.back(1.5 * DAY)
    limit = memory.recall("refunds over 50 need approval")[0]
    memory.update(
        limit.id,
        "Refunds over 80 EUR need the approval of a team lead",
        because="the limit was raised in November",
    )


def _desk(store: limpet.Store, clock: Clock) -> None:
    """A state that is saved after each turn."""
    clock.back(5 * HOUR)
    state = store.state(DESK, version=3)
    document: dict[str, Any] = {
        "agent": "desk",
        "model": "gpt-5-mini",
        "limits": {"refund_eur": 50, "mails_an_hour": 20},
        "open": [],
        "counts": {"answered": 0, "handed_over": 0},
    }
    for number in range(16):
        clock.passes(15 * MINUTE)
        document["counts"]["answered"] += 2 + number % 3
        document["open"] = [
            *document["open"][-4:],
            {"order": 4690 + number, "waits_for": "carrier"},
        ]
        if number == 15:
            document["limits"]["refund_eur"] = 80
            document["open"].pop(0)
            document["counts"]["handed_over"] = 1
        state.save(document)


def _failed(store: limpet.Store, clock: Clock) -> None:
    clock.back(3 * HOUR)

    def send() -> None:
        clock.passes(5)
        raise ConnectionRefusedError("535 the mail server does not accept the password")

    # The page says where in the code it was: not where on this machine.
    send.__code__ = send.__code__.replace(co_filename="desk/mail.py", co_firstlineno=31)
    labels = {"channel": "mail"}
    with (
        suppress(ConnectionRefusedError),
        store.task(DIGEST, "Send the digest of week 46", labels=labels) as task,
    ):
        task.plan(["collect", "write", "send"])
        task.step("collect", clock.passes, 12, "31 cases")
        task.step("write", clock.passes, 48, "2 pages")
        task.step("send", send, retry=QUICKLY)


def _doubtful(clock: Clock) -> None:
    """A process that dies while it charges a card."""
    clock.back(41 * MINUTE)

    def die() -> None:
        with (
            limpet.open("agents.db") as store,
            store.task(CHARGE, "Charge order 2043 again", labels={"channel": "chat"}) as task,
        ):
            task.plan(["look up the order", "charge the card", "send the receipt"])
            task.step("look up the order", clock.passes, 2, {"total_eur": 64.9})
            clock.passes(1)
            task.step("charge the card", os.kill, os.getpid(), 9, in_doubt="ask")

    in_a_process(die)


def _refund(store: limpet.Store, clock: Clock) -> None:
    """A step that was tried again, and one that waits for a person."""
    clock.back(12 * MINUTE)
    seen = 0

    def look_at_photo() -> Any:
        nonlocal seen
        seen += 1
        clock.passes(9)
        if seen == 1:
            raise TimeoutError("the vision service did not answer within 9 s")
        return clock.passes(4, {"broken": True, "part": "joint", "sure": 0.97})

    goal = "Refund order 4711: the lamp arrived broken"
    with (
        suppress(TaskWaiting),
        store.task(REFUND, goal, agent="desk agent", labels={"channel": "chat"}) as task,
    ):
        names = [
            "look up the order",
            "look at the photo",
            "approval",
            "refund",
            "tell the customer",
        ]
        task.plan(lambda _: clock.passes(3, names))
        order = {"order": 4711, "total_eur": 129.0, "item": "Nova floor lamp", "paid_by": "card"}
        task.step("look up the order", clock.passes, 6, order)
        task.step("look at the photo", look_at_photo, retry=QUICKLY, in_doubt="retry")
        task.discover("the lamp is broken at the joint, which the guarantee covers")
        clock.passes(2)
        task.decide("refund all of it", because="a repair would cost more than the lamp")
        clock.passes(1)
        task.wait_for("approval")


def _customer(store: limpet.Store, clock: Clock) -> None:
    """The conversation that goes with it."""
    clock.back(13 * MINUTE)
    chat = store.conversation(CUSTOMER, labels={"channel": "chat"})
    call = {"id": "call_1", "type": "function"}
    order = {
        "order": 4711,
        "item": "Nova floor lamp",
        "delivered": "2 days ago",
        "total_eur": 129.0,
    }
    chat.append(
        {
            "role": "system",
            "content": "You are the support desk of a lamp shop. Be brief, and kind.",
        }
    )
    turns: Sequence[Sequence[dict[str, Any]]] = (
        [{"role": "user", "content": "Hello! My lamp from order 4711 arrived broken. I would like my money back."}],
        [
            {"role": "assistant", "content": "I am sorry to hear that. I look the order up.", "tool_calls": [
                {**call, "function": {"name": "find_order", "arguments": json.dumps({"number": 4711})}}]},
            {"role": "tool", "tool_call_id": "call_1", "content": json.dumps(order)},
        ],
        [{"role": "assistant", "content": "I see it: a Nova floor lamp, delivered two days ago. Could you send a photo of what is broken?"}],
        [{"role": "user", "content": "Here it is: the joint between foot and arm."}],
        [
            {"role": "assistant", "content": None, "tool_calls": [
                {**call, "id": "call_2", "function": {"name": "start_refund", "arguments": json.dumps({"order": 4711, "task": REFUND})}}]},
            {"role": "tool", "tool_call_id": "call_2", "content": json.dumps({"task": REFUND, "waits_for": "approval"})},
        ],
        [{"role": "assistant", "content": "Thank you, that is enough as proof. A colleague approves the 129 EUR, and then you get a mail."}],
        [{"role": "user", "content": "Great. Please write, do not call: I prefer e-mail."}],
    )  # fmt: skip
    for messages in turns:
        clock.passes(35)
        chat.append(*messages, pin=messages is turns[-1])


def _team(store: limpet.Store, clock: Clock) -> None:
    """A team that writes an answer."""
    clock.back(5 * MINUTE)
    drafts = iter((
        "Draft: Your refund of 129 EUR is on its way, and reaches your bank within three days.",
        "Draft: We have paid back 129 EUR to your card today. Your bank shows it within three days.",
    ))  # fmt: skip
    checks = iter((
        [FunctionCall(id="call_1", name="policy", arguments='{"about": "what to promise"}')],
        "Do not promise a day that the bank decides on. Say what we have done, and when.",
        "That is right, and friendly. APPROVED",
    ))  # fmt: skip

    async def policy(about: str) -> str:
        """Look into the rules for answers."""
        return f"Rules, {about}: name what was done; give times of banks as an estimate."

    writer = AssistantAgent("writer", played(lambda *_: clock.passes(4, next(drafts))))
    reviewer = AssistantAgent(
        "reviewer",
        played(lambda *_: clock.passes(3, next(checks))),
        tools=[policy],
        reflect_on_tool_use=True,
    )
    team = RoundRobinGroupChat([writer, reviewer], termination_condition=MaxMessageTermination(5))

    async def run() -> None:
        kept = await autogen.keep(team, store, TEAM)
        await kept.run(task="Write to the customer of order 4711: the refund was approved.")

    asyncio.run(run())


def at_work(store: limpet.Store, clock: Clock, work: Callable[[], None]) -> None:
    """Do *work* in a step of a task, so that somebody is at work on one."""
    clock.back(2 * MINUTE)
    goal = "Sort the mails of this morning"
    with store.task(TRIAGE, goal, agent="mail agent", lease=600) as task:
        task.plan(["fetch", "sort", "answer", "hand over", "file", "report"])
        task.step("fetch", clock.passes, 21, "57 mails")
        task.step("sort", clock.passes, 64, {"returns": 12, "delivery": 31, "other": 14})
        clock.back(0)
        task.step("answer", work)


# -- the pictures ----------------------------------------------------------------------------------


class Picture(Struct, frozen=True):
    """A page as docs/ shows it; *before*: what is done on it first."""

    name: str
    path: str
    before: Callable[[Page], None] | None = None
    dark: bool = False


def _open_details(page: Page) -> None:
    page.locator("main summary").first.click()


PICTURES = (
    Picture("home", "/?order=updated"),
    Picture("home-dark", "/?order=updated", dark=True),
    Picture("task", f"/task?kind=task&id={REFUND}"),
    Picture("task-failed", f"/task?kind=task&id={DIGEST}"),
    Picture("chat", f"/chat?kind=conversation&id={CUSTOMER}"),
    Picture("window", f"/window?kind=conversation&id={CUSTOMER}&max_tokens=220"),
    Picture("team", f"/chat?kind=state&id={TEAM}"),
    Picture("diff", f"/diff?kind=state&id={DESK}"),
    Picture("state", f"/state?kind=state&id={DESK}"),
    Picture("memory", f"/memory?kind=memory&id={FACTS}&q=who+approves+a+refund"),
    Picture("doubts", "/doubts", before=_open_details),
    Picture("doctor", "/doctor?check=1"),
)


def take(store: limpet.Store, chosen: Sequence[str], directory: Path) -> None:
    """Take the pictures that were *chosen*, or all, with an inspector that may write."""
    with (
        tempfile.TemporaryDirectory() as place,
        inspected(store, write=True, place=True) as served,
        chromium(Path(place)) as address,
        connected(address) as browser,
    ):
        for picture in PICTURES:
            if chosen and picture.name not in chosen:
                continue
            with page_of(browser, served, dark=picture.dark, width=WIDTH) as page:
                page.goto(served.url + picture.path)
                page.wait_for_timeout(500)  # it follows what it shows, and says so
                if picture.before is not None:
                    picture.before(page)
                tall = page.evaluate("document.body.scrollHeight")
                taken = page.screenshot(
                    clip={"x": 0, "y": 0, "width": WIDTH, "height": min(tall, HEIGHT)},
                    full_page=True,
                )
            path = directory / f"inspector-{picture.name}.png"
            small = (
                Image.open(io.BytesIO(taken))
                .convert("RGB")
                .quantize(COLOURS, dither=Image.Dither.NONE)
            )
            small.save(path, optimize=True)
            print(f"{path.name}: {path.stat().st_size / 1000:.0f} KB")


def main(chosen: Sequence[str]) -> None:
    """Fill a store, and take them."""
    here = Path.cwd()
    directory = Path(os.environ.get("LIMPET_PICTURES", DOCS)).resolve()
    uname = os.uname()
    os.uname = lambda: os.uname_result(
        (uname[0], "desk-1", *uname[2:])
    )  # no name of a real machine
    clock = Clock()
    PLACE.mkdir()
    os.chdir(PLACE)
    os.environ["LIMPET_CACHE"] = str(PLACE / "cache")
    try:
        with limpet.open("agents.db") as store:
            fill(store, clock)
            at_work(store, clock, lambda: take(store, chosen, directory))
    finally:
        os.chdir(here)
        shutil.rmtree(PLACE)


if __name__ == "__main__":
    main(sys.argv[1:])
