"""`config/`: one file per setting. Reading returns the value in force; writing changes it at once and durably."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logfs.config import (
    broker_value_in_force,
    value_in_force,
)
from logfs.mount.nodes.base import DirectoryNode, Node, Stat
from logfs.mount.nodes.folder import PartitionFolder
from logfs.mount.nodes.generated import GeneratedFile, installed_ns
from logfs.setting import BROKER_SETTINGS, TOPIC_SETTINGS

if TYPE_CHECKING:
    from collections.abc import Iterator


class SettingFile(GeneratedFile):
    """The file of one setting of the broker or of a topic.

    A mount may have very many of these nodes, one for each partition and setting. They are therefore evictable: the
    mount may ask the kernel to forget the oldest ones.
    """

    is_evictable = True


class TopicConfigDirectory(PartitionFolder):
    """The directory `config/` of a partition. Its files are the settings of the topic.

    All partitions of the topic share the settings. The files have the owner of the directory, and its mode & 0644.
    """

    allowed_bits = 0o755

    def find(self, name: str) -> Node | None:
        if name not in TOPIC_SETTINGS:
            return None
        registry, settings = self.context.store.registry, self.context.store.settings
        topic = self.partition.topic

        def read() -> bytes:
            overrides = settings.topic_overrides(topic)
            return value_in_force(name, overrides, settings.broker_overrides).encode() + b"\n"

        def write(text: str) -> None:
            # `set_topic` finds the topic by its name. If the topic was deleted, another one may have this name now.
            registry.check_current(self.partition.log)
            settings.set_topic(topic, name, text or None)

        def changed_ns() -> int:
            return max(settings.changed_ns(topic), settings.changed_ns(), installed_ns())

        return SettingFile(self.context, name, self, read, write, self.access, changed_ns)

    def names(self) -> Iterator[str]:
        yield from TOPIC_SETTINGS


class BrokerConfigDirectory(DirectoryNode):
    """The broker-level settings, from which topics inherit. A setting without a value reads as a blank line."""

    def stat(self) -> Stat:
        assert self.parent is not None
        return self.parent.stat()

    def find(self, name: str) -> Node | None:
        if name not in BROKER_SETTINGS:
            return None
        settings = self.context.store.settings

        def read() -> bytes:
            return broker_value_in_force(name, settings.broker_overrides).encode() + b"\n"

        def write(text: str) -> None:
            settings.set_broker(name, text or None)

        def changed_ns() -> int:
            return max(settings.changed_ns(), installed_ns())

        return SettingFile(self.context, name, self, read, write, changed_ns=changed_ns)

    def names(self) -> Iterator[str]:
        yield from BROKER_SETTINGS
