"""The container image: built on a Debian of this machine's release, started, and mounted in."""

from __future__ import annotations

import os
import platform
import subprocess
from typing import TYPE_CHECKING

import pytest

import logfs
from logfs.store.store import Store
from tests.packaging.conftest import build
from tests.packaging.machine import base_archive
from tests.support.processes import wait_for
from tests.support.requirements import need, need_command, need_fuse, need_root

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

IMAGE = f"logfs:{logfs.__version__}"
MOUNTING = ["--device", "/dev/fuse", "--cap-add", "SYS_ADMIN"]

Docker = "Callable[..., str]"


@pytest.fixture(scope="module")
def docker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Docker]:
    """A function that calls docker, with a daemon of its own whose images and mounts go with it."""
    need_root()
    program = need_command("docker")
    directory = tmp_path_factory.mktemp("docker")
    socket = directory / "docker.sock"
    places = [f"--{name}={directory / name}" for name in ("data-root", "exec-root", "pidfile")]
    # Nothing of the machine's network is changed.
    alone = ["--bridge=none", "--iptables=false", "--ip-forward=false", "--storage-driver=vfs"]
    environment = {**os.environ, "DOCKER_HOST": f"unix://{socket}", "DOCKER_BUILDKIT": "0"}

    def call(*words: str | Path, check: bool = True) -> str:
        done = subprocess.run(
            [program, *words], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0 or not check, done.stderr
        return done.stdout

    with (directory / "log").open("wb") as log:
        daemon = subprocess.Popen(
            [
                "unshare",
                "--mount",
                need_command("dockerd"),
                f"--host=unix://{socket}",
                *places,
                *alone,
            ],
            stdout=log,
            stderr=log,
        )
    try:
        wait_for(lambda: daemon.poll() is not None or call("version", check=False).count("Engine"))
        need(daemon.poll() is None, "dockerd does not start")
        os.environ["DOCKER_HOST"] = environment["DOCKER_HOST"]
        yield call
    finally:
        os.environ.pop("DOCKER_HOST", None)
        daemon.terminate()
        daemon.wait()


@pytest.fixture(scope="module")
def image(docker: Callable[..., str], deb: Path) -> str:
    """The image. Its base has the name of the published one, but is made here: nothing is pulled."""
    release = platform.freedesktop_os_release()["VERSION_CODENAME"]
    docker("import", base_archive(), f"debian:{release}-slim")
    build(deb.parent, "image", DOCKER_BUILDKIT="0")
    return IMAGE


def test_it_prints_the_version(docker: Callable[..., str], image: str) -> None:
    """The entry point is the command."""
    shown = docker("run", "--rm", "--network=none", image, "--version")
    assert shown == f"logfs {logfs.__version__}\n"


def test_a_mount_in_a_container(docker: Callable[..., str], image: str, tmp_path: Path) -> None:
    """With /dev/fuse and SYS_ADMIN it mounts a log of the host, and the audit on the host finds the records."""
    need_fuse()
    words = ["mount", "--foreground", "/log", "/mnt"]
    volume = f"{tmp_path}/log:/log"
    options = ["--detach", "--network=none", "--volume", volume, *MOUNTING]
    name = docker("run", *options, image, *words).strip()
    try:
        wait_for(lambda: "ready" in docker("logs", name))
        line = (
            "mkdir /mnt/orders-0 && echo hello >>/mnt/orders-0/append && cat /mnt/orders-0/records"
        )
        assert docker("exec", name, "sh", "-c", line) == "hello\n"
        # The end of the mount is the end of the container, and ends the command with it.
        docker("exec", name, "logfs", "umount", "/mnt", check=False)
        assert docker("wait", name) == "0\n"
    finally:
        docker("rm", "--force", name, check=False)
    with Store(tmp_path / "log", read_only=True) as store:
        assert [record.value for record in store["orders-0"].read()] == [b"hello"]
