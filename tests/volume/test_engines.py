"""Volumes in Docker and Podman: containers that share a log, owners, read-only volumes, and a compose file."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.processes import run, wait_for
from tests.support.requirements import need_command, need_fuse, need_root
from tests.support.stores import assert_clean
from tests.support.volumes import Plugin

if TYPE_CHECKING:
    from collections.abc import Iterator

# One daemon for all of them; for a moment, a new container has copies of all mounts.
pytestmark = [pytest.mark.usefixtures("mounts_alone"), pytest.mark.xdist_group("docker")]

PLUGINS = Path("/run/docker/plugins")
DOCS = Path(__file__).parents[2] / "docs/containers.md"
IMAGE = "busybox:latest"
LINES = 100_000
# What the tests do without: no network, no image from elsewhere.
ALONE = ("--network=none", "--pull=never")


class Docker:
    """A Docker daemon with an image of busybox."""

    def __init__(self, directory: Path) -> None:
        self.host = f"unix://{directory}/docker.sock"
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Docker:
        """Start the daemon, and make the image."""
        log = self._directory / "dockerd.log"
        places = [f"--{name}={self._directory / name}" for name in ("data-root", "exec-root")]
        modest = ["--bridge=none", "--iptables=false", "--storage-driver=vfs"]
        command = ["dockerd", *modest, *places, f"--pidfile={self._directory / 'pid'}"]
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [*command, f"--host={self.host}"], stdout=output, stderr=output
            )
        process = self._process
        wait_for(lambda: process.poll() is not None or b"API listen on" in log.read_bytes(), 60)
        if process.poll() is not None:
            # A machine may have Docker and not allow it to run, as inside of some containers.
            pytest.skip(f"dockerd does not start here ({log.read_text().splitlines()[-1]})")
        root = busybox_root(self._directory / "root")
        run("tar", "-C", root, "-cf", self._directory / "root.tar", ".")
        self("import", self._directory / "root.tar", IMAGE)
        return self

    def stop(self) -> None:
        """End the daemon."""
        assert self._process is not None
        self._process.terminate()
        self._process.wait(60)

    def __call__(self, *words: str | Path) -> str:
        """Run a command of Docker's client; return what it printed."""
        return run("docker", f"--host={self.host}", *words)

    def shell(self, volume: str, script: str, *options: str) -> str:
        """Run a script in a container that has the volume at /data; return what it printed."""
        volumes = f"--volume={volume}:/data"
        return self("run", "--rm", *ALONE, volumes, *options, IMAGE, "/bin/sh", "-c", script)

    @contextmanager
    def held(self, volume: str) -> Iterator[None]:
        """Keep a volume mounted: without a container that uses it, each one that begins would mount it again."""
        words = [f"--volume={volume}:/data", IMAGE, "sleep", "infinity"]
        holder = self("run", "--detach", *ALONE, *words).strip()
        try:
            yield
        finally:
            self("rm", "--force", holder)


def busybox_root(root: Path) -> Path:
    """Make a root directory with busybox and the libraries that it needs."""
    program = need_command("busybox")
    linked = run("ldd", program) if "dynamically" in run("file", "-L", program) else ""
    for path in [program, *re.findall(r"/\S+", linked)]:
        target = root / path.lstrip("/") if path != program else root / "bin/busybox"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    for name in ("sh", "cat", "tail", "head", "seq", "id", "ls", "sleep", "echo"):
        (root / "bin" / name).symlink_to("busybox")
    return root


@pytest.fixture(scope="module")
def docker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Docker]:
    """A Docker daemon of the tests' own."""
    need_fuse()
    need_root()
    for name in ("docker", "dockerd", "containerd", "runc", "tar", "file"):
        need_command(name)
    found = Docker(tmp_path_factory.mktemp("docker"))
    try:
        yield found.start()
    finally:
        found.stop()


@pytest.fixture(scope="module")
def plugin(docker: Docker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plugin]:
    """A plugin that Docker finds by its spec, as that of the package; the name of the spec is that of the driver.

    Docker asks every driver that it has met whenever it lists volumes, and waits half a minute for one that is gone.
    """
    found = Plugin(tmp_path_factory.mktemp("plugin"))
    spec = Path("/etc/docker/plugins") / f"{driver(found)}.spec"
    spec.parent.mkdir(parents=True, exist_ok=True)
    spec.write_text(f"unix://{found.socket}\n")
    try:
        yield found.start()
    finally:
        found.close()
        spec.unlink()
    assert_clean(*found.logs.iterdir())


def driver(plugin: Plugin) -> str:
    """Return the name of the driver, which no other test uses."""
    return f"logfs-{os.getpid()}-{plugin.state.parent.name.replace('_', '-')}"[:60].rstrip("-")


def create(docker: Docker, plugin: Plugin, name: str, **options: str) -> None:
    """Create a volume."""
    words = [f"--opt={option}={value}" for option, value in options.items()]
    docker("volume", "create", f"--driver={driver(plugin)}", *words, name)


def test_containers_share_a_volume_while_the_plugin_is_killed(
    docker: Docker, plugin: Plugin
) -> None:
    """One appends 100,000 lines, and one follows them; the plugin is killed and started again in between."""
    create(docker, plugin, "orders", partition="orders-0", mode="0777")
    volume = "--volume=orders:/data"
    command = ["/bin/sh", "-c", "tail -n +1 -f /data/records"]
    follower = docker("run", "--detach", *ALONE, volume, IMAGE, *command).strip()
    half = LINES // 2
    try:
        with subprocess.Popen(
            ["docker", f"--host={docker.host}", "logs", "--follow", follower],
            stdout=subprocess.PIPE,
        ) as followed:
            docker.shell("orders", f"seq 1 {half} >> /data/append")
            plugin.end(signal.SIGKILL)
            plugin.start()
            docker.shell("orders", f"seq {half + 1} {LINES} >> /data/append", "--user=1000:1000")
            assert followed.stdout is not None
            found = [int(followed.stdout.readline()) for _ in range(LINES)]
            assert found == list(range(1, LINES + 1))
            followed.kill()
        assert json.loads(docker("volume", "inspect", "orders"))[0]["Status"]["users"] == 1
        with pytest.raises(AssertionError, match="in use"):
            docker("volume", "rm", "orders")
    finally:
        docker("rm", "--force", follower)
    wait_for(lambda: not any((plugin.state / "mounts").iterdir()))
    docker("volume", "rm", "orders")


def test_owners_and_read_only_volumes(docker: Docker, plugin: Plugin) -> None:
    """Only the owner of a volume writes to it; others read as its mode says; nobody writes to a read-only one."""
    logdir = str(plugin.logs / "shared")
    create(docker, plugin, "mine", logdir=logdir, partition="shared-0", uid="1234", mode="0755")
    refused = "can't create /data/append: "
    with docker.held("mine"):
        docker.shell("mine", "echo hello >> /data/append", "--user=1234:1234")
        assert docker.shell("mine", "cat /data/records", "--user=99:99") == "hello\n"
        with pytest.raises(AssertionError, match=f"{refused}Permission denied"):
            docker.shell("mine", "echo x >> /data/append", "--user=99:99")
        create(docker, plugin, "seen", logdir=logdir, partition="shared-0", ro="true")
        with docker.held("seen"):
            assert docker.shell("seen", "cat /data/records") == "hello\n"
            for target in ("seen:/data", "mine:/data:ro"):
                words = [f"--volume={target}", IMAGE, "/bin/sh", "-c", "echo x >> /data/append"]
                with pytest.raises(AssertionError, match=f"{refused}Read-only file system"):
                    docker("run", "--rm", *ALONE, *words)
    docker("volume", "rm", "mine", "seen")


def test_the_compose_file_of_the_docs(docker: Docker, plugin: Plugin, tmp_path: Path) -> None:
    """A service that appends, and one that follows it."""
    program = need_command("docker-compose")
    (example,) = re.findall(r"```yaml\n(.*?)```", DOCS.read_text(), re.DOTALL)
    local = example.replace("driver: logfs", f"driver: {driver(plugin)}")
    local = re.sub(
        r"^( +)image: .*$", rf"\1image: {IMAGE}\n\1network_mode: none", local, flags=re.M
    )
    (tmp_path / "compose.yaml").write_text(local)
    command = [program, f"--host={docker.host}", "--project-name=logs", "--file=compose.yaml"]
    try:
        run(*command, "up", "--detach", cwd=tmp_path)
        wait_for(lambda: "tick 3" in run(*command, "logs", "follower", cwd=tmp_path), 60)
    finally:
        run(*command, "down", "--timeout=1", "--volumes", cwd=tmp_path)
    assert docker("volume", "ls", "--quiet") == ""


def test_podman_has_the_volume_commands(tmp_path: Path) -> None:
    """create, ls, inspect, mount, unmount and rm, by the line of containers.conf that is in the package."""
    need_fuse()
    need_root()
    program = need_command("podman")
    plugin = Plugin(tmp_path)
    packaged = Path(__file__).parents[2] / "scripts/packaging/containers/logfs.conf"
    settings = packaged.read_text().replace("/run/logfs/volumes.sock", str(plugin.socket))
    (tmp_path / "containers.conf").write_text(settings)
    environment = {**os.environ, "CONTAINERS_CONF": str(tmp_path / "containers.conf")}
    # Podman refuses a path of more than 50 bytes for what it keeps while it runs.
    running = tempfile.mkdtemp(prefix="logfs-")
    places = [f"--root={tmp_path / 'podman'}", f"--runroot={running}"]

    def podman(*words: str) -> str:
        return run(program, *places, "--storage-driver=vfs", "volume", *words, env=environment)

    try:
        plugin.start()
        podman("create", "--driver=logfs", "--opt=partition=orders-0", "orders")
        assert podman("ls", "--format={{.Driver}} {{.Name}}").split() == ["logfs", "orders"]
        # A mount that first recovers a log may need longer than the 5 seconds that Podman waits by itself.
        plugin.process.send_signal(signal.SIGSTOP)
        threading.Timer(6, plugin.process.send_signal, (signal.SIGCONT,)).start()
        # Podman 4.3 prints no path for a volume of a plugin.
        podman("mount", "orders")
        path = Path(plugin.ask("Path", Name="orders")["Mountpoint"])
        assert os.path.ismount(path.parent)
        (path / "append").write_text("line\n")
        assert (path / "records").read_text() == "line\n"
        (found,) = json.loads(podman("inspect", "orders"))
        assert (found["Driver"], found["Options"]) == ("logfs", {"partition": "orders-0"})
        podman("unmount", "orders")
        assert not path.exists()
        podman("rm", "orders")
        assert plugin.ask("List")["Volumes"] == []
    finally:
        plugin.close()
        shutil.rmtree(running)
    assert_clean(*plugin.logs.iterdir())
