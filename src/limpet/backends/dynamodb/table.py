"""Calls to one table: by a client of this process's own, tried again where that may help."""

from __future__ import annotations

import random
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from uuid import uuid4

from limpet.backends.dynamodb.clock import ServerClock, offset
from limpet.backends.dynamodb.errors import (
    Unprocessed,
    check_refused,
    in_doubt,
    passing,
    translate,
)
from limpet.backends.dynamodb.layout import Change, Item, in_groups, item_key
from limpet.backends.retry import persist, unsure
from limpet.backends.url import safe_url
from limpet.errors import InvalidURL, LimpetError, MissingExtra, StoreBusy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["Table"]

#: Connections that are kept open; more are opened under load and closed after it.
CONNECTIONS = 64

#: Items to a request, as DynamoDB has it.
MOST_WRITES, MOST_READS = 25, 100

#: Seconds that a fork waits for calls that are under way.
REST = 1.0

_WRITES = ("update_", "put_", "delete_", "transact_write", "batch_write", "create_")


class Table:
    """One DynamoDB table and the ways to ask it."""

    def __init__(
        self,
        name: str,
        *,
        region: str | None,
        endpoint_url: str | None,
        profile: str | None,
        timeout: float,
    ) -> None:
        self.name = name
        self.region = region
        self.endpoint_url = endpoint_url
        self.timeout = timeout
        self.server = ""  # what it calls itself
        self._profile = profile
        self.begin()

    def begin(self) -> None:
        """With no connection yet: at first, and in a forked child."""
        self.clock = ServerClock(lambda: self.get("limpet", "format"))
        self._client: Any = None
        self._making = threading.Lock()
        self._gate = threading.Condition(threading.Lock())
        self._shut = False
        self._busy = 0

    @property
    def where(self) -> str:
        """The table, as errors name it."""
        place = safe_url(self.endpoint_url or self.region or "")
        return f"{self.name} ({place})" if place else self.name

    # -- the client --------------------------------------------------------------------------

    def client(self) -> Any:
        """Boto3's, made at the first call; it may be used by many threads."""
        if self._client is None:
            with self._making:
                if self._client is None:
                    self._client = self._connect()
        return self._client

    def _connect(self) -> Any:
        try:
            import boto3  # noqa: PLC0415 - slow to import
            from botocore.config import Config  # noqa: PLC0415 - as above
        except ImportError as error:
            raise MissingExtra.of("DynamoDB", "boto3", "dynamodb") from error
        # A reply that does not come must leave time to ask again.
        patience = min(max(self.timeout / 3, 0.5), 10.0)
        config = Config(
            connect_timeout=min(patience, 5.0),
            read_timeout=patience,
            max_pool_connections=CONNECTIONS,
            parameter_validation=False,  # ours are right, and it costs a tenth of a call
            retries={"total_max_attempts": 1, "mode": "standard"},  # `persist` knows what may be
            tcp_keepalive=True,
        )
        try:
            session = boto3.session.Session(region_name=self.region, profile_name=self._profile)
            client = session.client("dynamodb", endpoint_url=self.endpoint_url, config=config)
            _ = urlsplit(client.meta.endpoint_url).port  # boto3 looks at it only when it signs
        except Exception as error:
            if type(error) is ValueError:
                msg = (
                    f"{self.where} is no place that can be: {safe_url(str(error))}. "
                    "An endpoint_url is like http://127.0.0.1:8000, and a region like eu-west-1."
                )
                raise InvalidURL(msg) from error
            raise translate(error, self.where) from error
        self.region = client.meta.region_name
        return client

    def close(self) -> None:
        """Close all connections."""
        client, self._client = self._client, None
        if client is not None:
            _close(client)

    def before_fork(self) -> None:
        """Let no call begin, and wait a moment for those under way: they hold locks at times."""
        with self._gate:
            self._shut = True
            self._gate.wait_for(lambda: not self._busy, timeout=REST)

    def after_fork_in_parent(self) -> None:
        with self._gate:
            self._shut = False
            self._gate.notify_all()

    @contextmanager
    def _under_way(self) -> Iterator[None]:
        with self._gate:
            self._gate.wait_for(lambda: not self._shut)
            self._busy += 1
        try:
            yield
        finally:
            with self._gate:
                self._busy -= 1
                if self._shut:
                    self._gate.notify_all()

    # -- calls -------------------------------------------------------------------------------

    def call(
        self,
        operation: str,
        make: Callable[[], Item] | Item,
        *,
        timeout: float | None = None,
    ) -> Item:
        """Ask for *operation* until there is an answer, for as long as the timeout.

        `Refused` if a condition does not hold; else our own errors. *make* gives the parameters of
        each try anew, for what must not be written twice under one name.
        """
        doubt = False

        def attempt() -> Item:
            nonlocal doubt
            try:
                return self._once(operation, make() if callable(make) else make)
            except Exception as error:
                doubt = doubt or in_doubt(error)
                raise

        try:
            patience = self.timeout if timeout is None else timeout
            return persist(attempt, timeout=patience, passing=passing)
        except Exception as error:
            check_refused(error, in_doubt=doubt)
            writing = operation.startswith(_WRITES)
            ours = translate(error, self.where, writing=writing)
            if writing and doubt and not in_doubt(error) and isinstance(ours, LimpetError):
                ours = unsure(ours)
            raise ours from error

    def _once(self, operation: str, parameters: Item) -> Item:
        with self._under_way():
            method = getattr(self.client(), operation)
            sent, since = time.monotonic(), offset()
            try:
                reply: Item = method(**parameters)
            except Exception as error:
                response: Any = getattr(error, "response", None)
                if isinstance(response, dict):
                    self._heard(response, sent, since)
                raise
            self._heard(reply, sent, since)
            return reply

    def _heard(self, reply: Item, sent: float, since: float) -> None:
        headers = reply.get("ResponseMetadata", {}).get("HTTPHeaders", {})
        self.server = headers.get("server", self.server)
        if "date" in headers:
            self.clock.heard(headers["date"], sent, time.monotonic(), since)

    def try_again(self, turn: int, deadline: float) -> None:
        """Before another turn at what others were faster at: after some, wait a little."""
        if time.monotonic() > deadline:
            msg = (
                f"Others wrote to the same journal in {self.where} again and again, for longer "
                "than the timeout, and nothing was written. Have fewer writers, or try again."
            )
            raise StoreBusy(msg)
        if turn > 2:  # noqa: PLR2004 - a refusal or two are nothing special
            time.sleep(random.uniform(0, min(0.002 * 2**turn, 0.2)))  # noqa: S311 - not a secret

    # -- one item ----------------------------------------------------------------------------

    def get(self, pk: str, sk: str) -> Item | None:
        """One item as it is now."""
        asked = {"TableName": self.name, "Key": item_key(pk, sk), "ConsistentRead": True}
        return self.call("get_item", asked).get("Item")

    def put(self, make: Callable[[], Item] | Item) -> None:
        """Write one item. With a function, each try writes another: a late one harms nothing."""
        if callable(make):
            self.call("put_item", lambda: {"TableName": self.name, "Item": make()})
        else:
            self.call("put_item", {"TableName": self.name, "Item": make})

    def update(self, change: Change, returns: str = "NONE") -> Item:
        """Change one item, if the conditions hold; the attributes that it *returns*."""
        asked = {"TableName": self.name, "ReturnValues": returns, **change.parameters()}
        said: Item = self.call("update_item", asked).get("Attributes", {})
        return said

    def delete(self, change: Change) -> None:
        """Remove one item, if the conditions hold."""
        self.call("delete_item", {"TableName": self.name, **change.check()})

    # -- many items --------------------------------------------------------------------------

    def updating(self, change: Change) -> Item:
        """*change*, as an action of `transact`."""
        return {"Update": {"TableName": self.name, **change.parameters()}}

    def checking(self, change: Change) -> Item:
        """The conditions of *change*, as an action."""
        return {"ConditionCheck": {"TableName": self.name, **change.check()}}

    def removing(self, change: Change) -> Item:
        """The removal of its item on the conditions of *change*, as an action."""
        return {"Delete": {"TableName": self.name, **change.check()}}

    def putting(self, item: Item, **condition: Any) -> Item:
        """*item*, as an action."""
        return {"Put": {"TableName": self.name, "Item": item, **condition}}

    def transact(self, *actions: Item) -> None:
        """Do all *actions* or none.

        The token makes DynamoDB itself know a repetition, for ten minutes.
        """
        token = uuid4().hex
        self.call(
            "transact_write_items", {"TransactItems": list(actions), "ClientRequestToken": token}
        )

    def write(self, requests: Iterable[Item], *, most: int = MOST_WRITES) -> bool:
        """Put or delete in batches, each until all of it is done.

        True if a try may have been carried out whose reply was lost, or may be yet.
        """
        doubt = False

        def check(reply: Item) -> Item:
            return reply.get("UnprocessedItems") or {}

        for group in in_groups(requests, most):
            doubt = self._until_done("batch_write_item", {self.name: group}, check) or doubt
        return doubt

    def get_many(self, keys: Iterable[Item], projection: Item | None = None) -> list[Item]:
        """The items that are there of *keys*, in any order."""
        found: list[Item] = []

        def check(reply: Item) -> Item:
            found.extend(reply.get("Responses", {}).get(self.name, []))
            return reply.get("UnprocessedKeys") or {}

        for group in in_groups(keys, MOST_READS):
            asked = {"Keys": group, "ConsistentRead": True, **(projection or {})}
            self._until_done("batch_get_item", {self.name: asked}, check)
        return found

    def _until_done(self, operation: str, left: Item, check: Callable[[Item], Item]) -> bool:
        """Ask for what is *left*, which *check* tells from a reply, until nothing is."""
        doubt = False

        def attempt() -> None:
            nonlocal left, doubt
            try:
                left = check(self._once(operation, {"RequestItems": left}))
            except Exception as error:
                doubt = doubt or in_doubt(error)
                raise
            if left:
                raise Unprocessed

        try:
            persist(attempt, timeout=self.timeout, passing=passing)
        except Exception as error:
            writing = operation.startswith(_WRITES)
            raise translate(error, self.where, writing=writing) from error
        return doubt

    def query(
        self,
        pk: str,
        low: str,
        high: str,
        *,
        reverse: bool = False,
        page: int | None = None,
        names: tuple[str, ...] = (),
    ) -> Iterator[Item]:
        """The items of a partition from *low* to *high*, read in pages of at most *page*."""
        asked: Item = {
            "TableName": self.name,
            "KeyConditionExpression": "#pk = :pk AND #sk BETWEEN :low AND :high",
            "ExpressionAttributeNames": {f"#{name}": name for name in ("pk", "sk", *names)},
            "ExpressionAttributeValues": {
                ":pk": {"S": pk},
                ":low": {"S": low},
                ":high": {"S": high},
            },
            "ConsistentRead": True,
            "ScanIndexForward": not reverse,
        }
        if names:
            asked["ProjectionExpression"] = ", ".join(f"#{name}" for name in names)
        if page is not None:
            asked["Limit"] = page
        while low <= high:
            reply = self.call("query", asked)
            yield from reply["Items"]
            if "LastEvaluatedKey" not in reply:
                return
            asked["ExclusiveStartKey"] = reply["LastEvaluatedKey"]


def _close(client: Any) -> None:
    """Close a client's connections now.

    Boto3 drops them, and the garbage collector closes them: after the last error that came over
    one of them is forgotten.
    """
    with suppress(AttributeError):  # these parts are its own, and may come to be named otherwise
        session = client._endpoint.http_session  # noqa: SLF001
        for manager in (session._manager, *session._proxy_managers.values()):  # noqa: SLF001
            manager.pools.dispose_func = lambda pool: pool.close()
    client.close()
