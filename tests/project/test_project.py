"""Tests of the project itself: its layers, its lock files, its version, its weight."""

import ast
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from importlib.util import resolve_name
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import limpet
from tests.support.paths import ROOT

SOURCE = ROOT / "src" / "limpet"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
LOCKS = sorted((ROOT / "requirements").glob("*.txt"))

# The layers, top first: the folders of src/limpet. A part may import itself and what is below it.
LAYERS = (
    {"__main__"},
    # Commands see everything; nothing imports a command.
    {"cli"},
    # What people and models are shown, as pages and as tools. Neither needs the other.
    {"inspector", "mcp"},
    # What they show: pure, typed, paged by number; of frameworks' journals, too.
    {"views"},
    # What is built on the public face. None of these needs another.
    {"integrations", "testing", "transfer"},
    # The public face, limpet/__init__.py: only what stands above it may `import limpet`.
    {"limpet"},
    # Which function runs which task, and what runs it.
    {"workers"},
    # A URL in, models out: the one place that knows both models and backends.
    {"store"},
    # To forget for good: it knows all models, and how each is cut.
    {"erasure"},
    # What `redact=` takes, under the name that programs import.
    {"redaction"},
    # Models give meaning to a journal, and know nothing of each other.
    {"conversations", "memory", "states", "tasks"},
    # Between a store and its backend: it knows the contract of backends, and no backend.
    {"crypto"},
    # What every model stands on. It knows the contract of backends, and no backend.
    {"core"},
    # A backend moves bytes. What is known of language models does no I/O.
    {"backends", "llm"},
    # Everybody raises these.
    {"errors"},
)

# Parts that see the contract of backends and what goes with it, never one backend.
ONLY_THE_CONTRACT = {
    *("core", "crypto", "conversations", "memory", "states", "tasks", "erasure", "transfer"),
}
A_BACKEND = {"memory", "sqlite", "file", "postgresql", "redis", "dynamodb"}

# Absent after `import limpet`, for the time they cost or because they are optional. A module
# that apsw and msgspec load anyway costs nothing more and is not counted.
NOT_ON_IMPORT = {
    *("asyncio", "concurrent.futures", "dataclasses", "email", "importlib.metadata"),
    *("importlib.resources", "inspect", "logging", "multiprocessing", "socket", "ssl"),
    *("subprocess", "tempfile", "unittest"),
    *("click", "cryptography", "hypothesis", "pydantic", "pytest", "rich"),
    *("celery", "openai", "ray", "temporalio"),
}


def modules(package: Path) -> dict[str, Path]:
    """Every module below *package*, by its dotted name."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        found[".".join(parts).removesuffix(".__init__")] = path
    return found


def imports(name: str, known: dict[str, Path]) -> Iterator[tuple[int, str]]:
    """Line and target of every import in module *name* that stays in the package.

    Late imports and those under TYPE_CHECKING count: a layer is about knowing, not about loading.
    """
    is_package = known[name].name == "__init__.py"
    here = name if is_package else name.rpartition(".")[0]
    root = name.partition(".")[0]
    for node in ast.walk(ast.parse(known[name].read_bytes())):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), here)
            # `from limpet import errors` imports a module, `from limpet import open` does not.
            members = [f"{base}.{alias.name}" for alias in node.names]
            targets = [member if member in known else base for member in members]
        else:
            continue
        yield from ((node.lineno, t) for t in targets if t.partition(".")[0] == root)


def part(name: str) -> str:
    """The part of the table that module *name* belongs to."""
    return name.split(".")[1] if "." in name else name


def rank(name: str) -> int:
    """How high module *name* stands; the bottom layer is 0."""
    for height, layer in enumerate(reversed(LAYERS)):
        if part(name) in layer:
            return height
    pytest.fail(f"{name} has no place in LAYERS: add it to the layer where it belongs.")


def upward_imports(package: Path) -> list[str]:
    """Every import in *package* that breaks the layers, as a line to click on."""
    known = modules(package)
    return [
        f"{known[name].relative_to(package.parent)}:{line}: {part(name)} must not import {target}"
        for name in known
        for line, target in imports(name, known)
        if not allowed(name, target)
    ]


def allowed(name: str, target: str) -> bool:
    """Whether module *name* may import module *target*."""
    if part(name) in ONLY_THE_CONTRACT and part(target) == "backends":
        return not A_BACKEND.intersection(target.split("."))
    return part(name) == part(target) or rank(target) < rank(name)


def loaded_by(statement: str) -> set[str]:
    """The modules that a fresh interpreter holds after *statement*."""
    script = f"{statement}; import sys; print(*sys.modules)"
    command = [sys.executable, "-I", "-c", script]
    return set(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())


def locked(lock: Path) -> list[str]:
    """The requirements of *lock*, each with its hashes on one line, without comments."""
    text = re.sub(r"^ *#.*\n", "", lock.read_text("utf-8"), flags=re.MULTILINE)
    return text.replace("\\\n", " ").splitlines()


def test_imports_go_down_only() -> None:
    """A layer that knows the one above it cannot be understood, or replaced, on its own."""
    assert upward_imports(SOURCE) == []


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("backends/sqlite.py", "from limpet.core.journal import Journal"),
        ("backends/sqlite.py", "from ..conversations import Conversation"),
        ("backends/__init__.py", "from .. import store"),
        ("tasks/task.py", "from limpet import conversations"),
        ("tasks/task.py", "import limpet"),
        ("tasks/task.py", "def late():\n    from limpet.store import Store"),
        ("core/journal.py", "if TYPE_CHECKING:\n    from limpet.tasks.task import Task"),
        ("core/journal.py", "from limpet.backends.sqlite import SQLite"),
        ("core/journal.py", "from limpet.backends import sqlite"),
    ],
)
def test_an_import_that_goes_up_is_noticed(tmp_path: Path, file: str, source: str) -> None:
    """The rule is only as good as the eyes that watch it."""
    package = tmp_path / "limpet"
    for name in (
        "__init__",
        "store",
        "conversations/__init__",
        "core/journal",
        "tasks/task",
        "backends/sqlite",
        file,
    ):
        path = (package / name).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (package / file).write_text(source)
    assert len(upward_imports(package)) == 1


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_lock_files_name_no_index_host_or_path(lock: Path) -> None:
    """A lock that names where it was made installs nowhere else."""
    traces = r"://|file:|--index|--extra-index|--find-links|--trusted-host| @ |(^|\s)[/~]|\\\w"
    assert [line for line in lock.read_text("utf-8").splitlines() if re.search(traces, line)] == []


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_lock_files_pin_every_package_by_version_and_hash(lock: Path) -> None:
    """What was tested is what gets installed."""
    assert locked(lock)
    assert [r for r in locked(lock) if not re.match(r"[\w.-]+==\S+ .*--hash=sha256:", r)] == []


@pytest.mark.parametrize(
    ("lock", "asked"),
    [
        ("run", PYPROJECT["project"]["dependencies"]),
        ("build", PYPROJECT["build-system"]["requires"]),
        ("dev", PYPROJECT["project"]["dependencies"]),
        ("dev", PYPROJECT["project"]["optional-dependencies"]["testing"]),
        ("dev", [r for r in PYPROJECT["dependency-groups"]["dev"] if isinstance(r, str)]),
    ],
)
def test_lock_files_give_what_the_project_asks_for(lock: str, asked: list[str]) -> None:
    """A changed dependency is locked again: run `make lock`."""
    lines = locked(ROOT / "requirements" / f"{lock}.txt")
    pins = dict(line.split()[0].split("==") for line in lines)
    wanted = [Requirement(line) for line in asked]
    assert [str(r) for r in wanted if pins.get(r.name, "0") not in r.specifier] == []


@pytest.mark.slow
def test_what_is_locked_lacks_nothing() -> None:
    """Set-up installs what the lock files name, and nothing that it needs besides."""
    check = [sys.executable, "-m", "pip", "--disable-pip-version-check", "check"]
    found = subprocess.run(check, check=False, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout


def test_version_is_the_same_everywhere() -> None:
    """Package, module and change log speak of the same release."""
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert newest is not None
    assert limpet.__version__ == PYPROJECT["project"]["version"] == newest[1]


def test_import_loads_nothing_optional_or_slow() -> None:
    """A short-lived worker pays for the store it opens, and for nothing else."""
    extra = loaded_by("import limpet") - loaded_by("import apsw, msgspec")
    assert sorted(extra & NOT_ON_IMPORT) == []


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from here."""
    made = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(made)]
    subprocess.run([*build, str(ROOT)], check=True, capture_output=True)
    (found,) = made.glob("*.whl")
    return found


@pytest.mark.slow
def test_wheel_carries_every_file_of_the_package(wheel: Path) -> None:
    """What runs from a checkout also runs from `pip install`: SQL, py.typed and the command."""
    files = [path for path in SOURCE.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    with zipfile.ZipFile(wheel) as archive:
        packed = set(archive.namelist())
        (entry_points,) = (name for name in packed if name.endswith("entry_points.txt"))
        assert "limpet = limpet.cli:main" in archive.read(entry_points).decode()
    assert {path.relative_to(SOURCE.parent).as_posix() for path in files} <= packed


@pytest.mark.slow
def test_the_inspector_adds_less_than_300_kb_to_the_wheel(wheel: Path) -> None:
    """With the views that it shows, its styles and its only script of others."""
    ours = ("limpet/inspector/", "limpet/views/", "limpet/cli/inspect.py")
    with zipfile.ZipFile(wheel) as archive:
        sizes = {one.filename: one.compress_size for one in archive.infolist()}
    assert {"limpet/inspector/static/htmx.min.js", "limpet/inspector/templates/base.html"} <= {
        *sizes
    }
    assert sum(size for name, size in sizes.items() if name.startswith(ours)) < 300_000
