"""What a mirror decides: which settings a copy takes from its source, and what its errors look like."""

from __future__ import annotations

import argparse
import re
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from logfs.cli import mirror as command
from logfs.cluster import cluster as cluster_module
from logfs.log.append import fetched_batches
from logfs.mirror import mirror as mirror_module
from logfs.mirror.mirror import Mirror
from logfs.mount.mounted_mirror import MirrorOptions, MountedMirror
from logfs.setting import TOPIC_SETTINGS
from logfs.store.store import Store
from tests.mirror.fake_cluster import NODE, FakeCluster
from tests.mirror.test_partition_mirror import write_as
from tests.support.partitions import values
from tests.support.processes import wait_for
from tests.support.stores import assert_clean

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from logfs.cluster.cluster import Wanted
    from logfs.log.append.partition import Partition

NAME = "orders-0"
ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    """The cluster that each mirror of a test connects to; it has 10 records of `orders-0`."""
    with Store(tmp_path / "source") as source:
        source.create(NAME).append([b"%d" % number for number in range(10)])
        made = FakeCluster(source)
        monkeypatch.setattr(mirror_module, "Cluster", lambda servers, options: made)
        yield made


@pytest.fixture
def copies(tmp_path: Path) -> Iterator[Store]:
    """The store of the copies, which is audited at the end."""
    with Store(tmp_path / "copy") as store:
        yield store
    assert_clean(tmp_path / "copy")


def mirror_into(store: Store) -> Mirror:
    """Return a mirror of all topics, which has looked at the cluster once."""
    return Mirror(store, "localhost:1", re.compile(".*"), {})


# A value of each setting that is a copy's own.
OWN = {
    "local.retention.bytes": "4000",
    "local.retention.ms": "5000",
    "logfs.mirror.source": FakeCluster.cluster_id,
    "logfs.retention.groups": "billing",
    "logfs.roll.quiet": "always",
    "remote.log.copy.disable": "false",
    "remote.log.delete.on.disable": "true",
    "remote.storage.enable": "true",
}


def test_a_copy_keeps_its_own_settings(
    cluster: FakeCluster, copies: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of tiered storage and of logfs stay, whatever the cluster has; all others are those of the cluster."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "bucket").mkdir()
    copies.settings.set_broker("remote.storage.url", f"file://{tmp_path / 'bucket'}")
    cluster.topic_settings["orders"] = {
        "segment.ms": "70000",
        "local.retention.ms": "1",
        "remote.storage.enable": "false",
    }
    with mirror_into(copies) as mirror:
        assert copies.settings.topic_overrides("orders") == {
            "segment.ms": "70000",
            "logfs.mirror.source": FakeCluster.cluster_id,
        }
        for name, text in {**OWN, "segment.bytes": "5000"}.items():
            copies.settings.set_topic("orders", name, text)
        mirror.refresh()
        assert copies.settings.topic_overrides("orders") == {**OWN, "segment.ms": "70000"}
        assert not mirror.progress().problems


def test_the_document_lists_the_settings_of_a_copys_own() -> None:
    """The row of docs/mirror.md names those that the test above holds, and there are no others of their kinds."""
    (row,) = re.findall(
        "\\n[|] settings of the copy's own .*", (ROOT / "docs/mirror.md").read_text()
    )
    assert {*re.findall("`(.*?)`", row)} == {*OWN}
    kinds = {name.split(".")[0] for name in OWN}
    assert {name for name in TOPIC_SETTINGS if name.split(".")[0] in kinds} == {*OWN}


def test_offsets_that_do_not_fit_in_one_batch_are_copied(
    cluster: FakeCluster, copies: Store
) -> None:
    """A group may have offsets of more partitions than one batch of `__consumer_offsets` has room for here."""
    names = [f"spread{number}" for number in range(30)]
    for name in names:
        cluster.source.create(f"{name}-0").append([b"a", b"b"])
    copies.settings.set_topic("__consumer_offsets", "max.message.bytes", "1000")
    cluster.committed["billing"] = {(name, 0): 2 for name in names}
    with mirror_into(copies) as mirror:
        mirror.run_once(lambda progress: None)
        assert not mirror.progress().problems
        found = [copies.groups.committed("billing", f"{name}-0") for name in names]
        assert [each and each.offset for each in found] == [2] * len(names)


def test_a_group_without_news_writes_nothing(cluster: FakeCluster, copies: Store) -> None:
    """A group whose offsets are those of the copy, or of other topics, is left alone at each look."""
    cluster.committed["elsewhere"] = {("payments", 0): 1}
    with mirror_into(copies) as mirror:
        mirror.run_once(lambda progress: None)
        assert set(copies) == {NAME}
        cluster.committed["billing"] = {("orders", 0): 2}
        mirror.run_once(lambda progress: None)
        log = copies.groups.log_of("billing")
        ends = log.log_end_offset, log.generation
        mirror.run_once(lambda progress: None)
        assert (log.log_end_offset, log.generation) == ends


def test_a_topic_that_is_created_again_between_two_looks(
    cluster: FakeCluster, copies: Store
) -> None:
    """The copy of the old topic stays, and says so, although the mirror has not looked at the topics since."""
    with mirror_into(copies) as mirror:
        wait_for(lambda: copies[NAME].log_end_offset == 10)
        cluster.source.delete(NAME)
        cluster.source.create(NAME).append([b"new"])
        wait_for(lambda: "created again" in mirror.progress().problems.get(NAME, ""))
        cluster.source[NAME].append([b"new"] * 20)
        mirror.refresh()
        assert "created again" in mirror.progress().problems["orders"]
    assert [record.value for record in copies[NAME].read()] == [b"%d" % n for n in range(10)]


# Errors of threads.


def no_fault(wanted: Sequence[Wanted]) -> None:
    """Let a fetch pass."""


def always(wanted: Sequence[Wanted]) -> None:
    """Fail every fetch in a way that nothing foresees."""
    raise KeyError("a bug")


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mirror that shall end gives up after a moment."""
    monkeypatch.setattr(mirror_module, "_GIVE_UP_SECONDS", 0.3)


def arguments_for(log_dir: Path) -> argparse.Namespace:
    """Return the arguments of `logfs mirror --once` into a log directory."""
    return argparse.Namespace(
        servers="localhost:1", topics=None, command_config=None, once=True, log_dirs=[str(log_dir)]
    )


@pytest.mark.usefixtures("patience")
def test_an_unexpected_error_of_a_fetcher_is_seen(
    cluster: FakeCluster, copies: Store, caplog: pytest.LogCaptureFixture
) -> None:
    """An error of no known kind is a problem of the broker, is logged with its traceback, and the mirror gives up."""
    cluster.fault = always
    with mirror_into(copies) as mirror:
        mirror.run_once(lambda progress: None)
        assert mirror.progress().problems == {"broker 0": "unexpected error: KeyError('a bug')"}
    traced = [record for record in caplog.records if record.exc_info]
    assert [record.message for record in traced] == [
        "broker 0: unexpected error: KeyError('a bug')"
    ]


@pytest.mark.usefixtures("patience")
def test_an_unexpected_error_is_in_the_exit_code(
    cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`logfs mirror --once` ends with 1 if a thread has met an unexpected error, and with 0 otherwise."""
    monkeypatch.setattr(cluster_module, "Cluster", lambda servers, options: cluster)
    monkeypatch.setattr(cluster, "close", lambda: None)
    (tmp_path / "other").mkdir()
    cluster.fault = always
    assert command.run(arguments_for(tmp_path / "other")) == 1
    cluster.fault = no_fault
    assert command.run(arguments_for(tmp_path / "other")) == 0
    assert_clean(tmp_path / "other")


@pytest.mark.parametrize("thread", ["fetcher-0", "fetcher-0-sender"])
def test_a_mirror_goes_on_after_an_unexpected_error(
    cluster: FakeCluster, copies: Store, thread: str
) -> None:
    """Neither a fetcher nor the thread that fetches ahead ends by an error: everything is mirrored after it."""
    # The second fetch is sent ahead.
    cluster.most_batches = 1
    for number in range(5):
        cluster.source[NAME].append([b"%d" % number * 300_000])
    failed: list[str] = []

    def fail_once(wanted: Sequence[Wanted]) -> None:
        if not failed and threading.current_thread().name.split("_")[0] == thread:
            failed.append(thread)
            always(wanted)

    cluster.fault = fail_once
    with mirror_into(copies) as mirror:
        mirror.run_once(lambda progress: None)
        assert not mirror.progress().problems
    assert failed
    assert list(copies[NAME].read()) == list(cluster.source[NAME].read())


@pytest.mark.usefixtures("patience")
def test_an_unexpected_error_of_a_partition_leaves_others_alone(
    cluster: FakeCluster, copies: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One partition cannot be appended to, for no known reason: it is reported, and the other one is mirrored."""
    cluster.source.create("payments-0").append([b"paid"])
    known = fetched_batches.append_fetched

    def append(partition: Partition, *arguments: object) -> int:
        if partition.topic == "orders":
            raise KeyError("a bug")
        return known(partition, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(fetched_batches, "append_fetched", append)
    with mirror_into(copies) as mirror:
        mirror.run_once(lambda progress: None)
        assert mirror.progress().problems == {NAME: "unexpected error: KeyError('a bug')"}
    assert copies["payments-0"].log_end_offset == 1
    assert copies[NAME].log_end_offset == 0


def test_a_mount_shows_an_unexpected_error_in_its_metrics(
    cluster: FakeCluster, copies: Store
) -> None:
    """`logfs_mirror_problems` counts what a thread has met, as long as it lasts."""
    cluster.fault = always
    mounted = MountedMirror(copies, MirrorOptions("localhost:1", re.compile(".*"), {}))

    def problems() -> list[object]:
        (found,) = [f for f in mounted.families() if f.name == "logfs_mirror_problems"]
        return [sample.value for sample in found.samples]

    thread = threading.Thread(target=mounted.run)
    thread.start()
    try:
        wait_for(lambda: problems() == [1])
        cluster.fault = no_fault
        wait_for(lambda: problems() == [0] and copies[NAME].log_end_offset == 10)
    finally:
        mounted.stop()
        thread.join()


@pytest.mark.usefixtures("patience")
@pytest.mark.parametrize("theirs", [1, 20])
def test_a_run_that_ends_goes_on_after_a_divergence(
    cluster: FakeCluster, copies: Store, theirs: int
) -> None:
    """What the source has lost is dropped, and all that the source has instead is there at the end."""
    source = cluster.source[NAME]
    write_as(source, [(1, 2)], "shared")
    cluster.most_batches = 1
    with mirror_into(copies) as mirror:
        mirror.run_once(lambda progress: None)
    write_as(copies[NAME], [(2, 3)], "lost")
    write_as(source, [(3, theirs)], "theirs")
    with mirror_into(copies) as mirror:
        mirror.run_once(lambda progress: None)
        assert not mirror.progress().problems
    assert [record.value for record in copies[NAME].read()] == [
        record.value for record in source.read()
    ]


def test_a_partition_that_loses_its_leader_is_reported(cluster: FakeCluster, copies: Store) -> None:
    """Nothing comes from a partition without a leader: the mirror says so, also if it had one when it began."""
    with mirror_into(copies) as mirror:
        mirror.run_once(lambda progress: None)
        cluster.leader = -1
        cluster.source[NAME].append([b"more"])
        mirror.refresh()
        assert mirror.progress().problems == {NAME: "has no leader"}
        cluster.leader = NODE
        mirror.refresh()
        mirror.run_once(lambda progress: None)
        assert not mirror.progress().problems
    assert copies[NAME].log_end_offset == 11


@pytest.mark.parametrize("is_known", [False, True])
def test_an_offline_copy_leaves_the_other_partitions_alone(
    cluster: FakeCluster, tmp_path: Path, is_known: bool
) -> None:
    """It alone has a problem, until it is mended; a new partition of the topic comes, too."""
    cluster.source.create("orders-1").append([b"a"])
    with Store(tmp_path / "copy") as copies, mirror_into(copies) as mirror:
        mirror.run_once(lambda progress: None)
    if not is_known:
        # Only the offline copy is left.
        with Store(tmp_path / "copy") as copies:
            copies.delete("orders-1")
    (tmp_path / "copy" / NAME / "leader-epoch-checkpoint").write_text("nonsense")
    cluster.source["orders-1"].append([b"b"])
    cluster.source.create("orders-2").append([b"c"])
    with Store(tmp_path / "copy") as copies:
        assert [*copies.offline] == [NAME]
        with mirror_into(copies) as mirror:
            mirror.run_once(lambda progress: None)
            (found,) = mirror.progress().problems.items()
            assert (found[0], "leader-epoch-checkpoint" in found[1]) == (NAME, True)
            assert values(copies["orders-1"]) == [b"a", b"b"]
            assert values(copies["orders-2"]) == [b"c"]
    (tmp_path / "copy" / NAME / "leader-epoch-checkpoint").unlink()
    with Store(tmp_path / "copy") as copies, mirror_into(copies) as mirror:
        mirror.run_once(lambda progress: None)
        assert not mirror.progress().problems
        assert values(copies[NAME]) == [b"%d" % n for n in range(10)]
    assert_clean(tmp_path / "copy")


def test_the_id_of_a_topic_is_checked_beside_an_offline_copy(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    """If the topic was created again, the copies of the old one stay as they are."""
    cluster.source.create("orders-1").append([b"old"])
    with Store(tmp_path / "copy") as copies, mirror_into(copies) as mirror:
        mirror.run_once(lambda progress: None)
    (tmp_path / "copy" / NAME / "leader-epoch-checkpoint").write_text("nonsense")
    for name in (NAME, "orders-1"):
        cluster.source.delete(name)
    cluster.source.create("orders-1").append([b"new"] * 5)
    with Store(tmp_path / "copy") as copies:
        with mirror_into(copies) as mirror:
            mirror.run_once(lambda progress: None)
            assert "created again" in mirror.progress().problems["orders"]
        assert values(copies["orders-1"]) == [b"old"]
