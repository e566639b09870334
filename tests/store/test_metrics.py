"""`.logfs/metrics`: its text format, read by Prometheus' own parser, and the value of each metric."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from logfs.errors import Corrupt
from logfs.format.batches.record import Record
from logfs.log.disk.latency_histogram import LatencyHistogram
from logfs.mount.mounted_mirror import MountedMirror
from logfs.store.directory.log_dir import CLEAN_SHUTDOWN
from logfs.store.observe.metrics import Family, Sample, metrics, render
from logfs.store.store import Store
from tests.support.processes import wait_for

if TYPE_CHECKING:
    from tests.support.mounts import Mount
    from tests.support.stores import Clock

DOCS = Path(__file__).parents[2] / "docs"
DAY = 86_400_000


class Scrape:
    """The samples of a scrape, by name."""

    def __init__(self, text: bytes | str) -> None:
        self.text = text if isinstance(text, str) else text.decode()
        self.families = list(text_string_to_metric_families(self.text))
        self.samples = [sample for family in self.families for sample in family.samples]

    def __call__(self, name: str, /, **labels: str) -> float:
        """Return the one value of that name with these labels."""
        found = [
            sample.value
            for sample in self.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]
        assert len(found) == 1, (name, labels, found)
        return float(found[0])

    @property
    def names(self) -> set[str]:
        return {sample.name for sample in self.samples}


def scrape(store: Store) -> Scrape:
    """Return the metrics of a store."""
    return Scrape(metrics(store))


def check_format(text: str) -> None:
    """Assert the text format.

    HELP and TYPE come once and before the samples of a family, families are in one piece, no series comes twice, and
    counters are totals.
    """
    seen: list[str] = []
    series: set[str] = set()
    kind = ""
    for line in text.splitlines():
        if line.startswith("# HELP "):
            seen.append(line.split(" ")[2])
            assert seen.count(seen[-1]) == 1
            assert line.split(" ", 3)[3].endswith(".")
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name == seen[-1]
            assert (kind == "counter") == name.endswith("_total")
        else:
            name = re.match(r"[a-z_:][a-z0-9_:]*", line)[0]  # type: ignore[index]
            suffixes = ("_bucket", "_sum", "_count") if kind == "histogram" else ("",)
            assert name in {seen[-1] + suffix for suffix in suffixes}
            key = line.rpartition(" ")[0]
            assert key not in series
            series.add(key)
    assert text.endswith("\n")


def check_histograms(found: Scrape) -> None:
    """Assert that the buckets of each histogram rise to its count, and that the last one has no bound."""
    for family in found.families:
        if family.type != "histogram":
            continue
        groups: dict[tuple[tuple[str, str], ...], list[tuple[float, float]]] = {}
        for sample in family.samples:
            labels = {key: value for key, value in sample.labels.items() if key != "le"}
            key = tuple(sorted(labels.items()))
            if sample.name.endswith("_bucket"):
                groups.setdefault(key, []).append((float(sample.labels["le"]), sample.value))
        assert groups
        for labels, buckets in groups.items():
            assert buckets == sorted(buckets)
            assert [count for _, count in buckets] == sorted(count for _, count in buckets)
            assert buckets[-1][0] == math.inf
            assert buckets[-1][1] == found(f"{family.name}_count", **dict(labels))


# The text.


def test_labels_and_help_are_escaped() -> None:
    """Backslashes, quotes and newlines are parsed as they were; a path that is not UTF-8 is valid text."""
    hostile = 'a\\b"c\nd{}, =é'
    text = render(
        [
            Family("x", "one\\two\nthree.", [Sample(1.5, {"path": hostile})]),
            Family("empty", "Nothing.", []),
            Family("y", "Bad.", [Sample(float("inf"), {"path": os.fsdecode(b"\xff")})]),
        ]
    )
    first, second = text_string_to_metric_families(text.decode())
    assert first.documentation == "one\\two\nthree."
    assert first.samples[0].labels == {"path": hostile}
    assert (first.samples[0].value, second.samples[0].value) == (1.5, math.inf)


def test_durations_are_counted_in_their_buckets() -> None:
    """A duration is in every bucket whose bound is above it, from 0 up to hours."""
    times = LatencyHistogram()
    for ns in (0, 5_000, 8_191, 8_192, 1_000_000, 3_600_000_000_000):
        times.note(ns)
    buckets = dict(times.buckets())
    assert buckets[8.192e-06] == 3
    assert buckets[1.6384e-05] == 4
    assert buckets[math.inf] == 6
    assert max(bound for bound in buckets if bound < math.inf) > 16
    assert times.total_ns == 3_600_001_021_383


# The numbers.


@pytest.fixture
def busy(store: Store, clock: Clock) -> Store:
    """A store with a compacted partition that is dirty, and one of two segments that is flushed."""
    store.settings.set_topic("keys", "cleanup.policy", "compact")
    keys, orders = store.create("keys-0"), store.create("orders-0")
    for number in range(20):
        keys.append([Record(b"x" * 100, b"%d" % (number % 4))])
    keys.roll(clock())
    orders.append([b"one", b"two"])
    orders.roll(clock())
    orders.append([b"three"])
    orders.flush()
    return store


def test_the_log_and_its_appends(busy: Store) -> None:
    found = scrape(busy)
    check_format(found.text)
    check_histograms(found)
    orders = {"topic": "orders", "partition": "0"}
    partition = busy["orders-0"]
    assert found("kafka_log_log_size", **orders) == partition.size_bytes
    assert found("kafka_log_log_numlogsegments", **orders) == 2
    assert found("kafka_log_log_logstartoffset", **orders) == 0
    assert found("kafka_log_log_logendoffset", **orders) == 3
    assert found("logfs_recovery_point", **orders) == 3
    assert found("kafka_server_brokertopicmetrics_messagesin_total", **orders) == 3
    assert found("kafka_server_brokertopicmetrics_bytesin_total", **orders) == partition.size_bytes
    assert found("kafka_server_replicamanager_partitioncount") == 2
    assert found("kafka_log_logflushstats_logflushrateandtimems_count") == 1
    total = found("kafka_log_logflushstats_logflushrateandtimems_sum")
    assert total == pytest.approx(busy.disk.flush_times.total_ns / 1e6)
    assert found("process_open_fds") > 3
    assert found("process_resident_memory_bytes") > 2**20
    assert found("process_start_time_seconds") > 1.6e9


def test_the_process_and_its_times(busy: Store, clock: Clock) -> None:
    """The processor time is that of the user and of the system, the uptime that since the opening."""
    before = os.times()
    found = Scrape(metrics(busy))
    after = os.times()
    spent = found("process_cpu_seconds_total")
    assert before.user + before.system - 0.02 <= spent <= after.user + after.system + 0.02
    assert found("logfs_uptime_seconds") == (clock() - busy.registry.opened_ms) / 1000


def test_the_cleaner(busy: Store, clock: Clock) -> None:
    before = scrape(busy)
    assert before("logfs_cleaner_dirty_ratio", topic="keys") == 1.0
    assert before("kafka_log_logcleanermanager_max_dirty_percent") == 100
    size = busy["keys-0"].size_bytes
    assert before("logfs_cleaner_cleanable_bytes", topic="keys") == size
    busy.upkeep()
    clock.now_ms += 2000
    after = scrape(busy)
    left = busy["keys-0"].size_bytes
    assert after("logfs_cleaner_dirty_ratio", topic="keys") == 0
    assert after("logfs_cleaner_rounds_total") == 1
    assert after("logfs_cleaner_read_bytes_total") == 2 * size
    assert after("logfs_cleaner_written_bytes_total") == left
    assert after("kafka_log_logcleaner_cleaner_recopy_percent") == 100 * left // (2 * size)
    assert after("kafka_log_logcleanermanager_time_since_last_run_ms") == 2000
    assert after("kafka_log_logcleaner_deadthreadcount") == 0
    assert "orders" not in {s.labels.get("topic") for s in after.samples if "dirty" in s.name}


def test_an_overdue_compaction_and_an_uncleanable_log(busy: Store, clock: Clock) -> None:
    busy.settings.set_topic("keys", "max.compaction.lag.ms", "1000")
    clock.now_ms += 61_000
    busy["keys-0"].uncleanable = Corrupt("of old")
    found = scrape(busy)
    assert found("kafka_log_logcleaner_max_compaction_delay_secs") == 60
    path = str(busy.log_dirs[0].path)
    prefix = "kafka_log_logcleanermanager_uncleanable_"
    assert found(f"{prefix}partitions_count", logdirectory=path) == 1
    assert found(f"{prefix}bytes", logdirectory=path) == busy["keys-0"].size_bytes


def test_an_error_that_ends_the_cleaner_is_counted(
    busy: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(busy.compactor, "_dirtiest", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        busy.compactor.run_due()
    assert scrape(busy)("kafka_log_logcleaner_deadthreadcount") == 1
    monkeypatch.undo()
    busy.compactor.run_due()
    assert scrape(busy)("kafka_log_logcleaner_deadthreadcount") == 0


def test_retention_is_counted_by_reason(busy: Store, clock: Clock) -> None:
    sizes = [segment.size_bytes for segment in busy["orders-0"].segments]
    busy.delete_records("orders-0", 2)
    busy.retain()
    clock.now_ms += 8 * DAY
    busy.retain()
    found = scrape(busy)
    for reason, size in (("log-start-offset", sizes[0]), ("retention.ms", sizes[1])):
        assert found("logfs_retention_segments_total", reason=reason) == 1
        assert found("logfs_retention_bytes_total", reason=reason) == size
    assert found("logfs_retention_segments_total", reason="retention.bytes") == 0


def test_paused_and_offline_partitions(busy: Store, log_dir: Path) -> None:
    busy["orders-0"].is_paused = True
    busy.registry.is_paused = True
    busy.upkeep()
    found = scrape(busy)
    assert found("logfs_partition_paused", topic="orders") == 1
    assert found("logfs_partition_paused", topic="keys") == 0
    assert found("logfs_upkeep_paused") == 1
    assert found("logfs_upkeep_last_run_timestamp_seconds") == busy.clock() / 1000
    assert found("kafka_server_replicamanager_offlinereplicacount") == 0
    busy.close()
    epochs = log_dir / "keys-0/leader-epoch-checkpoint"
    whole = epochs.read_bytes()
    epochs.write_bytes(b"nonsense\n")
    with Store(log_dir, read_only=True) as again:
        assert scrape(again)("kafka_server_replicamanager_offlinereplicacount") == 1
    epochs.write_bytes(whole)


def test_the_room_of_a_log_directory(busy: Store, log_dir: Path) -> None:
    """The size is that of the filesystem, as df shows it, and the free bytes are those for ordinary users."""
    room = os.statvfs(log_dir)
    found = scrape(busy)
    assert (
        found("logfs_log_dir_size_bytes", logdirectory=str(log_dir))
        == shutil.disk_usage(log_dir).total
    )
    free = found("logfs_log_dir_free_bytes", logdirectory=str(log_dir))
    assert free == pytest.approx(room.f_bavail * room.f_frsize, rel=0.2)


def test_the_lag_of_groups(busy: Store) -> None:
    busy.groups.commit("billing", "orders-0", 1)
    assert scrape(busy)("logfs_group_lag", group="billing", topic="orders", partition="0") == 2


def test_the_totals_of_a_recovery(busy: Store, log_dir: Path, clock: Clock) -> None:
    size = sum(partition.size_bytes for partition in busy.registry.partitions.values())
    busy.close()
    with Store(log_dir, clock=clock, recover=True) as again:
        found = scrape(again)
        assert found("logfs_recovered_bytes") == size
        assert found("logfs_loading_seconds") > 0
        assert found("kafka_log_logmanager_remaininglogstorecover", logdirectory=str(log_dir)) == 0


def test_what_remains_to_be_recovered(busy: Store, log_dir: Path, clock: Clock) -> None:
    """A store that loads its partitions later tells how many logs and segments it has not recovered yet."""
    segments = sum(len(partition.segments) for partition in busy.registry.partitions.values())
    logs = len(busy)
    busy.close()
    prefix = "kafka_log_logmanager_remaining"

    def remaining(store: Store) -> tuple[float, float]:
        found = scrape(store)
        names = (f"{prefix}logstorecover", f"{prefix}segmentstorecover")
        logs, segments = (found(name, logdirectory=str(log_dir)) for name in names)
        return logs, segments

    with Store(log_dir, clock=clock, lazy=True) as store:
        assert remaining(store) == (0, 0)
    (log_dir / CLEAN_SHUTDOWN).unlink()
    with Store(log_dir, clock=clock, lazy=True) as store:
        assert remaining(store) == (logs, segments)
        store.load_all()
        assert remaining(store) == (0, 0)


def test_the_progress_of_background_operations(busy: Store) -> None:
    with busy.registry.doing("compacting", "keys-0", 200) as work:
        work.done_bytes = 50
        found = scrape(busy)
    labels = {"what": "compacting", "name": "keys-0"}
    assert found("logfs_background_done_bytes", **labels) == 50
    assert found("logfs_background_total_bytes", **labels) == 200


# On the mount.


def test_requests_and_their_errors(mount: Mount) -> None:
    """Requests are counted with their durations and errnos, reads and failures also with their partition."""
    orders = mount.partition("orders-0")
    path = mount.path / ".logfs/metrics"
    for _ in range(5):
        with (orders / "append").open("ab", buffering=0) as append:
            append.write(b"hello\n")
    assert (orders / "records").read_bytes() == b"hello\n" * 5
    assert (orders / "offsets/1").read_bytes() == b"hello"
    with pytest.raises(OSError, match="Invalid argument"):
        (orders / "append.jsonl").write_bytes(b"oops\n")
    kept = (orders / "records").open("rb")
    found = Scrape(path.read_text())
    # The kernel reports that a file was closed, but does not wait until the daemon has handled it.
    wait_for(lambda: Scrape(path.read_text())("logfs_open_handles") == 1)
    kept.close()
    wait_for(lambda: Scrape(path.read_text())("logfs_open_handles") == 0)
    check_format(found.text)
    check_histograms(found)
    labels = {"topic": "orders", "partition": "0"}
    prefix = "kafka_server_brokertopicmetrics_"
    assert found(f"{prefix}messagesin_total", **labels) == 5
    assert found(f"{prefix}bytesout_total", **labels) == 35
    assert found(f"{prefix}failedproducerequests_total", **labels) == 1
    assert found(f"{prefix}failedfetchrequests_total", **labels) == 0
    assert found("logfs_request_seconds_count", operation="write") >= 6
    assert found("logfs_request_errors_total", operation="write", errno="EINVAL") == 1
    assert found("logfs_errors_total") == 1
    log = next((mount.log_dirs[0] / "orders-0").glob("*.log"))
    assert found("kafka_log_log_size", **labels) == log.stat().st_size


def test_a_failed_read_is_counted(mount: Mount) -> None:
    orders = mount.partition("orders-0")
    (orders / "append").write_bytes(b"hello\n")
    log = next((mount.log_dirs[0] / "orders-0").glob("*.log"))
    whole = log.read_bytes()
    log.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(OSError, match="Input/output") as caught:
        (orders / "offsets/0").read_bytes()
    assert caught.value.errno == errno.EIO
    log.write_bytes(whole)
    found = Scrape((mount.path / ".logfs/metrics").read_text())
    assert found("kafka_server_brokertopicmetrics_failedfetchrequests_total", topic="orders") >= 1


# The documents.

MONITORING = (DOCS / "monitoring.md").read_text()
METRIC = re.compile(r"\b(?:kafka|logfs|process)_[a-z0-9_]+\b")


@pytest.fixture
def everything(mount: Mount, tmp_path: Path) -> Scrape:
    """A scrape of a mount on which each family has a sample."""
    (mount.path / ".logfs/config/remote.storage.url").write_text(f"file://{tmp_path}/bucket")
    mount.partition("tiered-0")
    (mount.path / "tiered-0/config/remote.storage.enable").write_text("true")
    keys = mount.partition("keys-0")
    (keys / "config/cleanup.policy").write_text("compact")
    (mount.path / ".logfs/config/log.cleaner.io.max.bytes.per.second").write_text("50000")
    with (keys / "append.jsonl").open("wb") as append:
        for number in range(20):
            append.write(b'{"key":"%d","value":"%s"}\n' % (number, b"x" * 10_000))
    (keys / "groups/billing").write_text("0")
    with pytest.raises(OSError, match="Invalid argument"):
        (keys / "append").write_bytes(b"no key\n")
    (keys / "ctl").write_text("roll")
    (keys / "ctl").write_text("compact")
    path = mount.path / ".logfs/metrics"
    wait_for(lambda: "logfs_background_total_bytes{" in path.read_text())
    wait_for(lambda: "logfs_upkeep_last_run_timestamp_seconds" in path.read_text())
    text = path.read_text()
    (keys / "config/cleanup.policy").write_text("delete")
    return Scrape(text)


def expressions(found: object) -> list[str]:
    """Return all texts under `expr` or `definition` in a document."""
    if isinstance(found, dict):
        texts = [str(found[key]) for key in ("expr", "definition") if key in found]
        return texts + [text for value in found.values() for text in expressions(value)]
    if isinstance(found, list):
        return [text for value in found for text in expressions(value)]
    return []


def test_the_documents_name_the_existing_metrics(everything: Scrape) -> None:
    """Each metric of the dashboard and of the alerts exists, with the labels that they use.

    The table in docs/monitoring.md lists all metrics.
    """
    board = json.loads((DOCS / "grafana/logfs.json").read_text())
    alerts = yaml.safe_load((DOCS / "alerts.yml").read_text())
    labels: dict[str, set[str]] = {}
    # Those of a mount that mirrors a cluster. The lag of a partition has no sample without a cluster.
    lag, *others = MountedMirror(cast("Any", None), cast("Any", None)).families()
    of_mirror = Scrape(render(others).decode())
    labels["logfs_mirror_lag"] = {"topic", "partition", "instance", "job"}
    families = [*everything.families, *of_mirror.families]
    for sample in (*everything.samples, *of_mirror.samples):
        labels.setdefault(sample.name, set()).update({*sample.labels, "instance", "job"})
    found = [*expressions(board), *expressions(alerts)]
    assert len(found) > 50
    for text in found:
        names = METRIC.findall(text)
        assert names, text
        assert {*names} <= {*labels}, text
        asked = re.findall(r"([a-z_]+)(?:=~|!=|=)\"", text)
        for group in re.findall(r"by \(([^)]*)\)", text):
            asked += group.split(", ")
        assert {*asked} <= set().union(*(labels[name] for name in names)), text
    rows = re.findall(
        r"^\| `([a-z0-9_]+)` \| (\w+) \| ([a-z, ]*) \| (.+) \|$", MONITORING, re.MULTILINE
    )
    given = {
        (family.name + "_total" * (family.type == "counter"), family.type, family.documentation)
        for family in families
    } | {(lag.name, "gauge", lag.help)}
    assert {(name, kind, text) for name, kind, _, text in rows} == given
    for name, kind, told, _ in rows:
        sample = f"{name}_count" if kind == "histogram" else name
        assert {*filter(None, told.split(", "))} | {"instance", "job"} == labels[sample], name


def test_the_dashboard_is_consistent() -> None:
    """Panels have ids of their own, do not overlap, and use the data source that is selected."""
    board = json.loads((DOCS / "grafana/logfs.json").read_text())
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not taken & cells, panel["title"]
        taken |= cells
        if panel["type"] != "row":
            sources = [panel["datasource"], *(each["datasource"] for each in panel["targets"])]
            assert all(each["uid"] == "${datasource}" for each in sources)
    variables = {each["name"]: each["type"] for each in board["templating"]["list"]}
    assert variables == {"datasource": "datasource", "instance": "query", "topic": "query"}


def test_every_alert_is_explained() -> None:
    rules = [
        rule
        for group in yaml.safe_load((DOCS / "alerts.yml").read_text())["groups"]
        for rule in group["rules"]
    ]
    for rule in rules:
        assert {*rule} <= {"alert", "expr", "for", "labels", "annotations"}
        assert {*rule["annotations"]} == {"summary", "description"}
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert rule["expr"].count("(") == rule["expr"].count(")")
    told = re.findall(r"\bLogfs[A-Za-z]+\b", MONITORING)
    assert sorted(told) == sorted(rule["alert"] for rule in rules)
