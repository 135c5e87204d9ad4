#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes what an operator installs: deploy/package.sh FORMAT. A format is one file, deploy/package/FORMAT.sh.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

usage() {
    cat <<'TEXT'
Usage: deploy/package.sh deb|tar|oci [--out=DIR] [--cuda=auto|on|off] [--jobs=N]
       deploy/package.sh tar --tests [--out=DIR] [--cuda=auto|on|off] [--jobs=N]
       deploy/package.sh --version

Builds packages from this tree as it is, and prints the names of the files written.
  deb   Debian packages: banyan-coordinator, banyan-worker, banyan-client, banyan-llama, libbanyan0, libbanyan-dev,
        python3-banyan, banyan-mpi, with --cuda=on banyan-cuda and banyan-nccl; separate debug symbols (-dbgsym)
  tar   a folder that runs from anywhere on Linux with glibc, with all other libraries included
  oci   a container image with the contents of tar and glibc: a tar file in OCI and Docker format

Options:
  --out=DIR            Output folder. Default: build/packages.
  --cuda=auto|on|off   Include modules for CUDA and NCCL. auto: if nvcc and nccl.h exist. Default: off (--tests: auto).
  --tests              With tar: also device tests and benchmarks, the emulated device, the example's model and NCCL
                       if found: all that tests/gpu.sh needs on a machine with only a driver
  --jobs=N             Compilers to run at once. Default: one per processor.
  --version            Print the version of packages from this tree, and exit.
  --help               Print this help and exit.

The version is the project's if the commit has its tag (v0.2.0) and nothing is altered, or without git. Otherwise it is
a snapshot, older than that release: 0.2.0~git, the commit's time, its hash, and +dirty if altered.
Compiled files are kept in build/packages for the next time; ccache is used if installed.
deploy/install-deps.sh --packages installs what this needs.
TEXT
}

die() { # CODE TEXT...
    local code=$1
    shift
    echo "package.sh: $*" >&2
    exit "$code"
}

# What --cuda asks for is in $cuda; the answer, on or off, too.
find_cuda() {
    [ "$cuda" != off ] || return 0
    local nvcc include
    nvcc=$(PATH=${CUDA_HOME:+$CUDA_HOME/bin:}$PATH:/usr/local/cuda/bin command -v nvcc || true)
    include=${nvcc:+$(dirname "$(dirname "$(readlink -f "$nvcc")")")/include}
    if [ -n "$nvcc" ] && { [ -f "$include/nccl.h" ] || [ -f /usr/include/nccl.h ]; }; then
        cuda=on
    elif [ "$cuda" = on ]; then
        die 1 "--cuda=on: nvcc or nccl.h was not found: install CUDA's toolkit and libnccl-dev, or set CUDA_HOME"
    else
        cuda=off
    fi
}

# The version's date is the commit's, so that a later snapshot is newer; as a package's name it orders below the release.
find_version() {
    local release commit
    release=$(sed -nE 's/^project\(banyan VERSION ([0-9.]+).*/\1/p' "$root/CMakeLists.txt")
    [ -n "$release" ] || die 1 "CMakeLists.txt names no version"
    version=$release
    epoch=$(stat -c %Y "$root/CMakeLists.txt")
    if commit=$(git -C "$root" rev-parse --short=9 HEAD 2>/dev/null) && [ -e "$root/.git" ]; then
        epoch=$(git -C "$root" log -1 --format=%ct)
        local dirty=
        [ -z "$(git -C "$root" status --porcelain)" ] || dirty=+dirty
        if [ -n "$dirty" ] || [ "$(git -C "$root" tag --points-at HEAD --list "v$release")" != "v$release" ]; then
            version=$release~git$(date -u -d "@$epoch" +%Y%m%d%H%M%S).$commit$dirty
        fi
    fi
}

# A program, and the Debian package that brings it.
need() {
    command -v "$1" >/dev/null || die 1 "$1 was not found (in Debian: $2); deploy/install-deps.sh --packages installs it"
}

# Writes the names of the files that packages are made of: not tests, benchmarks and research.
source_files() {
    cd "$root"
    if [ -e .git ]; then
        git ls-files -z --cached --others --exclude-standard | while IFS= read -r -d '' f; do
            if [ -e "$f" ]; then printf '%s\0' "$f"; fi
        done
    else
        find . -path ./build -prune -o -type f -printf '%P\0'
    fi | grep -zvE '^(tests|bench|research|examples)/' | sort -z
}

format=
out=$root/build/packages
cuda=
tests=off
jobs=$(nproc)
for arg in "$@"; do
    case $arg in
    --out=?*) out=${arg#*=} ;;
    --cuda=auto | --cuda=on | --cuda=off) cuda=${arg#*=} ;;
    --cuda=*) die 2 "--cuda is auto, on or off, not '${arg#*=}'" ;;
    --jobs=*)
        jobs=${arg#*=}
        [[ $jobs =~ ^[1-9][0-9]{0,3}$ ]] || die 2 "--jobs: '$jobs' is not a number of jobs"
        ;;
    --tests) tests=on ;;
    --version)
        find_version
        echo "$version"
        exit 0
        ;;
    -h | --help)
        usage
        exit 0
        ;;
    -*) die 2 "unknown option '$arg'; try deploy/package.sh --help" ;;
    *)
        [ -z "$format" ] || die 2 "one format at a time, not $format and '$arg'"
        if ! [[ $arg =~ ^[a-z]+$ ]] || [ ! -f "$root/deploy/package/$arg.sh" ]; then
            die 2 "unknown format '$arg': deb, tar or oci; try deploy/package.sh --help"
        fi
        format=$arg
        ;;
    esac
done
[ -n "$format" ] || die 2 "which format, deb, tar or oci? Try deploy/package.sh --help"
[ "$tests" = off ] || [ "$format" = tar ] || die 2 "--tests goes with tar, not with $format"
if [ -z "$cuda" ]; then
    if [ "$tests" = on ]; then cuda=auto; else cuda=off; fi
fi
mkdir -p "$out" "$root/build/packages" || die 1 "cannot make the folder $out"
out=$(cd "$out" && pwd)
work=$root/build/packages/$format
mkdir -p "$work"
exec 9>"$work.lock"
flock -n 9 || die 1 "another package.sh $format works in $work"

find_cuda
find_version
export SOURCE_DATE_EPOCH=$epoch
if command -v ccache >/dev/null; then
    export CMAKE_C_COMPILER_LAUNCHER=${CMAKE_C_COMPILER_LAUNCHER-ccache}
    # A package's tools give HOME another value
    CCACHE_DIR=${CCACHE_DIR:-$(ccache --get-config cache_dir)}
    export CCACHE_DIR
fi
# shellcheck source=/dev/null
. "$root/deploy/package/$format.sh"
