"""Appending over a real mount: lines, envelopes, batches, refusals and durability."""

from __future__ import annotations

import base64
import errno
import mmap
import os
import random
import subprocess
import sys
import threading
from collections import defaultdict
from contextlib import ExitStack
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

import orjson
import pytest

from tests.support.mounts import Mount, refuses
from tests.support.processes import Threads, run, wait_for
from tests.support.requirements import need_command, need_fuse, need_root
from tests.support.stores import assert_clean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

LAST_OFFSET = "user.logfs.last_offset"
MIB = 1 << 20
# The bytes that the kernel sends in one WRITE request, however they lie in memory (docs/durability.md, P3).
LARGEST_WRITE = 1_044_480
# The bytes of a line in test_readers_see_a_write_whole_or_not_at_all.
WIDTH = len("00 00000 00\n")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mount]:
    """One mount for the tests of this module, each of which uses a partition of its own."""
    need_fuse()
    base = tmp_path_factory.mktemp("append")
    mount = Mount(base / "mnt", [base / "log"]).start().keep_old_records()
    yield mount
    mount.stop()
    assert_clean(*mount.log_dirs)


_numbers = count()


def envelopes(directory: Path) -> list[dict[str, object]]:
    """Return the envelopes of `records.jsonl`."""
    return [orjson.loads(line) for line in (directory / "records.jsonl").read_bytes().splitlines()]


def batches(directory: Path) -> list[dict[str, object]]:
    """Return the record batches of a partition's log, as `logfs dump` prints them over the mount."""
    found: list[dict[str, object]] = []
    for path in sorted((directory / "segments").glob("*.log")):
        printed = run(sys.executable, "-m", "logfs", "dump", "--json", path)
        lines = [orjson.loads(line) for line in printed.splitlines()]
        found += [line for line in lines if "baseOffset" in line]
    return found


def status(directory: Path) -> dict[str, object]:
    """Return a partition's `status.json`."""
    return dict(orjson.loads((directory / "status.json").read_bytes()))


class Writer:
    """An open `append` or `append.jsonl`. Each call makes one write(2)."""

    def __init__(self, path: Path, flags: int = 0) -> None:
        self.fd = os.open(path, os.O_WRONLY | flags)

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        if self.fd >= 0:
            self.close()

    def __call__(self, data: bytes) -> int:
        return os.write(self.fd, data)

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self.fd)
        self.fd = -1


# Lines.


def test_a_line_is_a_record(topic: Path) -> None:
    """A record's value is the bytes of a line without its newline, and an empty line is an empty value."""
    with Writer(topic / "append") as write:
        assert write(b"hello\n\nworld\r\n") == 14
    assert [(topic / f"offsets/{n}").read_bytes() for n in range(3)] == [b"hello", b"", b"world\r"]
    assert (topic / "records").read_bytes() == b"hello\n\nworld\r\n"


@pytest.mark.parametrize("size", [0, 1, 10**5, 10**6])
def test_lines_of_every_size(topic: Path, size: int) -> None:
    """A line of 0, 1, 10^5 or 10^6 bytes is read back unchanged, written alone or among others."""
    line = bytes(32 + n % 90 for n in range(size))
    (topic / "append").write_bytes(line + b"\n")
    (topic / "append").write_bytes(b"before\n" + line + b"\nafter\n")
    assert (topic / "offsets/0").read_bytes() == line
    assert (topic / "offsets/2").read_bytes() == line
    assert (topic / "records").read_bytes() == line + b"\nbefore\n" + line + b"\nafter\n"


def test_lines_of_arbitrary_bytes(topic: Path) -> None:
    """A line may contain every byte except the newline."""
    line = bytes(byte for byte in range(256) if byte != 10)
    (topic / "append").write_bytes(line + b"\n")
    assert (topic / "offsets/0").read_bytes() == line


def test_shell_loop_of_echo(topic: Path) -> None:
    """A shell loop of `echo >>` appends one record per line, in order."""
    run("sh", "-c", f"for i in $(seq 200); do echo line $i >> {topic}/append; done")
    assert (topic / "records").read_text() == "".join(f"line {n}\n" for n in range(1, 201))


def test_truncating_redirection_appends(topic: Path) -> None:
    """`>` appends as `>>` does: O_TRUNC and truncate(2) to 0 succeed, and remove nothing."""
    run("sh", "-c", f"echo a > {topic}/append; echo b >> {topic}/append; echo c > {topic}/append")
    with Writer(topic / "append", os.O_TRUNC) as write:
        write(b"d\n")
    os.truncate(topic / "append", 0)
    assert (topic / "records").read_bytes() == b"a\nb\nc\nd\n"


def test_position_is_ignored(topic: Path) -> None:
    """Records are appended to the end of the log, at whatever file position they are written."""
    with Writer(topic / "append") as write:
        os.pwrite(write.fd, b"a\n", 1000)
        os.pwrite(write.fd, b"b\n", 0)
        os.lseek(write.fd, 0, os.SEEK_SET)
        write(b"c\n")
    assert (topic / "records").read_bytes() == b"a\nb\nc\n"


def test_tools_that_copy_into_append(topic: Path, tmp_path: Path) -> None:
    """cat, tee, dd, cp and writev(2) append all of their input."""
    source = tmp_path / "source"
    source.write_bytes(b"".join(b"line %d\n" % n for n in range(5000)))
    with (topic / "append").open("ab") as out:
        subprocess.run(["cat", str(source)], stdout=out, check=True)
    run("sh", "-c", f"tee -a {topic}/append < {source} > /dev/null")
    run("dd", f"if={source}", f"of={topic}/append", "bs=1000", "conv=notrunc,fsync")
    run("cp", source, topic / "append")
    with Writer(topic / "append") as write:
        os.writev(write.fd, [b"one ", b"record\n", b"and another\n"])
    expected = source.read_bytes() * 4 + b"one record\nand another\n"
    assert (topic / "records").read_bytes() == expected


def test_append_reads_as_empty(topic: Path) -> None:
    """`append` has size 0 and reads as empty, whatever was written."""
    (topic / "append").write_bytes(b"x\n")
    assert (topic / "append").read_bytes() == b""
    assert (topic / "append").stat().st_size == 0


def test_a_read_only_mount_takes_no_record(make_mount: Callable[..., Mount]) -> None:
    """Its files for appends read as empty, so that `grep -r` and `tar` pass over them, and are EROFS for writing."""
    mount = make_mount()
    (mount.partition("orders-0") / "append").write_bytes(b"x\n")
    shown = make_mount("--read-only", name="ro", log_dirs=mount.log_dirs).path
    for place in ("orders-0", "topics/orders"):
        for name in ("append", "append.jsonl"):
            path = shown / place / name
            assert path.read_bytes() == b""
            with pytest.raises(OSError, match="Read-only file system"):
                path.write_bytes(b"y\n")
    assert (shown / "orders-0/records").read_bytes() == b"x\n"


def test_unfinished_line_ends_at_the_last_close(topic: Path) -> None:
    """Bytes written after the last newline become a record when the last descriptor is closed."""
    with Writer(topic / "append") as write:
        write(b"whole\nunfin")
        write(b"ished")
        assert (topic / "records").read_bytes() == b"whole\n"
        other = os.dup(write.fd)
        write.close()
        assert (topic / "records").read_bytes() == b"whole\n"
        os.close(other)
        # The kernel queues the RELEASE before close(2) returns.
        assert (topic / "records").read_bytes() == b"whole\nunfinished\n"


def test_envelope_without_newline(topic: Path) -> None:
    """An envelope without a newline also becomes a record at the last close."""
    run("sh", "-c", f'printf %s \'{{"value":"v"}}\' >> {topic}/append.jsonl')
    assert (topic / "records").read_bytes() == b"v\n"


def test_an_exiting_child_does_not_end_the_line(topic: Path) -> None:
    """The exit of a child that inherited the descriptor only causes a FLUSH, which does not end the line."""
    with Writer(topic / "append") as write:
        write(b"first half, ")
        subprocess.run(["true"], pass_fds=[write.fd], check=True)
        subprocess.run(["sh", "-c", "sleep 0; exit 3"], stdout=write.fd, check=False)
        assert (topic / "records").read_bytes() == b""
        write(b"second half\n")
    assert (topic / "records").read_bytes() == b"first half, second half\n"


def test_a_child_may_continue_the_line(topic: Path) -> None:
    """Several processes that share one open file write one stream of lines."""
    run("sh", "-c", f"(printf 'a '; sh -c 'printf \"b \"'; echo c) >> {topic}/append")
    assert (topic / "records").read_bytes() == b"a b c\n"


def test_lines_of_two_handles_do_not_mix(topic: Path) -> None:
    """Each open file has its own unfinished line: lines of different open files are never torn or interleaved."""
    with Writer(topic / "append") as one, Writer(topic / "append") as two:
        for part in (b"aaa", b"bbb", b"ccc"):
            one(part.lower())
            two(part.upper())
        two(b"\n")
        one(b"\n")
    assert (topic / "records").read_bytes() == b"AAABBBCCC\naaabbbccc\n"


_APPENDER = """
import os, random, sys
path, name, lines = sys.argv[1], sys.argv[2], int(sys.argv[3])
chance = random.Random(name)
fd = os.open(path, os.O_WRONLY | os.O_APPEND)
number = 0
while number < lines:
    some = min(chance.choice([1, 1, 3, 50]), lines - number)
    data = b"".join(
        b"%s %d %s\\n" % (name.encode(), number + n, b"x" * chance.choice([0, 10, 300, 5000]))
        for n in range(some)
    )
    number += some
    cut = chance.randrange(len(data)) if chance.random() < 0.3 else len(data)
    for part in (data[:cut], data[cut:]):
        while part:
            part = part[os.write(fd, part):]
os.close(fd)
"""


def test_sixteen_processes_at_once(topic: Path) -> None:
    """When 16 processes append at once, no line is torn, lost or duplicated, and each process's order is kept."""
    names = [f"process{n}" for n in range(16)]
    lines = 300
    command = [sys.executable, "-S", "-E", "-c", _APPENDER, str(topic / "append")]
    processes = [subprocess.Popen([*command, name, str(lines)]) for name in names]
    assert [process.wait(120) for process in processes] == [0] * 16
    seen = defaultdict(list)
    for line in (topic / "records").read_bytes().splitlines():
        name, number, filling = line.split(b" ")
        assert filling == b"x" * len(filling)
        seen[name.decode()].append(int(number))
    assert seen == {name: list(range(lines)) for name in names}
    assert status(topic)["log_end_offset"] == 16 * lines


# Batches and visibility.


def test_readable_when_write_returns(topic: Path) -> None:
    """When `write` returns, its records are visible: in the size and the end of `records`, by offset and by time."""
    expected = b""
    records = os.open(topic / "records", os.O_RDONLY)
    with Writer(topic / "append") as write:
        for number in range(200):
            line = b"record %d" % number
            write(line + b"\n")
            expected += line + b"\n"
            assert os.stat(topic / "records").st_size == len(expected)
            assert os.fstat(records).st_size == len(expected)
            assert os.pread(records, 1000, len(expected) - len(line) - 1) == line + b"\n"
            assert os.readlink(topic / "offsets/latest") == str(number)
            assert (topic / "offsets/latest").read_bytes() == line
            assert (topic / f"offsets/{number}..").read_bytes() == line + b"\n"
            timestamp = int(os.stat(topic / f"offsets/{number}").st_mtime_ns // 1_000_000)
            assert (topic / f"time/{timestamp}").exists()
    os.close(records)
    assert (topic / "records").read_bytes() == expected


def test_readers_beside_writers(topic: Path) -> None:
    """Readers during appends see whole lines, exact sizes, and a `latest` that exists."""
    (topic / "config/segment.bytes").write_text("100000")
    (topic / "append").write_bytes(b"first\n")
    command = [sys.executable, "-S", "-E", "-c", _APPENDER, str(topic / "append")]
    seen = b""
    with ExitStack() as stack:
        held = stack.enter_context((topic / "records").open("rb", buffering=0))
        writers = [
            stack.enter_context(subprocess.Popen([*command, f"process{n}", "2000"]))
            for n in range(4)
        ]
        while any(writer.poll() is None for writer in writers):
            size = os.stat(topic / "records").st_size
            more = held.read(1 << 24)
            seen += more
            assert len(seen) >= size
            assert seen.endswith(b"\n")
            latest = int(os.readlink(topic / "offsets/latest"))
            assert (topic / f"offsets/{latest}").exists()
            with (topic / "offsets/-3..").open("rb", buffering=0) as last:
                length = os.fstat(last.fileno()).st_size
                data = last.readall()
                assert len(data) >= length
                assert data.endswith(b"\n")
        assert [writer.wait() for writer in writers] == [0] * 4
        seen += held.readall()
    assert seen == (topic / "records").read_bytes()
    assert seen.count(b"\n") == 8001


def test_one_write_is_one_batch(topic: Path) -> None:
    """The records of one write(2) form one record batch, and all have the time of the write."""
    with Writer(topic / "append") as write:
        write(b"a\nb\nc\nd\ne\nf\n")
        write(b"g\n")
        write(b"h\ni\n")
    assert [(batch["baseOffset"], batch["count"]) for batch in batches(topic)] == [
        (0, 6),
        (6, 1),
        (7, 2),
    ]
    stamps = [envelope["timestamp"] for envelope in envelopes(topic)]
    assert len(set(stamps[:6])) == 1
    assert stamps == sorted(stamps)  # type: ignore[type-var]


def test_big_write_is_several_batches(topic: Path) -> None:
    """A write that is larger than `max.message.bytes` is stored as several batches, none larger than the limit."""
    (topic / "config/max.message.bytes").write_text("10000")
    data = b"".join(b"%0100d\n" % n for n in range(1000))
    with Writer(topic / "append") as write:
        assert write(data) == len(data)
    found = batches(topic)
    assert len(found) >= len(data) // 10000
    assert max(int(str(batch["size"])) for batch in found) <= 10000
    assert (topic / "records").read_bytes() == data


def test_each_open_file_is_the_same_file(topic: Path) -> None:
    """Several opens of `append` have inodes of their own in the kernel, but one `st_ino` and one last offset each."""
    path = topic / "append"
    with Writer(path) as first, Writer(path) as second:
        numbers = {os.fstat(first.fd).st_ino, os.fstat(second.fd).st_ino, path.stat().st_ino}
        assert len(numbers) == 1
        assert first(b"one\nun") == 6
        assert second(b"two\n") == 4
        assert first(b"finished\n") == 9
        for place in (path, first.fd, second.fd):
            assert os.getxattr(place, LAST_OFFSET) == b"2"
    assert (topic / "records").read_bytes() == b"one\ntwo\nunfinished\n"


def test_the_largest_write_that_is_one_append(topic: Path) -> None:
    """A write(2) of 1,044,480 bytes is one batch if `max.message.bytes` allows it; one of more than 1 MiB is several.

    A request holds 256 pages of the caller's memory, the first and last of which may be used in part.
    """
    (topic / "config/max.message.bytes").write_text("3000000")
    for size, parts in ((LARGEST_WRITE, 1), (MIB + 1, 2)):
        before = len(batches(topic))
        with Writer(topic / "append") as write:
            assert write(b"x" * 4095 + b"\n" + b"y" * (size - 4097) + b"\n") == size
        assert len(batches(topic)) - before == parts


def test_readers_see_a_write_whole_or_not_at_all(topic: Path) -> None:
    """While writers append groups of lines with one write each, every size, text and listing ends between groups."""
    lines, writers = 7, 2
    ended = threading.Event()
    torn: list[str] = []
    sizes: set[int] = set()
    written = [0] * writers
    threads = Threads([])

    def look() -> None:
        group_bytes = lines * WIDTH
        with (topic / "records").open("rb", buffering=0) as records:
            while not ended.is_set():
                size = os.fstat(records.fileno()).st_size
                # The last 100 groups, and what has been appended since: the read ends where the file ends.
                start = max(size // group_bytes - 100, 0) * group_bytes
                seen = len(os.pread(records.fileno(), MIB, start))
                last = os.readlink(topic / "offsets/latest") if size else "-1"
                sizes.add(size)
                if size % group_bytes or seen % group_bytes or (int(last) + 1) % lines:
                    torn.append(f"size {size}, {seen} bytes read, last offset {last}")

    def write_groups(number: int) -> None:
        with Writer(topic / "append") as write:
            for group in count():
                data = b"".join(b"%02d %05d %02d\n" % (number, group, n) for n in range(lines))
                assert write(data) == len(data)
                written[number] = group + 1
                if len(sizes) > 60 or threads.errors:
                    return

    readers = Threads(threads.errors)
    readers.start(look)
    for number in range(writers):
        threads.start(partial(write_groups, number))
    threads.join()
    ended.set()
    readers.join()
    assert (threads.errors, torn) == ([], [])
    # The lines of each write are neighbours in the log.
    values = (topic / "records").read_bytes().splitlines()
    assert len(values) == lines * sum(written)
    for first in range(0, len(values), lines):
        group = values[first : first + lines]
        assert group == [b"%s %02d" % (group[0][:8], n) for n in range(lines)]


def test_segments_roll_during_a_write(topic: Path) -> None:
    """A write that fills several segments of `segment.bytes` loses nothing."""
    (topic / "config/segment.bytes").write_text("20000")
    data = b"".join(b"%0100d\n" % n for n in range(1000))
    with Writer(topic / "append") as write:
        assert write(data) == len(data)
    assert len(list((topic / "segments").glob("*.log"))) > 4
    assert (topic / "records").read_bytes() == data
    assert [batch["isvalid"] for batch in batches(topic)].count(False) == 0


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_compression_type(topic: Path, codec: str) -> None:
    """Batches are compressed with the topic's `compression.type`, and are read back unchanged."""
    setting = "uncompressed" if codec == "none" else codec
    (topic / "config/compression.type").write_text(setting)
    data = b"".join(b"line %d of the same text again and again\n" % n for n in range(2000))
    (topic / "append").write_bytes(data)
    with Writer(topic / "append.jsonl") as write:
        write(b'{"key":"k","value":"v","headers":[["h","1"]]}\n' * 3)
    found = batches(topic)
    assert {batch["compresscodec"] for batch in found} == {codec}
    if codec != "none":
        assert sum(int(str(batch["size"])) for batch in found) < len(data) / 2
    assert (topic / "records").read_bytes() == data + b"v\n" * 3
    assert (topic / "offsets/1234").read_bytes() == data.splitlines()[1234]
    assert len(envelopes(topic)) == 2003


def test_last_offset_of_this_process(topic: Path) -> None:
    """`user.logfs.last_offset` is the offset of the last record that this process wrote through that file."""
    with refuses(errno.ENODATA):
        os.getxattr(topic / "append", LAST_OFFSET)
    with Writer(topic / "append") as write:
        write(b"a\nb\n")
        assert os.getxattr(topic / "append", LAST_OFFSET) == b"1"
        assert os.getxattr(write.fd, LAST_OFFSET) == b"1"
        run("sh", "-c", f"echo other >> {topic}/append")
        assert os.getxattr(write.fd, LAST_OFFSET) == b"1"
        write(b"c\n")
        assert os.getxattr(write.fd, LAST_OFFSET) == b"3"
        assert os.listxattr(write.fd) == [LAST_OFFSET]
        with refuses(errno.ENODATA):
            os.getxattr(topic / "append.jsonl", LAST_OFFSET)
        write(b"unfinished")
        assert os.getxattr(write.fd, LAST_OFFSET) == b"3"
    assert os.getxattr(topic / "append", LAST_OFFSET) == b"4"
    need_command("getfattr")
    getfattr = f"getfattr --only-values -n {LAST_OFFSET} append"
    shell = f"cd {topic}; exec >> append; echo mine; exec {getfattr} >&2"
    done = subprocess.run(["sh", "-c", shell], capture_output=True, check=True)
    assert done.stderr == b"5", "exec keeps the process"


# Envelopes.


def test_any_bytes_through_envelopes(topic: Path) -> None:
    """Values, keys and header values of arbitrary bytes are written as base64 and read back unchanged."""
    noise = bytes(range(256)) + b"\n\r\0"
    blob = {"base64": base64.b64encode(noise).decode()}
    line = {"key": blob, "value": blob, "headers": [["h", blob], ["h", "again"], ["n", None]]}
    (topic / "append.jsonl").write_bytes(orjson.dumps(line) + b"\n")
    assert (topic / "offsets/0").read_bytes() == noise
    assert os.getxattr(topic / "offsets/0", "user.logfs.key") == noise
    found = orjson.loads((topic / "offsets/0.json").read_bytes())
    assert {name: found[name] for name in line} == line
    assert orjson.loads(os.getxattr(topic / "offsets/0", "user.logfs.headers")) == line["headers"]


def test_null_is_not_empty(topic: Path) -> None:
    """A null value reads as an empty line or file; its envelope and attribute differ from those of an empty value."""
    (topic / "append.jsonl").write_bytes(
        b'{"key":"k","value":null}\n{"key":"","value":""}\n{"key":null,"value":"x"}\n'
    )
    assert (topic / "records").read_bytes() == b"\n\nx\n"
    assert [(topic / f"offsets/{n}").read_bytes() for n in range(3)] == [b"", b"", b"x"]
    assert [envelope["value"] for envelope in envelopes(topic)] == [None, "", "x"]
    assert [envelope["key"] for envelope in envelopes(topic)] == ["k", "", None]
    nulls = [os.getxattr(topic / f"offsets/{n}", "user.logfs.null") for n in range(3)]
    assert nulls == [b"1", b"0", b"0"]
    keys = ["user.logfs.key" in os.listxattr(topic / f"offsets/{n}") for n in range(3)]
    assert keys == [True, True, False]


def test_text_in_envelopes(topic: Path) -> None:
    """Text is a JSON string in both directions, with all its escapes."""
    texts = [
        "",
        "ascii",
        "ümläut €",
        "\U0001f600",
        'quote " back \\ slash /',
        "tab\tnew\nline\x01\x7f",
    ]
    lines = [
        orjson.dumps({"key": text, "value": text, "headers": [[text, text]]}) for text in texts
    ]
    (topic / "append.jsonl").write_bytes(b"\n".join(lines))
    for text, found in zip(texts, envelopes(topic), strict=True):
        assert (found["key"], found["value"], found["headers"]) == (text, text, [[text, text]])
        assert (topic / f"offsets/{found['offset']}").read_text() == text


def test_envelopes_can_be_appended_to_another_partition(shared: Mount, topic: Path) -> None:
    """`append.jsonl` accepts the lines of `records.jsonl`, and keeps all fields but topic, partition and offset."""
    chance = random.Random(7)
    lines = []
    for number in range(500):
        noise = chance.randbytes(chance.randrange(40))
        lines.append(
            {
                "timestamp": 1638100400000 + chance.randrange(10**6),
                "key": chance.choice(
                    [None, "", "key", {"base64": base64.b64encode(b"\xff" + noise).decode()}]
                ),
                "value": chance.choice(
                    [
                        None,
                        "",
                        f"value {number}",
                        {"base64": base64.b64encode(b"\xfe" + noise).decode()},
                    ]
                ),
                "headers": [
                    ["h", chance.choice([None, "", "v"])] for _ in range(chance.randrange(4))
                ],
            }
        )
    (topic / "append.jsonl").write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))
    (topic / "append").write_bytes(b"now\n")
    copy = shared.partition(f"copy{next(_numbers)}-7")
    (copy / "append").write_bytes(b"first\n")
    run("sh", "-c", f"cat {topic}/records.jsonl >> {copy}/append.jsonl")
    mine, theirs = envelopes(topic), envelopes(copy)[1:]
    for number, (one, two) in enumerate(zip(mine, theirs, strict=True)):
        assert (two["partition"], two["offset"]) == (7, number + 1)
        for name in ("timestamp", "timestamp_type", "key", "value", "headers"):
            assert one[name] == two[name]
    for line, found in zip(lines, mine, strict=False):
        assert line == {name: found[name] for name in line}
    fields = [
        "topic",
        "partition",
        "offset",
        "timestamp",
        "timestamp_type",
        "key",
        "value",
        "headers",
    ]
    assert list(mine[0]) == fields


def test_timestamps_follow_the_timestamp_type(topic: Path) -> None:
    """A record keeps its timestamp with CreateTime, and gets the time of the append with LogAppendTime."""
    line = b'{"value":"v","timestamp":1638100400000}\n'
    (topic / "append.jsonl").write_bytes(line)
    (topic / "config/message.timestamp.type").write_text("LogAppendTime")
    (topic / "append.jsonl").write_bytes(line)
    first, second = envelopes(topic)
    assert (first["timestamp"], first["timestamp_type"]) == (1638100400000, "CreateTime")
    assert second["timestamp_type"] == "LogAppendTime"
    assert int(str(second["timestamp"])) > 1638100400000
    assert os.getxattr(topic / "offsets/1", "user.logfs.timestamp_type") == b"LogAppendTime"


# Refusals.

_BAD = [
    b"no json",
    b"[]",
    b'{"key":"no value"}',
    b'{"value":1}',
    b'{"value":"v","colour":"blue"}',
    b'{"value":{"base64":"!!"}}',
    b'{"value":"v","timestamp":"noon"}',
    b'{"value":"v","headers":{"a":"b"}}',
    b'{"value":"v","headers":[["only a name"]]}',
    b'{"value":"\xff"}',
    b"",
]


@pytest.mark.parametrize("bad", _BAD)
def test_bad_envelope(shared: Mount, topic: Path, bad: bytes) -> None:
    """An invalid envelope is EINVAL with a reason. The valid lines before it are appended and counted in the result
    of the write, and valid lines can be written after it.
    """
    good = b'{"value":"good"}\n'
    with Writer(topic / "append.jsonl") as write:
        data = good + good + bad + b"\n" + good
        assert write(data) == 2 * len(good)
        assert (topic / "records").read_bytes() == b"good\ngood\n"
        with refuses(errno.EINVAL):
            write(data[2 * len(good) :])
        assert write(good) == len(good)
    assert (topic / "records").read_bytes() == b"good\ngood\ngood\n"
    (line,) = [line for line in shared.errors().splitlines() if f"/{topic.name}/" in line]
    _, path, name, reason = line.split(" ", 3)
    assert (path, name) == (f"/{topic.name}/append.jsonl", "EINVAL")
    assert len(reason) > 10


def test_bad_envelope_in_several_writes(topic: Path) -> None:
    """An invalid envelope in several writes is refused up to its newline, and the next line is accepted."""
    with Writer(topic / "append.jsonl") as write:
        assert write(b'{"value":"one"}\n{"val') == 21
        with refuses(errno.EINVAL):
            write(b'ue":oops}\n')
        write(b'{"value":"two"}\n')
    assert (topic / "records").read_bytes() == b"one\ntwo\n"


def test_bad_unfinished_envelope(shared: Mount, topic: Path) -> None:
    """An unfinished line that is not an envelope is dropped at the last close, and `.logfs/errors` lists it."""
    run("sh", "-c", f"printf oops >> {topic}/append.jsonl")
    assert (topic / "records").read_bytes() == b""
    (line,) = [line for line in shared.errors().splitlines() if f"/{topic.name}/" in line]
    assert " EINVAL " in line


def test_line_over_the_limit(shared: Mount, topic: Path) -> None:
    """A line longer than `max.message.bytes` is EMSGSIZE with a reason; the lines before and after it are kept."""
    (topic / "config/max.message.bytes").write_text("1000")
    good, bad = b"good\n", b"x" * 2000 + b"\n"
    with Writer(topic / "append") as write:
        data = good * 2 + bad + good
        assert write(data) == 2 * len(good)
        with refuses(errno.EMSGSIZE):
            write(data[2 * len(good) :])
        assert write(good) == len(good)
    assert (topic / "records").read_bytes() == b"good\n" * 3
    (line,) = [line for line in shared.errors().splitlines() if f"/{topic.name}/" in line]
    assert f" /{topic.name}/append EMSGSIZE " in line
    assert "max.message.bytes" in line


@pytest.mark.parametrize("piece", [1, 7, 100, 999, 5000])
def test_long_line_in_several_writes(topic: Path, piece: int) -> None:
    """A line too large is refused up to its newline and no further, however it is divided into writes."""
    (topic / "config/max.message.bytes").write_text("1000")
    stream = b"before\n" + b"x" * 3000 + b"\nafter\nand more\n"
    refused = 0
    with Writer(topic / "append") as write:
        at = 0
        while at < len(stream):
            data = stream[at : at + piece]
            try:
                at += write(data)
            except OSError as error:
                if error.errno != errno.EMSGSIZE:
                    raise
                refused += 1
                # The caller skips the refused bytes: up to the newline, if the write contains it.
                newline = data.find(b"\n")
                at += len(data) if newline < 0 else newline + 1
    assert refused
    assert (topic / "records").read_bytes() == b"before\nafter\nand more\n"


@pytest.mark.parametrize("name", ["append", "append.jsonl"])
def test_the_write_that_ends_a_bad_line_is_told(topic: Path, name: str) -> None:
    """A line that only its end, in a later write, shows to be bad: the write fails, even if good lines follow."""
    (topic / "config/max.message.bytes").write_text("1000")
    begin, end, good = b"x" * 600, b"x" * 600 + b"\n", b"good\n"
    if name == "append.jsonl":
        begin, end, good = b'{"val', b'ue":oops}\n', b'{"value":"good"}\n'
    with Writer(topic / name) as write:
        assert write(begin) == len(begin)
        with refuses(errno.EINVAL if name == "append.jsonl" else errno.EMSGSIZE):
            write(end + good)
        assert write(good) == len(good)
    assert (topic / "records").read_bytes() == b"good\n"


def test_a_long_line_that_the_kernel_divides(topic: Path) -> None:
    """A line over a limit of 1.5 MB, in one write(2) with good lines, is refused as often as its end is written."""
    (topic / "config/max.message.bytes").write_text("1500000")
    with Writer(topic / "append") as write:
        data = b"good\n" + b"x" * 1_900_000 + b"\n"
        rest = (data + b"good\n")[write(data + b"good\n") :]
        assert len(data) > len(rest) > 0
        for _ in range(2):
            with refuses(errno.EMSGSIZE):
                write(rest)
        assert write(b"good\n") == 5
    assert (topic / "records").read_bytes() == b"good\ngood\n"


def test_long_line_by_default(topic: Path) -> None:
    """With Kafka's default limit a write of a line of 2 MiB fails as a whole, although the kernel divides it."""
    with Writer(topic / "append") as write:
        data = b"good\n" + b"x" * (2 * MIB) + b"\n"
        with refuses(errno.EMSGSIZE):
            while data:
                data = data[write(data) :]
        assert write(b"good again\n") == 11
    assert (topic / "records").read_bytes() == b"good\ngood again\n"


@pytest.mark.parametrize("size", [1000, 64 * 1024, MIB // 2, LARGEST_WRITE - 1])
def test_long_line_in_large_writes(topic: Path, size: int) -> None:
    """A line over the default limit in writes that the kernel does not divide is refused up to its newline."""
    with Writer(topic / "append") as write:
        refused = 0
        for _ in range(2 * MIB // size + 1):
            try:
                write(b"x" * size)
            except OSError as error:
                if error.errno != errno.EMSGSIZE:
                    raise
                refused += 1
        assert refused
        with refuses(errno.EMSGSIZE):
            write(b"and its end\n")
        assert write(b"good\n") == 5
    assert (topic / "records").read_bytes() == b"good\n"


@pytest.mark.parametrize("second", [4096, 65_536, 300_000, 2 * MIB])
@pytest.mark.parametrize("good", [10, 300_000, 713_780])
@pytest.mark.parametrize("bad", [1_048_577, 1_050_270, 1_200_000])
def test_a_long_line_after_a_short_count(topic: Path, good: int, bad: int, second: int) -> None:
    """A write(2) that ends in the middle of a line too large is continued in pieces of any size: it gets the error,
    no piece of the line becomes a record, and the lines after it are kept.
    """
    line = b"B" * bad + b"\n"
    text = b"g" * good + b"\n" + line + b"after\n" * 1000
    end = good + 1 + len(line)
    # The first request of a write(2) ends with the 256th page of the caller's memory. Here it has one byte of the
    # first page, so that it is always too small for the whole line.
    start = mmap.PAGESIZE - 1
    memory = mmap.mmap(-1, start + len(text))
    memory[start:] = text
    data = memoryview(memory)[start:]
    refused = 0
    with Writer(topic / "append") as write:
        at, piece = 0, end + 3000
        while at < len(data):
            try:
                at += write(data[at : at + piece])
            except OSError as error:
                if error.errno != errno.EMSGSIZE:
                    raise
                refused += 1
                # The caller goes on after the line.
                at = text.index(b"\n", at) + 1
                piece = len(data)
                continue
            piece = second
    data.release()
    memory.close()
    assert refused
    found = (topic / "records").read_bytes().splitlines()
    assert not [each for each in found if b"B" in each]
    assert found == [b"g" * good, *[b"after"] * 1000]


@pytest.mark.parametrize("limit", [200, 1000, 1_048_588])
def test_long_unfinished_line(shared: Mount, topic: Path, limit: int) -> None:
    """The write that makes an unfinished line too large is refused; each accepted unfinished line is a record."""
    (topic / "config/max.message.bytes").write_text(str(limit))
    shown = b""
    for length in range(limit - 80, limit + 1):
        try:
            with Writer(topic / "append") as write:
                data = b"good\n" + b"x" * length
                while data:
                    data = data[write(data) :]
        except OSError as error:
            if error.errno != errno.EMSGSIZE:
                raise
            shown += b"good\n"
        else:
            shown += b"good\n" + b"x" * length + b"\n"
    assert b"x" in shown
    assert shown.endswith(b"good\n" * 60)
    assert (topic / "records").read_bytes() == shown
    errors = [line for line in shared.errors().splitlines() if f" /{topic.name}/append" in line]
    assert len(errors) >= shown.count(b"good\n") - shown.count(b"x\n")


def test_envelope_over_the_limit(topic: Path) -> None:
    """An envelope whose record is too large is EMSGSIZE; the valid lines before it are counted."""
    (topic / "config/max.message.bytes").write_text("1000")
    good = b'{"value":"good"}\n'
    bad = orjson.dumps({"value": "x" * 2000}) + b"\n"
    with Writer(topic / "append.jsonl") as write:
        assert write(good + bad + good) == len(good)
        with refuses(errno.EMSGSIZE):
            write(bad + good)
        write(good)
        with refuses(errno.EMSGSIZE):
            write(orjson.dumps({"value": "y" * 20_000}))
        with refuses(errno.EMSGSIZE):
            write(b"\n")
        write(good)
    assert (topic / "records").read_bytes() == b"good\n" * 3


def test_cat_stops_at_the_bad_line(topic: Path, tmp_path: Path) -> None:
    """`cat file >> append` fails at the first line that is too large, and all lines before it are in the log."""
    source = tmp_path / "source"
    source.write_bytes(b"good\n" * 1000 + b"x" * (2 * MIB) + b"\n" + b"lost\n")
    with (topic / "append").open("ab") as out:
        done = subprocess.run(["cat", str(source)], stdout=out, stderr=subprocess.PIPE, check=False)
    assert done.returncode != 0
    assert os.strerror(errno.EMSGSIZE).encode() in done.stderr
    assert (topic / "records").read_bytes() == b"good\n" * 1000


def test_a_compacted_topic_requires_keys(shared: Mount, topic: Path) -> None:
    """In a compacted topic a record without a key is EINVAL with a reason, and a record with a key is accepted."""
    (topic / "config/cleanup.policy").write_text("compact")
    with Writer(topic / "append") as write, refuses(errno.EINVAL):
        write(b"no key\n")
    (topic / "append.jsonl").write_bytes(b'{"key":"k","value":"v"}\n')
    assert (topic / "records").read_bytes() == b"v\n"
    assert "needs a key" in shared.errors()


def test_timestamps_out_of_range(shared: Mount, topic: Path) -> None:
    """A timestamp that is negative, or too far in the future or in the past, is EINVAL with a reason."""
    for timestamp in (2**62, -5):
        with Writer(topic / "append.jsonl") as write, refuses(errno.EINVAL):
            write(orjson.dumps({"value": "v", "timestamp": timestamp}) + b"\n")
        assert f"timestamp {timestamp} is" in shared.errors().splitlines()[-1]
    (topic / "config/message.timestamp.before.max.ms").write_text("1000")
    with Writer(topic / "append.jsonl") as write, refuses(errno.EINVAL):
        write(b'{"value":"v","timestamp":1638100400000}\n')
    assert (topic / "records").read_bytes() == b""


# Durability.


def recovery_point(topic: Path) -> int:
    """Return the recovery point in the partition's `status.json`."""
    return int(str(status(topic)["recovery_point"]))


@pytest.mark.parametrize("sync", [os.fsync, os.fdatasync])
def test_fsync(topic: Path, sync: Callable[[int], None]) -> None:
    """When fsync or fdatasync returns, all records written before are durable."""
    with Writer(topic / "append") as write:
        write(b"a\nb\n")
        assert recovery_point(topic) == 0
        sync(write.fd)
        assert recovery_point(topic) == 2
        write(b"c\n")
        assert recovery_point(topic) == 2
        sync(write.fd)
        assert recovery_point(topic) == 3


@pytest.mark.parametrize("flag", [os.O_SYNC, os.O_DSYNC])
@pytest.mark.parametrize("name", ["append", "append.jsonl"])
def test_synchronous_handles(topic: Path, flag: int, name: str) -> None:
    """Every write to a file opened with O_SYNC or O_DSYNC is durable when it returns, in spite of direct_io."""
    line = b"a\n" if name == "append" else b'{"value":"a"}\n'
    with Writer(topic / name, flag) as write:
        for number in range(1, 4):
            write(line)
            assert recovery_point(topic) == number


def test_fsync_by_any_handle(topic: Path) -> None:
    """fsync covers the earlier writes of other processes to the same file, as POSIX requires."""
    run("sh", "-c", f"echo a >> {topic}/append")
    with Writer(topic / "append") as write:
        os.fsync(write.fd)
    assert recovery_point(topic) == 1
    run("sh", "-c", f"echo a >> {topic}/append; sync -d {topic}/append")
    assert recovery_point(topic) == 2


def test_flush_messages(topic: Path) -> None:
    """With `flush.messages`=3, every third record makes the log durable before its write returns."""
    (topic / "config/flush.messages").write_text("3")
    with Writer(topic / "append") as write:
        write(b"a\nb\n")
        assert recovery_point(topic) == 0
        write(b"c\n")
        assert recovery_point(topic) == 3


def test_flush_ms(topic: Path) -> None:
    """Records become durable `flush.ms` after they were appended, without an fsync."""
    (topic / "config/flush.ms").write_text("10")
    (topic / "append").write_bytes(b"a\nb\n")
    wait_for(lambda: recovery_point(topic) == 2)


def test_full_disk(make_mount: Callable[..., Mount], tmp_path: Path) -> None:
    """An append to a full disk is ENOSPC and leaves no partial batch; appends succeed again once there is space."""
    need_root()
    log_dir = tmp_path / "log"
    log_dir.mkdir()
    run("mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", log_dir)
    try:
        mount = make_mount()
        orders = mount.partition("orders-0")
        filler = log_dir / "filler"
        free = os.statvfs(log_dir)
        filler.write_bytes(bytes(max(free.f_bavail * free.f_frsize - 3 * MIB, 0)))
        line = b"x" * 1000 + b"\n"
        written = 0
        with Writer(orders / "append") as write:
            with refuses(errno.ENOSPC):
                for _ in range(100):
                    written += write(line * 100)
            assert written % len(line) == 0
            size = (orders / "records").stat().st_size
            assert size == written
            filler.unlink()
            assert write(b"again\n") == 6
        assert (orders / "records").read_bytes() == line * (written // len(line)) + b"again\n"
        assert " ENOSPC " in mount.errors()
        mount.remount()
        assert (mount.path / "orders-0/records").stat().st_size == written + 6
        mount.stop()
        assert_clean(log_dir)
    finally:
        run("umount", "-l", log_dir)


def test_space_cannot_be_reserved_in_a_value(mount: Mount) -> None:
    """`posix_fallocate` leaves a setting as it is; the C library would write a NUL as its value."""
    folder = mount.partition("orders-0")
    path = folder / "config/logfs.retention.groups"
    path.write_text("billing")
    for each in (path, folder / "ctl", folder / "log-start-offset"):
        with (
            each.open("r+b") as file,
            pytest.raises(OSError, match=r"Invalid argument|not supported"),
        ):
            os.posix_fallocate(file.fileno(), 0, 100)
    assert path.read_text() == "billing\n"


def test_space_cannot_be_reserved(topic: Path) -> None:
    """`posix_fallocate` fails and leaves no byte; NULs that are data are records."""
    with (topic / "append").open("wb", buffering=0) as file:
        for _ in range(2):
            for start, length in ((0, 4096), (0, 1 << 20), (8192, 100)):
                with refuses(errno.EOPNOTSUPP):
                    os.posix_fallocate(file.fileno(), start, length)
        for data in (b"\0", b"\n", b"\0", b"\0", b"a\n"):
            assert file.write(data) == len(data)
        with refuses(errno.EOPNOTSUPP):
            os.posix_fallocate(file.fileno(), 0, 4096)
    with (topic / "append").open("ab", buffering=0) as file:
        for data in (b"\0", b"\0", b"\n"):
            assert file.write(data) == len(data)
    assert (topic / "records").read_bytes() == b"\0\n\0\0a\n\0\0\n"
