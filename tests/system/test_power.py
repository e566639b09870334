"""Power cuts under a live mount, and again during and after recovery: fsynced data survives, and the rest is sound.

`LOGFS_POWER_CUTS` is the number of cuts on XFS; ext4 gets a third of that number in addition. `LOGFS_POWER_SEED`
repeats the choices of a campaign, or those of one chain (`SEED/KIND/NUMBER`, as a problem names it). The moments of
the cuts are never the same twice. With `LOGFS_POWER_KEEP=DIR`, the log directories of a failed chain are kept in DIR,
as they were before their verification. `LOGFS_POWER_STAGES=move,compact` names the stages that may follow the first
cut.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import orjson
import pytest

from logfs.store.store import Store
from tests.support.command_line import call
from tests.support.examples import seed_of
from tests.support.mounts import Mount
from tests.support.processes import wait_for
from tests.support.requirements import need, need_command, need_fuse, need_root
from tests.system import mutants
from tests.system.power import Image, Totals, campaign

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# A copy of an image's mount in another namespace keeps the image's loop device busy.
pytestmark = pytest.mark.usefixtures("mounts_alone")

CUTS = int(os.environ.get("LOGFS_POWER_CUTS", "8"))
SEED = os.environ.get("LOGFS_POWER_SEED", str(seed_of()))
MUTANT_CUTS = 100


@pytest.fixture(autouse=True)
def _machine() -> None:
    need_root()
    need_fuse()
    for command in ("losetup", "mount", "umount", "unshare", "setpriv"):
        need_command(command)


def _need_image(directory: Path, kind: str) -> None:
    """Require loop devices and a kernel that supports the file system."""
    where = directory / f"trial-{kind}"
    where.mkdir()
    try:
        Image(where, kind).close()
    except OSError as error:
        need(False, f"no {kind} image can be mounted: {error}")


def _report(totals: Totals, kind: str) -> None:
    print(f"\n{kind}, seed {SEED}: " + "; ".join(totals.lines()))
    if totals.problems:
        pytest.fail(f"{len(totals.problems)} problems:\n" + "\n".join(totals.classes()))
    assert totals.counts["acknowledged"] > 0, "nothing was acknowledged"
    assert totals.counts["lookups"] > 0
    if totals.chains > 3:
        assert totals.counts["unsynced lost"] > 0, "no cut took anything: they do not bite"


def test_fsynced_data_survives_power_cuts_on_xfs(tmp_path: Path) -> None:
    """Chains of cuts on XFS images lose no acknowledged record, and every lookup afterwards is right."""
    need_command("mkfs.xfs")
    _need_image(tmp_path, "xfs")
    _report(campaign(tmp_path, "xfs", CUTS, SEED), "xfs")


def test_fsynced_data_survives_power_cuts_on_ext4(tmp_path: Path) -> None:
    """Chains of cuts on ext4 images with several mount options lose no acknowledged record."""
    need_command("mkfs.ext4")
    _need_image(tmp_path, "ext4")
    _report(campaign(tmp_path, "ext4", max(CUTS // 3, 1), SEED), "ext4")


@pytest.mark.drawn(1)
@pytest.mark.parametrize(
    ("mutant", "stages"),
    [
        (mutants.no_fsync, "live"),
        (mutants.log_not_synced, "live"),
        (mutants.answered_before_the_sync, "one call"),
    ],
)
def test_power_cuts_catch_a_broken_mount(
    tmp_path: Path,
    mutant: Callable[[], None],
    stages: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The campaign finds each seeded bug: acknowledged data is lost within `MUTANT_CUTS` cuts."""
    need_command("mkfs.xfs")
    _need_image(tmp_path, "xfs")
    monkeypatch.setenv("LOGFS_POWER_STAGES", stages)
    totals = campaign(tmp_path, "xfs", MUTANT_CUTS, "1", mutant.__name__)
    print(f"\n{mutant.__name__}: {totals.cuts.total()} cuts: {[*totals.classes()]}")
    assert totals.problems


@pytest.mark.parametrize("is_noticed", [False, True])
def test_umount_reports_a_failed_disk(tmp_path: Path, is_noticed: bool) -> None:
    """`umount` of a log directory whose disk has failed reports the failure, also when it is already offline.

    No other mount can replace this one before that.
    """
    need_command("mkfs.xfs")
    _need_image(tmp_path, "xfs")
    disk = Image(tmp_path, "xfs")
    log_dir = disk.mountpoint / "log"
    mount = Mount(tmp_path / "mnt", [log_dir]).start()
    try:
        append = mount.partition("a-0") / "append"
        append.write_bytes(b"line\n")
        disk.cut()
        if is_noticed:
            status = mount.path / ".logfs/status.json"
            wait_for(lambda: orjson.loads(status.read_bytes())["offline_log_dirs"])
            again = call("mount", log_dir, mount.path)
            assert (again.returncode, b"logfs is already mounted here" in again.stderr) == (1, True)
        done = call("umount", mount.path)
        assert done.returncode == 1
        assert done.stderr.startswith(b"logfs: %s: " % os.fsencode(log_dir))
        assert done.stderr.count(b"\n") == 1
    finally:
        mount.stop()
        disk.close()


@pytest.mark.parametrize("words", ["mount LOGDIR MNT", "check LOGDIR", "append LOGDIR/a-0"])
def test_commands_report_a_disk_that_failed_earlier(tmp_path: Path, words: str) -> None:
    """A command on a disk that failed earlier reports an I/O error, not a missing or existing directory."""
    need_command("mkfs.xfs")
    _need_image(tmp_path, "xfs")
    disk = Image(tmp_path, "xfs")
    try:
        log_dir = disk.mountpoint / "log"
        with Store(log_dir) as store:
            store.create("a-0").append([b"line"])
        disk.restore()
        disk.cut()
        (tmp_path / "mnt").mkdir()
        places = {"LOGDIR": log_dir, "LOGDIR/a-0": log_dir / "a-0", "MNT": tmp_path / "mnt"}
        done = call(*(places.get(word, word) for word in words.split()))
        assert done.returncode == 1
        last = done.stderr.splitlines()[-1]
        assert last.startswith(b"logfs: %s" % bytes(log_dir))
        assert last.endswith(b": Input/output error")
    finally:
        disk.close()
