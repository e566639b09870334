"""Truncations, bit flips, and entries that are no regular files: no read returns a wrong answer without an error."""

from __future__ import annotations

import os
import random
import signal
import struct
import subprocess
import sys
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from crc32c import crc32c

from logfs.errors import Corrupt, LogfsError
from logfs.format.batches.batch import HEADER_SIZE, Batch, parse_header
from logfs.format.batches.record import Record
from logfs.format.text.rendering import View
from logfs.log import recovery
from logfs.log.read.text_view import TextView
from logfs.log.segment.batch_iterator import DamagedRange
from logfs.store.directory.log_dir import CLEAN_SHUTDOWN
from logfs.store.observe.check import Severity, check
from logfs.store.store import Store
from tests.support import crashdisk
from tests.support.examples import drawn
from tests.support.mounts import Mount
from tests.support.requirements import DEEP, need_fuse, need_root

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from logfs.log.append.partition import Partition
    from logfs.log.segment.batch_iterator import Damage
    from tests.support.crashdisk import Image

pytestmark = pytest.mark.usefixtures("quiet_log")

CODECS = ("uncompressed", "gzip", "snappy", "lz4", "zstd") if DEEP else ("uncompressed", "zstd")
BASE_MS = 1_700_000_000_000
BATCHES = 9


class Original(NamedTuple):
    """A store that was closed cleanly, as a tree of files, and its content."""

    image: Image
    records: list[tuple[bytes, bytes | None, int]]
    # For each batch: file, position, size, base offset, next offset.
    batches: list[tuple[str, int, int, int, int]]

    def unclean(self, recovery_point: int | None = None) -> Image:
        """Return the files after a crash, with another recovery point if one is given."""
        image = {n: c for n, c in self.image.items() if not n.endswith(CLEAN_SHUTDOWN)}
        if recovery_point is not None:
            image["log/recovery-point-offset-checkpoint"] = b"0\n1\na 0 %d\n" % recovery_point
        return image


def make(codec: str = "uncompressed", segment_bytes: int = 400) -> Original:
    """Return a store of about three segments of small batches with two records each."""
    now = BASE_MS
    records: list[tuple[bytes, bytes | None, int]] = []
    with crashdisk.scratch() as root:
        with Store(root / "log", clock=lambda: now) as store:
            settings = {
                "segment.bytes": str(segment_bytes),
                "segment.index.bytes": "240",
                "index.interval.bytes": "100",
                "compression.type": codec,
            }
            for key, value in settings.items():
                store.settings.set_topic("a", key, value)
            partition = store.create("a-0")
            for number in range(BATCHES):
                now += 10
                values = [b"value %d" % number + b"!" * number, b"v" * (number + 1)]
                partition.append(values)
                records += [(value, None, now) for value in values]
                partition.flush()
            batches = [
                (
                    f"log/a-0/{segment.path.name}",
                    position,
                    batch.header.size_bytes,
                    batch.header.base_offset,
                    batch.header.next_offset,
                )
                for segment in partition.segments
                for position, batch in segment.walk()
            ]
        return Original(crashdisk.tree(root), records, batches)


class Answers(NamedTuple):
    """The answers of a store.

    `by_offset` has for each offset its record, the name of an error, or "gone".
    """

    by_offset: tuple[object, ...]
    in_order: tuple[object, ...]
    times: tuple[object, ...]
    text: tuple[object, ...]
    epochs: tuple[object, ...]


def ask(partition: Partition, count: int) -> Answers:
    """Read the first `count` offsets in every way. An error counts as an answer."""
    return Answers(
        tuple(_attempt(lambda o=offset: _shown(partition.record(o))) for offset in range(count)),  # type: ignore[misc]
        tuple(_in_order(partition, count)),
        tuple(_attempt(lambda t=t: _time(partition, t)) for t in _times()),  # type: ignore[misc]
        tuple(_text(partition)),
        tuple(_attempt(lambda t=t: _epoch(partition, t)) for t in _times()),  # type: ignore[misc]
    )


def _times() -> range:
    return range(BASE_MS, BASE_MS + 10 * BATCHES + 1, 5)


def _attempt(question: Callable[[], object]) -> object:
    try:
        return question()
    except (LogfsError, OSError) as error:
        return type(error).__name__


def _shown(record: object) -> object:
    if record is None:
        return "gone"
    return (record.value, record.key, record.timestamp)  # type: ignore[attr-defined]


def _in_order(partition: Partition, count: int) -> Iterator[object]:
    at = partition.log_start_offset
    end = min(count, partition.log_end_offset)
    while at < end:
        try:
            for record in partition.read(at, end):
                yield record.offset, record.value, record.key, record.timestamp
                at = record.offset + 1
            return
        except DamagedRange as error:
            yield "DamagedRange"
            at = max(error.next_offset, at + 1)
        except (LogfsError, OSError) as error:
            yield type(error).__name__
            return


def _time(partition: Partition, timestamp: int) -> object:
    found = partition.offset_for_time(timestamp)
    return None if found is None else (found.offset, found.timestamp)


def _epoch(partition: Partition, timestamp: int) -> object:
    found = partition.offset_for_time(timestamp)
    return None if found is None else found.leader_epoch


def _text(partition: Partition) -> Iterator[object]:
    try:
        view = TextView(partition, View.LINES)
        size = view.size
    except (LogfsError, OSError) as error:
        yield type(error).__name__
        return
    at = 0
    good = b""
    while at < size:
        try:
            part = view.read(at, size - at, up_to_damage=True)
            assert part, "an empty read before the end"
            good += part
            at += len(part)
        except (LogfsError, OSError) as error:
            if good:
                yield good
                good = b""
            yield type(error).__name__
            if not isinstance(error, DamagedRange):
                return
            at += 1
    if good:
        yield good


class Judgement(NamedTuple):
    """A verdict, and the offsets whose reads failed with an error."""

    verdict: str
    damaged: frozenset[int]


def judge(original: Original, image: Image, right: Answers, *, writable: bool) -> Judgement:
    """Open a damaged store and compare its answers with the right ones.

    The verdict is "detected" if an answer is an error or the audit finds one, "harmless" if every answer is right,
    and "not detectable" if the records are right but other answers are not. A wrong record without an error fails the
    test.
    """
    with crashdisk.scratch() as root:
        crashdisk.write_image(root, image)
        try:
            errors = [f for f in check([root / "log"]) if f.severity is Severity.ERROR]
        except (LogfsError, OSError):
            return Judgement("detected", frozenset())
        try:
            store = Store(root / "log", clock=lambda: BASE_MS, read_only=not writable)
        except (LogfsError, OSError):
            return Judgement("detected", frozenset())
        if "a-0" not in store:
            assert "a-0" in store.offline, "the partition is gone in silence"
            return Judgement("detected", frozenset())
        found = ask(store["a-0"], len(original.records))
        end = store["a-0"].log_end_offset
    damaged = frozenset(o for o, answer in enumerate(found.by_offset) if isinstance(answer, str))
    if errors:
        _no_wrong_record(found, right, lenient=True)
        return Judgement("detected", damaged)
    lost = [o for o, answer in enumerate(found.by_offset) if answer == "gone"]
    assert not lost, f"offsets {lost} are gone in silence"
    _no_wrong_record(found, right)
    if damaged:
        return Judgement("detected", damaged)
    assert end == len(original.records), f"the log ends at {end} in silence"
    return Judgement("harmless" if found == right else "not detectable", damaged)


def _no_wrong_record(found: Answers, right: Answers, *, lenient: bool = False) -> None:
    """Check that no record is wrong and, unless `lenient`, that none is missing without an error.

    `lenient` means that the audit has reported the damage.
    """
    for offset, answer in enumerate(found.by_offset):
        assert isinstance(answer, str) or answer == right.by_offset[offset], (
            f"offset {offset} answers {answer}"
        )
    good = [answer for answer in found.in_order if not isinstance(answer, str)]
    wrong = [answer for answer in good if answer not in right.in_order]
    assert not wrong, f"reading gives {wrong}"
    if lenient:
        return
    whole = b"".join(part for part in right.text if isinstance(part, bytes))
    parts = [part for part in found.text if isinstance(part, bytes)]
    at = 0
    for part in parts:
        at = whole.find(part, at)
        assert at >= 0, f"the text has {part!r}"
        at += len(part)
    if not any(isinstance(answer, str) for answer in (*found.by_offset, *found.text)):
        assert found.in_order == right.in_order
        assert found.text == right.text
        assert found.times == right.times, "time lookups are wrong in silence"


def right_answers(original: Original) -> Answers:
    """Return the answers of the undamaged store."""
    with crashdisk.scratch() as root:
        crashdisk.write_image(root, original.image)
        with Store(root / "log", read_only=True) as store:
            found = ask(store["a-0"], len(original.records))
    assert found.by_offset == tuple(original.records)
    return found


# The tail.


@pytest.mark.parametrize("fill", ["cut", "zeros", "noise"])
@pytest.mark.parametrize("codec", CODECS[:2])
def test_a_tail_torn_at_any_byte_is_cut_back_to_whole_batches(codec: str, fill: str) -> None:
    """Whatever is left of the last three batches, the whole batches before it are readable and the audit is clean."""
    original = make(codec, segment_bytes=100_000)
    log = original.batches[0][0]
    content = original.image[log]
    assert content is not None
    durable = BATCHES - 3
    image = original.unclean(original.batches[durable][3])
    noise = random.Random(7)
    for cut in drawn(range(original.batches[durable][1], len(content)), 40):
        rest = len(content) - cut
        tail = {"cut": b"", "zeros": bytes(rest), "noise": noise.randbytes(rest)}[fill]
        torn = content[:cut] + tail
        whole = 0
        for _, position, size, _, _ in original.batches:
            if torn[position : position + size] != content[position : position + size]:
                break
            whole += 1
        end = original.batches[whole - 1][4]
        with crashdisk.scratch() as root:
            crashdisk.write_image(root, {**image, log: torn})
            with Store(root / "log", clock=lambda: BASE_MS) as store:
                partition = store["a-0"]
                assert partition.log_end_offset == end, f"cut at byte {cut}"
                found = [(r.value, r.key, r.timestamp) for r in partition.read()]
                assert found == original.records[:end]
                kept = list((root / "log/a-0").glob("*.torn"))
                left = torn[original.batches[whole - 1][1] + original.batches[whole - 1][2] :]
                assert [path.read_bytes() for path in kept] == ([left] if left.strip(b"\0") else [])
                assert partition.append([b"goes on"]) == end
            assert not crashdisk.errors_of(root / "log")


def test_a_durable_tail_that_is_cut_off_is_damage_at_every_byte() -> None:
    """Missing bytes of a tail that was fsynced are reported as damage, and their offsets are never reused."""
    original = make(segment_bytes=100_000)
    log = original.batches[0][0]
    content = original.image[log]
    assert content is not None
    total = len(original.records)
    image = original.unclean(total)
    for cut in drawn(range(original.batches[-3][1], len(content)), 40):
        whole = sum(position + size <= cut for _, position, size, _, _ in original.batches)
        end = original.batches[whole - 1][4]
        with crashdisk.scratch() as root:
            crashdisk.write_image(root, {**image, log: content[:cut]})
            with Store(root / "log", clock=lambda: BASE_MS) as store:
                partition = store["a-0"]
                assert partition.log_end_offset == total
                for offset in range(total):
                    if offset < end:
                        assert _shown(partition.record(offset)) == original.records[offset]
                    else:
                        with pytest.raises(DamagedRange):
                            partition.record(offset)
                assert partition.append([b"goes on"]) == total
            errors = " ".join(crashdisk.errors_of(root / "log"))
            assert f"offsets {end} to {total - 1} are damaged" in errors


# Bit flips.


def flipped(content: bytes, bit: int) -> bytes:
    """Return the content with one bit inverted, counted from the start."""
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << (bit % 8)
    return bytes(changed)


@pytest.mark.drawn(3)
@pytest.mark.parametrize("start", ["clean", "unclean"])
@pytest.mark.parametrize("which", ["middle", "last"])
@pytest.mark.parametrize("codec", CODECS)
def test_no_bit_of_a_batch_turns_into_a_wrong_answer(codec: str, which: str, start: str) -> None:
    """Each flipped bit of a batch is detected, or every answer about the records stays right."""
    original = make(codec)
    right = right_answers(original)
    name, position, size, base, following = original.batches[
        BATCHES // 2 if which == "middle" else -1
    ]
    content = original.image[name]
    assert content is not None
    image = original.image if start == "clean" else original.unclean()
    verdicts: Counter[str] = Counter()
    fields: dict[str, Counter[str]] = {}
    bits = drawn(range(position * 8, (position + size) * 8), 100)
    for bit in bits:
        result = judge(
            original, {**image, name: flipped(content, bit)}, right, writable=start == "unclean"
        )
        where = field_of(bit // 8 - position)
        verdicts[result.verdict] += 1
        fields.setdefault(where, Counter())[result.verdict] += 1
        assert result.damaged <= set(range(base, following)), f"bit {bit} of {where} took others"
        if where != "leader epoch":
            assert result.verdict == "detected", f"bit {bit} of {where} is {result.verdict}"
    table = {where: dict(counts) for where, counts in fields.items()}
    print(f"{codec}, {which}, {start}: {len(bits)} flips: {dict(verdicts)}; {table}")
    # Only the leader epoch is protected by neither the CRC nor a neighbour: 32 bits, on which no record depends.
    assert verdicts["detected"] >= len(bits) - 32


def field_of(byte: int) -> str:
    """Return the part of a batch that a byte belongs to (kafka-storage 2.1)."""
    for end, name in ((8, "base offset"), (12, "length"), (16, "leader epoch"), (17, "magic")):
        if byte < end:
            return name
    return "crc" if byte < 21 else "header under the CRC" if byte < HEADER_SIZE else "records"


SIDECARS = (
    ".index",
    ".timeindex",
    ".textindex",
    "-checkpoint",
    "partition.metadata",
    CLEAN_SHUTDOWN,
)


@pytest.mark.drawn(4)
@pytest.mark.parametrize("start", ["clean", "unclean"])
@pytest.mark.parametrize("suffix", SIDECARS)
def test_no_flipped_bit_of_another_file_gives_a_wrong_record(suffix: str, start: str) -> None:
    """A flipped bit of an index, a checkpoint or a small file is harmless, or an error or the audit reports it."""
    original = make()
    right = right_answers(original)
    image = original.image if start == "clean" else original.unclean()
    verdicts: Counter[str] = Counter()
    wrong = []
    bits = [
        (name, content, bit)
        for name, content in sorted(image.items())
        if name.endswith(suffix) and content is not None
        for bit in range(len(content) * 8)
    ]
    for name, content, bit in drawn(bits, 100):
        damaged = {**image, name: flipped(content, bit)}
        try:
            verdict = judge(original, damaged, right, writable=start == "unclean").verdict
        except AssertionError as error:
            wrong.append(f"{name}, bit {bit}: {error}"[:300])
            verdict = "WRONG"
        verdicts[verdict] += 1
    print(f"*{suffix}, {start}: {verdicts.total()} flips: {dict(verdicts)}")
    assert not wrong, f"{len(wrong)} of {verdicts.total()}:\n" + "\n".join(wrong[:20])


# Damage in the middle.


@pytest.mark.parametrize("start", ["clean", "unclean"])
def test_what_lies_behind_damage_is_neither_deleted_nor_hidden(start: str) -> None:
    """A damaged batch costs only its own offsets: later ones stay readable, and the audit names it (exit code 1)."""
    original = make()
    right = right_answers(original)
    for number in range(BATCHES):
        name, position, size, base, following = original.batches[number]
        content = original.image[name]
        assert content is not None
        image = dict(original.image if start == "clean" else original.unclean())
        image[name] = content[:position] + b"\xee" * size + content[position + size :]
        with crashdisk.scratch() as root:
            crashdisk.write_image(root, image)
            for _ in range(2):
                with Store(root / "log", clock=lambda: BASE_MS) as store:
                    found = ask(store["a-0"], len(original.records))
                    for offset, answer in enumerate(found.by_offset):
                        bad = base <= offset < following
                        assert answer == ("DamagedRange" if bad else right.by_offset[offset])
                    assert _good_lines(found.text) == _good_lines(right.text) - _lines_of(
                        original, base, following
                    )
                    assert store["a-0"].append([b"goes on"]) >= len(original.records)
                names = {path.name for path in (root / "log/a-0").iterdir()}
                assert {Path(batch[0]).name for batch in original.batches} <= names
            errors = crashdisk.errors_of(root / "log")
            assert any(f"offsets {base} to {following - 1} are damaged" in e for e in errors)
            assert (root / name).read_bytes()[: len(content)] == image[name][: len(content)]


def _good_lines(text: tuple[object, ...]) -> Counter[bytes]:
    whole = b"".join(part for part in text if isinstance(part, bytes))
    return Counter(line for line in whole.split(b"\n")[:-1] if line != b"goes on")


def _lines_of(original: Original, first: int, end: int) -> Counter[bytes]:
    return Counter(value for value, _, _ in original.records[first:end])


def test_the_mount_can_be_read_after_damage(tmp_path: Path) -> None:
    """On the mount a damaged range is EIO, in the text and by offset, and the records after it can be read.

    The greatest timestamp is that of the damaged batch: the last entry of the time index cannot be compared with it.
    """
    need_fuse()
    log = tmp_path / "log"
    values = [bytes([97 + n]) * 20_000 for n in range(6)]
    with Store(log) as store:
        partition = store.create("a-0")
        newest = store.clock()
        for number, value in enumerate(values):
            partition.append([Record(value, timestamp=newest - max(2 - number, 0))])
        partition.flush()
        sizes = [batch.header.size_bytes for batch in partition.batches(0)]
    path = log / "a-0/00000000000000000000.log"
    content = bytearray(path.read_bytes())
    content[sum(sizes[:2]) + 10_000] ^= 1
    path.write_bytes(content)
    done = subprocess.run(
        [sys.executable, "-m", "logfs", "check", str(log)], capture_output=True, check=False
    )
    assert done.returncode == 1
    assert b"offsets 2 to 2 are damaged" in done.stdout
    mount = Mount(tmp_path / "mnt", [log]).start()
    try:
        topic = mount.path / "a-0"
        for offset, value in enumerate(values):
            if offset == 2:
                with pytest.raises(OSError, match="Input/output error"):
                    (topic / "offsets/2").read_bytes()
            else:
                assert (topic / f"offsets/{offset}").read_bytes() == value
        pages = bytearray()
        bad = 0
        with (topic / "records").open("rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            assert size == 6 * 20_001
            for at in range(0, size, 4096):
                try:
                    pages += os.pread(file.fileno(), 4096, at)
                except OSError:
                    bad += 1
                    pages += bytes(min(4096, size - at))
        # Reads fail by whole pages, so a little of the neighbouring records is lost with the damage, and nothing
        # more.
        assert 4 <= bad <= 7
        for offset, value in enumerate(values):
            shown = pages[offset * 20_001 : offset * 20_001 + 20_000]
            if offset == 2:
                assert set(shown) <= {0, *value}
            else:
                assert shown.strip(b"\0") in value
                assert len(shown.strip(b"\0")) >= 20_000 - 2 * 4096
        assert bytes(pages[4 * 20_001 :]) == values[4] + b"\n" + values[5] + b"\n"
        assert "a-0" in mount.errors()
        with (topic / "append").open("ab", buffering=0) as file:
            file.write(b"goes on\n")
        assert (topic / "offsets/6").read_bytes() == b"goes on"
    finally:
        mount.stop()


# Entries that are no regular files.


@contextmanager
def never_blocks() -> Iterator[None]:
    """Fail, rather than hang, if a call blocks for 20 seconds."""

    def give_up(number: int, frame: object) -> None:
        raise AssertionError("blocked")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(20)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _symlink(path: Path) -> None:
    path.symlink_to(path.parent.parent.parent / "secret")


def _dangling(path: Path) -> None:
    path.symlink_to("/nowhere/at/all")


def _device(path: Path) -> None:
    need_root()
    os.mknod(path, 0o020666, os.makedev(1, 3))


KINDS: dict[str, Callable[[Path], None]] = {
    "symlink": _symlink,
    "dangling symlink": _dangling,
    "FIFO": lambda path: os.mkfifo(path),
    "directory": lambda path: path.mkdir(),
    "device": _device,
}
HOSTILE = (
    "a-0/00000000000000000000.log",
    "a-0/00000000000000000099.log",
    "a-0/00000000000000000000.index",
    "a-0/00000000000000000000.timeindex",
    "a-0/00000000000000000000.textindex",
    "a-0/leader-epoch-checkpoint",
    "a-0/partition.metadata",
    "a-0/logfs.modes",
    "recovery-point-offset-checkpoint",
    "log-start-offset-checkpoint",
    "replication-offset-checkpoint",
    "cleaner-offset-checkpoint",
    "meta.properties",
    "a@p",
    "logfs.properties",
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", HOSTILE)
def test_an_entry_that_is_no_regular_file_is_refused_and_never_waited_for(
    name: str, kind: str
) -> None:
    """A symlink, FIFO, directory or device in place of a file is never followed, waited for or written to."""
    original = make(segment_bytes=100_000)
    with crashdisk.scratch() as root:
        crashdisk.write_image(root, original.unclean())
        secret = root / "secret"
        secret.write_bytes(b"0\n0\n")
        path = root / "log" / name
        path.unlink(missing_ok=True)
        KINDS[kind](path)
        with never_blocks():
            for read_only in (True, False):
                try:
                    with Store(root / "log", clock=lambda: BASE_MS, read_only=read_only) as store:
                        if "a-0" in store:
                            found = ask(store["a-0"], len(original.records))
                            for offset, answer in enumerate(found.by_offset):
                                assert isinstance(answer, str) or (
                                    answer == original.records[offset]
                                )
                except (LogfsError, OSError):
                    pass
            try:
                list(check([root / "log"]))
            except (LogfsError, OSError):
                pass
        assert secret.read_bytes() == b"0\n0\n", "written through a symlink"


def test_a_partition_with_a_hostile_file_leaves_the_others_working() -> None:
    """A FIFO in place of a segment takes only its own partition offline."""
    original = make()
    with crashdisk.scratch() as root:
        crashdisk.write_image(root, original.unclean())
        with Store(root / "log") as store:
            store.create("b-0").append([b"well"])
        (root / "log/a-0/00000000000000000000.log").unlink()
        os.mkfifo(root / "log/a-0/00000000000000000000.log")
        with never_blocks(), Store(root / "log") as store:
            assert "a-0" in store.offline
            assert [record.value for record in store["b-0"].read()] == [b"well"]
        assert any("a-0" in error for error in crashdisk.errors_of(root / "log"))


@pytest.mark.drawn(5)
@pytest.mark.parametrize("claimed", [2, 3, 9, 1_000_000, 2**31 - 1])
@pytest.mark.parametrize("state", ["clean", "unclean", "compacted"])
def test_a_batch_that_claims_the_offsets_after_it_hides_nothing(claimed: int, state: str) -> None:
    """A batch with a valid CRC but a wrong last offset delta is damaged itself; an opening cuts nothing off."""
    original = make(segment_bytes=100_000)
    image = dict(original.image if state == "clean" else original.unclean(0))
    if state == "compacted":
        image["log/cleaner-offset-checkpoint"] = b"0\n1\na 0 0\n"
    for name, position, size, base, following in original.batches[:-1]:
        data = bytearray(image[name])
        struct.pack_into(">i", data, position + 23, claimed)
        struct.pack_into(">I", data, position + 17, crc32c(data[position + 21 : position + size]))
        for read_only in (True, False):
            with crashdisk.scratch() as root:
                crashdisk.write_image(root, {**image, name: bytes(data)})
                assert any(
                    f"offsets {base} to {following - 1}" in e
                    for e in crashdisk.errors_of(root / "log")
                )
                with Store(root / "log", clock=lambda: BASE_MS, read_only=read_only) as store:
                    found = ask(store["a-0"], len(original.records)).by_offset
                assert (root / name).read_bytes() == bytes(data)
            for offset, (answer, record) in enumerate(zip(found, original.records, strict=True)):
                if base <= offset < following:
                    assert isinstance(answer, str) or answer == record
                else:
                    assert answer == record


@pytest.mark.parametrize("size", [0, 50, 5000])
@pytest.mark.parametrize("read_only", [False, True])
def test_a_stray_swap_file_hides_nothing(size: int, read_only: bool) -> None:
    """A swap file that no compaction can have left takes its partition offline, and the error names it.

    Without the file, all records are there.
    """
    original = make()
    bases = [int(Path(name).stem) for name in original.image if name.endswith(".log")]
    with crashdisk.scratch() as root:
        crashdisk.write_image(root, original.image)
        for base in range(len(original.records)):
            if size == 0 and base in bases:
                # A cleaner that has kept nothing of a segment leaves such a file, too.
                continue
            stray = root / "log/a-0" / f"{base:020}.log.swap"
            stray.write_bytes(b"?" * size)
            with Store(root / "log", clock=lambda: BASE_MS, read_only=read_only) as store:
                assert str(stray) in str(store.offline["a-0"])
            stray.unlink()
            with Store(root / "log", clock=lambda: BASE_MS, read_only=read_only) as store:
                found = ask(store["a-0"], len(original.records))
                assert [*found.by_offset] == original.records


# The tests above must detect a broken engine.


def _no_crc(patch: pytest.MonkeyPatch) -> None:
    import numpy as np

    from logfs.format.base.batch_rows import BATCH_COLUMNS
    from logfs.log.segment import batch_scanner
    from logfs.log.segment.batch_scanner import ScannedBatches

    patch.setattr(Batch, "is_valid", property(lambda self: True))
    patch.setattr(batch_scanner, "crc32c", lambda data: None)
    patch.setattr(
        batch_scanner,
        "scan",
        lambda data, first_offset, *, gaps: (
            ScannedBatches(0, data, np.empty((0, BATCH_COLUMNS), np.int64)),
            0,
        ),
    )


def _no_neighbours(patch: pytest.MonkeyPatch) -> None:
    from logfs.log.segment import batch_iterator

    patch.setattr(batch_iterator.Walk, "_check_successor", lambda *arguments: None)


def _kafka_deletes_what_follows(patch: pytest.MonkeyPatch) -> None:
    def is_torn(self: object, segment: object, damage: Damage, size: int, *, is_last: bool) -> bool:
        return is_last and damage.start < damage.end

    patch.setattr(recovery._LogLoader, "_is_torn", is_torn)


@pytest.mark.parametrize(
    ("mutate", "caught_by"),
    [
        (
            _no_crc,
            lambda: test_no_bit_of_a_batch_turns_into_a_wrong_answer(
                "uncompressed", "middle", "clean"
            ),
        ),
        (
            _no_neighbours,
            lambda: test_no_bit_of_a_batch_turns_into_a_wrong_answer(
                "uncompressed", "middle", "unclean"
            ),
        ),
        (
            _kafka_deletes_what_follows,
            lambda: test_what_lies_behind_damage_is_neither_deleted_nor_hidden("unclean"),
        ),
    ],
    ids=["no crc", "no neighbours", "as kafka"],
)
def test_the_flips_catch_a_broken_engine(
    mutate: Callable[[pytest.MonkeyPatch], None],
    caught_by: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each seeded fault of the engine makes a test above fail."""
    mutate(monkeypatch)
    # Only some of the flips find the fault.
    monkeypatch.setitem(globals(), "drawn", lambda cases, count: list(cases))
    with pytest.raises((AssertionError, Corrupt, ValueError, IndexError)):
        caught_by()


def test_the_fields_of_the_verdicts_match_the_batch_header() -> None:
    """`field_of` names the fields of the batch header at their real positions."""
    data = bytearray(HEADER_SIZE)
    for byte in (0, 11, 12, 16, 17, 21, 61):
        assert field_of(byte)
    data[15] = 7
    assert parse_header(data).partition_leader_epoch == 7


@pytest.mark.parametrize("inserted", [b"\3", b"\x63", b"\3\xb5", b"\3\xb5\3\xb5\3"])
@pytest.mark.parametrize("number", [1, 3, 5])
def test_bytes_between_two_batches_move_no_record(
    log_dir: Path, number: int, inserted: bytes
) -> None:
    """Bytes inserted into a batch's first field change its apparent offset. The batches after it stay readable."""
    with Store(log_dir) as store:
        orders = store.create("orders-0")
        positions = []
        for n in range(8):
            positions.append(orders.size_bytes)
            orders.append([b"value %d" % n])
    (log_dir / ".kafka_cleanshutdown").unlink()
    path = log_dir / "orders-0" / f"{0:020}.log"
    data = path.read_bytes()
    # The last bytes of the base offset now begin with the inserted bytes.
    at = positions[number] + 7
    path.write_bytes(data[:at] + inserted + data[at:])
    with Store(log_dir, read_only=True) as store:
        found = {}
        start = 0
        while True:
            try:
                for record in store["orders-0"].read(start):
                    found[record.offset] = record.value
                break
            except DamagedRange as damage:
                start = damage.next_offset
    path.write_bytes(data)
    assert found == {n: b"value %d" % n for n in range(8) if n != number}
