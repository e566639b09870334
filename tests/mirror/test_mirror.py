"""What a mirror decides: which settings a copy takes from its source, and what its errors look like."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from logfs.mirror import mirror as mirror_module
from logfs.mirror.mirror import Mirror
from logfs.setting import TOPIC_SETTINGS
from logfs.store.store import Store
from tests.mirror.fake_cluster import FakeCluster
from tests.support.stores import assert_clean

if TYPE_CHECKING:
    from collections.abc import Iterator

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
