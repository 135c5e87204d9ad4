#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what Banyan builds and tests with, from Debian's own packages. Does nothing when all of it is there.
#   deploy/install-deps.sh [--dev] [--cross]     --dev: also what tests/run.sh checks the code with
set -euo pipefail

usage() {
    cat <<'TEXT'
Usage: deploy/install-deps.sh [--dev] [--cross]

Installs what Banyan builds and tests with, from Debian's own packages; does nothing when all of it is there.
  --dev    also what tests/run.sh checks the code with
  --cross  also what tests/tools/neon.sh compiles for 64-bit ARM and runs that with
  --help   print this help
TEXT
}

dev=no
cross=no
for arg in "$@"; do
    case $arg in
    --dev) dev=yes ;;
    --cross) cross=yes ;;
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

packages=(build-essential cmake ninja-build pkg-config python3
          libnng-dev libprotobuf-c-dev protobuf-c-compiler libevent-dev libssl-dev libxxhash-dev
          libsqlite3-dev libjansson-dev libsmartcols-dev libcmocka-dev libhwloc-dev
          libopenmpi-dev openmpi-bin)
if [ "$dev" = yes ]; then packages+=(clang-format cppcheck git); fi
if [ "$cross" = yes ]; then packages+=(gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user); fi

if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
    echo "install-deps: needs Debian's apt-get, which is not here; install what these packages hold by other means:" \
        "${packages[*]}" >&2
    exit 1
fi

missing=()
for p in "${packages[@]}"; do
    dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'install ok installed' || missing+=("$p")
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
    echo "install-deps: apt-get failed, its output stands above" >&2
    exit 1
fi
