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
    StoreError,
    StoreNotFound,
    StoreReadOnly,
    StoreUnavailable,
    TooLarge,
)

if TYPE_CHECKING:
    from limpet.backends.dynamodb.layout import Item

__all__ = [
    "Refused",
    "Stale",
    "Unprocessed",
    "check_refused",
    "code_of",
    "in_doubt",
    "passing",
    "translate",
]

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

#: Why a transaction was called off, where another try may fare better.
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

    *in_doubt*: an earlier try may have been carried out, its reply lost. *place*: which of a
    transaction's actions it was.
    """

    def __init__(self, item: Item | None, *, in_doubt: bool = False, place: int = 0) -> None:
        super().__init__("the condition did not hold")
        self.item = item
        self.in_doubt = in_doubt
        self.place = place


class Stale(Exception):
    """What is known of a head is not enough, or not so any more: read it."""


class Unprocessed(Exception):
    """A part of a batch was left undone: there is too much to do."""


def code_of(error: Exception) -> str:
    """DynamoDB's own name for what went wrong, or ""."""
    if not isinstance(error, boto.ClientError):
        return ""
    return str(error.response.get("Error", {}).get("Code", ""))


def passing(error: Exception) -> bool:
    """Whether it is worth trying again."""
    if isinstance(error, (Unprocessed, *_CONNECTION)):
        return True
    code = code_of(error)
    if code == "TransactionCanceledException":
        return all(reason.get("Code", "None") in _PASSING_REASONS for reason in _reasons(error))
    return code in _THROTTLED or code in _BROKEN or _status(error) >= _SERVER_FAULT


def in_doubt(error: Exception) -> bool:
    """Whether what was asked for may have been done nevertheless."""
    if isinstance(error, (boto.EndpointConnectionError, boto.ConnectTimeoutError)):
        return False  # it was never sent
    if isinstance(error, _CONNECTION):
        return True
    return code_of(error) in _BROKEN or _status(error) >= _SERVER_FAULT


def check_refused(error: Exception, *, in_doubt: bool) -> None:
    """Raise *error* as `Refused`, if it says that a condition did not hold."""
    code = code_of(error)
    response: Any = getattr(error, "response", {})
    if code == "ConditionalCheckFailedException":
        raise Refused(response.get("Item"), in_doubt=in_doubt) from error
    if code == "TransactionCanceledException":
        for place, reason in enumerate(_reasons(error)):
            if reason.get("Code") == "ConditionalCheckFailed":
                raise Refused(reason.get("Item"), in_doubt=in_doubt, place=place) from error


def _reasons(error: Any) -> list[Item]:
    return list(error.response.get("CancellationReasons", []))


def _status(error: Exception) -> int:
    response: Any = getattr(error, "response", None) or {}
    return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


# -- what to tell ------------------------------------------------------------------------------


def translate(error: Exception, where: str, *, writing: bool = False) -> Exception:
    """*error* as one of ours, with what to do about it. *where*: the table, and how it is named."""
    for kinds, make, text in _MEANINGS:
        if isinstance(error, kinds):
            return make(text.format(where=where, error=safe_url(str(error))))
    code = code_of(error)
    if code == "AccessDeniedException":
        return _denied(error, where, writing=writing)
    if code in _CODES:
        make, text = _CODES[code]
        return make(text.format(where=where, error=_said(error)))
    if passing(error):
        return StoreUnavailable(
            f"{where} has more to do than it can take, for longer than the timeout: {_said(error)} "
            "Use on-demand capacity or provision more, or open the store with a larger timeout=."
        )
    if isinstance(error, (boto.ClientError, boto.BotoCoreError)):
        return _refused(error, where)
    return error


def _refused(error: Exception, where: str) -> Exception:
    if "Expression size" in _said(error):
        return TooLarge(
            f"One append cannot change so many labels in {where}, and nothing was written: "
            "DynamoDB takes about a hundred. Change some first, and the others after them."
        )
    return StoreError(f"DynamoDB refused a request to {where}: {_said(error)}")


def _denied(error: Exception, where: str, *, writing: bool) -> StoreError:
    kind = StoreReadOnly if writing else StoreError
    return kind(
        f"AWS does not let this identity do that with {where}: {_said(error)} "
        "docs/dynamodb.md lists the permissions that a store needs."
    )


def _said(error: Exception) -> str:
    """What DynamoDB said, as a sentence."""
    response: Any = getattr(error, "response", {})
    said = response.get("Error", {}).get("Message") or response.get("message") or str(error)
    code = code_of(error)
    return f"{code}: {said}".rstrip(". ") + "." if code else f"{said}".rstrip(". ") + "."


_NO_CREDENTIALS = (
    "No AWS credentials were found for {where} ({error}). Set AWS_ACCESS_KEY_ID and "
    "AWS_SECRET_ACCESS_KEY, or name a profile (profile=…), or run where a role gives them."
)

_MEANINGS: list[tuple[tuple[type[Exception], ...], type[Exception], str]] = [
    (
        (boto.NoCredentialsError, boto.PartialCredentialsError, boto.CredentialRetrievalError),
        StoreError,
        _NO_CREDENTIALS,
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
            "nothing was written."
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

_NO_TABLE = (
    "There is no table {where}. Check name, region and account; to have it created, add "
    "create_table=true to the URL."
)
_WHO = (
    "AWS does not know the credentials that {where} was asked with: {error} Check the access key, "
    "the profile and the region; a session may have ended."
)
_CLOCK = (
    "AWS refused the signature of a request to {where}: {error} Check the secret key, and the "
    "clock of this machine, which must be right to five minutes."
)

_CODES: dict[str, tuple[type[StoreError], str]] = {
    "ResourceNotFoundException": (StoreNotFound, _NO_TABLE),
    "UnrecognizedClientException": (StoreError, _WHO),
    "InvalidClientTokenId": (StoreError, _WHO),
    "MissingAuthenticationTokenException": (StoreError, _WHO),
    "MissingAuthenticationToken": (StoreError, _WHO),
    "ExpiredTokenException": (StoreError, _WHO),
    "ExpiredToken": (StoreError, _WHO),
    "InvalidSignatureException": (StoreError, _CLOCK),
    "IncompleteSignatureException": (StoreError, _CLOCK),
    "RequestExpired": (StoreError, _CLOCK),
}
