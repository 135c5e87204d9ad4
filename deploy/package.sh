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

Makes packages of this tree as it is, and names the files that it has written.
  deb   Debian packages: banyan-coordinator, banyan-worker, banyan-client, libbanyan0, libbanyan-dev,
        python3-banyan, banyan-mpi, with --cuda=on banyan-cuda and banyan-nccl; debug symbols apart (-dbgsym)
  tar   a folder that runs wherever it is unpacked, on Linux with glibc, with all other libraries in it
  oci   an image for containers, with what tar has and glibc: a tar file in OCI's and Docker's form

Options:
  --out=DIR            Where the packages go. Default: build/packages.
  --cuda=auto|on|off   With modules for CUDA and NCCL. auto: where nvcc and nccl.h are. Default: off (--tests: auto).
  --tests              With tar: also tests and benchmarks of devices, the emulated device, the example's model, NCCL
                       where it is: what tests/gpu.sh needs on a machine that has a driver and nothing else
  --jobs=N             Compilers at a time. Default: one a processor.
  --version            Print the version that packages of this tree have, and exit.
  --help               Print this help and exit.

The version is the project's where the commit has its tag (v0.1.0) and nothing is altered, or where there is no
git. Else it is a snapshot, older than that release: 0.1.0~git, the commit's time, its hash, +dirty where altered.
What is compiled is kept in build/packages for the next time; ccache is used where it is installed.
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
