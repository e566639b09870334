"""The root directory of the mount, and `.logfs/`, which describes and controls the filesystem itself."""

from __future__ import annotations

import errno
import json
import stat
from importlib import resources
from typing import TYPE_CHECKING

from logfs.errors import InvalidName, NotWritable
from logfs.mount.errnos import refuse
from logfs.mount.mount_metrics import metrics_of
from logfs.mount.nodes.admin import AdminFile
from logfs.mount.nodes.base import (
    DIRECTORY_BITS,
    Caller,
    Context,
    DirectoryNode,
    Node,
    Stat,
    first_found,
)
from logfs.mount.nodes.config import BrokerConfigDirectory
from logfs.mount.nodes.generated import GeneratedFile, installed_ns
from logfs.mount.nodes.partition import PartitionDirectory, offline_error
from logfs.mount.nodes.topics import TopicsDirectory
from logfs.store.directory.permissions import Access, PermissionTable
from logfs.store.observe.status import store_status, upkeep_text

if TYPE_CHECKING:
    from collections.abc import Iterator

SELF = ".logfs"
TOPICS = "topics"
_COMMANDS = ("compact", "retain", "checkpoint", "pause", "resume")


class RootDirectory(DirectoryNode):
    """The root: the partitions, `.logfs` and `topics`. Mode and owner are those of the first log directory."""

    def __init__(self, context: Context) -> None:
        super().__init__(context, "", None)
        self._partitions: dict[str, PartitionDirectory] = {}
        self._fixed: dict[str, DirectoryNode] = {
            SELF: SelfDirectory(context, SELF, self),
            TOPICS: TopicsDirectory(context, TOPICS, self),
        }

    def stat(self) -> Stat:
        found = first_found(self.context.store)
        mode = stat.S_IFDIR | stat.S_IMODE(found.mode)
        return Stat(mode, found.uid, found.gid, 0, found.mtime_ns)

    def known(self, name: str) -> Node | None:
        if name in self._fixed:
            return self._fixed[name]
        if name in self.context.store.offline:
            self._partitions.pop(name, None)
            return super().known(name)
        known = self._partitions.get(name)
        if known is not None and known.is_deleted:
            # The store no longer has this partition. Another one may have its name now, and `find` makes its node.
            del self._partitions[name]
            return None
        return known

    def find(self, name: str) -> Node | None:
        store = self.context.store
        unloaded = store.registry.unloaded.get(name)
        if unloaded is None and name in store.offline:
            return OfflineDirectory(self.context, name, self)
        return PartitionDirectory(self.context, name, self, unloaded or store[name])

    def is_current(self, node: Node) -> bool:
        return isinstance(node, OfflineDirectory) == (node.name in self.context.store.offline)

    def adopt(self, name: str, node: Node | None) -> Node:
        child = super().adopt(name, node)
        if isinstance(child, PartitionDirectory):
            self._partitions[name] = child
        return child

    def names(self) -> Iterator[str]:
        yield from self._fixed
        yield from sorted({*self.context.store, *self.context.store.offline})

    def mkdir(self, name: str, mode: int, caller: Caller) -> None:
        """Create a partition, which belongs to the caller, with the permissions `mode` less the umask."""
        if name in self._fixed:
            raise refuse(
                errno.EEXIST, f"{self.path}{name}: is reserved for logfs; choose another name"
            )
        partition = self.context.store.create(name)
        access = Access(mode & ~caller.umask & 0o7777, caller.uid, caller.gid)
        PermissionTable(partition).set("", access)

    def rmdir(self, name: str) -> None:
        """Delete an empty partition by `Store.delete`. Raises `PartitionNotEmpty` if the partition has records."""
        if name in self._fixed:
            raise refuse(
                errno.EPERM, f"{self.path}{name}: is reserved for logfs, and cannot be removed"
            )
        self.context.store.delete(name, only_empty=True)


class OfflineDirectory(DirectoryNode):
    """The directory of an offline partition: `ls` of the root shows it, and reading it fails with EIO."""

    def stat(self) -> Stat:
        assert self.parent is not None
        found = self.parent.stat()
        return found._replace(mode=stat.S_IFDIR | DIRECTORY_BITS)

    def find(self, name: str) -> Node | None:
        raise self._reason()

    def names(self) -> Iterator[str]:
        raise self._reason()

    def _reason(self) -> OSError:
        """Return an `OSError`: EIO with the error that took the partition offline, ESTALE if it is online again."""
        reason = self.context.store.offline.get(self.name)
        if reason is None:
            return OSError(errno.ESTALE, f"{self.path}: is online again; look it up again")
        return offline_error(reason)


class SelfDirectory(DirectoryNode):
    """The directory `.logfs/`: the files about the mount itself, such as `status.json` and `ctl`."""

    def stat(self) -> Stat:
        assert self.parent is not None
        return self.parent.stat()

    def find(self, name: str) -> Node | None:
        if name == "config":
            return BrokerConfigDirectory(self.context, name, self)
        makers = {
            "README": _readme,
            "status.json": self._status,
            "metrics": self._metrics,
            "errors": self.context.errors.text,
        }
        if name == "admin":
            return AdminFile(self.context, name, self)
        if name == "ctl":
            return GeneratedFile(self.context, name, self, self._doing, self._command)
        if name not in makers:
            return None
        changed_ns = installed_ns if name == "README" else None
        return GeneratedFile(self.context, name, self, makers[name], changed_ns=changed_ns)

    def names(self) -> Iterator[str]:
        yield from (
            "README",
            "admin",
            "config",
            "ctl",
            "errors",
            "metrics",
            "status.json",
        )

    def _doing(self) -> bytes:
        """Return lines of text about the background work: whether it is paused, what runs, is due, or has failed."""
        return upkeep_text(self.context.store).encode()

    def _command(self, text: str) -> None:
        """Execute `text`, a command that was written to `ctl`, for all partitions.

        `pause` suspends the tasks of the upkeep that are in `PAUSABLE`, `resume` resumes them, `retain` runs
        retention, and `checkpoint` writes the checkpoints. `compact` requests a compaction, which continues in the
        background. Raises `InvalidName` for any other text, `NotWritable` in a read-only store, and `WouldBlock` in a
        thread that must not wait.
        """
        store = self.context.store
        store.disk.check_may_block()
        if store.read_only:
            raise NotWritable(
                f"{self.path}/ctl: the store is open read-only; mount it without --read-only to give commands"
            )
        if text in ("pause", "resume"):
            store.registry.is_paused = text == "pause"
        elif text == "retain":
            store.retain()
        elif text == "compact":
            store.compactor.request_all()
        elif text == "checkpoint":
            store.scheduler.checkpoint()
        else:
            raise InvalidName(f"{text[:40]!r} is not a command; use one of {', '.join(_COMMANDS)}")

    def _status(self) -> bytes:
        status = {
            "version": self.context.version,
            "pid": _pid(),
            "errors": self.context.errors.count,
            "isolation": self.context.isolation.value,
            **store_status(self.context.store),
        }
        if self.context.mirror is not None:
            status["mirror"] = self.context.mirror.status()
        return json.dumps(status, indent=2).encode() + b"\n"

    def _metrics(self) -> bytes:
        return metrics_of(self.context)


def _readme() -> bytes:
    return resources.files("logfs.mount").joinpath("README").read_bytes()


def _pid() -> int:
    import os

    return os.getpid()
