"""Questions to a mount about a log: the files to read, and what the model says that is in them."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, NamedTuple

from tests.system.log_model import KEYS, Model, Sent, lines

if TYPE_CHECKING:
    import random
    from collections.abc import Callable
    from pathlib import Path

# How to ask, and the answer of the model.
Question = tuple["Callable[[], object]", object]


class Asked(NamedTuple):
    """What a question is about."""

    path: Path
    """The directory of the partition."""
    model: Model
    shown: list[Sent]
    hidden: set[int]
    """The offsets of records that the mount must not show, even if it is behind."""
    chance: random.Random


def row(line: bytes) -> Sent:
    """Return the record of an envelope."""
    told = json.loads(line)
    key, value = (told[field] or "" for field in ("key", "value"))
    return Sent(told["offset"], key.encode(), value.encode(), told["timestamp"], 0)


def rows(data: bytes) -> list[Sent]:
    """Return the records of a text of envelopes."""
    return [row(line) for line in data.splitlines()]


def bare(records: list[Sent]) -> list[Sent]:
    """Return records without their producers, which no text shows."""
    return [each._replace(producer=0) for each in records]


def ask_records(asked: Asked) -> Question:
    file, wanted = asked.path / "records", lines(asked.shown)
    return lambda: (file.read_bytes(), file.stat().st_size), (wanted, len(wanted))


def ask_envelopes(asked: Asked) -> Question:
    file = asked.path / "records.jsonl"

    def ask() -> object:
        found = rows(file.read_bytes())
        assert not asked.hidden & {each.offset for each in found}, f"{found}: {asked.hidden}"
        return found

    return ask, bare(asked.shown)


def ask_offset(asked: Asked) -> Question:
    offset = asked.chance.randrange(asked.model.end + 1)
    known = {each.offset: each for each in bare(asked.shown)}
    file = asked.path / "offsets" / str(offset)
    if asked.chance.random() < 0.5:
        return lambda: row(file.with_suffix(".json").read_bytes()), known.get(offset)
    return file.read_bytes, known[offset].value if offset in known else None


def ask_offset_range(asked: Asked) -> Question:
    first, last = sorted(asked.chance.choices(range(asked.model.start, asked.model.end + 1), k=2))
    count = asked.chance.randrange(1, 6)
    name, wanted = asked.chance.choice(
        [
            (f"{first}..{last}", [each for each in asked.shown if first <= each.offset < last]),
            (f"{first}..", [each for each in asked.shown if first <= each.offset]),
            (f"..{last}", [each for each in asked.shown if each.offset < last]),
            (f"-{count}..", asked.shown[-count:]),
        ]
    )
    file = asked.path / "offsets" / (name + ".jsonl")
    return lambda: rows(file.read_bytes()), bare(wanted)


def ask_listing(asked: Asked) -> Question:
    """All names that `ls offsets/` shows are records of the log, among them the first and the last."""
    known = {str(each.offset): each.value for each in asked.shown}
    if asked.shown:
        known |= {"earliest": asked.shown[0].value, "latest": asked.shown[-1].value}

    def ask() -> object:
        found = {each.name: each.read_bytes() for each in (asked.path / "offsets").iterdir()}
        return [*found][:2], {
            name: value for name, value in found.items() if known.get(name) != value
        }

    return ask, (["earliest", "latest"] if asked.shown else [], {})


def ask_time(asked: Asked) -> Question:
    times = [each.timestamp for each in asked.shown] or [1]
    first, last = sorted(asked.chance.choices(times, k=2))
    first -= asked.chance.randrange(2)
    start, end = (
        next((each.offset for each in asked.shown if each.timestamp >= at), None)
        for at in (first, last)
    )
    if start is None or asked.chance.random() < 0.5:
        link = asked.path / "time" / str(first)
        return lambda: os.readlink(link), None if start is None else f"../offsets/{start}"
    file = asked.path / "time" / f"{first}..{last}.jsonl"
    found = [r for r in asked.shown if start <= r.offset and (end is None or r.offset < end)]
    return lambda: rows(file.read_bytes()), bare(found)


def ask_key(asked: Asked) -> Question:
    key = f"k{asked.chance.randrange(KEYS)}"
    newest = {each.key.decode(): each.offset for each in asked.shown}
    link = asked.path / "keys" / key
    return lambda: os.readlink(link), f"../offsets/{newest[key]}" if key in newest else None


QUESTIONS = [
    ask_records,
    ask_envelopes,
    ask_offset,
    ask_offset_range,
    ask_listing,
    ask_time,
    ask_key,
]
# The kernel may have the name of a record, and where a link leads, for a second after the record has left the log.
CACHED = [ask_offset, ask_listing, ask_time, ask_key]
