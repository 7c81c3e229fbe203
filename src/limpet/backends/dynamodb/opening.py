"""Opening a table as a store: that it is there, that it is ours, and what is so about it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from limpet.backends.dynamodb.errors import error_code
from limpet.backends.dynamodb.layout import FORMAT, REMOVE_AFTER, Item, attribute, item_key
from limpet.backends.facts import Fact, human_size
from limpet.errors import NotAStore, SchemaTooNew, StoreError, StoreNotFound, StoreUnavailable

if TYPE_CHECKING:
    from limpet.backends.dynamodb.table import Table

__all__ = ["open_store", "table_facts"]

#: How long opening asks a server that does not answer: whoever mistyped its address is waiting.
OPENING = 5.0

_KEYS = [("pk", "HASH"), ("sk", "RANGE")]
_INVALID = "ValidationException"


def open_store(table: Table, *, create: bool, create_table: bool) -> None:
    """Make sure that the table is there, is ours, and was not written by a newer release."""
    try:
        version = _version(table)
    except StoreNotFound:
        if not (create and create_table):
            raise
        _create_table(table)
        version = _version(table)
    if version is None:
        _begin_store(table, create=create)
    elif version > FORMAT:
        msg = (
            f"{table.where} has format {version}, but this version reads up to {FORMAT}.\n"
            "A newer release wrote to this table. "
            "Upgrade limpet, or restore the table to a point in time before the upgrade."
        )
        raise SchemaTooNew(msg)


def _version(table: Table) -> int | None:
    parameters = {
        "TableName": table.name,
        "Key": item_key("limpet", "format"),
        "ConsistentRead": True,
    }
    try:
        item = table.call("get_item", parameters, timeout=min(table.timeout, OPENING)).get("Item")
    except StoreError as error:
        if error_code(error.__cause__) != _INVALID:
            raise
        msg = (
            f"{table.where} is not a Limpet store: its key is not made of the texts pk and sk. "
            "Name another table; for one that is not there yet, add create_table=true."
        )
        raise NotAStore(msg) from error.__cause__
    return None if item is None else int(item["version"]["N"])


def _begin_store(table: Table, *, create: bool) -> None:
    """Mark an empty table as ours."""
    if not create:
        msg = (
            f"There is no store in {table.where}: the table is there, but nothing is in it. "
            "Check the name."
        )
        raise StoreNotFound(msg, hint="To begin a store in it, open it with create=True.")
    found = table.call("scan", {"TableName": table.name, "Limit": 1, "ConsistentRead": True})
    if found["Items"] and _version(table) is None:  # unless another process was faster
        msg = (
            f"{table.where} holds items that are not Limpet's. A store needs a table of its own: "
            "name another; for one that is not there yet, add create_table=true."
        )
        raise NotAStore(msg)
    table.update(
        {
            "Key": item_key("limpet", "format"),
            "UpdateExpression": "SET #version = if_not_exists(#version, :version)",
            "ExpressionAttributeNames": {"#version": "version"},
            "ExpressionAttributeValues": {":version": attribute(FORMAT)},
        }
    )


def _create_table(table: Table) -> None:
    """Create the table, or wait for whoever is at it; and have DynamoDB remove what has expired."""
    try:
        table.call(
            "create_table",
            {
                "TableName": table.name,
                "BillingMode": "PAY_PER_REQUEST",
                "AttributeDefinitions": [
                    {"AttributeName": name, "AttributeType": "S"} for name, _ in _KEYS
                ],
                "KeySchema": [{"AttributeName": name, "KeyType": kind} for name, kind in _KEYS],
            },
        )
    except StoreError as error:
        if error_code(error.__cause__) != "ResourceInUseException":
            raise
    deadline = time.monotonic() + max(table.timeout, 60)
    while not _is_ready(table):
        if time.monotonic() > deadline:
            msg = f"The table {table.where} was created, but is not ready yet. Open it again later."
            raise StoreUnavailable(msg)
        time.sleep(0.2)
    removal = {"Enabled": True, "AttributeName": REMOVE_AFTER}
    try:
        table.call(
            "update_time_to_live", {"TableName": table.name, "TimeToLiveSpecification": removal}
        )
    except StoreError as error:
        if error_code(error.__cause__) != _INVALID:  # it is enabled already
            raise


def _is_ready(table: Table) -> bool:
    try:
        about = table.call("describe_table", {"TableName": table.name})["Table"]
    except StoreNotFound:
        return False  # DynamoDB does not see it yet
    return bool(about.get("TableStatus") == "ACTIVE")


# -- facts -----------------------------------------------------------------------------------------


def table_facts(table: Table) -> list[Fact]:
    """What DynamoDB says of the table; what this identity may not ask is unknown."""
    about = _described(table, "describe_table", "Table")
    facts = [
        *_engine(table),
        _capacity(about),
        _removal(_described(table, "describe_time_to_live", "TimeToLiveDescription")),
        _backups(_described(table, "describe_continuous_backups", "ContinuousBackupsDescription")),
    ]
    if about is not None and "ItemCount" in about:
        size = human_size(about.get("TableSizeBytes", 0))
        facts.append(Fact("items", f"about {about['ItemCount']:,}, {size} (counted by DynamoDB)"))
    return facts


def _described(table: Table, operation: str, part: str) -> Item | None:
    try:
        return dict(table.call(operation, {"TableName": table.name})[part])
    except StoreUnavailable:
        raise
    except StoreError:
        return None


def _engine(table: Table) -> list[Fact]:
    if table.server.startswith("Jetty"):
        return [
            Fact("engine", f"DynamoDB Local, table {table.where}"),
            Fact(
                "durability",
                "none that could be relied on: DynamoDB Local is for tests",
                ok=False,
                advice="Use DynamoDB itself for what must not be lost.",
            ),
        ]
    if table.endpoint_url and "amazonaws.com" not in table.endpoint_url:
        return [
            Fact("engine", f"a server that speaks as DynamoDB does, table {table.where}"),
            Fact(
                "durability",
                "unknown: it is whatever that server promises",
                ok=False,
                advice="Ask its makers, or use DynamoDB itself.",
            ),
        ]
    return [
        Fact("engine", f"DynamoDB, table {table.where}"),
        Fact("durability", "every acknowledged write is on storage in several data centres"),
    ]


def _capacity(about: Item | None) -> Fact:
    if about is None:
        return Fact("capacity", "unknown: DescribeTable is not allowed")
    mode = about.get("BillingModeSummary", {}).get("BillingMode", "PROVISIONED")
    if mode == "PAY_PER_REQUEST":
        return Fact("capacity", "on demand")
    provisioned = about.get("ProvisionedThroughput", {})
    read, write = (provisioned.get(f"{kind}CapacityUnits", 0) for kind in ("Read", "Write"))
    return Fact("capacity", f"provisioned: {read:,} read and {write:,} write units a second")


def _removal(about: Item | None) -> Fact:
    if about is None:
        return Fact("removal", "unknown: DescribeTimeToLive is not allowed")
    ours = about.get("AttributeName") == REMOVE_AFTER
    if ours and about.get("TimeToLiveStatus") in ("ENABLED", "ENABLING"):
        return Fact("removal", f"DynamoDB removes what has expired ({REMOVE_AFTER})")
    return Fact(
        "removal",
        "what has expired stays until it is swept",
        ok=False,
        advice=f"Enable time to live on the attribute {REMOVE_AFTER}, or sweep now and then.",
    )


def _backups(about: Item | None) -> Fact:
    if about is None:
        return Fact("backups", "unknown: DescribeContinuousBackups is not allowed here")
    recovery = about.get("PointInTimeRecoveryDescription", {})
    on = recovery.get("PointInTimeRecoveryStatus") == "ENABLED"
    return Fact("backups", "point-in-time recovery is on" if on else "no point-in-time recovery")
