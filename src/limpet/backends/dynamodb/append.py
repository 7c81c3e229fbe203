"""Appends: one update of one item for most, and what that takes.

A record goes into the head's tail, with a condition on the head's revision, which is known from
an earlier reply. If the condition fails the reply brings the head as it is, and the append is
decided and tried again from there. A tail that is full is copied to a chunk before, and taken out
of the head by the same update that adds the record.

An append that is tried again adds nothing twice. Its mark is in the tail until the revision
changes; from then on a try that was made for the former revision is refused, however late it comes.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec import UNSET
from msgspec.structs import replace

from limpet.backends.contract import Append, Appended, Key
from limpet.backends.dynamodb.begin import Beginner
from limpet.backends.dynamodb.bodies import parts_of
from limpet.backends.dynamodb.effort import Draft, Effort, check, in_micros
from limpet.backends.dynamodb.errors import Refused, Stale
from limpet.backends.dynamodb.layout import (
    Item,
    Journal,
    id_key,
    index_item,
    made_token,
    pack_record,
    partition,
)
from limpet.backends.dynamodb.life import keep_until, removal
from limpet.backends.dynamodb.move import Mover
from limpet.errors import Conflict, LeaseLost, StoreError

if TYPE_CHECKING:
    from limpet.backends.dynamodb.bodies import Bodies
    from limpet.backends.dynamodb.heads import Heads
    from limpet.backends.dynamodb.life import Life
    from limpet.backends.dynamodb.records import Records
    from limpet.backends.dynamodb.table import Table

__all__ = ["Appender"]


class Appender:
    """Adds records to journals."""

    def __init__(
        self, table: Table, heads: Heads, bodies: Bodies, records: Records, life: Life
    ) -> None:
        self._table = table
        self._heads = heads
        self._bodies = bodies
        self._records = records
        self._life = life
        self._beginner = Beginner(table, heads, bodies, life)
        self._mover = Mover(table, life)

    def begin(self) -> None:
        """Nothing is under way, in a forked child."""
        self._mover.begin()

    def append(self, request: Append) -> Appended:
        """See `Backend.append`."""
        effort = Effort(request, self._table.timeout)
        try:
            return self._append(effort)
        finally:
            self._mover.done(effort)

    def _append(self, effort: Effort) -> Appended:
        journal = self._heads.hint(effort.key)
        if journal is None:
            journal, effort.fresh = self._heads.load(effort.key), True
        while True:
            try:
                return self._try(effort, journal)
            except Refused as refused:
                effort.in_doubt = effort.in_doubt or refused.in_doubt
                journal = self._heads.found(effort.key, refused.item)
            except Stale:
                journal = self._heads.load(effort.key)
            except (Conflict, LeaseLost):
                self._bodies.take_back(effort)
                raise
            effort.fresh = True
            effort.turn += 1
            self._table.try_again(effort.turn, effort.deadline)

    def _try(self, effort: Effort, journal: Journal | None) -> Appended:
        now = self._table.clock.now()
        if journal is None or not journal.live(now):
            if not effort.fresh:
                raise Stale
            return self._beginner.begin(effort, journal, now)
        known = self._known(effort, journal)
        if known is not None:
            if not effort.fresh:
                raise Stale
            self._bodies.take_back(effort)
            return known
        if effort.fresh:
            check(effort.request, journal)
        effort.tried(journal)
        return self._add(effort, journal, now)

    def _known(self, effort: Effort, journal: Journal) -> Appended | None:
        """What this append came to, if its id is known or an earlier try was carried out."""
        id_ = effort.request.id
        kept = journal.tail.get(effort.mark)
        if kept is not None:
            return Appended(kept.seq, kept.at, repeated=id_ is not None)
        if journal.rev == effort.rev:
            return Appended(journal.seq, journal.updated)
        if id_ is not None:
            return self._named(effort, journal, id_) if journal.named else None
        return self._landed(effort, journal) if effort.in_doubt else None

    def _landed(self, effort: Effort, journal: Journal) -> Appended | None:
        """What a try without an answer came to, if others have moved its record to a chunk."""
        known = effort.since is not None and effort.since[0] == journal.gen
        since = effort.since[1] if known and effort.since else journal.floor
        for kept in self._records.chunks(effort.key, journal, after=since):
            if kept.mark == effort.mark:
                return Appended(kept.seq, kept.at)
        return None

    def _named(self, effort: Effort, journal: Journal, id_: str) -> Appended | None:
        item = self._table.get(partition(effort.key), id_key(journal.gen, id_))
        if item is None or int(item["seq"]["N"]) <= journal.floor:
            return None
        return Appended(int(item["seq"]["N"]), int(item["at"]["N"]), repeated=True)

    # -- to a journal that is there ------------------------------------------------------------

    def _add(self, effort: Effort, journal: Journal, now: int) -> Appended:
        request, at = effort.request, effort.time(now)
        life = journal.life if request.ttl is UNSET else in_micros(request.ttl)
        if (life is None) != (journal.life is None):
            return self._turn(effort, journal, at, life)
        draft = Draft(effort, journal, now)
        if life is not None and (request.count or request.ttl is not UNSET):
            self._move_end(draft, effort, journal, at, life)
        if not request.count:
            return self._change_only(draft, effort)
        self._add_record(draft, effort, journal, at)
        try:
            said = self._table.update(draft, "UPDATED_NEW")
        except Refused as refused:
            found = refused.item
            if found and "updated" in found and int(found["updated"]["N"]) > at:
                effort.late = at
            raise
        return self._added(draft, effort, journal, at, said)

    def _move_end(self, draft: Draft, effort: Effort, journal: Journal, at: int, life: int) -> None:
        """The time to live counts from this append."""
        late = effort.request.count and journal.updated > at
        ends = (journal.updated if late else at) + life
        # A copy may have ended long ago; DynamoDB passes over moments that are years back.
        lasts = max(ends, journal.until, self._table.clock.now())
        if not self._life.covers(journal, lasts):
            self._life.extend(effort.key, journal, lasts)
            raise Stale
        if late:
            draft.set("#expires = #updated + :life", life=life)
        else:
            draft.say(expires=ends)
        if journal.remove_after is not None:
            draft.say(remove_after=removal(lasts))
            draft.not_leased_after(removal(lasts))
        if life != journal.life:
            draft.say(life=life, rev=made_token())

    def _change_only(self, draft: Draft, effort: Effort) -> Appended:
        """Change what the head says, and add no record; by its revision it is known again."""
        effort.rev = made_token()
        draft.say(rev=effort.rev)
        draft.describe(effort.request)
        journal = self._heads.found(effort.key, self._table.update(draft, "ALL_NEW"))
        return Appended(journal.seq, journal.updated) if journal else Appended(0, 0)

    def _add_record(self, draft: Draft, effort: Effort, journal: Journal, at: int) -> None:
        """Let *draft* add the record."""
        request = effort.request
        if parts_of(request.body):
            self._bodies.write(effort, journal)
            draft.say(items=True)
            if effort.upload is not None and effort.upload.pending is not None:
                draft.take_from("pending", [effort.upload.pending])
        draft.then["tail"] = journal.tail
        self._mover.make_room(draft, effort, journal)
        mark = draft.name(effort.mark)
        draft.when(f"attribute_not_exists(#nums.{mark})")
        draft.set(f"#tail.{mark} = :record", record=pack_record(effort.kept(at)))
        draft.set(f"#nums.{mark} = #seq + :count", count=request.count)
        draft.set("#seq = #seq + :count")
        draft.set("#size = #size + :size", size=len(request.body))
        if journal.updated > at:
            # Its clock is behind another writer's: it takes the time of the record before it.
            draft.set(f"#late.{mark} = #updated")
            draft.when("#updated >= :at", at=at)
        else:
            draft.set("#updated = :at", at=at)
            draft.when("#updated <= :at")
        draft.describe(request)

    def _added(
        self, draft: Draft, effort: Effort, journal: Journal, at: int, said: Item
    ) -> Appended:
        """What the append came to; the head as it is now is remembered for the next one."""
        seq = int(said["nums"]["M"][effort.mark]["N"])
        if "late" in said:
            at = int(said["late"]["M"][effort.mark]["N"])
        then = draft.then | {"seq": max(seq, journal.seq), "updated": at}
        then["tail"] = {**then["tail"], effort.mark: effort.kept(at, seq)}
        if "expires" in said:
            then["expires"] = int(said["expires"]["N"])
        self._heads.remember(effort.key, replace(journal, **then))
        return Appended(seq, at)

    # -- a life for a journal that had none, or the other way round ----------------------------

    def _turn(self, effort: Effort, journal: Journal, at: int, life: int | None) -> Appended:
        """Append, and change whether the journal ends by itself.

        Its items must not be removed before it ends. So before it is to stay for ever, they lose
        their moment; and only after it has got an end do they get one.
        """
        if not effort.fresh:
            raise Stale
        request, key = effort.request, effort.key
        if life is None and journal.items:
            journal = self._life.touch(key, journal, None)
        now = self._table.clock.now()
        draft = Draft(effort, journal, now)
        # What is added now has no moment, and if it needs one it gets it with the others.
        journal = replace(journal, keep=None, touch=None)
        draft.when("#seq = :seq", seq=journal.seq)
        if request.count:
            at = max(at, journal.updated)
            self._add_record(draft, effort, journal, at)
        else:
            draft.describe(request)
        items = journal.items or "items" in draft.then
        draft.put(rev=made_token(), life=life, expires=None, keep=None, remove_after=None)
        draft.put(touch=None)
        keep = None
        if life is not None:
            lasts = max(at + life, journal.until, now)
            keep = keep_until(journal.created, life, lasts, now)
            draft.put(life=life, expires=at + life, keep=keep)
            draft.put(**{"touch": made_token()} if items else {"remove_after": removal(lasts)})
            draft.not_leased_after(keep if items else removal(lasts))
        self._table.transact(
            self._table.updating(draft), self._table.putting(index_item(key, keep))
        )
        self._finish(key)
        return Appended(journal.seq + request.count, at if request.count else journal.updated)

    def _finish(self, key: Key) -> None:
        """Give the items their moment, now if that is possible, else whoever adds one does it."""
        with suppress(StoreError, Refused):
            journal = self._heads.load(key)
            if journal is not None and journal.touch is not None:
                self._life.finish(key, journal)
                self._heads.load(key)
