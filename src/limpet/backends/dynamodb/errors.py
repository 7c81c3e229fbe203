"""DynamoDB's errors: which pass by themselves, which leave one in doubt, what the others mean."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

try:
    from botocore import exceptions as boto
    from botocore.parsers import ResponseParserError
except ImportError as error:
    from limpet.errors import MissingExtra

    raise MissingExtra.of("DynamoDB", "boto3", "dynamodb") from error

from limpet.backends.url import safe_url
from limpet.errors import (
    InvalidURL,
    LimpetError,
    StoreError,
    StoreNotFound,
    StoreReadOnly,
    StoreUnavailable,
    TooLarge,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from limpet.backends.dynamodb.layout import Item

__all__ = ["DynamoErrors", "Refused", "Unprocessed", "error_code", "refusal"]

#: It did nothing, because it has too much to do.
_THROTTLED = {
    "ProvisionedThroughputExceededException",
    "ThrottlingException",
    "ThrottledException",
    "Throttling",
    "RequestLimitExceeded",
    "RequestThrottledException",
    "TooManyRequestsException",
    "SlowDown",
    "ReplicatedWriteConflictException",
    "TransactionConflictException",
    "TransactionInProgressException",
    "LimitExceededException",
}

#: Something broke there. What was asked for may have been done.
_BROKEN = {"InternalServerError", "InternalFailure", "ServiceUnavailable", "RequestTimeout"}

#: Why a transaction was cancelled, where another try may fare better.
_PASSING_REASONS = {
    "None",
    "TransactionConflict",
    "ThrottlingError",
    "ProvisionedThroughputExceeded",
    "RequestLimitExceeded",
    "InternalServerError",
}

#: The connection was not made, or broke, or brought nothing that can be read.
_CONNECTION = (
    boto.ConnectionError,
    boto.HTTPClientError,
    boto.ChecksumError,
    boto.IncompleteReadError,
    ResponseParserError,
    OSError,
)

_SERVER_FAULT = 500


class Refused(Exception):
    """A condition did not hold. *item* is what was there, None if nothing was.

    *unanswered*: an earlier try may have been carried out, its answer lost. *place*: which of a
    transaction's actions it was.
    """

    def __init__(self, item: Item | None, *, unanswered: bool, place: int = 0) -> None:
        super().__init__("the condition did not hold")
        self.item = item
        self.unanswered = unanswered
        self.place = place


class Unprocessed(Exception):
    """A part of a batch was left undone: there is too much to do."""

    def __init__(self) -> None:
        super().__init__("a part of a batch was left undone")


def refusal(error: Exception, *, unanswered: bool) -> Refused | None:
    """*error* as `Refused`, if it says that a condition did not hold."""
    response: Any = getattr(error, "response", None) or {}
    if error_code(error) == "ConditionalCheckFailedException":
        return Refused(response.get("Item"), unanswered=unanswered)
    for place, reason in enumerate(_reasons(error)):
        if reason.get("Code") == "ConditionalCheckFailed":
            return Refused(reason.get("Item"), unanswered=unanswered, place=place)
    return None


def error_code(error: BaseException | None) -> str:
    """DynamoDB's own name for what went wrong, or ""."""
    if not isinstance(error, boto.ClientError):
        return ""
    return str(error.response.get("Error", {}).get("Code", ""))


class DynamoErrors:
    """What boto3's errors mean, for `repeat`. *where* says which table it is, and in what place."""

    def __init__(self, where: Callable[[], str]) -> None:
        self._where = where

    def passes(self, error: Exception) -> bool:
        if isinstance(error, (Unprocessed, *_CONNECTION)):
            return True
        code = error_code(error)
        if code == "TransactionCanceledException":
            return all(reason.get("Code", "None") in _PASSING_REASONS for reason in _reasons(error))
        return code in _THROTTLED or code in _BROKEN or _status(error) >= _SERVER_FAULT

    def unanswered(self, error: Exception) -> bool:
        if isinstance(error, (boto.EndpointConnectionError, boto.ConnectTimeoutError)):
            return False  # it was never sent
        if isinstance(error, _CONNECTION):
            return True
        return error_code(error) in _BROKEN or _status(error) >= _SERVER_FAULT

    def translated(self, error: Exception, *, writes: bool) -> LimpetError | None:
        where, code, message = self._where(), error_code(error), _message(error)
        for kinds, make, text in _BY_CLASS:
            if isinstance(error, kinds):
                return make(text.format(where=where, error=safe_url(str(error))))
        if code in _BY_CODE:
            make, text = _BY_CODE[code]
            if writes and code == "AccessDeniedException":
                make = StoreReadOnly
            return make(text.format(where=where, error=message))
        if self.passes(error):
            return StoreUnavailable(
                f"{where} has more to do than it can take, for longer than the timeout: {message} "
                "Use on-demand capacity or provision more, or open the store with a larger "
                "timeout=."
            )
        reasons = (str(reason.get("Message")) for reason in _reasons(error))
        if any("Item size" in text for text in (message, *reasons)):
            return TooLarge(
                f"Labels, status and meta of one journal are more than DynamoDB takes in {where}, "
                "and nothing was written: they share an item of at most 400 KB. Have fewer labels, "
                "and put what is long into records."
            )
        if isinstance(error, (boto.ClientError, boto.BotoCoreError)):
            return StoreError(f"DynamoDB refused a request to {where}: {message}")
        return None


def _reasons(error: Any) -> list[Item]:
    """Why a transaction was cancelled, for each of its actions."""
    if error_code(error) != "TransactionCanceledException":
        return []
    return list(error.response.get("CancellationReasons", []))


def _status(error: Exception) -> int:
    response: Any = getattr(error, "response", None) or {}
    return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _message(error: Exception) -> str:
    """DynamoDB's own message, as a sentence."""
    response: Any = getattr(error, "response", None) or {}
    text = response.get("Error", {}).get("Message") or response.get("message") or str(error)
    code = error_code(error)
    return (f"{code}: {text}" if code else f"{text}").rstrip(". ") + "."


_BY_CLASS: list[tuple[tuple[type[Exception], ...], type[LimpetError], str]] = [
    (
        (boto.NoCredentialsError, boto.PartialCredentialsError, boto.CredentialRetrievalError),
        StoreError,
        (
            "No AWS credentials were found for {where} ({error}). Set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, or name a profile (profile=…), or run where a role gives them."
        ),
    ),
    (
        (boto.NoRegionError,),
        InvalidURL,
        (
            "No AWS region is known for {where}. Say it in the URL (region=eu-west-1), or set "
            "AWS_REGION."
        ),
    ),
    (
        (boto.ProfileNotFound,),
        InvalidURL,
        "{where} cannot be reached: {error}. Check profile= and ~/.aws/config.",
    ),
    (
        (boto.InvalidRegionError, boto.UnknownEndpointError),
        InvalidURL,
        "{where} cannot be reached: {error} Check region=.",
    ),
    (
        (boto.SSLError,),
        StoreUnavailable,
        "The connection to {where} is not to be trusted: {error}. Check endpoint_url=.",
    ),
    (
        (boto.EndpointConnectionError, boto.ConnectTimeoutError),
        StoreUnavailable,
        (
            "{where} cannot be reached: {error}. Check endpoint_url=, region= and the network; "
            "this try has written nothing."
        ),
    ),
    (
        _CONNECTION,
        StoreUnavailable,
        (
            "The connection to {where} broke, and did not come back within the timeout: {error}. "
            "A write that was under way may or may not be there; repeat it with the same id."
        ),
    ),
]

_DENIED = (
    "AWS does not let this identity do that with {where}: {error} docs/dynamodb.md lists the "
    "permissions that a store needs."
)
_NO_TABLE = (
    "There is no table {where}. Check name, region and account; to have it created, add "
    "create_table=true to the URL."
)
_CREDENTIALS = (
    "AWS does not know the credentials that {where} was asked with: {error} Check the access key, "
    "the profile and the region; a session may have ended."
)
_SIGNATURE = (
    "AWS refused the signature of a request to {where}: {error} Check the secret key, and the "
    "clock of this machine, which must be right to five minutes."
)

_BY_CODE: dict[str, tuple[type[StoreError], str]] = {
    "AccessDeniedException": (StoreError, _DENIED),
    "ResourceNotFoundException": (StoreNotFound, _NO_TABLE),
    "UnrecognizedClientException": (StoreError, _CREDENTIALS),
    "InvalidClientTokenId": (StoreError, _CREDENTIALS),
    "MissingAuthenticationTokenException": (StoreError, _CREDENTIALS),
    "MissingAuthenticationToken": (StoreError, _CREDENTIALS),
    "ExpiredTokenException": (StoreError, _CREDENTIALS),
    "ExpiredToken": (StoreError, _CREDENTIALS),
    "InvalidSignatureException": (StoreError, _SIGNATURE),
    "IncompleteSignatureException": (StoreError, _SIGNATURE),
    "RequestExpired": (StoreError, _SIGNATURE),
}
