"""The documents agree with the code: their tables, links, citations and lists of modules are compared with it."""

from __future__ import annotations

import argparse
import ast
import csv
import datetime
import errno
import importlib
import re
import shlex
import struct
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from logfs import cli
from logfs.format.batches.batch import HEADER, Header
from logfs.format.files import aborted_transactions, key_table_format, producer_snapshot
from logfs.format.messages.group_record import OffsetCommit, OffsetKey
from logfs.log.segment.index import OffsetIndex, SparseIndex, TimeIndex
from logfs.log.segment.text_index import TextIndex

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ROOT = Path(__file__).parent.parent
CODES = {"int8": "b", "int16": "h", "int32": "i", "uint32": "I", "int64": "q"}


def table(document: str, heading: str) -> list[list[str]]:
    """Return the rows of the only table under a heading of any level, without its header row."""
    text = (ROOT / "docs" / document).read_text()
    section = re.split(rf"^#+ {re.escape(heading)}\n", text, maxsplit=1, flags=re.MULTILINE)[1]
    section = re.split(r"^#+ ", section, maxsplit=1, flags=re.MULTILINE)[0]
    rows = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[2:]]


def field(name: str) -> str:
    """Return the code's name of a field that docs/kafka-storage.md names as Kafka does: base_offset of baseOffset."""
    return re.sub("[A-Z]", lambda capital: f"_{capital[0].lower()}", name)


def layout(rows: list[list[str]]) -> struct.Struct:
    """Return the struct that a table of (pos, field, type) describes, and check the positions."""
    code = ">"
    for row in rows:
        assert int(row[0]) == struct.calcsize(code)
        code += CODES[row[2]]
    return struct.Struct(code)


def test_kafka_storage_md_describes_the_batch_header() -> None:
    """The table "2.1 Batch header" names the same fields, types and positions as the code."""
    rows = table("kafka-storage.md", "2.1 Batch header")
    assert tuple(field(row[1]) for row in rows) == Header._fields
    assert layout(rows).format == HEADER.format


def test_kafka_storage_md_describes_group_records() -> None:
    """The table of section 12 names the fields of a commit in the order and with the sizes of the code."""
    rows = table("kafka-storage.md", "12. Records of `__consumer_offsets`")
    key, value = OffsetKey("g", "t", 3), OffsetCommit(4, "m", 5, 6)
    for part, fields, data in (
        ("key", {"type": 1, **key._asdict()}, key.encode()),
        ("value", {"version": 3, **value._asdict()}, value.encode()),
    ):
        told = b""
        for _, name, kind, _ in (row for row in rows if row[0] == part):
            text = fields[field(name)]
            if kind == "string":
                told += len(text).to_bytes(2) + text.encode()
            else:
                told += struct.pack(">" + CODES[kind], text)
        assert told == data


@pytest.mark.parametrize(
    ("document", "heading", "index"),
    [
        ("kafka-storage.md", "3.1 Offset index", OffsetIndex),
        ("kafka-storage.md", "3.2 Time index", TimeIndex),
        ("format.md", "Text index", TextIndex),
    ],
)
def test_the_documents_describe_the_indexes(
    document: str, heading: str, index: type[SparseIndex]
) -> None:
    """The tables of the three indexes name the types and positions of the code."""
    rows = table(document, heading)
    assert layout(rows).format == index.entry.format


def test_kafka_storage_md_describes_the_files_of_producers() -> None:
    """The tables of the transaction index and of snapshots name the fields, types and positions of the code."""
    rows = table("kafka-storage.md", "9.5 Transaction index")
    names = tuple(field(row[1]) for row in rows)
    assert names == ("version", *aborted_transactions.AbortedTransaction._fields)
    assert layout(rows).format == aborted_transactions.ENTRY.format
    rows = table("kafka-storage.md", "9.7 Snapshot files")
    assert tuple(field(row[1]) for row in rows) == producer_snapshot.ProducerEntry._fields
    assert layout(rows).format == producer_snapshot.ENTRY.format


def test_format_md_describes_the_key_index() -> None:
    """The table "Key index" names the fields of the header, at the positions where the code writes them."""
    rows = table("format.md", "Key index")
    anchor = key_table_format.Anchor(3, 4, 5, 6, 7)
    header = key_table_format.TableHeader(0, 512, 1, 2, bytes(16), anchor)
    packed = key_table_format.format_header(header, b"")
    sizes = {"8 bytes": 8, "16 bytes": 16, "uint32": 4, "int32": 4, "uint64": 8, "int64": 8}
    ends = [int(position) + sizes[kind] for position, _, kind, _ in rows]
    assert [0, *ends] == [*(int(position) for position, *_ in rows), len(packed)]
    fields = [*header._fields[:-1], *anchor._fields, "crcs_crc", "header_crc"]
    assert [field for _, field, _, _ in rows] == ["magic", "version", *fields]


def test_filesystem_md_has_the_errno_table() -> None:
    """The errno table names every error of the code with the errno that callers get."""
    pytest.importorskip("pyfuse3")
    from logfs.mount.errnos import ERRNO

    rows = {row[0]: getattr(errno, row[1]) for row in table("filesystem.md", "Errors")}
    assert rows == {kind.__name__: number for kind, number in ERRNO.items()}


def test_every_link_leads_somewhere() -> None:
    """Every relative link in the README and the documents points to an existing file."""
    for document in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name}: {target}"


def test_every_promise_names_its_tests() -> None:
    """Each promise of docs/durability.md has tests, and each test that a document or the list names exists."""
    promises = [row[0] for row in table("durability.md", "Promises")]
    assert len(promises) >= 10
    listed = campaign_rows("promises.csv")
    assert [*dict.fromkeys(row["promise"] for row in listed)] == promises
    named = {"promises.csv": " ".join(f"`{row['test']}`" for row in listed)}
    assert named["promises.csv"].count("::test_") == len(listed)
    named |= {path.name: path.read_text() for path in (ROOT / "docs").glob("*.md")}
    for document, text in named.items():
        for name, test in re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?", text):
            assert (ROOT / name).exists(), f"{document}: {name}"
            assert f"def {test}(" in (ROOT / name).read_text() or not test, f"{name}::{test}"


# The columns of the files in docs/campaigns, and those of them that may be empty.
CAMPAIGN_FILES = {
    "attacks.csv": (
        (
            "attack",
            "recorded",
            "minutes",
            "subject",
            "counts",
            "held",
            "found",
            "smaller",
            "left",
            "untested",
        ),
        {"minutes", "held", "left", "untested"},
    ),
    "promises.csv": (("promise", "test"), set()),
    "runs.csv": (
        ("month", "campaign", "command", "counts", "found", "fixed", "left"),
        {"fixed", "left"},
    ),
}


def campaign_rows(name: str) -> list[dict[str, str]]:
    """Return the rows of a file in docs/campaigns, and check that each of them is complete."""
    columns, optional = CAMPAIGN_FILES[name]
    with (ROOT / "docs/campaigns" / name).open(newline="") as file:
        rows = list(csv.DictReader(file, strict=True))
    for number, row in enumerate(rows, 2):
        assert tuple(row) == columns, f"{name}:{number}"
        for column, cell in row.items():
            assert cell or (cell == "" and column in optional), f"{name}:{number}: no {column}"
            assert cell == " ".join(cell.split()), f"{name}:{number}: {column} has spare blanks"
    return rows


def test_every_row_of_the_campaigns_is_complete() -> None:
    """Each attack and each run has all of its columns, and what should be a number, a date or a finding is one."""
    attacks = campaign_rows("attacks.csv")
    kinds = [row[0] for row in table("campaigns.md", "What the attacks found")]
    for number, row in enumerate(attacks, 1):
        assert int(row["attack"]) == number
        assert datetime.date.fromisoformat(row["recorded"])
        assert int(row["minutes"] or 1) > 0
        assert int(row["smaller"]) >= 0
        for finding in row["found"].split("; "):
            kind, separator, _ = finding.partition(": ")
            assert separator, f"attack {number}: {finding}"
            assert kind in kinds, f"attack {number}: {finding}"
    dates = [row["recorded"] for row in attacks]
    assert dates == sorted(dates)
    for row in campaign_rows("runs.csv"):
        assert re.fullmatch(r"\d{4}-(0[1-9]|1[0-2])", row["month"])
        assert re.search(r"\d", row["counts"]), row["campaign"]
        for name in re.findall(r"tests/[\w/]+\.py", row["command"] + row["left"]):
            assert (ROOT / name).exists(), name


def test_campaigns_md_sums_up_its_files() -> None:
    """The sums of docs/campaigns.md are those of the attacks, and its last runs are in the file of runs."""
    text = " ".join((ROOT / "docs/campaigns.md").read_text().split())
    attacks = campaign_rows("attacks.csv")
    minutes = [int(row["minutes"]) for row in attacks if row["minutes"]]
    found = [each.partition(":")[0] for row in attacks for each in row["found"].split("; ")]
    smaller = sum(int(row["smaller"]) for row in attacks)
    assert f"has {len(attacks)} attacks" in text
    assert f"For {len(minutes)} of them the duration was recorded" in text
    assert f"{sum(minutes):,} minutes together" in text
    assert f"{len(found)} findings with a description and {smaller} smaller ones" in text
    kinds = {row[0]: int(row[1]) for row in table("campaigns.md", "What the attacks found")}
    assert kinds == Counter(found)

    last = {row["campaign"]: row for row in campaign_rows("runs.csv")}
    campaigns = {row[0] for row in table("campaigns.md", "What each campaign runs")}
    shown = table("campaigns.md", "What the last long runs found")
    assert {row[0] for row in shown} == set(last) <= campaigns
    for campaign, size, _ in shown:
        for number in re.findall(r"\d[\d,]*", size):
            assert re.search(rf"(?<![\d,]){number}(?![\d,]*\d)", last[campaign]["counts"]), campaign


# A citation: one or more sections, each with or without items of its list.
_ITEMS = re.compile(r"\s+items?\s+(\d+(?:(?:,| and| to)\s+\d+(?![.\d]))*)")
_SECTION = re.compile(r"\d+(?:\.\d+)*")
_BETWEEN = re.compile(r",? and |, | to ")


def citations(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each section that a text cites from docs/kafka-storage.md, with the cited items of its list."""
    text = re.sub(r"\n[ #]*", " ", text)
    for found in re.finditer(r"\bkafka-storage\s+(?=\d)", text):
        at = found.end()
        while section := _SECTION.match(text, at):
            at = section.end()
            items = _ITEMS.match(text, at)
            if items:
                at = items.end()
            yield section[0], re.findall(r"\d+", items[1]) if items else []
            between = _BETWEEN.match(text, at)
            if not between:
                break
            at = between.end()


def test_every_citation_of_kafka_storage_md_resolves() -> None:
    """Each cited section of docs/kafka-storage.md is one of its headings, and each cited item is in its list.

    An item is `3. ` or, where numbers are missing or share a line, `- 2, 3: `.
    """
    sections: dict[str, set[str]] = {}
    for line in (ROOT / "docs/kafka-storage.md").read_text().splitlines():
        if heading := re.match(r"#+ (\d+(?:\.\d+)*)\.? ", line):
            current = sections[heading[1]] = set()
        elif items := re.match(r"(\d+)\. |- (\d+(?:, \d+)*): ", line):
            current.update(re.findall(r"\d+", items[0]))
    files = [
        *(
            path
            for folder in ("logfs", "tests", "scripts")
            for path in (ROOT / folder).rglob("*.py")
        ),
        *(ROOT / "docs").glob("*.md"),
    ]
    cited = [(path, *citation) for path in files for citation in citations(path.read_text())]
    assert len(cited) > 300
    for path, section, items in cited:
        assert section in sections, f"{path.relative_to(ROOT)} cites section {section}"
        missing = set(items) - sections[section]
        assert not missing, f"{path.relative_to(ROOT)} cites {section} items {missing}"


def test_every_module_is_on_a_map() -> None:
    """Each package's docstring names its modules and subpackages, and docs/architecture.md names each package.

    In the tests, only modules without tests need to be named.
    """
    architecture = (ROOT / "docs/architecture.md").read_text()
    helpers = [
        path
        for path in (ROOT / "tests").glob("*/*.py")
        if not path.stem.startswith("test_") and path.stem != "conftest"
    ]
    for path in [*(ROOT / "logfs").rglob("*.py"), *helpers]:
        folder = path.parent
        if path.stem == "__init__":
            if folder.name in architecture or "cli" in folder.parts:
                continue
            raise AssertionError(f"{folder.relative_to(ROOT)} is not in docs/architecture.md")
        # The commands are listed by `logfs --help`.
        if folder in (ROOT / "logfs", ROOT / "logfs/cli", ROOT / "logfs/cli/spark"):
            continue
        text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
        assert re.search(rf"\b{path.stem}\b", text), f"{path.relative_to(ROOT)} is on no map"


def test_the_tree_of_the_architecture_exists() -> None:
    """Each line of the tree in docs/architecture.md is a folder or a module."""
    (tree,) = re.findall(
        r"```\nlogfs/\n(.*?)```", (ROOT / "docs/architecture.md").read_text(), re.DOTALL
    )
    parents = [ROOT / "logfs"]
    lines = tree.splitlines()
    assert len(lines) > 40
    for line in lines:
        ((branch, names),) = re.findall(r"^((?:│   )*[├└]── )([\w.]+(?:, [\w.]+)*)", line)
        depth = len(branch) // 4
        for name in names.split(", "):
            path = parents[depth - 1] / name
            assert path.exists() or path.with_suffix(".py").exists(), (
                f"architecture.md names {path}"
            )
        parents[depth:] = [path]


def members(node: ast.ClassDef) -> set[str]:
    """The methods and attributes of a class, without those of its bases."""
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    found = {each.name for each in ast.walk(node) if isinstance(each, functions)}
    found |= {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}
    return found | {
        each.id for part in node.body for each in ast.walk(part) if isinstance(each, ast.Name)
    }


def members_by_class(sources: Iterable[str]) -> dict[str, set[str]]:
    """Return the members of each class in Python sources; classes of one name are taken together."""
    found: dict[str, set[str]] = {}
    for source in sources:
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, set()).update(members(node))
    return found


def test_references_in_docstrings_resolve() -> None:
    """A name such as `Class.method` in a docstring or a comment is a class and a member of the package."""
    texts = {path: path.read_text() for path in (ROOT / "logfs").rglob("*.py")}
    classes = members_by_class(texts.values())
    foreign = {"String"}
    for path, text in texts.items():
        for name, member in re.findall(r"`([A-Z]\w+)\.(\w+)`", text):
            if name not in foreign:
                assert member in classes.get(name, ()), f"{path.name}: {name}.{member}"


# The pages that tell how the code works, and names in them that are examples or belong to other projects.
PAGES_OF_THE_CODE = ("architecture", "threads", "durability", "recipes", "campaigns")
NOT_OURS = {"invalidate_entry", "logfs_segments_sealed", "BZIP2_STEP_BYTES", "logfs/cli/epochs.py"}


def test_names_in_the_documents_resolve() -> None:
    """A module, a member of a class, or a name with an underscore in a page about the code is in the code."""
    sources = [
        *(path for folder in ("logfs", "tests") for path in (ROOT / folder).rglob("*.py")),
        *(path for path in (ROOT / "scripts").rglob("*") if path.suffix in (".py", ".sh", "")),
    ]
    texts = {path: path.read_text() for path in sources if path.is_file()}
    words = {word for text in texts.values() for word in re.findall(r"\w+", text)}
    paths = "".join(f"/{path.relative_to(ROOT).with_suffix('')}\n" for path in texts)
    classes = members_by_class(text for path, text in texts.items() if path.suffix == ".py")
    pages = [*(ROOT / f"docs/{name}.md" for name in PAGES_OF_THE_CODE), ROOT / "CONTRIBUTING.md"]
    checked = 0
    for page in pages:
        prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        for name in re.findall(r"`([\w./]+)(?:\(\))?`", prose):
            checked += 1
            if re.fullmatch(r"[a-z_]+(?:/[a-z_]+)+(?:\.py)?", name):
                is_known = re.search(rf"/{name.removesuffix('.py')}[/\n]", paths) is not None
            elif found := re.fullmatch(r"([A-Z]\w+)\.(\w+)", name):
                is_known = found[1] not in classes or found[2] in classes[found[1]]
            else:
                is_known = "_" not in name or not name.isidentifier() or name in words
            assert is_known or name in NOT_OURS, f"{page.name}: {name}"
    assert checked > 500


def test_every_command_is_in_the_changelog() -> None:
    """The changelog names every command of the command line."""
    text = (ROOT / "docs/changelog.md").read_text()
    for name in cli.COMMANDS:
        assert re.search(rf"\b{name}\b", text), name


def commands_in(text: str) -> Iterator[tuple[str, bool]]:
    """Yield each `logfs` command of a page, and whether it is in a block, where nothing of it is left out."""
    blocks = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
    for language, block in blocks.findall(text):
        if language in ("", "sh", "console"):
            for line in block.replace("\\\n", " ").splitlines():
                for found in re.finditer(r"(?:^\$? ?|[|&;({]\s*)(logfs [^|&;#)>]*)", line.strip()):
                    yield found[1], True
    for span in re.findall(r"`(logfs [^`|&;>]+)`", blocks.sub("", text)):
        yield " ".join(span.split()), False


def parser_of(words: list[str]) -> tuple[argparse.ArgumentParser, list[str]]:
    """Return the parser of a command's arguments, and these."""
    assert words[0] in cli.COMMANDS, words
    module = importlib.import_module(f"logfs.cli.{words[0].replace('-', '_')}")
    rest = words[1:]
    if hasattr(module, "COMMANDS") and rest:
        module = importlib.import_module(f"{module.__name__}.{rest[0].replace('-', '_')}")
        rest = rest[1:]
    parser = argparse.ArgumentParser(exit_on_error=False)
    if hasattr(module, "add_arguments"):
        module.add_arguments(parser)
    return parser, rest


def test_every_command_can_be_typed() -> None:
    """Each command and option in the documents exists; those in blocks are complete."""
    checked = 0
    # The changelog also names what earlier versions had, the recipes what could be.
    pages = [*(ROOT / "docs").glob("*.md"), ROOT / "README.md"]
    for path in pages:
        if path.name in ("changelog.md", "recipes.md"):
            continue
        for command, is_whole in commands_in(path.read_text()):
            try:
                words = shlex.split(command)[1:]
            except ValueError:
                continue  # a quoted text has a character that ends the command here
            if not words or words[0] in ("COMMAND", "--version", "--help") or words[1:2] == ["JOB"]:
                continue
            parser, rest = parser_of(words)
            checked += 1
            for word in rest:
                option = word.partition("=")[0]
                if re.match(r"--?[A-Za-z]", option):
                    known = parser._option_string_actions
                    assert option in known or option[:2] in known, f"{path.name}: {command}"
            if is_whole:
                try:
                    parser.parse_intermixed_args(cli._joined(rest))
                except (argparse.ArgumentError, SystemExit) as error:
                    pytest.fail(f"{path.name}: {command}: {error}")
    assert checked > 100
