# A part of scripts/package: builds the .deb.
#
# The package has a private virtual environment in /usr/lib/logfs, on the Python of one Debian release. environment.sh
# makes it on a Debian of that release and architecture: this machine, or a fresh one in a directory.

build_deb() { # build_deb WHEEL DIRECTORY [RELEASE[/ARCHITECTURE]]: sets $deb
    local wheel=$1 stage=$work/stage home packages architecture minor interpreter release libraries maintainer
    home=$stage/usr/lib/logfs
    maintainer=$(git -C "$root" log -1 --format='%an <%ae>')
    mkdir -p "${home%/*}"
    if [ -z "${3:-}" ]; then
        BUILD_PYTHON=$python bash "$root/scripts/packaging/debian/environment.sh" \
            "$wheel" "$root/scripts/constraints.txt" "$home" || die "the .deb cannot be built"
    else
        make_environment_on "$3"
    fi
    # Sets `architecture`, `minor`, `interpreter`, `release` and `libraries`.
    . "$home.facts"
    rm "$home.facts"
    packages=$(echo "$home"/lib/python3.*/site-packages)
    deb=$2/logfs_$version+deb${release}_$architecture.deb
    stage_files
    find "$stage" -newermt "@$SOURCE_DATE_EPOCH" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
    # A higher level takes minutes. The number of threads is part of how the archive is packed.
    dpkg-deb --root-owner-group --threads-max=1 -Zxz -z1 --build "$stage" "$deb" >/dev/null
}

# Runs environment.sh on a fresh Debian. A foreign architecture needs qemu-user-static and arch-test.
make_environment_on() { # make_environment_on RELEASE[/ARCHITECTURE]: makes $home and $home.facts
    local machine=$work/machine named=${1%%/*} wanted=${1#*/}
    [ "$wanted" != "$1" ] || wanted=$(dpkg --print-architecture)
    [ "$(id -u)" = 0 ] || die "building for another Debian needs root"
    command -v mmdebstrap >/dev/null || die "mmdebstrap is missing: install it"
    say "making a Debian $named for $wanted"
    mmdebstrap --quiet --variant=minbase --architectures="$wanted" \
        --include=python3-venv,python3-dev,gcc,libc6-dev,pkg-config,libfuse3-dev,dpkg-dev,binutils \
        "$named" "$machine" || die "there is no Debian $named for $wanted, or it cannot be run here"
    # The network is that of this machine, which may know authorities of its own.
    cp /etc/resolv.conf "$machine/etc"
    cp /etc/ssl/certs/ca-certificates.crt "$machine/etc/authorities.crt"
    mkdir "$machine/build"
    cp "$wheel" "$root/scripts/constraints.txt" "$root/scripts/packaging/debian/environment.sh" "$machine/build"
    # Its processes end, and its mounts go, with the namespaces.
    unshare --mount --pid --fork sh -c 'mount -t proc proc "$0/proc" && exec chroot "$0" "$@"' "$machine" \
        env -u TMPDIR -u XDG_CACHE_HOME PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root PIP_CERT=/etc/authorities.crt \
        REQUESTS_CA_BUNDLE=/etc/authorities.crt SSL_CERT_FILE=/etc/authorities.crt \
        bash /build/environment.sh "/build/${wheel##*/}" /build/constraints.txt /build/logfs ||
        die "the .deb cannot be built"
    mv "$machine/build/logfs" "$home"
    mv "$machine/build/logfs.facts" "$home.facts"
    rm -rf "$machine"
}

# Puts every other file of the package in its place.
stage_files() {
    local from=$work/source/scripts/packaging doc=$stage/usr/share/doc/logfs share=$stage/usr/share
    program logfs.__main__ main >"$home/bin/logfs"
    program logfs.cli mount_helper >"$home/bin/mount.logfs"
    chmod 755 "$home"/bin/*logfs
    mkdir -p "$stage/usr/bin" "$stage/usr/sbin"
    ln -s ../lib/logfs/bin/logfs "$stage/usr/bin/logfs"
    # mount(8) calls the second one for remounts of mounts that have no line in fstab.
    ln -s ../lib/logfs/bin/mount.logfs "$stage/usr/sbin/mount.logfs"
    ln -s mount.logfs "$stage/usr/sbin/mount.fuse.logfs"
    ln -s mount.logfs "$stage/usr/sbin/mount.fuse.logfs-write-behind"

    install -D -m 644 -t "$stage/lib/systemd/system" "$from"/systemd/logfs*
    # How Docker and Podman find the volume plugin.
    install -D -m 644 -t "$stage/usr/lib/docker/plugins" "$from/containers/logfs.spec"
    install -D -m 644 -t "$stage/etc/containers/containers.conf.d" "$from/containers/logfs.conf"
    "$python" "$from/manpages.py" "$share/man/man1" >/dev/null
    find "$share/man" -type f -exec gzip -9n {} +
    mkdir "$share/man/man8"
    ln -s ../man1/logfs-mount.1.gz "$share/man/man8/mount.logfs.8.gz"
    ln -s mount.logfs.8.gz "$share/man/man8/mount.fuse.logfs.8.gz"
    mkdir -p "$share/bash-completion/completions" "$share/zsh/vendor-completions" "$share/fish/vendor_completions.d"
    "$python" -m logfs completion bash >"$share/bash-completion/completions/logfs"
    "$python" -m logfs completion zsh >"$share/zsh/vendor-completions/_logfs"
    "$python" -m logfs completion fish >"$share/fish/vendor_completions.d/logfs.fish"

    install -D -m 644 -t "$doc" "$from/debian/copyright" "$work/source"/{README,SECURITY}.md
    cp -r "$work/source/docs" "$doc"
    "$python" "$from/debian/changelog.py" "$maintainer" | gzip -9n >"$doc/changelog.gz"
    install -D -m 644 "$from/debian/lintian-overrides" "$share/lintian/overrides/logfs"
    install -D -m 755 -t "$stage/DEBIAN" "$from"/debian/{postinst,prerm}
    control >"$stage/DEBIAN/control"
    echo /etc/containers/containers.conf.d/logfs.conf >"$stage/DEBIAN/conffiles"
    (cd "$stage" && find . -type f ! -path './DEBIAN/*' -printf '%P\0' | sort -z | xargs -0 md5sum) \
        >"$stage/DEBIAN/md5sums"
    chmod 644 "$stage"/DEBIAN/{conffiles,control,md5sums}
    chmod -R u=rwX,go=rX "$stage"
}

program() { # program MODULE FUNCTION: prints a program that calls this function
    printf '#!/usr/lib/logfs/bin/python3\nimport sys\n\nfrom %s import %s\n\nsys.exit(%s())\n' "$1" "$2" "$2"
}

control() {
    cat <<CONTROL
Package: logfs
Version: $version+deb$release
Architecture: $architecture
Maintainer: $maintainer
Installed-Size: $(du -sk --apparent-size "$stage" | cut -f1)
Depends: python3 (>= 3.$minor), python3 (<< 3.$((minor + 1))), fuse3, mount, passwd, $libraries
Section: utils
Priority: optional
Description: Kafka's log, as files
 A filesystem over Kafka's own partition directories, with no broker. A line
 written to a partition's file "append" becomes a record at the end of the log;
 records are read by offset, by time and by key with cat, tail, grep and ls.
 The files underneath are in Kafka's format, byte for byte.
 .
 The package has the command logfs, the mount helper for /etc/fstab, services
 for systemd, volumes for Docker and Podman, and the parts for mirrors of a
 Kafka cluster and for tiered storage. Its Python libraries are private, in
 /usr/lib/logfs.
CONTROL
}
