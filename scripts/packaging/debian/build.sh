# A part of scripts/package: builds the .deb.
#
# The package has a private virtual environment in /usr/lib/logfs, on Debian's own Python, with the versions of
# scripts/constraints.txt. pyfuse3, which has no binary wheel, is compiled here.

build_deb() { # build_deb WHEEL DIRECTORY: sets $deb
    local wheel=$1 stage=$work/stage home packages interpreter architecture maintainer
    architecture=$(dpkg --print-architecture)
    home=$stage/usr/lib/logfs
    maintainer=$(git -C "$root" log -1 --format='%an <%ae>')
    deb=$2/logfs_${version}_$architecture.deb
    for each in /usr/bin/python3:python3 /usr/bin/dpkg-shlibdeps:dpkg-dev /usr/bin/strip:binutils \
                /usr/include/fuse3/fuse_lowlevel.h:libfuse3-dev; do
        [ -e "${each%%:*}" ] || die "${each%%:*} is missing: install ${each##*:}"
    done

    /usr/bin/python3 -m venv --without-pip "$home"
    # No debug information, which has the paths of the build in it. A cached wheel was built with other flags.
    # A path with a space would be two files for pip.
    cp "$root/scripts/constraints.txt" "$work/constraints.txt"
    CFLAGS=-g0 LDFLAGS=-Wl,--build-id=none PIP_CONSTRAINT=$work/constraints.txt \
        "$python" -m pip --quiet --disable-pip-version-check --python "$home/bin/python3" \
        wheel --no-cache-dir --no-deps --wheel-dir "$work/wheels" "pyfuse3==$(pinned pyfuse3)"
    "$python" -m pip --quiet --disable-pip-version-check --python "$home/bin/python3" \
        install --no-compile --only-binary :all: --find-links "$work/wheels" \
        --constraint "$root/scripts/constraints.txt" "$wheel[mount,mirror,tiered,report]"
    interpreter=$(readlink -f "$home/bin/python3")
    packages=$(echo "$home"/lib/python3.*/site-packages)
    tidy
    stage_files
    find "$stage" -newermt "@$SOURCE_DATE_EPOCH" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
    # A higher level takes minutes. The number of threads is part of how the archive is packed.
    dpkg-deb --root-owner-group --threads-max=1 -Zxz -z1 --build "$stage" "$deb" >/dev/null
}

pinned() { # pinned NAME: its version in scripts/constraints.txt
    sed -n "s/^$1==//p" "$root/scripts/constraints.txt"
}

# Removes what names the directory of the build, and what no program uses.
tidy() {
    find "$packages" \( -name RECORD -o -name REQUESTED -o -name direct_url.json \) -delete
    find "$packages"/numba "$packages"/numpy "$packages"/Cryptodome -depth \
        -type d \( -name tests -o -name SelfTest \) -exec rm -rf {} +
    find "$packages" -type f \( -name '*.pyx' -o -name '*.c' -o -name '*.h' \) -delete
    find "$packages" -type f -exec chmod 644 {} +
    strip --strip-unneeded "$packages"/pyfuse3/*.so
    rm -rf "$home/bin" "$home/include" "$home/lib64"
    mkdir "$home/bin"
    ln -s "../../..${interpreter#/usr}" "$home/bin/python3"
    printf 'home = /usr/bin\ninclude-system-site-packages = false\n' >"$home/pyvenv.cfg"
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
    local libraries minor
    minor=$("$interpreter" -c 'import sys; print(sys.version_info.minor)')
    # dpkg-shlibdeps wants the sources of a Debian package, and needs no more of them than this file.
    mkdir -p "$work/libraries/debian"
    printf 'Source: logfs\n\nPackage: logfs\nArchitecture: any\n' >"$work/libraries/debian/control"
    libraries=$(cd "$work/libraries" && dpkg-shlibdeps -O --ignore-missing-info "$packages"/pyfuse3/*.so 2>/dev/null)
    cat <<CONTROL
Package: logfs
Version: $version
Architecture: $architecture
Maintainer: $maintainer
Installed-Size: $(du -sk --apparent-size "$stage" | cut -f1)
Depends: python3 (>= 3.$minor), python3 (<< 3.$((minor + 1))), fuse3, mount, ${libraries#shlibs:Depends=}
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
