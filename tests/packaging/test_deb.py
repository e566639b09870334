"""The Debian package on a fresh Debian: installed, used, removed."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.packaging.conftest import DEB, build
from tests.support.requirements import need_command

if TYPE_CHECKING:
    from pathlib import Path

    from tests.packaging.machine import Machine


@pytest.fixture(scope="module")
def installed(machine: Machine, deb: Path) -> Machine:
    """A machine on which apt has installed the package with what it depends on, and programs that the tests need."""
    machine.put(deb)
    machine.run(
        f"""
        apt-get update
        apt-get install man-db bash-completion
        find / -xdev -not -path '/proc/*' -not -path '/root/*' | sort >/root/before
        apt-get install ./{deb.name}
        useradd -m somebody
        """
    )
    return machine


def test_two_builds_are_the_same_bytes(deb: Path, tmp_path: Path) -> None:
    """The package does not depend on the directory and the time of the build."""
    build(tmp_path, DEB, TMPDIR=str(tmp_path))
    assert (tmp_path / deb.name).read_bytes() == deb.read_bytes()


def test_lintian_finds_no_error(deb: Path) -> None:
    """No error is left, apart from the overrides in the package, each with its reason."""
    command = [need_command("lintian"), "--fail-on", "error", "--tag-display-limit", "0", deb]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_a_line_comes_back_through_a_mount(installed: Machine) -> None:
    """By the command, and by mount(8) with the type `logfs`."""
    shown = installed.run(
        """
        mkdir -p /mnt/a
        logfs mount /var/lib/log /mnt/a
        mkdir /mnt/a/orders-0
        echo hello >>/mnt/a/orders-0/append
        cat /mnt/a/orders-0/records
        logfs umount /mnt/a
        mount -t logfs /var/lib/log /mnt/a
        cat /mnt/a/orders-0/records
        logfs umount /mnt/a
        logfs check /var/lib/log >/dev/null
        """
    )
    assert shown == "hello\nhello\n"


def test_other_users_compile_nothing(installed: Machine) -> None:
    """They take what the installation has compiled, so that their first start is as quick as root's."""
    shown = installed.run(
        """
        su somebody -c '
            cd
            mkdir log
            logfs create log/orders-0 >/dev/null
            seq 100000 | logfs append log/orders-0 >/dev/null
            NUMBA_DEBUG_CACHE=1 logfs cat log/orders-0 | grep -a -c -E "^.cache. (data|index) saved" || true
            NUMBA_DEBUG_CACHE=1 logfs cat log/orders-0 | grep -a -q "^.cache. data loaded"
        '
        """
    )
    assert shown == "0\n"


def test_manual_pages_and_completion_are_found(installed: Machine) -> None:
    """`man` finds the pages of commands and of the mount helper; each shell has its script."""
    shown = installed.run(
        """
        man -w logfs logfs-mount mount.logfs
        bash -c '. /usr/share/bash-completion/bash_completion; _completion_loader logfs; complete -p logfs'
        ls /usr/share/zsh/vendor-completions/_logfs /usr/share/fish/vendor_completions.d/logfs.fish
        """
    )
    assert shown.count("/usr/share/man/") == 3
    assert "logfs\n" in shown


def test_the_unit_names_the_installed_command(installed: Machine) -> None:
    """The programs and the user of the systemd unit exist."""
    installed.run(
        """
        unit=$(dpkg -L logfs | grep 'logfs@.service$')
        for program in $(sed -n 's/^Exec[A-Za-z]*=[-+]*\\([^ ]*\\).*/\\1/p' "$unit"); do test -x "$program"; done
        id "$(sed -n 's/^User=//p' "$unit")"
        grep -q '^ExecStart=/usr/bin/logfs ' "$unit"
        """
    )


def test_removal_leaves_nothing(installed: Machine) -> None:
    """Neither files of the package, nor what its programs have compiled. Logs stay. This test is the last one."""
    shown = installed.run(
        """
        logfs mount /var/lib/log /mnt/a
        ! apt-get purge logfs >said 2>&1
        grep -q "logfs: still mounted, run 'logfs umount' first: /mnt/a" said
        logfs umount /mnt/a
        apt-get purge logfs >/dev/null
        find / -xdev -not -path '/proc/*' -not -path '/root/*' | sort >/root/after
        comm -13 before after | grep logfs | grep -v ^/var/lib/log/ || true
        test -e /var/lib/log/orders-0
        """
    )
    assert shown == ""
