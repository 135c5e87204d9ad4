#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what Banyan builds and tests with, from Debian's own packages. Does nothing when all of it is there.
#   deploy/install-deps.sh [--dev] [--cross] [--packages] [--check]     --check: only say what is missing
set -euo pipefail

usage() {
    cat <<'TEXT'
Usage: deploy/install-deps.sh [--dev] [--cross] [--packages] [--check]

Installs the Debian packages with which Banyan is built and tested; does nothing if all are installed.
  --dev    also packages for the code checks of tests/run.sh
  --cross  also packages with which tests/tools/neon.sh compiles and runs 64-bit ARM code
  --packages
           also packages for deploy/package.sh and its tests
  --check  install nothing; list what is missing and exit with 1
  --help   print this help
TEXT
}

dev=no
cross=no
packages_too=no
check=no
for arg in "$@"; do
    case $arg in
    --dev) dev=yes ;;
    --cross) cross=yes ;;
    --packages) packages_too=yes ;;
    --check) check=yes ;;
    -h | --help)
        usage
        exit 0
        ;;
    *)
        echo "install-deps: unknown argument '$arg'; try deploy/install-deps.sh --help" >&2
        exit 2
        ;;
    esac
done

# Debian's package, and how to see that what it holds is here: a command, a header, a module of pkg-config. Without a
# way to see it ("-"): the build does without.
needs=('build-essential command cc' 'build-essential command c++' 'cmake command cmake' 'ninja-build command ninja'
       'pkg-config command pkg-config' 'python3 command python3' 'python3-venv -'
       'libnng-dev header nng/nng.h' 'libprotobuf-c-dev module libprotobuf-c' 'protobuf-c-compiler command protoc-c'
       'libevent-dev module libevent_pthreads' 'libssl-dev module libssl' 'libxxhash-dev module libxxhash'
       'libsqlite3-dev module sqlite3' 'libjansson-dev module jansson' 'libsmartcols-dev module smartcols' 'libzstd-dev module libzstd'
       'libcmocka-dev module cmocka' 'libhwloc-dev module hwloc' 'libopenmpi-dev -' 'openmpi-bin -')
if [ "$dev" = yes ]; then needs+=('clang-format command clang-format' 'ccache command ccache' 'cppcheck command cppcheck' 'git command git' 'lld command ld.lld' 'zsh -' 'fish -' 'mandoc -'); fi
if [ "$dev" = yes ]; then needs+=('clang command clang' 'libclang-rt-dev -'); fi # tests/fuzz
if [ "$dev" = yes ]; then needs+=('chromium-headless-shell -' 'fonts-inter -'); fi # tests/dashboard
if [ "$cross" = yes ]; then
    needs+=('gcc-aarch64-linux-gnu command aarch64-linux-gnu-gcc' 'libc6-dev-arm64-cross -' 'qemu-user command qemu-aarch64')
fi

if [ "$packages_too" = yes ]; then
    needs+=('dpkg-dev command dpkg-buildpackage' 'debhelper command dh' 'dh-python command dh_python3' 'patchelf command patchelf'
           'binutils command readelf' 'lintian command lintian' 'debootstrap command debootstrap'
           'skopeo command skopeo' 'umoci command umoci'
           'slurm-wlm command slurmctld' 'munge command munged' 'iproute2 command ip')
fi

is_here() { # command|header|module NAME
    case $1 in
    command) command -v "$2" ;;
    header) echo "#include <$2>" | cc -E - ;;
    module) pkg-config --exists "$2" ;;
    esac >/dev/null 2>&1
}

if [ "$check" = yes ]; then
    missing=0
    for need in "${needs[@]}"; do
        read -r package kind name <<<"$need"
        if [ "$kind" != - ] && ! is_here "$kind" "$name"; then
            echo "install-deps: missing: the $kind $name (in Debian: $package)" >&2
            missing=1
        fi
    done
    exit $missing
fi

mapfile -t packages < <(printf '%s\n' "${needs[@]%% *}" | awk '!seen[$0]++')

if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
    echo "install-deps: needs Debian's apt-get, which is not installed; install the contents of these packages by other means:" \
        "${packages[*]}" >&2
    exit 1
fi

missing=()
for p in "${packages[@]}"; do
    [[ $(dpkg-query -W -f='${Status}' "$p" 2>/dev/null) == *'install ok installed'* ]] || missing+=("$p")
done
[ ${#missing[@]} -eq 0 ] && exit 0

as_root=()
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || {
        echo "install-deps: these packages are missing and this is not root: ${missing[*]}" >&2
        echo "install-deps: run as root: apt-get install -y ${missing[*]}" >&2
        exit 1
    }
    as_root=(sudo)
fi
echo "Installing ${#missing[@]} Debian packages: ${missing[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! { "${as_root[@]}" apt-get update && DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get install -y --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
    cat "$log" >&2
    echo "install-deps: apt-get failed; see its output above" >&2
    exit 1
fi
