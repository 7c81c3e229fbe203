"""The beginning of a journal: head, index and first record in one transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import UNSET
from msgspec.structs import replace

from limpet.backends.contract import Append, Appended
from limpet.backends.dynamodb.bodies import Upload, part_items, parts_of
from limpet.backends.dynamodb.effort import check, in_micros
from limpet.backends.dynamodb.errors import Refused, Stale
from limpet.backends.dynamodb.layout import (
    Change,
    Item,
    Journal,
    attribute,
    head_key,
    index_item,
    made_token,
)
from limpet.backends.dynamodb.life import beginning, keep_until, removal

if TYPE_CHECKING:
    from limpet.backends.dynamodb.bodies import Bodies
    from limpet.backends.dynamodb.effort import Effort
    from limpet.backends.dynamodb.heads import Heads
    from limpet.backends.dynamodb.life import Life
    from limpet.backends.dynamodb.table import Table

__all__ = ["Beginner"]

_NOTHING = Journal.of({"rev": {"S": ""}, "gen": {"S": ""}})


class Beginner:
    """Begins journals."""

    def __init__(self, table: Table, heads: Heads, bodies: Bodies, life: Life) -> None:
        self._table = table
        self._heads = heads
        self._bodies = bodies
        self._life = life

    def begin(self, effort: Effort, journal: Journal | None, now: int) -> Appended:
        """With a first record; on a head without records, on nothing, or on what has expired."""
        request, key = effort.request, effort.key
        former = journal if journal is not None and journal.seq else None
        ground = None if former is not None else journal
        check(request, ground)
        if not request.count:
            self._describe(effort, ground)
            return Appended(0, now)
        if ground is None and parts_of(request.body) > 1:
            self._life.found(key, former)  # it knows of the parts while they are written
            raise Stale
        change = beginning(key, former, now)
        if ground is not None:
            change = Change(head_key(key))
            change.when("#rev = :old", old=ground.rev)
        if request.epoch is not None:
            change.when("#epoch = :epoch", epoch=request.epoch)
        self._life.announce(key)
        born, part = self._born(change, effort, ground or replace(_NOTHING, gen=made_token()), now)
        change.put(**born.attributes())
        try:
            self._table.transact(
                self._table.updating(change),
                self._table.putting(index_item(key, born.keep)),
                *map(self._table.putting, part),
            )
        except Refused:
            effort.upload = None if part else effort.upload  # it was not written either
            raise
        self._heads.remember(key, born)
        if former is not None:
            self._life.clear_former(key, former)
        return Appended(born.seq, born.updated)

    def _describe(self, effort: Effort, ground: Journal | None) -> None:
        """Give a lease alone status and labels, for the journal that is to begin."""
        if ground is None or ground.epoch is None:
            return
        status, labels = _described(effort.request, ground)
        if (status, labels) == (ground.status, ground.labels):
            return
        change = Change(head_key(effort.key))
        change.when("#rev = :old", old=ground.rev)
        if effort.request.epoch is not None:
            change.when("#epoch = :epoch", epoch=effort.request.epoch)
        texts = {name: attribute(value) for name, value in labels.items()}
        change.put(rev=made_token(), status=status, labels=texts)
        self._heads.found(effort.key, self._table.update(change, "ALL_NEW"))

    def _born(
        self, change: Change, effort: Effort, ground: Journal, now: int
    ) -> tuple[Journal, list[Item]]:
        """The head with its first record; and the item of its body, if it has one."""
        request, origin = effort.request, effort.request.origin
        at = now if origin is None else max(origin.at, origin.created)
        floor = 0 if origin is None else origin.floor
        status, labels = _described(request, ground)
        born = replace(
            ground,
            rev=made_token(),
            seq=floor + request.count,
            floor=floor,
            stored=floor,
            size=len(request.body),
            created=at if origin is None else origin.created,
            updated=at,
            status=status,
            labels=labels,
            remove_after=None,
        )
        life = in_micros(request.default_ttl if request.ttl is UNSET else request.ttl)
        if life is not None:
            born = _mortal(born, life, at + life, now)
            change.when("(attribute_not_exists(#until) OR #until <= :until)", until=ground.until)
        parts = parts_of(request.body)
        items: list[Item] = []
        if parts == 1:
            effort.upload = Upload(born.gen, born.keep, made_token(), 1, None)
            items += part_items(effort.key, born.gen, born.keep, effort.upload.name, request.body)
        elif parts:
            self._bodies.write(effort, replace(born, rev=ground.rev))
            if effort.upload is not None and effort.upload.pending is not None:
                change.take_from("pending", [effort.upload.pending])
        kept = effort.kept(at, born.seq)
        return replace(born, items=parts > 0, tail={kept.mark: kept}), items


def _described(request: Append, ground: Journal) -> tuple[str | None, dict[str, str]]:
    """Status and labels after *request*, on what a lease has been given."""
    status = ground.status if request.status is UNSET else request.status
    merged = {**ground.labels, **({} if request.labels is UNSET else request.labels)}
    return status, {name: value for name, value in merged.items() if value is not None}


def _mortal(born: Journal, life: int, ends: int, now: int) -> Journal:
    lasts = max(ends, born.until)
    return replace(
        born,
        life=life,
        expires=ends,
        keep=keep_until(born.created, life, max(lasts, now), now),
        remove_after=removal(max(lasts, now)),
    )
