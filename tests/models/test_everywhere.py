"""What conversations and tasks are for, on every backend there is.

The tests of the models have every detail, on memory and SQLite. Here is what nobody could do
without, on each server too: a backend that keeps the contract has it all, and here it shows.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

from limpet import Conflict, Decision, LeaseHeld, LeaseLost, Store, Task, TaskHeld
from limpet.backends.contract import Key
from limpet.errors import ConversationNotFound, GoalMismatch, IdReused, TaskFinished, TaskNotFound
from limpet.testing.takeover import GOAL, TASK, Worker
from tests.support import stores
from tests.support.stores import Place, bot, call, result, system, user

pytestmark = pytest.mark.slow  # the tests of each model do the same on one backend

place, store = stores.everywhere, stores.store

KEY = Key("default", "task", TASK)


class Boom(Exception):
    """What goes wrong in these tests."""


def crash(error: BaseException) -> None:
    """Let it go wrong here."""
    raise error


@contextmanager
def cut_short(store: Store, by: type[BaseException] = Boom, **options: Any) -> Iterator[Task]:
    """A run of the task that does not end well."""
    with pytest.raises(by), store.task(TASK, GOAL, **options) as task:
        yield task


def numbered(count: int) -> list[dict[str, Any]]:
    """As many messages, each another."""
    return [user(str(n)) for n in range(1, count + 1)]


def ids(found: Iterator[Any]) -> list[str]:
    """What a list shows."""
    return [info.id for info in found]


def never(*_: object) -> None:
    """Must not be called."""
    pytest.fail("it ran")


# -- conversations -------------------------------------------------------------------------------


def test_what_was_said_is_there_for_everybody_once_and_in_order(place: Place, store: Store) -> None:
    """Durable on return, all or none, retried without harm, and nobody is written over."""
    chat, other = store.conversation("Zoë/1"), place.open().conversation("Zoë/1")
    assert (chat.messages(), chat.last(), chat.length()) == ([], None, 0)
    assert chat.append(user("I prefer e-mail."), id="turn-1") == 1
    assert other.append(bot("Noted."), user("Thanks."), expect=1) == 3
    with pytest.raises(Conflict) as caught:
        chat.append(bot("Noted!"), expect=1)
    assert (caught.value.expected, caught.value.actual) == (1, 3)
    assert other.append(user("I prefer e-mail."), id="turn-1") == 1
    with pytest.raises(IdReused):
        other.append(user("I prefer post."), id="turn-1")
    said = [user("I prefer e-mail."), bot("Noted."), user("Thanks.")]
    assert chat.messages() == other.messages() == said
    assert chat.messages(last=2) == said[1:]
    assert (chat.last(), chat.length()) == (user("Thanks."), 3)
    info = other.info()
    assert (info.position, info.expires_at) == (3, None)
    assert info.created_at <= info.updated_at


def test_a_message_may_be_large(place: Place, store: Store) -> None:
    """Larger than what some servers take in one piece."""
    large = user("".join(chr(0x4E00 + n % 20_000) for n in range(700_000)))
    chat = store.conversation("alice")
    chat.append(user("before"))
    chat.append(large, bot("after"))
    again = place.open().conversation("alice")
    assert again.messages() == [user("before"), large, bot("after")]
    assert again.messages(last=1) == [bot("after")]
    assert again.fork("copy").messages() == [user("before"), large, bot("after")]


def test_the_window_is_what_fits_with_the_system_message_in_front(store: Store) -> None:
    """Tool calls and their results together."""
    chat = store.conversation("alice")
    chat.append(system("Be brief."))
    for message in numbered(20):
        chat.append(message)
    chat.append(call("a"), result("a"))
    chat.append(bot("Sunny."))
    newest = [call("a"), result("a"), bot("Sunny.")]
    assert chat.window(max_messages=5) == [system("Be brief."), user("20"), *newest]
    first, left_out, last = chat.window(max_messages=3)
    assert [first, last] == [system("Be brief."), bot("Sunny.")]
    assert "2 messages (positions 22 to 23) were left out" in left_out["content"]
    assert len(chat.window(max_tokens=10_000)) == 24


def test_a_fork_goes_its_own_way(place: Place, store: Store) -> None:
    """From any point, over several records, and once."""
    chat = store.conversation("alice", labels={"team": "red"})
    chat.append(*numbered(70))
    chat.append(user("71"))
    fork = chat.fork("b", at=69)
    fork.append(user("another way"))
    assert place.open().conversation("b").messages() == [*numbered(69), user("another way")]
    assert chat.fork("b", at=69).length() == 70
    assert chat.messages() == numbered(71)
    assert fork.info().labels == {"team": "red"}
    with pytest.raises(Conflict, match="already"):
        chat.fork("b")
    with pytest.raises(ConversationNotFound):
        store.conversation("nobody").fork("c")


def test_cleared_and_deleted_is_gone(place: Place, store: Store) -> None:
    """Positions go on after the one, and begin anew after the other."""
    chat = store.conversation("alice", labels={"team": "red"})
    chat.append(system("s"), *numbered(5), id="turn")
    size = chat.info().size
    chat.clear()
    assert chat.messages() == chat.window() == chat.messages(last=3) == []
    assert chat.info().size < size
    assert chat.append(user("new")) == 8
    again = place.open().conversation("alice")
    assert again.messages() == again.window() == [user("new")]
    assert again.info().labels == {"team": "red"}
    assert again.delete() is True
    assert again.delete() is False
    assert chat.messages() == []
    assert list(store.conversations()) == []
    assert again.append(user("once more"), id="turn") == 1
    assert again.info().labels == {}


def test_conversations_are_listed_by_prefix_and_labels(store: Store) -> None:
    """Each once, in the order of their ids, over pages."""
    many = [f"acme/{n:03}" for n in range(103)]
    for n, id_ in enumerate(many):
        labels = {"team": "red" if n % 2 else "blue", "n": str(n)}
        store.conversation(id_, labels=labels).append(user("x"))
    for id_ in ("acme", "acme_", "Zoë", "acme%"):
        store.conversation(id_).append(user("x"))
    assert ids(store.conversations()) == ["Zoë", "acme", "acme%", *many, "acme_"]
    assert ids(store.conversations(prefix="acme/")) == many
    assert ids(store.conversations(prefix="acme%")) == ["acme%"]
    assert ids(store.conversations(labels={"team": "red"})) == many[1::2]
    assert ids(store.conversations(labels={"team": "red", "n": "7"})) == ["acme/007"]
    assert ids(store.conversations(prefix="acme/00", labels={"team": "blue"})) == many[:10:2]
    store.conversation("acme/007").label(team=None, urgent="yes")
    assert ids(store.conversations(labels={"urgent": "yes"})) == ["acme/007"]
    assert "acme/007" not in ids(store.conversations(labels={"team": "red"}))


def test_tenants_see_nothing_of_each_other(place: Place) -> None:
    """The same ids, twice; also where a tenant's name begins with another's."""
    stores = {tenant: place.open(tenant=tenant) for tenant in ("acme", "acme2", "Acme")}
    for tenant, own in stores.items():
        own.conversation("alice").append(user(tenant))
        with own.task(TASK, f"For {tenant}") as task:
            task.step("fetch", lambda tenant=tenant: tenant)
    assert stores["acme"].conversation("alice").delete()
    assert stores["acme2"].task(TASK).delete()
    left = {name: (ids(own.conversations()), ids(own.tasks())) for name, own in stores.items()}
    assert left == {"acme": ([], [TASK]), "acme2": (["alice"], []), "Acme": (["alice"], [TASK])}
    for tenant in ("acme2", "Acme"):
        assert stores[tenant].conversation("alice").messages() == [user(tenant)]
    for tenant in ("acme", "Acme"):
        assert stores[tenant].task(TASK).checkpoint().results == {"fetch": tenant}


# -- expiry --------------------------------------------------------------------------------------


def test_what_has_expired_is_gone_at_once(place: Place, store: Store) -> None:
    """For every way of looking, with nobody sweeping; and the next one begins at one."""
    chat = store.conversation("alice", labels={"team": "red"})
    chat.append(user("a"))
    with store.task(TASK, GOAL) as task:
        task.step("fetch", lambda: 1)
    store.conversation("stays").append(user("x"))
    chat.expire(0.001)
    store.journal("task", TASK).append(ttl=0.001)
    time.sleep(0.01)
    for seen in (store, place.open()):
        again = seen.conversation("alice")
        assert (again.messages(), again.last(), again.window()) == ([], None, [])
        with pytest.raises(ConversationNotFound):
            again.info()
        with pytest.raises(TaskNotFound):
            seen.task(TASK).checkpoint()
        assert ids(seen.conversations()) == ["stays"]
        assert ids(seen.conversations(labels={"team": "red"})) == ids(seen.tasks()) == []
    assert store.conversation("alice").append(user("b")) == 1
    assert store.conversation("alice").info().labels == {}
    with store.task(TASK, "Another goal") as task:
        assert task.results == {}


def test_a_time_to_live_is_the_stores_or_the_nouns_and_can_change(place: Place) -> None:
    """What the model says goes before what the store says, and what is said later before both."""
    store, other = place.open(ttl=500), place.open(ttl=7)
    store.conversation("by-store").append(user("a"))
    store.conversation("by-model", ttl=1000).append(user("a"))
    store.conversation("for-ever", ttl=None).append(user("a"))
    with store.task("task", GOAL), store.task("long", GOAL, ttl=1000):
        pass

    def lasts(id_: str) -> int | None:
        info = other.conversation(id_).info()
        if info.expires_at is None:
            return None
        return round((info.expires_at - info.updated_at).total_seconds())

    assert [lasts("by-store"), lasts("by-model"), lasts("for-ever")] == [500, 1000, None]
    assert [head.ttl for head in heads(store)] == [1000 * 10**6, 500 * 10**6]
    other.conversation("by-store").append(user("b"))
    store.conversation("by-model").append(user("b"))
    assert [lasts("by-store"), lasts("by-model")] == [500, 1000]
    store.conversation("for-ever").expire(2000)
    store.conversation("by-model").expire(None)
    store.conversation("by-store").label(a="b")
    for id_ in ("for-ever", "by-model"):
        other.conversation(id_).append(user("c"))
    assert [lasts("by-store"), lasts("by-model"), lasts("for-ever")] == [500, None, 2000]


def heads(store: Store) -> list[Any]:
    """The heads of all tasks."""
    return store.backend.scan("default", "task").heads


def test_an_append_prolongs_and_a_sweep_frees(store: Store) -> None:
    """Whatever goes on does not end; whatever has ended takes no room."""
    for n in range(3):
        store.conversation(f"gone-{n}", ttl=0.05).append(user("a"))
    goes_on = store.conversation("goes-on", ttl=60)
    goes_on.append(user("a"))
    first = goes_on.info().expires_at
    time.sleep(0.1)
    goes_on.append(user("b"))
    second = goes_on.info().expires_at
    assert first is not None
    assert second is not None
    assert second > first
    assert store.sweep() <= 3  # a server may have been faster
    assert store.sweep() == 0
    assert ids(store.conversations()) == ["goes-on"]
    assert goes_on.messages() == [user("a"), user("b")]


# -- tasks ---------------------------------------------------------------------------------------


def test_a_task_resumes_where_it_stopped(place: Place, store: Store) -> None:
    """What is done is not done again: plan, steps, decisions, discoveries, outcome."""
    with cut_short(store, agent="agent-01") as task:
        assert task.plan(lambda goal: ["fetch", {"name": "clean", "how": goal}, "send"])
        fetch, *_ = task.remaining()
        assert fetch.run(lambda: {"rows": [1, 2]}) == {"rows": [1, 2]}
        task.decide("use the replica", because="the API is rate limited")
        task.discover("100 calls a minute")
        crash(Boom("no network"))
    looked = place.open().task(TASK)
    assert looked.checkpoint().completed == ["fetch"]
    assert looked.error == "Boom: no network"
    assert '- "fetch": {"rows":[1,2]}' in looked.resume_context()
    with pytest.raises(GoalMismatch):
        place.open().task(TASK, "Another goal").__enter__()

    with place.open().task(TASK, GOAL, agent="agent-02") as task:
        assert task.error is None
        assert task.step("fetch", never) == {"rows": [1, 2]}
        assert task.plan(never) == ["fetch", {"name": "clean", "how": GOAL}, "send"]
        assert [step.run(lambda step=step: step.name) for step in task.remaining()] == [
            "clean",
            "send",
        ]
        task.decide("use the replica", because="the API is rate limited")
        task.discover("100 calls a minute")
        assert task.finish("sent") == "sent"
    done = place.open().task(TASK)
    point = done.checkpoint()
    assert point == task.checkpoint()
    assert (point.agent_id, point.completed) == ("agent-02", ["fetch", "clean", "send"])
    assert point.decisions == [Decision("use the replica", "the API is rate limited")]
    assert point.discoveries == ["100 calls a minute"]
    assert (done.done, done.outcome, done.info().status) == (True, "sent", "done")
    with done, pytest.raises(TaskFinished):
        done.step("more", never)
    assert store.run(TASK, GOAL, plan=never, execute=never) == "sent"


def test_a_task_whose_process_was_killed_goes_on_at_once(place: Place) -> None:
    """On the same machine nobody waits for the lease of the dead."""
    if place.memory is not None:
        pytest.skip("memory: ends with its process")
    with Worker() as worker:
        worker.do("open", place.url, dict(os.environ))
        worker.do("begin", lease=60)
        worker.do("step", "fetch")
        with pytest.raises(TaskHeld, match=f"process {worker.pid}"):
            place.open().task(TASK, GOAL).__enter__()
        worker.kill()
    with place.open().task(TASK, GOAL) as task:
        assert task.step("fetch", never) == "fetch"
        assert task.step("send", lambda: "sent") == "sent"


def test_a_task_is_worked_on_by_one_at_a_time(place: Place, store: Store) -> None:
    """Whoever comes second hears who it is; when the first has left, nobody has to wait."""
    with store.task(TASK, GOAL, agent="agent-01", lease=30) as task:
        for rival in (store.task(TASK, GOAL), place.open().task(TASK)):
            with pytest.raises(TaskHeld, match="held by agent-01 on ") as caught:
                rival.__enter__()
            assert 0 < (caught.value.until - datetime.now(UTC)).total_seconds() <= 31
            assert rival.checkpoint().goal == GOAL
        task.step("fetch", lambda: 1)
        assert (store.task(TASK).info().held_by or "").startswith("agent-01 on ")
    assert store.task(TASK).info().held_by is None
    with place.open().task(TASK) as task:
        assert task.results == {"fetch": 1}


def test_a_lease_renews_itself_while_a_step_runs(place: Place, store: Store) -> None:
    """A step may take longer than the lease; a rival stays out all the time."""
    rival = place.open()

    def end() -> int:
        head = rival.backend.head(KEY)
        assert head is not None
        assert head.lease is not None
        return head.lease.until

    def slow(first: int) -> None:
        while end() == first:
            with pytest.raises(LeaseHeld):
                rival.backend.acquire(KEY, "rival", 60)
            time.sleep(0.05)

    with store.task(TASK, GOAL, lease=3) as task:
        task.step("slow", slow, end())
        assert task.step("next", lambda: 1) == 1


def test_a_task_of_another_machine_is_taken_over_when_its_lease_ends(
    place: Place, store: Store
) -> None:
    """Nobody here can know that it is dead. If it is not, it is refused from then on."""
    elsewhere = "agent-99 on elsewhere, process 7 [another-boot/4026531836/7/123]"
    lease = store.backend.acquire(KEY, elsewhere, 60)
    with pytest.raises(TaskHeld, match="held by agent-99 on elsewhere"):
        store.task(TASK, GOAL).__enter__()
    store.backend.renew(KEY, lease, 0.3)
    with place.open().task(TASK, GOAL, wait=30) as task:
        task.step("fetch", lambda: 1)
        with pytest.raises(LeaseLost):
            store.backend.renew(KEY, lease, 60)
        assert task.step("send", lambda: 2) == 2


def epoch_of(task: Any) -> int:
    """That of the lease by which it is open."""
    return int(task.runner.live.lock.held.lease.epoch)


def test_a_worker_that_was_succeeded_or_deleted_is_fenced_off(place: Place, store: Store) -> None:
    """What it says then is not there."""
    with cut_short(store, by=LeaseLost) as late:
        late.step("fetch", lambda: 1)
        epoch = epoch_of(late)
        rival = place.open().backend.acquire(KEY, "rival", 60, over=epoch)
        late.step("late", lambda: 2)
    assert store.task(TASK).checkpoint().results == {"fetch": 1}
    assert store.task(TASK).info().held_by == "rival"
    store.backend.release(KEY, rival)
    with cut_short(store, by=LeaseLost) as late:
        assert place.open().task(TASK).delete() is True
        late.step("late", lambda: 2)
    assert list(store.tasks()) == []


def test_tasks_are_listed_by_status_labels_and_prefix(store: Store) -> None:
    """What is open, whose it is, and who works on it now."""
    with store.task("a/1", GOAL, agent="agent-01", labels={"team": "red"}) as task:
        task.finish()
    with store.task("a/2", GOAL, agent="agent-02", labels={"team": "red"}) as task:
        task.fail("no network")
    with store.task("b", GOAL, agent="agent-01"):
        assert ids(store.tasks()) == ["a/1", "a/2", "b"]
        assert ids(store.tasks(status="done")) == ["a/1"]
        assert ids(store.tasks(status="failed")) == ["a/2"]
        assert ids(store.tasks(prefix="a/")) == ids(store.tasks(labels={"team": "red"}))
        assert ids(store.tasks(labels={"agent": "agent-01"}, status="done")) == ["a/1"]
        (held,) = store.tasks(status="open")
        assert (held.held_by or "").startswith("agent-01 on ")
    (left,) = store.tasks(status="open")
    assert left.held_by is None
