"""The architecture as tests: imports point down the layers, third-party and some standard modules are imported only
from listed modules, and files and functions stay small.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "logfs"
# The layers from the top down. A module may import from its own layer and from the layers below.
LAYERS = [
    "cli",
    "api mount spark",
    "schema mirror push volume report server",
    "store",
    "log",
    "cluster",
    "format",
    "config",
    "setting",
    "locks errors deadline interrupts",
]
# The folders and modules of one layer. Each imports only from itself and from those before it in its list.
FOLDERS = {
    "store": [
        "parallel",
        "settings",
        "directory",
        "registry",
        "partition_identity",
        "reached_offset",
        "internal_topic",
        "topic",
        "checkpoints",
        "group_members",
        "groups",
        "transactions",
        "staged_commits",
        "tiering",
        "maintenance",
        "loading",
        "store",
        "observe",
        "admin",
    ],
    "log": [
        "disk",
        "remote",
        "segment",
        "state",
        "recovery",
        "read",
        "append",
        "follow",
        "compaction",
        "scan",
        "partition_copy",
        "audit",
    ],
    "format": [
        "base",
        "kernels",
        "batches",
        "messages",
        "text",
        "encoding",
        "files",
        "tiered",
        "kernel_warmup",
    ],
}
LEVEL = {name: len(LAYERS) - n for n, row in enumerate(LAYERS) for name in row.split()}
# The modules that may import each library, as prefixes of their paths below logfs/.
IMPORTERS = {
    "trio": ["mount/"],
    "pyfuse3": ["mount/"],
    "pyspark": ["spark/", "cli/spark/"],
    "pyarrow": ["spark/", "api/columns.py", "format/encoding/arrow_batches.py"],
    "pandas": ["api/columns.py"],
    "polars": ["api/columns.py"],
    "matplotlib": ["spark/jobs/plot.py"],
    "numba": ["format/kernels/"],
    "argparse": ["cli/"],
    "dateparser": ["cli/"],
    "tqdm": ["cli/"],
    "shtab": ["cli/completion.py"],
    "jinja2": ["report/page.py"],
    "numpy": ["format/", "log/", "spark/", "cli/output.py", "cli/selection.py"],
    "lz4": ["format/batches/compression.py"],
    "cramjam": ["format/batches/compression.py"],
    "zstandard": ["format/batches/compression.py"],
    "crc32c": ["format/", "log/segment/", "log/remote/", "push/translation_map.py"],
    "fastavro": ["schema/avro.py"],
    "google": ["schema/protobuf.py"],
    "grpc_tools": ["schema/protobuf.py"],
    "pyiceberg": ["spark/jobs/export_iceberg.py"],
    "sqlalchemy": ["spark/jobs/export_iceberg.py"],
    "requests": ["schema/registry.py"],
    "urllib3": ["schema/registry.py"],
    "kafka": ["cluster/"],
    "obstore": ["log/remote/object_store.py"],
    "Cryptodome": ["log/remote/encryption.py"],
    "fcntl": [
        "store/directory/lock.py",
        "store/group_members.py",
        "push/translation_map.py",
        "volume/driver.py",
        "mount/",
        "cli/",
        "log/disk/disk.py",
        "spark/jobs/export_commit.py",
    ],
}
FILE_LINES = 800
FUNCTION_LINES = 70
# Each kernel is one pass over bytes, compiled as a whole. Splitting it would make it slower.
LONG_BY_NATURE = ["format/kernels/"]

MODULES = sorted(PACKAGE.rglob("*.py"))


def relative(path: Path) -> str:
    """Return the path of a module below logfs/."""
    return path.relative_to(PACKAGE).as_posix()


def is_for_types(node: ast.AST) -> bool:
    """Return whether a statement is `if TYPE_CHECKING:`."""
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def imports(path: Path, *, types: bool = True) -> list[str]:
    """Return every module that a file imports: at the top, in a function, and with `types` also only for types."""
    parts = ("logfs", *path.relative_to(PACKAGE).with_suffix("").parts)
    found: list[str] = []
    tree = ast.parse(path.read_text())
    if not types:
        tree.body = [node for node in tree.body if not is_for_types(node)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join([*parts[: -node.level], *filter(None, [node.module])])
            found.append(base)
            found += [f"{base}.{alias.name}" for alias in node.names]
    return found


def layer(module: str) -> str:
    """Return the layer of a dotted module name of logfs, or "" for the package itself."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_imports_point_down(path: Path) -> None:
    """A module imports only from its layer and from those below it in `LAYERS`; lazy imports count, too."""
    first = relative(path).split("/")[0].removesuffix(".py")
    if first not in LEVEL:
        assert first in ("__init__", "__main__"), f"{path}: which layer is this?"
        return
    for module in imports(path):
        target = layer(module)
        if not module.startswith("logfs.") or target not in LEVEL:
            continue
        same = target == first
        assert same or LEVEL[target] < LEVEL[first], f"{relative(path)} imports {module}"


def dotted(path: Path) -> str:
    """Return the dotted name of a module, from its path."""
    return ".".join(("logfs", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(
        ".__init__"
    )


def own_imports(path: Path, *, types: bool = True) -> set[str]:
    """Return the modules of logfs that a file names in its imports, without the packages above them."""
    known = {dotted(each) for each in MODULES}
    found = {name for name in imports(path, types=types) if name in known}
    # `from package import module` names both. The package itself counts only if no module of it is named.
    return {name for name in found if not any(other.startswith(f"{name}.") for other in found)}


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_imports_point_down_within_a_layer(path: Path) -> None:
    """Within its layer, a module imports only from its own folder and from the folders before it, also for types.

    Modules that lie next to each other in the layer may name each other's types.
    """
    first, *rest = path.relative_to(PACKAGE).with_suffix("").parts
    if first not in FOLDERS or rest[0] == "__init__":
        return
    rows, needed = FOLDERS[first], own_imports(path, types=False)
    for module in own_imports(path):
        parts = module.split(".")
        is_beside = len(rest) == 1 and len(parts) == 3
        if parts[1] == first and len(parts) > 2 and (module in needed or not is_beside):
            below = rows.index(parts[2]) <= rows.index(rest[0])
            assert below, f"{relative(path)} imports {module}"


def test_no_imports_in_a_circle() -> None:
    """No module imports itself indirectly; imports inside functions count, and those for types from other folders.

    Within a folder, two modules may name each other's types: what a segment's writer writes to is a segment.
    """
    graph: dict[str, set[str]] = {}
    for path in MODULES:
        name = dotted(path)
        folder = f"{name.rpartition('.')[0]}."
        elsewhere = {other for other in own_imports(path) if not other.startswith(folder)}
        # A package does not import itself.
        graph[name] = (own_imports(path, types=False) | elsewhere) - {name}
    finished: set[str] = set()

    def visit(name: str, way: list[str]) -> None:
        assert name not in way, " -> ".join([*way[way.index(name) :], name])
        if name not in finished:
            for target in sorted(graph[name]):
                visit(target, [*way, name])
            finished.add(name)

    for name in sorted(graph):
        visit(name, [])


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_libraries_are_imported_only_from_listed_modules(path: Path) -> None:
    """Each library of `IMPORTERS` is imported only from its modules.

    Spark workers import no FUSE, the engine imports neither FUSE, Spark nor argparse, and only kernels import numba.
    """
    for module in imports(path):
        importers = IMPORTERS.get(module.split(".")[0])
        if importers is not None:
            assert relative(path).startswith(tuple(importers)), f"{relative(path)} imports {module}"


def test_every_library_is_known() -> None:
    """Every imported library is in `IMPORTERS`, or in the list of this test: a new one is added deliberately."""
    known = {*sys.stdlib_module_names, *IMPORTERS, "logfs", "orjson", "typing_extensions"}
    for path in MODULES:
        unknown = {module.split(".")[0] for module in imports(path)} - known
        assert not unknown, f"{relative(path)}: {unknown}"


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_files_and_functions_stay_small(path: Path) -> None:
    """No file over 800 lines, no function over 70 (CONTRIBUTING.md; TIGER_STYLE)."""
    if relative(path).startswith(tuple(LONG_BY_NATURE)):
        return
    text = path.read_text()
    assert text.count("\n") <= FILE_LINES, f"{relative(path)} has {text.count(chr(10))} lines"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            assert lines <= FUNCTION_LINES, f"{relative(path)}: {node.name} has {lines} lines"


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_every_public_definition_has_a_docstring(path: Path) -> None:
    """Each module, and each public class and function at its top level, has a docstring."""
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree), f"{relative(path)} has no docstring"
    for node in tree.body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            public = not node.name.startswith("_")
            assert not public or ast.get_docstring(node), f"{relative(path)}: {node.name}"


def loaded_by(code: str) -> set[str]:
    """Return the top-level modules that a new interpreter has loaded after running the code."""
    code += "\nimport sys\nprint('LOADED', *{name.split('.')[0] for name in sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return set(done.stdout.rsplit("LOADED", 1)[1].split())


HEAVY = {"numba", "trio", "pyfuse3", "pyspark", "pyarrow", "pandas", "polars"}


@pytest.mark.parametrize(
    ("code", "forbidden"),
    [
        ("import logfs", HEAVY | {"numpy"}),
        ("import logfs.cli", HEAVY | {"numpy"}),
        (
            "import logfs.cli\ntry: logfs.cli.main(['--help'])\nexcept SystemExit: pass",
            HEAVY | {"numpy"},
        ),
        ("import logfs.store.store", HEAVY),
        ("import logfs; logfs.open, logfs.Store, logfs.Record", HEAVY),
        # Spark starts several Python processes to plan one query.
        ("import logfs.spark.source", {"numba", "trio", "pyfuse3"}),
    ],
)
def test_imports_are_cheap(code: str, forbidden: set[str]) -> None:
    """Importing the package, the command line, the engine or the data source loads nothing that it seldom needs."""
    assert not loaded_by(code) & forbidden


def test_small_work_needs_no_compiler(tmp_path: Path) -> None:
    """Appending and reading a few records loads no numba, whose import takes a quarter of a second."""
    code = f"""
import logfs
from logfs.store.store import Store
with Store({str(tmp_path / "log")!r}) as store:
    orders = store.create("orders-0")
    orders.append([b"one", b"two"])
    assert [record.value for record in orders.read()] == [b"one", b"two"]
"""
    assert "numba" not in loaded_by(code)


def tracked() -> list[Path]:
    """Return the files that are tracked in the repository; skip the test outside of a git work tree."""
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if done.returncode:
        pytest.skip("not a git work tree")
    names = done.stdout.decode().rstrip("\0").split("\0")
    return [ROOT / name for name in names if (ROOT / name).is_file()]


# Split into parts, so that this file does not match itself.
MACHINE = re.compile(
    "|".join(
        [
            "/" + r"work/(?:main|shared)",
            "/" + r"tmp/v\w*/",
            r"https?://[\w.-]*(?:pypi|artifact|nexus|jfrog|registry|mirror)[\w.-]*",
            r"--(?:extra-)?index-" + "url",
        ]
    )
)


def test_no_file_names_a_private_host_or_path() -> None:
    """No tracked file names a package registry host or a path of one machine, so that a clone works anywhere."""
    found = []
    for path in tracked():
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        found += [f"{path.relative_to(ROOT)}: {match[0]}" for match in MACHINE.finditer(text)]
    assert not found
