#!/usr/bin/env bash
# Makes the virtual environment that is /usr/lib/logfs in the .deb, with the Python and the libraries of this Debian.
#
#   environment.sh WHEEL CONSTRAINTS HOME      also writes HOME.facts, what the package must say of it
#
# The versions are those of CONSTRAINTS. pyfuse3, which has no binary wheel, is compiled here. BUILD_PYTHON is a Python
# with pip; without it, this Debian's Python gets one.
set -euo pipefail
wheel=$1 constraints=$2 home=$3
die() { printf 'package: %s\n' "$*" >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for each in /usr/bin/python3:python3 /usr/bin/dpkg-shlibdeps:dpkg-dev /usr/bin/strip:binutils \
            /usr/include/fuse3/fuse_lowlevel.h:libfuse3-dev; do
    [ -e "${each%%:*}" ] || die "${each%%:*} is missing: install ${each##*:}"
done
if [ -z "${BUILD_PYTHON:-}" ]; then
    /usr/bin/python3 -m venv "$work/pip"
    BUILD_PYTHON=$work/pip/bin/python
fi
pip() { "$BUILD_PYTHON" -m pip --quiet --disable-pip-version-check --python "$home/bin/python3" "$@"; }

/usr/bin/python3 -m venv --without-pip "$home"
interpreter=$(readlink -f "$home/bin/python3")
# No debug information, which has the paths of the build in it. A cached wheel was built with other flags.
# A path with a space would be two files for pip.
cp "$constraints" "$work/constraints.txt"
CFLAGS=-g0 LDFLAGS=-Wl,--build-id=none PIP_CONSTRAINT=$work/constraints.txt \
    pip wheel --no-cache-dir --no-deps --wheel-dir "$work/wheels" "$(grep '^pyfuse3==' "$constraints")"
pip install --no-compile --only-binary :all: --find-links "$work/wheels" --constraint "$work/constraints.txt" \
    "$wheel[mount,mirror,tiered,report]"
packages=$(echo "$home"/lib/python3.*/site-packages)

# Remove what names the directory of the build, and what no program uses.
find "$packages" \( -name RECORD -o -name REQUESTED -o -name direct_url.json \) -delete
find "$packages"/numba "$packages"/numpy "$packages"/Cryptodome -depth \
    -type d \( -name tests -o -name SelfTest \) -exec rm -rf {} +
rm -rf "$packages"/numba/cuda "$packages"/numpy/{f2py,distutils}
find "$packages" -type f \( -name '*.pyx' -o -name '*.c' -o -name '*.h' \) -delete
find "$packages" -type f -exec chmod 644 {} +
strip --strip-unneeded "$packages"/pyfuse3/*.so "$packages"/llvmlite/binding/*.so
rm -rf "$home/bin" "$home/include" "$home/lib64"
mkdir "$home/bin"
ln -s "../../..${interpreter#/usr}" "$home/bin/python3"
printf 'home = /usr/bin\ninclude-system-site-packages = false\n' >"$home/pyvenv.cfg"

# dpkg-shlibdeps wants the sources of a Debian package, and needs no more of them than this file.
mkdir -p "$work/libraries/debian"
printf 'Source: logfs\n\nPackage: logfs\nArchitecture: any\n' >"$work/libraries/debian/control"
libraries=$(cd "$work/libraries" && dpkg-shlibdeps -O --ignore-missing-info "$packages"/pyfuse3/*.so 2>/dev/null)
{
    printf 'architecture=%s\n' "$(dpkg --print-architecture)"
    printf 'interpreter=%s\n' "$interpreter"
    printf 'minor=%s\n' "$(/usr/bin/python3 -c 'import sys; print(sys.version_info.minor)')"
    printf 'release=%s\n' "$(. /etc/os-release && echo "$VERSION_ID")"
    printf 'libraries=%q\n' "${libraries#shlibs:Depends=}"
} >"$home.facts"
