"""A process that reads a growing file in one of several ways, and records a checksum of every read.

Run as a script: MODE PATH NOTES SECONDS SEED. It imports nothing of logfs. NOTES gets 16 bytes per read: int64
position, uint32 length, uint32 CRC-32 of the bytes, big-endian.
"""

import mmap
import os
import random
import struct
import sys
import threading
import time
import zlib

NOTE = struct.Struct(">qII")
CHUNK = 128 * 1024


class Notes:
    """The file of the reads of this process. Any thread or child may add a read."""

    def __init__(self, path):
        self.fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def add(self, position, data):
        if data:
            os.write(self.fd, NOTE.pack(position, len(data), zlib.crc32(data)))


def read_on(path, notes, end, rng):
    """Read to the end repeatedly, and ask for the size before each read, as `tail -f` does."""
    fd = os.open(path, os.O_RDONLY)
    position = 0
    while time.monotonic() < end:
        os.fstat(fd)
        data = os.read(fd, rng.choice((4096, 16384, CHUNK)))
        notes.add(position, data)
        position += len(data)
        if not data:
            if rng.random() < 0.1:
                size = os.stat(path).st_size
                kept = os.fstat(fd).st_size
                assert kept >= size, (
                    f"the size was {size}, and then {kept} for who has the file open"
                )
            if rng.random() < 0.01:
                os.lseek(fd, 0, os.SEEK_SET)
                position = 0
            time.sleep(rng.random() * 0.002)


def open_again(path, notes, end, rng):
    """Open the file, read the last few pages, and close it, repeatedly."""
    while time.monotonic() < end:
        fd = os.open(path, os.O_RDONLY)
        size = os.fstat(fd).st_size
        position = max(0, size - rng.randrange(1, 20_000))
        while data := os.pread(fd, CHUNK, position):
            notes.add(position, data)
            position += len(data)
        assert position >= size, f"the size was {size}, and reading ended at {position}"
        os.close(fd)


def read_end(fd, notes, end, rng):
    """Read around the end by position, while other threads or processes use the same descriptor."""
    while time.monotonic() < end:
        size = os.lseek(fd, 0, os.SEEK_END) if rng.random() < 0.5 else os.fstat(fd).st_size
        position = max(0, size - rng.randrange(0, 9000))
        notes.add(position, os.pread(fd, rng.choice((4096, 16384)), position))


def threads(path, notes, end, rng):
    """Read and ask for the size in several threads through one descriptor."""
    fd = os.open(path, os.O_RDONLY)
    workers = [
        threading.Thread(target=read_end, args=(fd, notes, end, random.Random(rng.random())))
        for _ in range(3)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def children(path, notes, end, rng):
    """Read and ask for the size in forked children through one descriptor."""
    fd = os.open(path, os.O_RDONLY)
    pids = []
    for _ in range(2):
        seed = rng.random()
        pid = os.fork()
        if pid == 0:
            read_end(fd, notes, end, random.Random(seed))
            os._exit(0)
        pids.append(pid)
    read_end(fd, notes, end, rng)
    assert not any(os.waitpid(pid, 0)[1] for pid in pids)


def orphans(path, notes, end, rng):
    """Read in children that share the descriptor of a process that has ended."""
    fd = os.open(path, os.O_RDONLY)
    reading, writing = os.pipe()
    if os.fork() == 0:
        for _ in range(2):
            seed = rng.random()
            if os.fork() == 0:
                os.close(reading)
                read_end(fd, notes, end, random.Random(seed))
                os._exit(0)
        os._exit(0)
    os.close(writing)
    os.close(fd)
    os.wait()
    # The read returns when the last orphan ends and closes the pipe.
    os.read(reading, 1)


def send(path, notes, end, rng):
    """Copy the end of the file by sendfile, while another thread asks for the size through the same descriptor."""
    fd = os.open(path, os.O_RDONLY)

    def ask():
        while time.monotonic() < end:
            os.fstat(fd)

    asking = threading.Thread(target=ask)
    asking.start()
    while time.monotonic() < end:
        position = max(0, os.fstat(fd).st_size - rng.randrange(0, 9000))
        target = os.memfd_create("copy")
        os.sendfile(target, fd, position, 16384)
        size = os.fstat(target).st_size
        notes.add(position, os.pread(target, size, 0))
        os.close(target)
    asking.join()


def splice(path, notes, end, rng):
    """Copy the file through a pipe, each time from the end of the last copy, a page or more at a time."""
    fd = os.open(path, os.O_RDONLY)
    reading, writing = os.pipe()
    position = 0
    while time.monotonic() < end:
        size = os.fstat(fd).st_size
        while position < size:
            wanted = rng.choice((4096, 16384, 60_000))
            count = os.splice(fd, writing, wanted, offset_src=position)
            if not count:
                # The kernel drops the answer to an `fstat` if another answer came at the same moment: ask again.
                os.fstat(fd)
                count = os.splice(fd, writing, wanted, offset_src=position)
            assert count, f"the size was {size}, and splice ended at {position}"
            notes.add(position, os.read(reading, count))
            position += count
        if rng.random() < 0.01:
            position = 0
        time.sleep(rng.random() * 0.002)


def mapped(path, notes, end, rng):
    """Map the whole file with its present size, and read its end through the mapping."""
    fd = os.open(path, os.O_RDONLY)
    while time.monotonic() < end:
        size = os.fstat(fd).st_size
        if not size:
            continue
        with mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ) as view:
            position = max(0, size - rng.randrange(1, 9000))
            notes.add(position, view[position:size])
        time.sleep(rng.random() * 0.002)


def main():
    mode, path, notes, seconds, seed = sys.argv[1:]
    end = time.monotonic() + float(seconds)
    globals()[mode](path, Notes(notes), end, random.Random(int(seed)))


if __name__ == "__main__":
    main()
