"""The locks between threads: a list of them, what each protects, and the order in which threads take them.

`make_lock` and `make_rlock` make these locks. Each lock has a `Level`, and the order of the levels is the order of
the locks: a thread that holds a lock waits only for locks of later levels. The one exception is a commit of staged
batches. It takes both locks of its first partition, `Flusher.lock` and `Log.lock`, then both locks of its second
partition, and so on.
`docs/threads.md` has the rules and the table. In the tests, the two functions make locks that check the order.
"""

from __future__ import annotations

import threading
from enum import Enum, IntEnum


class Wait(IntEnum):
    """What a thread may wait for while it holds a lock. Each value also permits what the values before it permit."""

    NOTHING = 0
    FILES = 1  # reads and writes of files
    SYNCS = 2  # syncs of files to the disk
    NETWORK = 3  # requests over the network


class Level(Enum):
    """One lock, or all locks of one kind.

    The value has three parts: the attribute that refers to the lock, what a thread may wait for while it holds the
    lock, and what the lock protects.
    """

    # Locks that a long job holds while it runs.
    VOLUME = "LogMounts._locks", Wait.NETWORK, "the mount of a log directory: one request at a time"
    VOLUMES = "VolumeDriver._lock", Wait.SYNCS, "the volumes and their file"
    MOVE = "Mover._running", Wait.NETWORK, "one move at a time"
    COPY = "RemoteLogManager._running", Wait.NETWORK, "one copy to the bucket at a time"
    EXPIRE = "RemoteLogManager._expiring", Wait.NETWORK, "one deletion in the bucket at a time"
    OWNER = "BucketOwner._claiming", Wait.NETWORK, "the files and the object `logfs.owner`"
    COMPACTION = (
        "Compactor.running",
        Wait.NETWORK,
        "one round of compaction; the names of its files",
    )
    # Locks of the store.
    TRANSACTIONS = (
        "Transactions._lock",
        Wait.SYNCS,
        "the replays of `__transaction_state`, and the transactions that are running",
    )
    GROUPS = "Groups._lock", Wait.SYNCS, "the replays of `__consumer_offsets`, and its partitions"
    REGISTRY = (
        "PartitionRegistry.lock",
        Wait.SYNCS,
        "`partitions`, `homes`, …; the checkpoint files",
    )
    COMMITS = "Commits._lock", Wait.SYNCS, "the commit files: one commit at a time"
    LOADING = "UnloadedPartition.lock", Wait.NETWORK, "that a partition is loaded once"
    LOADING_METADATA = (
        "UnloadedPartition.lock",
        Wait.SYNCS,
        "`__remote_log_metadata`, for loads of others",
    )
    # Locks of readers.
    KEYS = "KeyIndex._lock", Wait.NETWORK, "the tables of a key index and what they cover"
    MERGING = "MergedText._lock", Wait.NETWORK, "the slices of the text of several partitions"
    HIDDEN = "CommittedText._finding", Wait.NETWORK, "the hidden ranges of a text"
    METADATA = "RemoteLogMetadata._lock", Wait.FILES, "the replays of `__remote_log_metadata`"
    RECOVERY = "PartitionLoader._turn", Wait.SYNCS, "one recovery of a small partition at a time"
    # Locks of a partition and its files.
    FLUSH = "Flusher.lock", Wait.SYNCS, "the recovery point; the files that a flush syncs"
    PARTITION = "Log.lock", Wait.FILES, "the publication of `state`; producers, leader epochs"
    TEXT = "TextView._extending", Wait.NETWORK, "the segments of a text view"
    REBUILDING = "SegmentFiles._rebuilding", Wait.NETWORK, "the rebuilding of a segment's indexes"
    NAMING = "Disk.naming", Wait.FILES, "the paths of files, while one is opened or renamed"
    SETTINGS = "Settings._lock", Wait.SYNCS, "the settings files"
    PERMISSIONS = "PermissionTable._changing", Wait.SYNCS, "the file of permissions"
    LISTING = "_Listing._lock", Wait.NETWORK, "one listing of a bucket at a time"
    MANIFESTS = "AivenSegment._reading", Wait.NETWORK, "one reading of a manifest at a time"
    DESCRIPTORS = "lock._taking", Wait.FILES, "the record locks of this process"
    CACHE = "ChunkCache._counting", Wait.FILES, "one count of the cached files at a time"
    # Locks that are held only for microseconds.
    TIERED = "TieredLogs._lock, TieredLog._lock", Wait.NOTHING, "one object for each remote segment"
    CHUNKS = "ChunkReader._lock", Wait.NOTHING, "the chunks that are open or requested"
    MIRROR = "Mirror._lock", Wait.NOTHING, "the map of mirrored partitions"
    SETTLING = "PartitionRegistry._settling", Wait.NOTHING, "the registry while a load ends"
    COUNTING = "PartitionLoader._counting", Wait.NOTHING, "the counts of recoveries"
    MAKING_KEYS = "Reader._making_keys", Wait.NOTHING, "that a reader has one `KeyIndex`"
    VIEWS = "ViewRegistry._lock", Wait.NOTHING, "the set of text views"
    MAKING_FILES = "segment_files._making", Wait.NOTHING, "that a segment has one object for a file"
    BLOCKS = "BlockCache._lock", Wait.NOTHING, "the cached blocks of text"
    REQUESTS = "AdminRequests._changed", Wait.NOTHING, "the administrative requests that run"
    BUDGET = "_Budget._changed", Wait.NOTHING, "the bytes of clients' requests in memory"
    POOL = "_Pool._lock", Wait.NOTHING, "the counts of running and idle worker threads"

    def __init__(self, names: str, wait: Wait, protects: str) -> None:
        self.names = names
        self.wait = wait
        self.protects = protects
        self.rank = len(type(self).__members__)


def make_lock(level: Level) -> threading.Lock:
    """Return a new lock. `level` is for the tests, which replace this function to check the order of locks."""
    return threading.Lock()


def make_rlock(level: Level) -> threading.RLock:
    """Return a reentrant lock. `level` is for the tests, which replace this function to check the order of locks."""
    return threading.RLock()
