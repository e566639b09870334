"""Fresh machines: the smallest Debian in a directory, where programs run as root in namespaces of their own."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

from tests.support.requirements import need_command

# The archive of the smallest Debian is made once for each release. The home is the real one.
CACHE = Path.home() / ".cache/logfs"
# The programs end with the namespace, and what is mounted in it goes with it.
_ENTER = """\
set -e
mount --rbind /dev "$0/dev"
mount -t proc proc "$0/proc"
authorities=/etc/authorities.crt
exec chroot "$0" env -u XDG_CACHE_HOME -u LOGFS_REQUIRE_ALL \
    PIP_CERT=$authorities REQUESTS_CA_BUNDLE=$authorities SSL_CERT_FILE=$authorities \
    HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin bash -c "$1"
"""
_PRELUDE = """\
set -e
export DEBIAN_FRONTEND=noninteractive
sudo() { "$@"; }
cd
"""


def base_archive(which: str = "") -> Path:
    """Return the archive of a Debian with apt and nothing else.

    `which` is RELEASE or RELEASE/ARCHITECTURE. What it leaves out is as on this machine.
    """
    release, _, architecture = which.partition("/")
    release = release or platform.freedesktop_os_release()["VERSION_CODENAME"]
    archive = CACHE / f"debian-{'-'.join(filter(None, (release, architecture)))}.tar"
    if not archive.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        unfinished = archive.with_suffix(".unfinished.tar")
        wanted = [f"--architectures={architecture}"] if architecture else []
        command = [need_command("mmdebstrap"), "--variant=minbase", *wanted, release, unfinished]
        subprocess.run(command, check=True)
        unfinished.rename(archive)
    return archive


class Machine:
    """A Debian in the directory `root`."""

    def __init__(self, archive: Path, root: Path) -> None:
        self.root = root
        subprocess.run(["tar", "-xf", archive, "-C", root], check=True)
        # The network is that of this machine, which may know authorities of its own.
        shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")
        shutil.copy("/etc/ssl/certs/ca-certificates.crt", root / "etc/authorities.crt")
        # Packages are installed as on a slow disk otherwise, for no machine of which a power cut could be seen.
        (root / "etc/dpkg/dpkg.cfg.d/unsafe").write_text("force-unsafe-io\n")
        (root / "etc/apt/apt.conf.d/quiet").write_text(
            'APT::Get::Assume-Yes "true";\nAPT::Install-Recommends "false";\n'
        )

    def put(self, file: Path) -> None:
        """Copy a file into root's home."""
        shutil.copy(file, self.root / "root")

    def run(self, script: str) -> str:
        """Run a script in root's home, which must succeed, and return what it prints."""
        command = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "sh", "-c", _ENTER]
        done = subprocess.run(
            [*command, self.root, _PRELUDE + script],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout
