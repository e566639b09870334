"""The volume plugin as container engines see it: requests, what they mount, and what survives its end."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from logfs.store.directory.log_dir import CLEAN_SHUTDOWN
from tests.support.mounts import Mount
from tests.support.processes import wait_for
from tests.support.requirements import need_command, need_fuse, need_root
from tests.support.stores import assert_clean
from tests.support.volumes import Plugin

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGING = Path(__file__).parents[2] / "scripts/packaging"


@pytest.fixture
def plugin(tmp_path: Path) -> Iterator[Plugin]:
    """A plugin; its mounts end with the test, and its log directories are audited."""
    need_fuse()
    found = Plugin(tmp_path)
    try:
        yield found.start()
    finally:
        found.close()
    filled = [each for each in found.logs.iterdir() if any(each.iterdir())]
    if filled:
        assert_clean(*filled)


def mount(plugin: Plugin, name: str, user: str) -> Path:
    """Mount a volume for an id; return the path for the container."""
    return Path(plugin.ask("Mount", Name=name, ID=user)["Mountpoint"])


def test_a_volume_is_a_log_directory_a_topic_or_a_partition(plugin: Plugin) -> None:
    """Each is made when it is missing; all of one directory share a mount, and see each other's records."""
    plugin.ask("Create", Name="orders")
    logdir = plugin.logs / "orders"
    plugin.ask("Create", Name="one", Opts={"logdir": str(logdir), "partition": "orders-0"})
    plugin.ask("Create", Name="all", Opts={"logdir": str(logdir), "topic": "orders"})
    whole, one = mount(plugin, "orders", "a"), mount(plugin, "one", "b")
    (one / "append").write_text("first\n")
    topic = mount(plugin, "all", "c")
    (topic / "append").write_text("second\n")
    assert (topic / "records").read_text() == "first\nsecond\n"
    assert (whole / "orders-0/records").read_text() == "first\nsecond\n"
    assert {each.st_dev for each in map(os.stat, (whole, one, topic))} == {whole.stat().st_dev}
    listed = plugin.ask("List")["Volumes"]
    assert [(each["Name"], each["Mountpoint"]) for each in listed] == [
        ("all", str(topic)),
        ("one", str(one)),
        ("orders", str(whole)),
    ]
    assert plugin.ask("Path", Name="one")["Mountpoint"] == str(one)
    assert plugin.ask("Get", Name="one")["Volume"]["Status"]["users"] == 1


def test_a_mount_lasts_as_long_as_any_id_uses_it(plugin: Plugin) -> None:
    """Requests may be repeated; the log is closed cleanly when the last unmount returns."""
    plugin.ask("Create", Name="orders")
    plugin.ask("Create", Name="orders")
    plugin.ask("Create", Name="same", Opts={"logdir": str(plugin.logs / "orders")})
    path = mount(plugin, "orders", "a")
    assert (
        mount(plugin, "orders", "a") == mount(plugin, "orders", "b") == mount(plugin, "same", "a")
    )
    for name, user in (("orders", "a"), ("orders", "a"), ("orders", "nobody"), ("orders", "b")):
        plugin.ask("Unmount", Name=name, ID=user)
        assert os.path.ismount(path)
        assert "is in use" in plugin.refused("Remove", Name="same")
    plugin.ask("Unmount", Name="same", ID="a")
    assert not path.exists()
    assert (plugin.logs / "orders" / CLEAN_SHUTDOWN).exists()
    plugin.ask("Remove", Name="orders")
    assert "no such volume: orders" in plugin.refused("Mount", Name="orders", ID="a")
    assert (plugin.logs / "orders").is_dir()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_mounts_and_volumes_survive_the_plugin(plugin: Plugin, number: signal.Signals) -> None:
    """An open file goes on, and the next plugin knows the volumes and who uses them."""
    plugin.ask("Create", Name="orders", Opts={"partition": "orders-0"})
    path = mount(plugin, "orders", "a")
    with (path / "append").open("w") as file:
        assert plugin.end(number) == (-number if number == signal.SIGKILL else 0)
        file.write("written meanwhile\n")
        file.flush()
        plugin.start()
        assert plugin.ask("Get", Name="orders")["Volume"]["Mountpoint"] == str(path)
        assert mount(plugin, "orders", "b") == path
        file.write("and after\n")
    assert (path / "records").read_text() == "written meanwhile\nand after\n"
    plugin.ask("Unmount", Name="orders", ID="a")
    plugin.ask("Unmount", Name="orders", ID="b")
    assert not path.exists()


@pytest.mark.usefixtures("mounts_alone")
def test_another_namespace_keeps_no_unmount_from_ending(plugin: Plugin) -> None:
    """The copies of all mounts that another process has, as a starting container has, end with the mount."""
    need_root()
    plugin.ask("Create", Name="orders")
    mount(plugin, "orders", "a")
    with subprocess.Popen(["unshare", "--mount", "cat"], stdin=subprocess.PIPE) as other:
        wait_for(
            lambda: os.readlink(f"/proc/{other.pid}/ns/mnt") != os.readlink("/proc/self/ns/mnt")
        )
        plugin.ask("Unmount", Name="orders", ID="a")
        assert (plugin.logs / "orders" / CLEAN_SHUTDOWN).exists()
        other.communicate()
    mount(plugin, "orders", "b")


@pytest.mark.usefixtures("mounts_alone")
def test_a_reboot_ends_all_uses(plugin: Plugin) -> None:
    """After it the mounts are gone, and nobody sends an unmount for the containers of before."""
    plugin.ask("Create", Name="orders")
    path = mount(plugin, "orders", "a")
    plugin.end(signal.SIGKILL)
    subprocess.run([*plugin.command[:3], "umount", path], check=True)
    plugin.start()
    assert plugin.ask("Get", Name="orders")["Volume"]["Status"]["users"] == 0
    assert mount(plugin, "orders", "b") == path
    plugin.ask("Unmount", Name="orders", ID="b")
    assert not path.exists()


def test_the_next_container_gets_a_new_mount_if_the_daemon_was_killed(plugin: Plugin) -> None:
    """The records that were written before are there."""
    plugin.ask("Create", Name="orders", Opts={"partition": "orders-0"})
    path = mount(plugin, "orders", "a")
    (path / "append").write_text("before\n")
    status = json.loads((path.parent / ".logfs/status.json").read_text())
    os.kill(status["pid"], signal.SIGKILL)
    assert mount(plugin, "orders", "b") == path
    (path / "append").write_text("after\n")
    assert (path / "records").read_text() == "before\nafter\n"
    plugin.ask("Unmount", Name="orders", ID="a")
    plugin.ask("Unmount", Name="orders", ID="b")


def test_a_mount_of_the_host_is_used(plugin: Plugin, tmp_path: Path) -> None:
    """A second mount is impossible; the one that is there is used, and stays."""
    logdir = plugin.logs / "orders"
    host = Mount(tmp_path / "mnt", [logdir]).start()
    try:
        plugin.ask("Create", Name="orders", Opts={"partition": "orders-0"})
        path = mount(plugin, "orders", "a")
        assert path == host.path / "orders-0"
        (path / "append").write_text("line\n")
        plugin.ask("Unmount", Name="orders", ID="a")
        assert (host.path / "orders-0/records").read_text() == "line\n"
    finally:
        host.stop()


def test_a_read_only_volume_changes_nothing(plugin: Plugin) -> None:
    """It has a mount of its own, which follows what others write, and needs what it shows to be there."""
    plugin.ask("Create", Name="orders", Opts={"partition": "orders-0"})
    logdir = str(plugin.logs / "orders")
    for name, options in {"r": {}, "missing": {"partition": "orders-9"}}.items():
        given = {"logdir": logdir, "ro": "true", "partition": "orders-0", **options}
        plugin.ask("Create", Name=name, Opts=given)
    path = mount(plugin, "orders", "a")
    (path / "append").write_text("line\n")
    seen = mount(plugin, "r", "a")
    assert seen != path
    assert (seen / "records").read_text() == "line\n"
    with pytest.raises(OSError, match="Read-only file system"):
        (seen / "append").write_text("x\n")
    (path / "append").write_text("another\n")
    wait_for(lambda: (seen / "records").read_text() == "line\nanother\n")
    assert "has no orders-9" in plugin.refused("Mount", Name="missing", ID="a")
    plugin.ask("Unmount", Name="orders", ID="a")
    plugin.ask("Unmount", Name="r", ID="a")
    assert not seen.exists()
    broken = {"logdir": f"{logdir}/none", "ro": ""}
    plugin.ask("Create", Name="broken", Opts=broken)
    assert f"{logdir}/none" in plugin.refused("Mount", Name="broken", ID="a")
    assert plugin.ask("Get", Name="broken")["Volume"]["Status"]["users"] == 0


def test_a_place_for_no_log_directory_is_told(plugin: Plugin) -> None:
    """A file, a missing parent, and a name as long as names may be."""
    (plugin.logs / "file").write_text("x")
    longest = "n" * 255
    for name, said in (("file", "is not a directory"), ("none/log", "parent directory does not")):
        plugin.ask("Create", Name=longest, Opts={"logdir": str(plugin.logs / name)})
        assert said in plugin.refused("Mount", Name=longest, ID="a")
        plugin.ask("Unmount", Name=longest, ID="a")
        plugin.ask("Remove", Name=longest)
    (plugin.logs / "file").unlink()
    plugin.ask("Create", Name=longest)
    assert mount(plugin, longest, "a").is_dir()
    plugin.ask("Unmount", Name=longest, ID="a")


@pytest.mark.parametrize("shown", [{"partition": "orders-0"}, {}])
def test_what_a_volume_shows_gets_an_owner_and_a_mode(
    plugin: Plugin, shown: dict[str, str]
) -> None:
    """Again at each mount; permissions of other partitions stay."""
    need_root()
    options = {"uid": "1234", "gid": "5678", "mode": "0750", **shown}
    plugin.ask("Create", Name="orders", Opts=options)
    path = mount(plugin, "orders", "a")
    found = path.stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (1234, 5678, 0o750)


def test_the_partitions_of_a_topic_get_an_owner_and_a_mode(plugin: Plugin) -> None:
    """The files of the topic have those of its partitions. The id 0 is told, too."""
    need_root()
    options = {"topic": "orders", "uid": "1234", "gid": "0", "mode": "0770"}
    plugin.ask("Create", Name="orders", Opts=options)
    path = mount(plugin, "orders", "a")
    for file in (path / "partitions/0", path / "append"):
        found = file.stat()
        assert (found.st_uid, found.st_gid) == (1234, 0)
        assert stat.S_IMODE(found.st_mode) & 0o220 == 0o220
    status = plugin.ask("Get", Name="orders")["Volume"]["Status"]
    assert (status["uid"], status["gid"]) == (1234, 0)


WRONG_OPTIONS: list[tuple[dict[str, str], str]] = [
    ({"size": "1"}, "no such option: size; there are logdir, topic, partition, ro"),
    ({"logdir": "relative"}, "give an absolute path"),
    ({"logdir": ""}, "logdir: give a value"),
    ({"logdir": "/a\nb"}, "has control characters"),
    ({"logdir": "/a\0b"}, "has control characters"),
    ({"topic": "a", "partition": "a-0"}, "not both"),
    ({"topic": "a/b"}, "a/b"),
    ({"partition": "orders"}, "orders"),
    ({"ro": "maybe"}, "give true or false"),
    ({"mode": "0800"}, "an octal number up to 777"),
    ({"mode": "1777"}, "an octal number up to 777"),
    ({"uid": "root"}, "a number up to"),
    ({"gid": "-1"}, "a number up to"),
    ({"uid": "4294967295"}, "a number up to"),
    ({"ro": "1", "uid": "1"}, "a read-only volume changes no owner"),
]


def test_a_wrong_option_makes_no_volume(plugin: Plugin) -> None:
    """The error names the option and says what is possible; a volume that exists keeps its options."""
    for options, said in WRONG_OPTIONS:
        assert said in plugin.refused("Create", Name="orders", Opts=options)
    for place in (plugin.logs, plugin.state, plugin.state / "mounts/x"):
        said = plugin.refused("Create", Name="orders", Opts={"logdir": str(place)})
        assert f"logdir={place}: the plugin keeps its own files there" in said
    assert plugin.ask("List")["Volumes"] == []
    plugin.ask("Create", Name="orders", Opts={"ro": "1"})
    assert "exists with other options" in plugin.refused("Create", Name="orders")


def test_malformed_requests_are_errors(plugin: Plugin) -> None:
    """Whatever comes, the plugin answers the next request."""
    for path, body in {
        "/VolumeDriver.Create": b"{",
        "/VolumeDriver.Mount": b"[]",
        "/VolumeDriver.Get": b'{"Name": 3}',
        "/VolumeDriver.Unmount": b'{"Name": "orders"}',
        "/VolumeDriver.List": b"\xff",
        "/no-such-verb": b"{}",
    }.items():
        status, answer = plugin.send(path, body)
        assert (status, bool(answer["Err"])) == (500, True)
    for name in ("", "../x", "a/b", "-x", "n" * 300):
        assert plugin.refused("Create", Name=name)
    assert "malformed Opts" in plugin.refused("Create", Name="orders", Opts={"ro": True})
    for data in (b"\x00\xff\n\n", b"POST / HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n", b""):
        with socket.socket(socket.AF_UNIX) as raw:
            raw.connect(str(plugin.socket))
            raw.sendall(data)
    assert plugin.ask("List")["Volumes"] == []
    assert plugin.ask("Capabilities")["Capabilities"] == {"Scope": "local"}
    assert "Traceback" not in plugin.output.read_text()


def test_only_one_plugin_serves_a_socket(plugin: Plugin) -> None:
    """A second one is refused and harms nothing; the socket is closed to other users."""
    elsewhere = Plugin(plugin.state.parent / "elsewhere", plugin.socket)
    for command, said in (
        (elsewhere.command, f"{plugin.socket}: another process serves this socket"),
        (plugin.command, f"{plugin.state}: another volume plugin keeps its volumes here"),
    ):
        second = subprocess.run(command, capture_output=True, text=True, check=False)
        assert second.returncode == 1
        assert second.stderr.splitlines()[-1].startswith(f"logfs: {said}")
    assert stat.S_IMODE(plugin.socket.stat().st_mode) == 0o600
    assert plugin.ask("List")["Volumes"] == []
    assert plugin.end() == 0
    assert not plugin.socket.exists()


def test_a_file_in_the_place_of_the_socket_stays(tmp_path: Path) -> None:
    """A socket that nobody serves is replaced; a plain file is not."""
    place = tmp_path / "file"
    place.write_text("mine")
    second = Plugin(tmp_path / "state", place)
    done = subprocess.run(second.command, capture_output=True, text=True, check=False)
    assert (done.returncode, place.read_text()) == (1, "mine")
    assert done.stderr.splitlines()[-1] == f"logfs: {place}: is not a socket; give another --socket"


def test_a_damaged_table_is_an_error_and_stays(plugin: Plugin) -> None:
    """Nobody loses the other volumes of the table."""
    plugin.ask("Create", Name="orders")
    plugin.end()
    table = plugin.state / "volumes.json"
    for content in (b"{", b"[]", b'{"orders": {"options": {"logdir": 1, "no": 2}, "ids": []}}'):
        table.write_bytes(content)
        done = subprocess.run(plugin.command, capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert done.stderr.startswith(f"logfs: {table}: is not the table of volumes")
        assert table.read_bytes() == content


def test_systemd_passes_the_socket(plugin: Plugin, tmp_path: Path) -> None:
    """The first request starts the plugin, as by logfs-volumes.socket."""
    program = need_command("systemd-socket-activate")
    plugin.end()
    passed = Plugin(tmp_path, tmp_path / "passed.sock")
    with passed.output.open("wb") as output:
        environment = [f"--setenv={name}" for name in ("PYTHONPATH", "PATH") if name in os.environ]
        command = [program, *environment, f"--listen={passed.socket}", *passed.command]
        passed.process = subprocess.Popen(command, stderr=output)
    try:
        wait_for(passed.socket.exists)
        passed.ask("Create", Name="orders")
        assert passed.end() == 0
        assert passed.socket.exists()
    finally:
        passed.close()


def test_the_units_are_well_formed(tmp_path: Path) -> None:
    """systemd finds nothing to complain about, once the program is where the unit expects it."""
    program = need_command("systemd-analyze")
    units = [tmp_path / f"logfs-volumes.{kind}" for kind in ("service", "socket")]
    for unit in units:
        text = (PACKAGING / "systemd" / unit.name).read_text()
        unit.write_text(text.replace("/usr/bin/logfs", "/bin/true"))
    done = subprocess.run(
        [program, "verify", "--man=no", *units], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
