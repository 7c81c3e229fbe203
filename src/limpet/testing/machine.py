"""A state machine that plays any backend against a plain dict, in any order of calls.

    @contextmanager
    def place():
        with TemporaryDirectory() as directory:
            yield lambda: MyBackend(directory)

    TestMine = contract_machine(place)

Time is left out of it: leases are long or released, nothing expires. The suite has those.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from limpet.backends.contract import UNSET, Append, Backend, Expect, Key, Lease, UnsetType
from limpet.errors import Conflict, LeaseHeld, LeaseLost

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from unittest import TestCase

    Place = Callable[[], AbstractContextManager[Callable[[], Backend]]]

__all__ = ["contract_machine"]

KEYS = [Key(tenant, "note", id_) for tenant in ("acme", "Acme") for id_ in ("a", "a/b", "é")]
keys = st.sampled_from(KEYS)
numbers = st.integers(0, 12)


class Model:
    """One journal, as plain as can be."""

    def __init__(self) -> None:
        self.records: list[tuple[int, int, bytes]] = []  # number, count, body
        self.ids: dict[str, int] = {}
        self.seq = 0
        self.first = 1
        self.incarnation = ""
        self.meta: bytes | None = None
        self.note: bytes | None = None
        self.status: str | None = None
        self.labels: dict[str, str] = {}
        self.lease: Lease | None = None
        self.held = False


class ContractMachine(RuleBasedStateMachine):
    """Each rule does the same to both, and compares what comes of it."""

    place: Place
    reopens: bool
    notes: bool

    def __init__(self) -> None:
        super().__init__()
        self.cleanup = ExitStack()
        self.open = self.cleanup.enter_context(type(self).place())
        self.backend = self.open()
        self.models: dict[Key, Model] = {}
        self.bodies = 0
        self.incarnations: set[str] = set()

    def teardown(self) -> None:
        """Close it, and clear its place."""
        self.backend.close()
        self.cleanup.close()

    @rule(
        key=keys,
        count=st.integers(0, 3),
        earlier=st.sampled_from([(), (), (2,), (1, 3)]),
        id_=st.sampled_from([None, None, "x", "y"]),
        expect=st.one_of(st.none(), st.none(), numbers),
        incarnation=st.sampled_from(["any", "this", "another"]),
        meta=st.sampled_from([UNSET, UNSET, None, b"{}", b'{"a":1}']),
        note=st.sampled_from([None, b"note", b"\xff\x00"]),
        under=st.sampled_from(["nothing", "nothing", "lease", "stale"]),
        status=st.sampled_from([None, "open", "done"]),
        labels=st.dictionaries(st.sampled_from("pq"), st.sampled_from([None, "1", "2"])),
    )
    def append(
        self,
        *,
        key: Key,
        count: int,
        earlier: tuple[int, ...],
        id_: str | None,
        expect: int | None,
        incarnation: str,
        meta: bytes | UnsetType | None,
        note: bytes | None,
        under: str,
        status: str | None,
        labels: dict[str, str | None],
    ) -> None:
        self.bodies += 1
        body = f"body {self.bodies}".encode() if count else b""
        model = self.models.get(key) or Model()
        epoch = self._epoch(model, under)
        named = {"any": None, "this": model.incarnation, "another": "another"}[incarnation]
        request = Append(
            key=key,
            body=body,
            count=count,
            earlier=[(some, body + b" earlier") for some in earlier]
            if count and self.backend.splits
            else (),
            id=id_ if count else None,
            expect=None if expect is None else Expect(named, expect),
            epoch=epoch,
            status=status,
            labels=labels,
            meta=meta,
            note=note if self.notes else None,
        )
        if request.id in model.ids:
            done = self.backend.append(request)
            assert (done.seq, done.repeated) == (model.ids[request.id], True)
        elif epoch is not None and (model.lease is None or model.lease.epoch != epoch):
            self._refused(LeaseLost, partial(self.backend.append, request))
        elif expect is not None and (
            expect != model.seq or (expect and named not in (None, model.incarnation))
        ):
            self._refused(Conflict, partial(self.backend.append, request))
        else:
            self._accept(model, request)

    @staticmethod
    def _epoch(model: Model, under: str) -> int | None:
        if under == "nothing":
            return None
        epoch = model.lease.epoch if model.lease else 1
        return epoch if under == "lease" else epoch - 1

    def _refused(self, error: type[Exception], call: partial[Any]) -> None:
        try:
            call()
        except error:
            return
        msg = f"{error.__name__} was due for {call}"
        raise AssertionError(msg)

    def _accept(self, model: Model, request: Append) -> None:
        done = self.backend.append(request)
        assert not done.repeated
        if request.key not in self.models and not request.count:
            assert done.seq == 0
            return
        self.models[request.key] = model
        for count, body in (*request.earlier, (request.count, request.body)):
            model.seq += count
            if count:
                model.records.append((model.seq, count, body))
        assert done.seq == model.seq
        if request.count and not model.incarnation:
            model.incarnation = done.incarnation
            assert done.incarnation not in self.incarnations
            self.incarnations.add(done.incarnation)
        assert done.incarnation == model.incarnation
        if request.meta is not UNSET:
            model.meta = request.meta
        if request.count:
            model.note = request.note
        if request.id:
            model.ids[request.id] = model.seq
        model.status = request.status  # type: ignore[assignment]  # the machine always gives one
        merged = {**model.labels, **request.labels}  # type: ignore[dict-item]  # as above
        model.labels = {name: value for name, value in merged.items() if value is not None}

    @rule(key=keys)
    def delete(self, key: Key) -> None:
        model = self.models.pop(key, None)
        assert self.backend.delete(key) is (model is not None and model.seq > 0)

    @rule(
        key=keys,
        seq=st.one_of(st.none(), st.none(), numbers),
        incarnation=st.sampled_from(["any", "this", "another"]),
    )
    def delete_expected(self, key: Key, seq: int | None, incarnation: str) -> None:
        model = self.models.get(key) or Model()
        seq = model.seq if seq is None else seq
        named = {"any": None, "this": model.incarnation, "another": "another"}[incarnation]
        stands = seq == model.seq and (not seq or named in (None, model.incarnation))
        delete = partial(self.backend.delete, key, expect=Expect(named, seq))
        if stands and not model.held:
            assert delete() is (seq > 0)
            self.models.pop(key, None)
        else:
            self._refused(Conflict, delete)

    @rule(key=keys, before=numbers)
    def compact(self, key: Key, before: int) -> None:
        model = self.models.get(key, Model())
        gone = [record for record in model.records if record[0] < before]
        assert self.backend.compact(key, before) == sum(count for _, count, _ in gone)
        if gone:
            model.records = model.records[len(gone) :]
            model.first = gone[-1][0] + 1
            model.ids = {id_: seq for id_, seq in model.ids.items() if seq >= before}

    @rule(key=keys, over=st.booleans())
    def acquire(self, key: Key, over: bool) -> None:  # noqa: FBT001 - hypothesis's
        model = self.models.setdefault(key, Model())
        last = model.lease
        try:
            lease = self.backend.acquire(
                key, "somebody", 1000, over=last.epoch if last and over else None
            )
        except LeaseHeld as held:
            refused = held.epoch
            assert (last and last.epoch, model.held, over) == (refused, True, False)
        else:
            assert over or not model.held
            assert last is None or lease.epoch > last.epoch
            model.lease, model.held = lease, True

    @rule(key=keys)
    def release(self, key: Key) -> None:
        model = self.models.get(key)
        if model and model.lease:
            self.backend.release(key, model.lease)
            model.held = False

    @rule(key=keys)
    def renew(self, key: Key) -> None:
        model = self.models.get(key)
        if model and model.lease:
            assert self.backend.renew(key, model.lease, 1000).epoch == model.lease.epoch
            model.held = True

    @rule(key=keys, after=numbers, upto=st.one_of(st.none(), numbers), limit=st.integers(1, 4))
    def read(self, key: Key, after: int, upto: int | None, limit: int) -> None:
        wanted = [
            record
            for record in self.models.get(key, Model()).records
            if record[0] > after and (upto is None or record[0] - record[1] < upto)
        ]
        for reverse in (False, True):
            found = self.backend.read(key, after=after, upto=upto, limit=limit, reverse=reverse)
            shown = [(record.seq, record.count, record.body) for record in found]
            assert shown == (wanted[::-1] if reverse else wanted)[:limit]

    @rule(
        status=st.sampled_from([None, "open", "done"]),
        labels=st.dictionaries(st.sampled_from("pq"), st.sampled_from("12")),
        prefix=st.sampled_from(["", "a", "a/", "z"]),
        limit=st.integers(1, 3),
    )
    def scan(self, status: str | None, labels: dict[str, str], prefix: str, limit: int) -> None:
        wanted = [
            key.id
            for key, model in sorted(self.models.items(), key=lambda pair: pair[0].id.encode())
            if key.tenant == "acme"
            and model.seq
            and key.id.startswith(prefix)
            and status in (None, model.status)
            and labels.items() <= model.labels.items()
        ]
        filters: dict[str, Any] = {"status": status, "labels": labels, "prefix": prefix}
        found: list[str] = []
        cursor: str | None = None
        while True:
            page = self.backend.scan("acme", "note", cursor=cursor, limit=limit, **filters)
            found += [head.key.id for head in page.heads]
            cursor = page.cursor
            if cursor is None:
                break
        assert found == wanted

    @rule()
    def reopen(self) -> None:
        if self.reopens:
            self.backend.close()
            self.backend = self.open()

    @invariant()
    def heads_agree(self) -> None:
        """After every step, for every key."""
        for key in KEYS:
            head, model = self.backend.head(key), self.models.get(key)
            if model is None or not model.seq:
                assert head is None
                continue
            assert head is not None
            assert (head.incarnation, head.seq) == (model.incarnation, model.seq)
            assert (head.first, head.status, head.meta) == (model.first, model.status, model.meta)
            assert (head.labels, head.note) == (model.labels, model.note)
            assert head.size == sum(
                len(body) + self.backend.overhead for _, _, body in model.records
            )
            assert (head.lease is not None) == model.held


def contract_machine(
    place: Place,
    *,
    reopen: bool = True,
    notes: bool = True,
    examples: int = 100,
    steps: int = 40,
) -> type[TestCase]:
    """A test case that runs the machine over *place*, an empty one for each run.

    With *reopen* it is closed and opened again at times, and must be as it was. *notes*: as in
    `BackendContract`.
    """
    settled = {"place": staticmethod(place), "reopens": reopen, "notes": notes}
    made = type("Machine", (ContractMachine,), settled)
    case: type[TestCase] = made.TestCase  # type: ignore[attr-defined]
    case.settings = settings(  # type: ignore[attr-defined]
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],  # which a slow machine is
    )
    return case
