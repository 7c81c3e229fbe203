"""Calls to one table: by a client of this process's own, tried again where that may help."""

from __future__ import annotations

import os
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from uuid import uuid4

from limpet.backends.dynamodb.clock import ServerClock, offset
from limpet.backends.dynamodb.errors import DynamoErrors, Unprocessed, refusal
from limpet.backends.dynamodb.layout import Item, in_groups, item_key
from limpet.backends.retry import repeat
from limpet.backends.url import safe_url
from limpet.errors import InvalidURL, MissingExtra

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["MOST_READS", "Action", "Table"]

#: Connections that stay open; more are opened under load and closed after it.
CONNECTIONS = 64

#: Items to a request, as DynamoDB has it.
MOST_WRITES, MOST_READS = 25, 100

#: Seconds that a fork waits for calls that are under way.
FORK_WAITS = 1.0

#: A part of a transaction: Update, Put, Delete or ConditionCheck, and its parameters.
Action = tuple[str, Item]

_WRITES = ("update_", "put_", "delete_", "transact_write", "batch_write", "create_")


class Table:
    """One DynamoDB table, and the calls that are made to it."""

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
        # Boto3 looks at AWS_DEFAULT_REGION only; the other SDKs of AWS at this one, and first.
        # One that is set and empty is none.
        self.region = (os.environ.get("AWS_REGION") or None) if region is None else region
        self.endpoint_url = endpoint_url
        self.timeout = timeout
        self.server = ""  # what it calls itself
        self._profile = profile
        self._errors = DynamoErrors(lambda: self.where)
        self.begin()

    def begin(self) -> None:
        """Have no connection yet: at first, and in a forked child."""
        self.clock = ServerClock(lambda: self.get("limpet", "format"))
        self._client: Any = None
        self._connecting = threading.Lock()
        # Held by `with self._lock`, which Python lets go whatever strikes; a condition has methods
        # for that, and an interrupt might come before they have begun.
        self._lock = threading.Lock()
        self._gate = threading.Condition(self._lock)
        self._forking = False
        self._calls = 0  # that are under way

    @property
    def where(self) -> str:
        """The table, as errors name it."""
        place = safe_url(self.endpoint_url or self.region or "")
        return f"{self.name} ({place})" if place else self.name

    # -- the client --------------------------------------------------------------------------

    def _connect(self) -> Any:
        """Make boto3's client; it may be used by many threads."""
        try:
            import boto3  # noqa: PLC0415 - slow to import
            from botocore.config import Config  # noqa: PLC0415 - as above
        except ImportError as error:
            raise MissingExtra.of("DynamoDB", "boto3", "dynamodb") from error
        # An answer that does not come must leave time to ask again.
        patience = min(max(self.timeout / 3, 0.5), 10.0)
        config = Config(
            connect_timeout=min(patience, 5.0),
            read_timeout=patience,
            max_pool_connections=CONNECTIONS,
            parameter_validation=False,  # ours are right, and it costs a tenth of a call
            retries={"total_max_attempts": 1, "mode": "standard"},  # `repeat` does that
            tcp_keepalive=True,
        )
        try:
            session = boto3.session.Session(region_name=self.region, profile_name=self._profile)
            client = session.client("dynamodb", endpoint_url=self.endpoint_url, config=config)
            _ = urlsplit(client.meta.endpoint_url).port  # boto3 looks at it only when it signs
        except ValueError as error:
            if type(error) is not ValueError:
                raise  # one of boto3's own, which says more
            msg = (
                f"{self.where} is not an address that can be: {safe_url(str(error))}. "
                "An endpoint_url is like http://127.0.0.1:8000, and a region like eu-west-1."
            )
            raise InvalidURL(msg) from error
        self.region = client.meta.region_name
        return client

    def close(self) -> None:
        """Close all connections now.

        Boto3 drops them, and the garbage collector closes them: after the last error that came over
        one of them is forgotten.
        """
        client, self._client = self._client, None
        if client is None:
            return
        with suppress(
            AttributeError
        ):  # these parts are its own, and may come to be named otherwise
            session = client._endpoint.http_session  # noqa: SLF001 - there is no other way to them
            for manager in (session._manager, *session._proxy_managers.values()):  # noqa: SLF001 - as above
                manager.pools.dispose_func = lambda pool: pool.close()
        client.close()

    def before_fork(self) -> None:
        """Let no call begin, and wait a moment for those under way: they hold locks at times."""
        with self._lock:
            self._forking = True
            self._gate.wait_for(lambda: not self._calls, timeout=FORK_WAITS)

    def after_fork_in_parent(self) -> None:
        with self._lock:
            self._forking = False
            self._gate.notify_all()

    @contextmanager
    def _under_way(self) -> Iterator[None]:
        counted = 0
        try:
            with self._lock:
                if self._forking:
                    self._gate.wait_for(lambda: not self._forking)
                self._calls, counted = self._calls + 1, 1
            yield
        finally:
            with self._lock:
                self._calls -= counted
                if self._forking:
                    self._gate.notify_all()

    # -- calls -------------------------------------------------------------------------------

    def call(
        self,
        operation: str,
        parameters: Callable[[], Item] | Item,
        *,
        timeout: float | None = None,
    ) -> Item:
        """Ask for *operation* until there is an answer, for as long as the timeout.

        `Refused` if a condition does not hold; else our own errors. A function gives the
        *parameters* of each try anew, for what must not be written twice under one name.
        """

        def attempt() -> Item:
            return self.send(operation, parameters() if callable(parameters) else parameters)

        answer, _ = self._repeat(operation, attempt, timeout)
        return answer

    def _repeat(
        self, operation: str, attempt: Callable[[], Item], timeout: float | None = None
    ) -> tuple[Item, bool]:
        """The answer at last; and whether a try before may have been carried out, or may be yet."""
        unanswered = False

        def tried() -> Item:
            nonlocal unanswered
            try:
                return attempt()
            except Exception as error:
                refused = refusal(error, unanswered=unanswered)
                if refused is not None:
                    raise refused from error
                unanswered = unanswered or self._errors.unanswered(error)
                raise

        answer = repeat(
            tried,
            self._errors,
            timeout=self.timeout if timeout is None else timeout,
            writes=operation.startswith(_WRITES),
        )
        return answer, unanswered

    def send(self, operation: str, parameters: Item) -> Item:
        """One request and its answer."""
        with self._under_way():
            if self._client is None:
                with self._connecting:
                    if self._client is None:
                        self._client = self._connect()
            method = getattr(self._client, operation)
            sent, since = time.monotonic(), offset()
            answer: Any = None
            try:
                answer = method(**parameters)
            except Exception as error:
                answer = getattr(error, "response", None)
                raise
            finally:
                if isinstance(answer, dict):
                    headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
                    self.server = headers.get("server", self.server)
                    if "date" in headers:
                        self.clock.observe(headers["date"], sent, time.monotonic(), since)
            return answer  # type: ignore[no-any-return] # boto3 has no types

    # -- one item ----------------------------------------------------------------------------

    def get(self, pk: str, sk: str) -> Item | None:
        """One item as it is now."""
        parameters = {"TableName": self.name, "Key": item_key(pk, sk), "ConsistentRead": True}
        return self.call("get_item", parameters).get("Item")

    def put(self, item: Callable[[], Item] | Item) -> None:
        """Write one item. With a function, each try writes another: a late one harms nothing."""

        def parameters() -> Item:
            return {"TableName": self.name, "Item": item() if callable(item) else item}

        self.call("put_item", parameters)

    def update(self, parameters: Item) -> None:
        """Change one item, if the conditions hold."""
        self.call("update_item", {"TableName": self.name, **parameters})

    def delete(self, parameters: Item) -> None:
        """Remove one item, if the conditions hold."""
        self.call("delete_item", {"TableName": self.name, **parameters})

    # -- many items --------------------------------------------------------------------------

    def transact(self, *actions: Action) -> None:
        """Do all *actions* or none.

        The token makes DynamoDB itself know a repetition, for ten minutes.
        """
        items = [{verb: {"TableName": self.name, **parameters}} for verb, parameters in actions]
        parameters = {"TransactItems": items, "ClientRequestToken": uuid4().hex}
        self.call("transact_write_items", parameters)

    def write(self, requests: Iterable[Item], *, most: int = MOST_WRITES) -> bool:
        """Put or delete in batches, each until all of it is done.

        True if a try may have been carried out whose answer was lost, or may be yet.
        """
        unanswered = False
        for group in in_groups(requests, most):
            batch = self._batch("batch_write_item", "UnprocessedItems", group, lambda _: None)
            unanswered = batch or unanswered
        return unanswered

    def remove(self, keys: Iterable[Item]) -> None:
        """Remove items, in batches."""
        self.write({"DeleteRequest": {"Key": {"pk": key["pk"], "sk": key["sk"]}}} for key in keys)

    def get_many(self, keys: Iterable[Item], projection: Item | None = None) -> list[Item]:
        """The items that are there of *keys*, in any order."""
        found: list[Item] = []

        def take(answer: Item) -> None:
            found.extend(answer.get("Responses", {}).get(self.name, []))

        for group in in_groups(keys, MOST_READS):
            wanted = {"Keys": group, "ConsistentRead": True, **(projection or {})}
            self._batch("batch_get_item", "UnprocessedKeys", wanted, take)
        return found

    def _batch(
        self, operation: str, undone: str, wanted: Any, take: Callable[[Item], None]
    ) -> bool:
        """Ask until nothing is left *undone*; whether a try had no answer."""
        left: Item = {self.name: wanted}

        def attempt() -> Item:
            nonlocal left
            answer = self.send(operation, {"RequestItems": left})
            take(answer)
            left = answer.get(undone) or {}
            if left:
                raise Unprocessed
            return answer

        return self._repeat(operation, attempt)[1]

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
        parameters: Item = {
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
            parameters["ProjectionExpression"] = ", ".join(f"#{name}" for name in names)
        if page is not None:
            parameters["Limit"] = page
        while low <= high:
            answer = self.call("query", parameters)
            yield from answer["Items"]
            if "LastEvaluatedKey" not in answer:
                return
            parameters["ExclusiveStartKey"] = answer["LastEvaluatedKey"]
