"""Appends: one update of one item for most, and what that takes.

A record goes into the tail of the head, by the same update that changes the head. A tail that is
full is copied to a chunk before, and a long body is written to items of its own before.

An append that is tried again adds nothing twice. If its update was carried out, the head has
another rev than the next try expects, which is refused; then its id is found in the tail, or in a
chunk if others have moved the tail since.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from msgspec.structs import replace

from limpet.backends import decide
from limpet.backends.contract import Append, Appended, generated_id, given_id
from limpet.backends.dynamodb.errors import Refused
from limpet.backends.dynamodb.heads import Stale
from limpet.backends.dynamodb.layout import (
    REMOVE_AFTER,
    Item,
    Stored,
    StoredRecord,
    attribute,
    chunk_key,
    current,
    id_key,
    item_key,
    new_token,
    pack_records,
    partition,
    removal,
)
from limpet.backends.dynamodb.records import TAIL, Upload, part_items, parts_of
from limpet.backends.retry import may_be_there
from limpet.errors import Conflict, LeaseLost, StoreBusy

if TYPE_CHECKING:
    from limpet.backends.contract import Key
    from limpet.backends.dynamodb.heads import Attempt, Heads
    from limpet.backends.dynamodb.records import Bodies, Records
    from limpet.backends.dynamodb.table import Action, Table

__all__ = ["Appender"]

#: Records in a tail at the most.
MOST = 32


class _Call:
    """One append on its way, over all its tries."""

    def __init__(self, request: Append, id_: str) -> None:
        self.request = request
        self.key = request.key
        self.id = id_
        self.upload: Upload | None = None
        self.unanswered = False
        self.tried: tuple[str, int] | None = None  # at first: generation, and what was in chunks
        self.base: str | None = None  # the rev that the last try was to change,
        self.rev = "none yet"  # and that of the head, if it was carried out
        self.answer = Appended(0, 0, "")  # what it then comes to
        self.stamps = False  # whether the other items are to get another time


class Appender:
    """Adds records to journals."""

    def __init__(self, table: Table, heads: Heads, records: Records, bodies: Bodies) -> None:
        self._table = table
        self._heads = heads
        self._records = records
        self._bodies = bodies

    def append(self, request: Append) -> Appended:
        """See `Backend.append`."""
        call = _Call(request, generated_id() if request.id is None else request.id)
        try:
            done = self._heads.change(call.key, lambda attempt: self._attempt(call, attempt))
        except (Conflict, LeaseLost):
            self._discard(call)
            raise
        if call.stamps:
            self._heads.finish_stamping(call.key)
        return done

    def _attempt(self, call: _Call, attempt: Attempt) -> Appended:
        call.unanswered = attempt.unanswered
        if attempt.stored is not None and attempt.stored.rev == call.rev:
            return call.answer
        if attempt.unanswered and not call.request.count and call.base != _rev(attempt.stored):
            # Others have written since. If ours came before theirs, it must not come again.
            raise may_be_there(_overtaken(call.key))
        now = self._table.clock.now()
        base = current(attempt.stored, now)
        known = self._known(call, base)
        if known is not None and call.request.id is None:
            return known  # by a try without an answer
        decision = decide.decide(base.head, call.request, now, known)
        if decision.head is None:
            attempt.require_fresh()
            self._discard(call)
            return decision.answer
        more: list[Action] = []
        new = replace(base, head=decision.head)
        if decision.record is None:
            new = self._heads.prepare(attempt, base, new)
        else:
            new, more = self._with_record(call, attempt, base, new, decision.record.at)
        if call.tried is None or call.tried[0] != base.generation:
            call.tried = base.generation, base.chunked
        call.base, call.rev, call.answer = _rev(attempt.stored), new.rev, decision.answer
        self._heads.write(attempt, new, *more)
        call.stamps = new.stamping not in (None, base.stamping)
        return decision.answer

    # -- repetitions -------------------------------------------------------------------------

    def _known(self, call: _Call, base: Stored) -> Appended | None:
        """What the append under this id was answered, if there was one."""
        head = base.head
        if head is None:
            return None
        for record in base.tail:
            if record.id == call.id:
                return Appended(record.seq, record.at, head.incarnation)
        if call.request.id is not None:
            item = None
            if base.ids:
                item = self._table.get(partition(call.key), id_key(base.generation, call.id))
            if item is not None and int(item["seq"]["N"]) >= head.first:
                return Appended(int(item["seq"]["N"]), int(item["at"]["N"]), head.incarnation)
        elif call.unanswered and call.tried is not None and call.tried[0] == base.generation:
            # Others may have moved what it has written to a chunk.
            for record in self._records.chunks(call.key, base, after=call.tried[1]):
                if record.id == call.id:
                    return Appended(record.seq, record.at, head.incarnation)
        return None

    # -- the record, and what goes with it ---------------------------------------------------

    def _with_record(
        self, call: _Call, attempt: Attempt, base: Stored, new: Stored, at: int
    ) -> tuple[Stored, list[Action]]:
        """*new* with the record in its tail; and what must be written in the same act."""
        request, body, parts = call.request, call.request.body, parts_of(call.request.body)
        payload = b"" if parts else body
        record = StoredRecord(new.seq, request.count, at, call.id, len(body), parts, payload)
        weight = record.weight + sum(r.weight for r in base.tail)
        moves = bool(base.tail) and (weight > TAIL or len(base.tail) >= MOST)
        adds = moves or parts > 0
        new = replace(new, items=base.items or adds)
        new = self._heads.prepare(attempt, base, new, adds_items=adds)
        more: list[Action] = []
        if parts == 1 and not base.seq:
            name = new_token()
            items = part_items(call.key, new.generation, name, body, new.items_remove_after)
            more = [("Put", {"Item": item}) for item in items]
            record = record._replace(payload=name.encode())
        elif parts:
            upload = self._uploaded(call, attempt, base, new)
            record = record._replace(payload=upload.name.encode())
            new = replace(new, uploads=new.uploads - {upload.listing or ""})
        tail = base.tail
        if moves:
            new = replace(new, ids=self._move_tail(call.key, base, new.items_remove_after))
            tail = ()
        return replace(new, tail=(*tail, record)), more

    def _uploaded(self, call: _Call, attempt: Attempt, base: Stored, new: Stored) -> Upload:
        """The body, in the table: from an earlier try, if that will do."""
        key, body, upload = call.key, call.request.body, call.upload
        wanted = new.generation, new.items_remove_after
        if upload is None or (upload.generation, upload.remove_after) != wanted:
            self._discard(call)
            upload = call.upload = Upload.of(body, *wanted, self._table.clock.now())
        if upload.listing is not None and upload.listing not in base.uploads:
            listed = replace(base, uploads=base.uploads | {upload.listing})
            self._heads.write(attempt, self._heads.prepare(attempt, base, listed))
            raise Stale
        if not upload.written:
            if not self._bodies.write(key, upload, body):
                self._discard(call)
                raise Stale
            attempt.deadline = time.monotonic() + self._table.timeout
        return upload

    def _discard(self, call: _Call) -> None:
        """Remove a body that was written for nothing; not if a record may name it."""
        upload, call.upload = call.upload, None
        if upload is not None and not call.unanswered:
            self._bodies.discard(call.key, upload)

    def _move_tail(self, key: Key, base: Stored, remove_after: int | None) -> bool:
        """Copy the tail to a chunk, and its ids to items of their own; whether there are such."""
        pk, last, records = partition(key), base.tail[-1].seq, pack_records(base.tail)

        def chunk() -> Item:
            sk = chunk_key(base.generation, last, new_token(3))
            return {**item_key(pk, sk), "records": records, **removal(remove_after)}

        self._table.put(chunk)
        left = [record for record in base.tail if given_id(record.id) is not None]
        ids = base.ids or bool(left)
        while left:
            puts = [_id_item(pk, base.generation, record, remove_after) for record in left]
            try:
                self._table.transact(*(("Put", put) for put in puts))
            except Refused as refused:
                del left[refused.place]  # it has one
            else:
                break
        return ids


def _rev(stored: Stored | None) -> str | None:
    return None if stored is None else stored.rev


def _overtaken(key: Key) -> StoreBusy:
    return StoreBusy(f"Others changed {key.kind} {key.id!r} at the same time.")


def _id_item(pk: str, generation: str, record: StoredRecord, remove_after: int | None) -> Item:
    """An item by which an id is known as long as its record is there.

    Where there is one already, the later record counts, and of one record the later time to be
    removed: so a try that comes late undoes nothing.
    """
    values = {":seq": attribute(record.seq)}
    longer = f"attribute_exists(#{REMOVE_AFTER})"
    if remove_after is not None:
        values[":time"] = attribute(remove_after)
        longer = f"#{REMOVE_AFTER} < :time"
    return {
        "Item": {
            **item_key(pk, id_key(generation, record.id)),
            "seq": values[":seq"],
            "at": attribute(record.at),
            **removal(remove_after),
        },
        "ConditionExpression": (
            f"attribute_not_exists(#pk) OR #seq < :seq OR (#seq = :seq AND {longer})"
        ),
        "ExpressionAttributeNames": {f"#{name}": name for name in ("pk", "seq", REMOVE_AFTER)},
        "ExpressionAttributeValues": values,
    }
