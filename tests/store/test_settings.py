"""The files in which changed settings are kept."""

from __future__ import annotations

import pytest

from logfs.config import BrokerConfig, LogConfig
from logfs.errors import Corrupt, InvalidName, InvalidSetting, InvalidStore, NotWritable
from logfs.log.disk.disk import Disk, ReadOnlyDisk
from logfs.store.settings import Settings
from logfs.store.store import Store


class CountingDisk(Disk):
    """A disk that records the names of the files that it reads, and cannot replace files in one directory."""

    def __init__(self, broken=None):
        super().__init__()
        self.reads = []
        self.broken = broken

    def read_file(self, path):
        self.reads.append(path.name)
        return super().read_file(path)

    def replace_file(self, path, data):
        if path.parent == self.broken:
            raise OSError("no space")
        super().replace_file(path, data)


@pytest.fixture
def log_dirs(tmp_path):
    """Two empty log directories."""
    dirs = [tmp_path / "a", tmp_path / "b"]
    for path in dirs:
        path.mkdir()
    return dirs


def settings_of(disk, log_dirs):
    """Return the settings of these log directories."""
    return Settings([(disk, path) for path in log_dirs])


def contents(log_dir):
    """Return the content of each file of a log directory."""
    return {path.name: path.read_bytes() for path in log_dir.iterdir()}


def test_an_empty_store_has_the_defaults_and_no_files(log_dirs):
    """Reading the settings of any topic writes nothing."""
    settings = settings_of(Disk(), log_dirs)
    assert settings.log_config("orders") == LogConfig()
    assert settings.broker_config == BrokerConfig()
    assert settings.topic_overrides("orders") == settings.broker_overrides == {}
    assert not any(contents(path) for path in log_dirs)


def test_log_dirs_need_not_exist_to_be_read(tmp_path):
    """A log directory that does not exist yet has no overrides."""
    assert settings_of(Disk(), [tmp_path / "new"]).log_config("orders") == LogConfig()


def test_a_change_is_in_force_at_once_and_after_reopening(log_dirs):
    """This and every later opening have the value that was set, as canonical text."""
    settings = settings_of(Disk(), log_dirs)
    assert settings.log_config("orders").segment_bytes == 1 << 30
    settings.set_topic("orders", "segment.bytes", " 4096\n")
    settings.set_topic("orders", "cleanup.policy", "Compact,Delete")
    settings.set_broker("log.roll.hours", "2")
    for opened in (settings, settings_of(Disk(), log_dirs)):
        assert opened.topic_overrides("orders") == {
            "segment.bytes": "4096",
            "cleanup.policy": "compact,delete",
        }
        assert opened.broker_overrides == {"log.roll.hours": "2"}
        config = opened.log_config("orders")
        assert (config.segment_bytes, config.segment_ms) == (4096, 7_200_000)
        assert config.is_compacted
        assert opened.log_config("others") == LogConfig(segment_ms=7_200_000)


@pytest.mark.parametrize("nothing", [None, "", "\n"])
def test_undoing_a_change_brings_the_default_back(log_dirs, nothing):
    """None or a blank text removes an override, and the last removal also removes the files."""
    settings = settings_of(Disk(), log_dirs)
    settings.set_topic("orders", "retention.ms", "1")
    settings.set_topic("orders", "segment.bytes", "100")
    settings.set_broker("log.retention.hours", "1")
    settings.set_topic("orders", "retention.ms", nothing)
    assert settings.log_config("orders").retention_ms == 3_600_000
    settings.set_topic("orders", "segment.bytes", nothing)
    settings.set_broker("log.retention.hours", nothing)
    settings.set_broker("log.retention.hours", nothing)
    assert settings.log_config("orders") == LogConfig()
    assert not any(contents(path) for path in log_dirs)
    assert settings_of(Disk(), log_dirs).log_config("orders") == LogConfig()


def test_a_removed_topic_starts_again_from_the_defaults(log_dirs):
    """A later topic of the same name has none of the settings of a deleted topic."""
    settings = settings_of(Disk(), log_dirs)
    settings.set_topic("orders", "retention.ms", "1")
    settings.set_topic("others", "retention.ms", "2")
    settings.remove_topic("orders")
    settings.remove_topic("never-changed")
    for opened in (settings, settings_of(Disk(), log_dirs)):
        assert opened.log_config("orders") == LogConfig()
        assert opened.log_config("others").retention_ms == 2


# The files.


def test_the_files_are_plain_and_equal_in_every_log_dir(log_dirs):
    """Each log directory has the same files, which Kafka ignores because they are plain files."""
    settings = settings_of(Disk(), log_dirs)
    settings.set_topic("orders", "segment.bytes", "100")
    settings.set_topic("orders", "cleanup.policy", "compact")
    settings.set_broker("log.segment.bytes", "200")
    header = b"# Settings that were changed in logfs. Kafka ignores this file.\n"
    for log_dir in log_dirs:
        assert contents(log_dir) == {
            "orders@p": header + b"cleanup.policy=compact\nsegment.bytes=100\n",
            "logfs.properties": header + b"log.segment.bytes=200\n",
        }


@pytest.mark.parametrize(
    "topic",
    ["logfs", "logfs.properties", "p", ".lock", "meta.properties", "orders.tmp", "x" * 249, "..."],
)
def test_no_topic_name_can_collide(log_dirs, topic):
    """A topic named like a file or a temporary file, or with the longest name, has settings of its own."""
    settings = settings_of(Disk(), log_dirs)
    settings.set_broker("log.segment.bytes", "50")
    settings.set_topic(topic, "segment.bytes", "100")
    settings.set_topic("orders", "segment.bytes", "200")
    settings.set_topic("orders", "segment.bytes", "300")
    settings.set_broker("log.segment.bytes", "60")
    reopened = settings_of(Disk(), log_dirs)
    sizes = {name: reopened.log_config(name).segment_bytes for name in (topic, "orders", "none")}
    assert sizes == {topic: 100, "orders": 300, "none": 60}


@pytest.mark.parametrize("topic", ["", "..", "a/b", "../a", "x" * 250, "a@p"])
def test_a_name_that_no_topic_can_have_is_refused(log_dirs, topic):
    """No name leads to a file outside the log directories, or to another topic's file."""
    settings = settings_of(Disk(), log_dirs)
    with pytest.raises(InvalidName):
        settings.topic_overrides(topic)
    with pytest.raises(InvalidName):
        settings.set_topic(topic, "segment.bytes", "100")
    with pytest.raises(InvalidName):
        settings.remove_topic(topic)


def test_the_first_log_dir_that_has_a_file_decides(log_dirs):
    """A log directory put before or after the others gets its copy with the next change."""
    first, second = log_dirs
    settings_of(Disk(), [second]).set_topic("orders", "segment.bytes", "100")
    assert settings_of(Disk(), log_dirs).log_config("orders").segment_bytes == 100
    settings_of(Disk(), [first]).set_topic("orders", "segment.bytes", "200")
    settings = settings_of(Disk(), log_dirs)
    assert settings.log_config("orders").segment_bytes == 200
    settings.set_topic("orders", "retention.ms", "1")
    assert contents(first) == contents(second)


def test_a_change_that_fails_half_way_has_no_effect(log_dirs):
    """If the deciding log directory cannot be written, the old value stays in force, now and later."""
    disk = CountingDisk()
    settings = settings_of(disk, log_dirs)
    settings.set_topic("orders", "segment.bytes", "100")
    disk.broken = log_dirs[0]
    with pytest.raises(OSError, match="no space"):
        settings.set_topic("orders", "segment.bytes", "200")
    for opened in (settings, settings_of(Disk(), log_dirs)):
        assert opened.log_config("orders").segment_bytes == 100


# Refusals.


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("segment.bytes", "13", "an integer from 14 to 2147483647"),
        ("no.such", "1", "there is no topic-level setting"),
        ("no.such", None, "there is no topic-level setting"),
        ("log.segment.bytes", "100", "there is no topic-level setting"),
        ("max.compaction.lag.ms", "9", "min.compaction.lag.ms: 10 is more than"),
        ("min.compaction.lag.ms", str(2**63 - 1), "max.compaction.lag.ms, 1000"),
    ],
)
def test_a_refused_topic_change_changes_nothing(log_dirs, name, text, reason):
    """The error says what is allowed, and the value in force and the files stay as they were."""
    settings = settings_of(Disk(), log_dirs)
    settings.set_broker("log.cleaner.max.compaction.lag.ms", "1000")
    settings.set_topic("orders", "min.compaction.lag.ms", "10")
    before = settings.log_config("orders"), [contents(path) for path in log_dirs]
    with pytest.raises(InvalidSetting) as caught:
        settings.set_topic("orders", name, text)
    assert reason in str(caught.value)
    assert (settings.log_config("orders"), [contents(path) for path in log_dirs]) == before


@pytest.mark.parametrize("names", [("min", "max"), ("max", "min")])
def test_settings_that_are_changed_together_are_checked_together(log_dirs, names):
    """Whatever their order, as Kafka checks them; and a refused change changes none of them."""
    settings = settings_of(Disk(), log_dirs)
    for low, high in ((10, 20), (1000, 2000), (1, 2)):
        texts = {"min": str(low), "max": str(high)}
        topic = {f"{name}.compaction.lag.ms": texts[name] for name in names}
        settings.change_topic("orders", topic)
        settings.change_broker({f"log.cleaner.{name}": text for name, text in topic.items()})
        assert settings.topic_overrides("orders") == topic
    before = [contents(path) for path in log_dirs]
    with pytest.raises(InvalidSetting):
        settings.change_topic("orders", {"segment.bytes": "100", "max.compaction.lag.ms": "0"})
    with pytest.raises(InvalidSetting):
        settings.change_broker({"log.segment.bytes": "100", "no.such": "1"})
    assert [contents(path) for path in log_dirs] == before


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("log.segment.bytes", "13", "an integer from 14 to 2147483647"),
        ("segment.bytes", "100", "there is no broker-level setting"),
        ("log.cleaner.threads", "128", "give more than 134217728"),
        ("log.cleaner.max.compaction.lag.ms", "9", "topic orders: min.compaction.lag.ms: 10"),
        ("log.cleaner.min.compaction.lag.ms", str(2**63 - 1), "topic short: min.compaction.lag.ms"),
    ],
)
def test_a_refused_broker_change_changes_nothing(log_dirs, name, text, reason):
    """A change that would make a topic's settings invalid is refused, even if the topic has not been read yet."""
    settings = settings_of(Disk(), log_dirs)
    settings.set_topic("orders", "min.compaction.lag.ms", "10")
    settings.set_topic("short", "max.compaction.lag.ms", "5")
    settings = settings_of(Disk(), log_dirs)
    before = settings.broker_config, [contents(path) for path in log_dirs]
    with pytest.raises(InvalidSetting) as caught:
        settings.set_broker(name, text)
    assert reason in str(caught.value)
    assert (settings.broker_config, [contents(path) for path in log_dirs]) == before
    assert settings.broker_overrides == {}


def test_a_read_only_store_refuses_changes(log_dirs):
    """The settings of a read-only store can be read, and not changed."""
    settings_of(Disk(), log_dirs).set_topic("orders", "segment.bytes", "100")
    before = [contents(path) for path in log_dirs]
    settings = settings_of(ReadOnlyDisk(), log_dirs)
    with pytest.raises(NotWritable):
        settings.set_topic("orders", "segment.bytes", "200")
    with pytest.raises(NotWritable):
        settings.set_topic("orders", "segment.bytes", None)
    with pytest.raises(NotWritable):
        settings.set_broker("log.segment.bytes", "200")
    with pytest.raises(NotWritable):
        settings.remove_topic("orders")
    assert settings.log_config("orders").segment_bytes == 100
    assert [contents(path) for path in log_dirs] == before


# Damage.


def test_a_damaged_file_is_named_with_its_line(log_dirs):
    """Bytes that are not in the properties format are `Corrupt`, with the path and the line."""
    damaged = log_dirs[0] / "orders@p"
    damaged.write_bytes(b"segment.bytes=100\nretention.ms=\xff\n")
    settings = settings_of(Disk(), log_dirs)
    with pytest.raises(Corrupt) as caught:
        settings.log_config("orders")
    assert str(caught.value).startswith(f"{damaged}: line 2: ")


@pytest.mark.parametrize("line", [b"segment.byt", b"segment.bytes=", b"segment.bytes=13"])
def test_a_file_with_an_invalid_setting_is_named(log_dirs, line):
    """A setting in a file that is unknown or invalid is refused with the path of the file."""
    edited = log_dirs[0] / "orders@p"
    edited.write_bytes(line + b"\n")
    settings = settings_of(Disk(), log_dirs)
    with pytest.raises(InvalidSetting, match="^" + str(edited) + ": segment.byt"):
        settings.log_config("orders")


def test_a_damaged_broker_file_is_found_at_once(log_dirs):
    """A store whose broker-level settings are damaged does not open."""
    (log_dirs[1] / "logfs.properties").write_bytes(b"log.segment.bytes=\\u00\n")
    with pytest.raises(Corrupt, match=r"logfs\.properties: line 1: "):
        settings_of(Disk(), log_dirs)


def test_one_broken_topic_does_not_block_the_others(log_dirs):
    """The broker level and other topics can be changed while the files of some topics are damaged."""
    (log_dirs[0] / "damaged@p").write_bytes(b"\xff")
    (log_dirs[0] / "no topic@p").write_bytes(b"")
    (log_dirs[0] / "contrary@p").write_bytes(b"min.compaction.lag.ms=2\nmax.compaction.lag.ms=1\n")
    settings = settings_of(Disk(), log_dirs)
    settings.set_broker("log.segment.bytes", "100")
    settings.set_topic("orders", "retention.ms", "1")
    assert settings.log_config("orders") == LogConfig(segment_bytes=100, retention_ms=1)
    with pytest.raises(InvalidSetting):
        settings.log_config("contrary")
    settings.set_topic("contrary", "max.compaction.lag.ms", "2")
    assert settings.log_config("contrary").max_compaction_lag_ms == 2


# Reading while writing.


def test_settings_are_read_once(log_dirs):
    """A config is built once and then returned again, until a setting that it depends on changes."""
    disk = CountingDisk()
    settings = settings_of(disk, log_dirs)
    config = settings.log_config("orders")
    reads = list(disk.reads)
    assert settings.log_config("orders") is config
    settings.set_topic("others", "retention.ms", "1")
    assert settings.log_config("orders") is config
    settings.set_broker("log.segment.bytes", "100")
    assert settings.log_config("orders").segment_bytes == 100
    assert disk.reads.count("orders@p") == reads.count("orders@p")


def test_mappings_never_change_once_they_are_returned(log_dirs):
    """A reader keeps a complete and constant mapping while the writer goes on."""
    settings = settings_of(Disk(), log_dirs)
    settings.set_topic("orders", "retention.ms", "1")
    topic, broker = settings.topic_overrides("orders"), settings.broker_overrides
    settings.set_topic("orders", "retention.ms", "2")
    settings.set_broker("log.segment.bytes", "100")
    assert (topic, broker) == ({"retention.ms": "1"}, {})
    with pytest.raises(TypeError):
        topic["retention.ms"] = "3"


def test_a_slow_reader_does_not_bring_old_settings_back(log_dirs):
    """A file that was read before a change, and cached after it, does not undo the change."""

    class SlowDisk(Disk):
        def read_file(self, path):
            data = super().read_file(path)
            if path.name == "orders@p" and not settings_changed:
                settings_changed.append(True)
                settings.set_topic("orders", "retention.ms", "2")
            return data

    settings_of(Disk(), log_dirs).set_topic("orders", "retention.ms", "1")
    settings_changed = []
    settings = settings_of(SlowDisk(), log_dirs)
    assert settings.log_config("orders").retention_ms == 2


def test_a_change_with_one_of_the_log_directories_is_refused_if_another_has_a_copy(log_dirs):
    """The copies do not come to differ; a setting of which only this directory has a copy is changed."""
    first, second = log_dirs
    with Store(log_dirs) as store:
        store.topic("orders").create(2)
        store.settings.set_topic("orders", "segment.bytes", "5000")
        store.settings.set_broker("log.roll.ms", "1000")
    for here, other in ((first, second), (second, first)):
        with Store(here) as store:
            assert store.settings.log_config("orders").segment_bytes == 5000
            for change in (
                lambda settings: settings.set_topic("orders", "segment.bytes", None),
                lambda settings: settings.set_broker("log.roll.ms", "2000"),
            ):
                with pytest.raises(InvalidStore, match=f"{other}.*as in '{here} {other}'"):
                    change(store.settings)
            store.settings.set_topic("payments", "segment.bytes", str(len(str(here))))
            store.settings.set_topic("payments", "segment.bytes", None)
    with Store(log_dirs) as store:
        assert store.settings.log_config("orders").segment_bytes == 5000
        store.settings.set_topic("orders", "segment.bytes", "6000")
    assert (first / "orders@p").read_bytes() == (second / "orders@p").read_bytes()


def test_the_bucket_of_tiered_topics_stays(log_dirs):
    """The URL of the bucket cannot be removed while a topic is tiered: its partitions could not be opened again."""
    settings = Settings([(Disk(), path) for path in log_dirs])
    settings.set_broker("remote.storage.url", "s3://bucket/a")
    settings.set_topic("orders", "remote.storage.enable", "true")
    with pytest.raises(
        InvalidSetting, match=r"topic orders: remote\.storage\.enable: there is no bucket"
    ):
        settings.set_broker("remote.storage.url", None)
    assert settings.broker_config.remote_storage_url == "s3://bucket/a"
    settings.set_broker("remote.storage.url", "s3://bucket/b")
    settings.change_topic(
        "orders", {"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"}
    )
    settings.set_broker("remote.storage.url", None)
    assert Settings([(Disk(), path) for path in log_dirs]).broker_config.remote_storage_url == ""
