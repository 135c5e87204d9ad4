#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the kernels' tests as 64-bit ARM code, with NEON, on another machine: everything is compiled with Debian's cross
# compiler against Debian's own arm64 libraries, in a folder below build/neon, and runs under qemu. The system's
# package state is not touched but for the compiler and qemu (deploy/install-deps.sh --cross).
set -euo pipefail

usage() {
    cat <<'TEXT'
Usage: tests/tools/neon.sh [TARGET...]

Cross-compiles for aarch64 and runs the tests of kernels/ under qemu-aarch64; prints CTest's summary.
  TARGET   other targets to build (e.g. bench_attention); then nothing is run
  --help   print this help
The libraries are fetched once, into build/neon/sysroot; remove build/neon to begin anew.
TEXT
}

targets=()
for arg in "$@"; do
    case $arg in
    -h | --help)
        usage
        exit 0
        ;;
    -*)
        echo "neon.sh: unknown option '$arg'; try tests/tools/neon.sh --help" >&2
        exit 2
        ;;
    *) targets+=("$arg") ;;
    esac
done
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
if [ "$(uname -m)" = aarch64 ]; then
    echo "This machine is aarch64: tests/run.sh runs the same tests without a detour."
    exit 0
fi
deploy/install-deps.sh --cross

root=$PWD/build/neon
sysroot=$root/sysroot

# What the build needs, in arm64, with a package state of our own in which nothing is installed: apt finds the
# whole closure, dpkg-deb unpacks it, no maintainer script runs.
fetch_sysroot() {
    local packages apt=$root/apt
    mapfile -t packages < <(grep -oE '\blib[a-z0-9-]+-dev\b' deploy/install-deps.sh | sort -u)
    rm -rf "$apt" "$sysroot" "$sysroot.new"
    mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial" "$sysroot.new"
    : >"$apt/status"
    local options=(-qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Install-Recommends=0
        -o APT::Sandbox::User= -o Debug::NoLocking=1 -o "Dir::State=$apt" -o "Dir::State::Lists=$apt/lists"
        -o "Dir::State::status=$apt/status" -o "Dir::Cache=$apt/cache")
    apt-get "${options[@]}" update
    apt-get "${options[@]}" install -y --download-only "${packages[@]}" >/dev/null
    local deb
    for deb in "$apt"/cache/archives/*.deb; do dpkg-deb -x "$deb" "$sysroot.new"; done
    # Links to absolute paths would lead out of the folder.
    find "$sysroot.new" -type l -lname '/*' -print0 | while IFS= read -r -d '' link; do
        ln -sfn --relative "$sysroot.new$(readlink "$link")" "$link"
    done
    mv "$sysroot.new" "$sysroot"
    rm -rf "$apt"
}
[ -d "$sysroot" ] || fetch_sysroot

lib=aarch64-linux-gnu
export PKG_CONFIG_LIBDIR=$sysroot/usr/lib/$lib/pkgconfig:$sysroot/usr/share/pkgconfig PKG_CONFIG_SYSROOT_DIR=$sysroot
cmake -G Ninja -S . -B "$root/build" --log-level=WARNING -DCMAKE_BUILD_TYPE=RelWithDebInfo \
    -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_C_COMPILER=$lib-gcc \
    -DCMAKE_LIBRARY_ARCHITECTURE=$lib -DCMAKE_SYSROOT="$sysroot" -DCMAKE_FIND_ROOT_PATH_MODE_PROGRAM=NEVER \
    "-DCMAKE_CROSSCOMPILING_EMULATOR=qemu-aarch64;-L;$sysroot"
if [ ${#targets[@]} -gt 0 ]; then
    exec cmake --build "$root/build" --target "${targets[@]}" -- -j2 --quiet
fi
mapfile -t tests < <(grep -oE '\bkernels_[a-z0-9_]+_test\b' tests/kernels/CMakeLists.txt | sort -u)
cmake --build "$root/build" --target "${tests[@]}" -- -j2 --quiet
ctest --test-dir "$root/build" --output-on-failure --no-tests=error -j2 -R "^($(IFS='|' && echo "${tests[*]}"))\$"
