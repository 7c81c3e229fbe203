"""DynamoDB when it is busy, forgetful, closed to us or not what it should be."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import boto3
import pytest

import limpet
from limpet.backends.contract import Appended
from limpet.backends.dynamodb.backend import DynamoBackend
from limpet.backends.dynamodb.layout import partition
from tests.support import tables
from tests.support.processes import free_port
from tests.support.tables import HELLO, KEY, append, bodies, change, fill

if TYPE_CHECKING:
    from tests.support.servers import Server
    from tests.support.tables import Front

url, store, front, behind = tables.url, tables.store, tables.front, tables.behind


# -- a server that answers badly -------------------------------------------------------------------


PASSING = [
    *("ProvisionedThroughputExceededException", "ThrottlingException", "RequestLimitExceeded"),
    *("InternalServerError", "ServiceUnavailable", "TransactionConflictException"),
    "TransactionInProgressException",
]


@pytest.mark.parametrize("code", PASSING)
def test_what_passes_by_itself_is_waited_for(
    behind: DynamoBackend, front: Front, code: str
) -> None:
    """Throttling, hiccups, somebody else's transaction: whatever is asked for."""
    for operation in ("GetItem", "PutItem", "TransactWriteItems", "UpdateItem", "UpdateItem"):
        front.fault(operation, code, times=2)
    append(behind)
    append(behind)
    lease = behind.acquire(KEY, "me", 60)
    front.fault("*", code, times=2)
    append(behind, epoch=lease.epoch)
    for look in (
        lambda: behind.read(KEY),
        lambda: behind.scan("acme", "note"),
        behind.kinds,
        lambda: behind.compact(KEY, 2),
        lambda: behind.renew(KEY, lease, 60),
    ):
        front.fault("*", code, times=2)
        look()
    assert not front.faults
    assert [record.seq for record in behind.read(KEY)] == [2, 3]
    front.fault("*", code, times=3)
    assert behind.delete(KEY) is True


def test_a_transaction_that_met_another_is_tried_again(behind: DynamoBackend, front: Front) -> None:
    """Not if a condition failed as well."""
    reasons = [{"Code": "TransactionConflict", "Message": "x"}, {"Code": "None"}]
    canceled = {
        "__type": "com.amazonaws.dynamodb.v20120810#TransactionCanceledException",
        "Message": "Transaction cancelled",
        "CancellationReasons": reasons,
    }
    front.fault("TransactWriteItems", canceled, times=2)
    assert append(behind).seq == 1
    assert front.asked.count("TransactWriteItems") == 3


def test_what_a_batch_left_undone_is_done(behind: DynamoBackend, front: Front) -> None:
    """DynamoDB takes what it can of a batch, and says what it did not."""
    append(behind)
    body = os.urandom(1_000_000)
    table = behind._table.name

    def undone() -> None:
        """The reply is lost; the next try writes the same again."""

    front.fault("BatchWriteItem", undone)
    append(behind, body)
    key = {"pk": {"S": partition(KEY)}, "sk": {"S": "nothing"}}
    front.fault("BatchGetItem", {"Responses": {}, "UnprocessedKeys": {table: {"Keys": [key]}}})
    found = behind._table.get_many([key])
    assert found == []
    assert bodies(behind.read(KEY)) == [b"x", body]


def test_throttling_without_end_is_reported(behind: DynamoBackend, front: Front) -> None:
    """With what to do about it."""
    append(behind)
    behind._table.timeout = 0.2
    front.fault("*", "ProvisionedThroughputExceededException", times=1_000)
    with pytest.raises(limpet.StoreUnavailable, match=r"more to do.*on-demand") as caught:
        append(behind)
    assert type(caught.value.__cause__).__name__ == "ProvisionedThroughputExceededException"


def test_a_reply_that_was_lost_is_asked_for_again(behind: DynamoBackend, front: Front) -> None:
    """What it was about was done once."""

    def lost(operation: str) -> None:
        front.fault(operation, lambda: None)

    lost("TransactWriteItems")
    done, head = append(behind), behind.head(KEY)
    assert head is not None
    assert done == Appended(1, head.updated, head.incarnation)
    lost("UpdateItem")
    assert append(behind).seq == 2
    lost("UpdateItem")
    assert append(behind, id="a").seq == 3
    lost("UpdateItem")
    assert change(behind, status="open", labels={"a": "b"}).seq == 3
    lost("UpdateItem")
    lease = behind.acquire(KEY, "me", 60)
    assert behind.head(KEY).lease == lease  # type: ignore[union-attr]
    lost("UpdateItem")
    assert behind.renew(KEY, lease, 60).epoch == lease.epoch
    lost("PutItem")
    assert append(behind, b"x" * 5_000).seq == 4
    lost("UpdateItem")
    assert behind.compact(KEY, 3) == 2
    lost("TransactWriteItems")
    assert behind.acquire(KEY._replace(id="two"), "me", 60).holder == "me"
    lost("TransactWriteItems")
    assert behind.delete(KEY) is True
    assert not front.faults


def test_an_append_whose_reply_was_lost_is_found_in_a_chunk(
    behind: DynamoBackend, front: Front, store: DynamoBackend
) -> None:
    """Others have written so much meanwhile that it is not in the tail any more."""
    append(behind)
    front.fault("UpdateItem", lambda: fill(store, 40))
    assert append(behind, b"mine").seq == 2
    assert bodies(store.read(KEY)).count(b"mine") == 1
    front.fault("UpdateItem", lambda: fill(store, 40))
    done = append(behind, b"also mine", id="a")
    assert done == Appended(43, store.read(KEY)[42].at, done.incarnation, repeated=True)
    assert bodies(store.read(KEY)).count(b"also mine") == 1


# -- what can be wrong with a table ----------------------------------------------------------------


def test_a_missing_table_is_named_and_how_to_create_it(url: str) -> None:
    """Nothing is created unasked: a table costs money."""
    bare = url.replace("&create_table=true", "")
    with pytest.raises(limpet.errors.StoreNotFound, match=r"no table place-.*create_table=true"):
        limpet.open(bare)
    with pytest.raises(limpet.errors.StoreNotFound):
        limpet.open(url, create=False)
    with pytest.raises(limpet.errors.StoreNotFound):
        limpet.open(url, readonly=True)
    limpet.open(url).close()
    limpet.open(bare).close()


def test_a_new_table_is_billed_by_request_and_removes_what_expired(store: DynamoBackend) -> None:
    """What create_table makes; and what the doctor says of it."""
    facts = {fact.name: fact for fact in store.facts()}
    assert facts["engine"].value.startswith("DynamoDB Local")
    assert not facts["durability"].ok
    assert facts["capacity"].value == "on demand"
    assert "remove_after" in facts["removal"].value
    assert facts["backups"].value.startswith("unknown")


@pytest.fixture
def client(dynamodb_server: Server) -> Any:
    """Boto3's, for tables that are not ours."""
    endpoint = f"http://127.0.0.1:{dynamodb_server.port}"
    client = boto3.client("dynamodb", endpoint_url=endpoint, region_name="us-east-1")
    yield client
    client.close()


def make_table(client: Any, name: str, *keys: str) -> None:
    """A table with such a key."""
    kinds = ("HASH", "RANGE")
    client.create_table(
        TableName=name,
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[{"AttributeName": key, "AttributeType": "S"} for key in keys],
        KeySchema=[
            {"AttributeName": key, "KeyType": kind} for key, kind in zip(keys, kinds, strict=False)
        ],
    )


def table_of(url: str) -> str:
    """The table's name."""
    return url.removeprefix("dynamodb://").partition("?")[0]


@pytest.mark.parametrize("keys", [("id",), ("pk",), ("id", "at")])
def test_a_table_with_other_keys_is_not_a_store(client: Any, url: str, keys: tuple[str]) -> None:
    """It is left as it is."""
    make_table(client, table_of(url), *keys)
    with pytest.raises(limpet.errors.NotAStore, match=r"not a Limpet store.*pk and sk"):
        limpet.open(url)


def test_a_table_with_others_items_is_not_a_store(client: Any, url: str) -> None:
    """Although its key is as ours."""
    make_table(client, table_of(url), "pk", "sk")
    client.put_item(TableName=table_of(url), Item={"pk": {"S": "a"}, "sk": {"S": "b"}})
    with pytest.raises(limpet.errors.NotAStore, match=r"not Limpet's.*table of its own"):
        limpet.open(url)


def test_an_empty_table_becomes_a_store(client: Any, url: str) -> None:
    """One that was made by other means; and its items stay when they are swept by hand."""
    make_table(client, table_of(url), "pk", "sk")
    with pytest.raises(limpet.errors.StoreNotFound, match="create=True"):
        limpet.open(url, create=False)
    with limpet.open(url) as store:
        store.conversation("alice").append(HELLO)
        facts = {fact.name: fact for fact in store.backend.facts()}
    assert not facts["removal"].ok
    assert "remove_after" in facts["removal"].advice
    limpet.open(url, create=False).close()


def test_a_store_of_a_newer_release_is_refused(store: DynamoBackend, url: str) -> None:
    """The message says which format, and what to do."""
    item = {"pk": {"S": "limpet"}, "sk": {"S": "format"}, "version": {"N": "99"}}
    store._table.put(item)
    with pytest.raises(limpet.errors.SchemaTooNew, match=r"format 99.*reads up to 1(?s:.*)Upgrade"):
        limpet.open(url)


def test_a_store_opened_for_reading_refuses_writes(store: DynamoBackend, url: str) -> None:
    """With readonly=True, whatever the write."""
    append(store)
    reader = DynamoBackend.from_url(url, readonly=True)
    lease = store.acquire(KEY, "me", 60)
    for write in (
        lambda: append(reader),
        lambda: reader.delete(KEY),
        lambda: reader.compact(KEY, 1),
        reader.sweep,
        lambda: reader.acquire(KEY, "you", 60),
        lambda: reader.renew(KEY, lease, 60),
        lambda: reader.release(KEY, lease),
    ):
        with pytest.raises(limpet.errors.StoreReadOnly, match="read-only"):
            write()
    assert len(reader.read(KEY)) == 1
    reader.close()


def python(code: str, *args: str) -> subprocess.Popen[str]:
    """A child that runs *code*."""
    command = [sys.executable, "-c", textwrap.dedent(code), *args]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_processes_that_start_at_once_create_one_store(url: str) -> None:
    """One creates the table, the others wait for it."""
    code = """
        import sys, limpet
        with limpet.open(sys.argv[1]) as store:
            store.conversation("all").append({"role": "user", "content": sys.argv[2]})
    """
    for child in [python(code, url, str(number)) for number in range(4)]:
        assert child.wait(60) == 0
        child.communicate()
    with limpet.open(url) as store:
        said = [message["content"] for message in store.conversation("all").messages()]
    assert sorted(said) == [str(number) for number in range(4)]


@pytest.mark.parametrize("missing", ["boto3", "botocore"])
def test_a_driver_that_is_not_installed_is_named(missing: str) -> None:
    """With the command that installs it."""
    code = f"""
        import sys, limpet
        sys.modules["{missing}"] = None
        try:
            limpet.open("dynamodb://agents?region=eu-west-1")
        except limpet.errors.MissingExtra as error:
            print(error)
    """
    out, _ = python(code).communicate(timeout=60)
    assert "pip install '.[dynamodb]'" in out


# -- messages --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("AccessDeniedException", r"does not let.*permissions"),
        ("UnrecognizedClientException", r"does not know the credentials"),
        ("ExpiredTokenException", r"credentials.*session may have ended"),
        ("InvalidSignatureException", r"signature.*secret key.*clock"),
        ("SomethingElseException", r"refused.*SomethingElse"),
    ],
)
def test_what_aws_refuses_is_told_clearly(
    dynamodb_server: Server, url: str, front: Front, code: str, says: str
) -> None:
    """When opening; with what it said, and what to look at. It is not tried again."""
    front.fault("GetItem", code)
    with pytest.raises(limpet.StoreError, match=says) as caught:
        limpet.open(dynamodb_server.through(url, front.server_port))
    assert code in str(caught.value)
    assert front.asked == ["GetItem"]


def test_an_identity_that_may_not_write_has_a_read_only_store(
    behind: DynamoBackend, front: Front
) -> None:
    """It says so at the first write."""
    append(behind)
    front.fault("UpdateItem", "AccessDeniedException")
    with pytest.raises(limpet.errors.StoreReadOnly, match="does not let this identity"):
        append(behind)
    assert len(behind.read(KEY)) == 1


def test_one_append_changes_hundreds_of_labels(store: DynamoBackend) -> None:
    """The first one and a later one, also when the tail is moved."""
    many = {f"label{number}": "x" for number in range(300)}
    append(store, labels=many)
    for number in range(40):
        append(store, labels={name: str(number) for name in many})
    head = store.head(KEY)
    assert head is not None
    assert (head.seq, head.labels) == (41, dict.fromkeys(many, "39"))


def test_labels_that_no_item_can_hold_are_told(store: DynamoBackend) -> None:
    """And what to do about it; nothing was written."""
    many = {f"label{number}": "x" * 250 for number in range(1_700)}
    for seq in (0, 1):
        with pytest.raises(limpet.TooLarge, match=r"nothing was written.*400 KB.*fewer labels"):
            append(store, labels=many)
        assert append(store).seq == seq + 1
    assert store.head(KEY).labels == {}  # type: ignore[union-attr]


def test_facts_that_may_not_be_asked_for_are_unknown(behind: DynamoBackend, front: Front) -> None:
    """A worker's role need not be allowed to describe the table."""
    for operation in ("DescribeTable", "DescribeTimeToLive", "DescribeContinuousBackups"):
        front.fault(operation, "AccessDeniedException")
    facts = {fact.name: fact for fact in behind.facts()}
    for name in ("capacity", "removal", "backups"):
        assert facts[name].value.startswith("unknown")
        assert facts[name].ok


@pytest.fixture
def nothing(aws_environment: None, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An environment in which nothing is said about AWS."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return monkeypatch


def test_missing_credentials_are_told(nothing: pytest.MonkeyPatch) -> None:
    """And where they can come from."""
    with pytest.raises(limpet.StoreError, match=r"No AWS credentials.*AWS_ACCESS_KEY_ID"):
        limpet.open("dynamodb://agents?region=eu-west-1")


def test_a_missing_region_is_told(nothing: pytest.MonkeyPatch) -> None:
    """And how to give it."""
    with pytest.raises(limpet.errors.InvalidURL, match=r"No AWS region.*region=eu-west-1"):
        limpet.open("dynamodb://agents")


@pytest.mark.slow
def test_the_region_of_the_environment_is_used(nothing: pytest.MonkeyPatch) -> None:
    """As the error advises, and as other programs for AWS read it; boto3 alone does not."""
    nothing.setenv("AWS_DEFAULT_REGION", "eu-west-2")
    nothing.setenv("AWS_REGION", "")  # as a shell leaves it that has nothing to put there
    with pytest.raises(limpet.StoreError, match=r"No AWS credentials.*a \(eu-west-2\)"):
        limpet.open("dynamodb://a")
    nothing.setenv("AWS_REGION", "eu-west-1")
    for url, region in (
        ("dynamodb://a", "eu-west-1"),
        ("dynamodb://a?region=eu-west-3", "eu-west-3"),
    ):
        with pytest.raises(limpet.StoreError, match=rf"No AWS credentials.*a \({region}\)"):
            limpet.open(url)


def test_a_missing_profile_is_told(aws_environment: None) -> None:
    """By its name."""
    with pytest.raises(limpet.errors.InvalidURL, match=r"profile.*nobody"):
        limpet.open("dynamodb://agents?region=eu-west-1&profile=nobody")


def test_a_server_that_is_not_there_is_told(aws_environment: None) -> None:
    """With the address that was tried."""
    place = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(limpet.StoreUnavailable, match=r"cannot be reached.*endpoint_url") as told:
        limpet.open(f"dynamodb://agents?region=eu-west-1&endpoint_url={place}&timeout=0.1")
    assert place in str(told.value)


@pytest.mark.parametrize("place", ["http://ann:s3cret@127.0.0.1:1", "http://ann:s3cret@[h"])
def test_a_password_is_never_shown(aws_environment: None, place: str) -> None:
    """Not even one that nobody asks for."""
    with pytest.raises(limpet.LimpetError, match=r"ann:\*\*\*@") as told:
        limpet.open(f"dynamodb://agents?region=eu-west-1&endpoint_url={place}&timeout=0.1")
    assert "s3cret" not in str(told.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("dynamodb://", "names no table"),
        ("dynamodb://agents?regoin=eu-west-1", "parameter 'regoin'"),
        ("dynamodb://agents?create_table=perhaps", "true or false"),
        ("dynamodb://agents?region=eu-west-1&endpoint_url=nowhere", "endpoint_url is like"),
        ("dynamodb://agents?region=eu-west-1&endpoint_url=http://h:116045", "Port out of range"),
        ("dynamodb://agents?region=eu-west-1&endpoint_url=http://[h", "endpoint_url is like"),
        ("dynamodb://agents?region=", "a region like eu-west-1"),
        (f"dynamodb://agents?region={quote('eu west/1')}", "region="),
    ],
)
def test_a_url_that_says_nothing_is_refused(aws_environment: None, url: str, says: str) -> None:
    """Before anything is asked."""
    with pytest.raises(limpet.errors.InvalidURL, match=says):
        limpet.open(url)
