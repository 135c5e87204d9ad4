#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what is needed, builds with warnings as errors, runs the tests. Can be started from any directory.
set -euo pipefail

usage() {
    cat <<'TEXT'
Usage: tests/run.sh [--asan | --tsan | --ci] [--all] [--no-install] [-j N]

Without options: the release build and its tests, but those labelled "ci" or "long". It has neither llama.cpp's plug-in nor,
without a GPU, the module for GPUs.
  --asan   build and test with the address and undefined-behaviour sanitizers
  --tsan   build with the thread sanitizer; run the tests labelled "threads"
  --ci     what CI runs: checks of format, includes, circles, words, links and code; three builds; some failpoints in a
           build that has them, and the corpus of each fuzz target; then each test once, with the address
           sanitizer if that build has it, and those labelled "optimised" or "threads" in the release build or
           with the thread sanitizer as well. Nothing is random: tests/explore runs new seeds
  --all    also the tests labelled "long" and "ci", with --ci all failpoints, and without a sanitizer the kernels as
           64-bit ARM code under qemu
  --no-install
           install no packages; if something is missing, list it and exit with 1
  -j N     number of parallel jobs for the build and for the tests (default: one per processor for the build, 4 for
           tests, most of which wait)
  --help   print this help
Builds are in build/release, build/asan, build/tsan, build/failpoints and build/fuzz. Ends with the time of each
stage and its processor time, the ten slowest tests, and CTest's summary of the last run.
TEXT
}

mode=release
all=no
install=yes
jobs=

set_jobs() {
    if ! [[ $1 =~ ^[1-9][0-9]{0,3}$ ]]; then
        echo "tests/run.sh: -j: '$1' is not a number of jobs; try tests/run.sh --help" >&2
        exit 2
    fi
    jobs=$1
}

while [ $# -gt 0 ]; do
    arg=$1
    shift
    case $arg in
    --asan | --tsan | --ci)
        if [ "$mode" != release ] && [ "$mode" != "${arg#--}" ]; then
            echo "tests/run.sh: --$mode and $arg exclude each other" >&2
            exit 2
        fi
        mode=${arg#--}
        ;;
    --all) all=yes ;;
    --no-install) install=no ;;
    -j)
        set_jobs "${1-}"
        shift
        ;;
    -j*) set_jobs "${arg#-j}" ;;
    -h | --help)
        usage
        exit 0
        ;;
    *)
        echo "tests/run.sh: unknown option '$arg'; try tests/run.sh --help" >&2
        exit 2
        ;;
    esac
done
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# A leak, a race or undefined behaviour ends the process with an error. What the caller has set wins.
export ASAN_OPTIONS="detect_leaks=1:detect_stack_use_after_return=1:strict_string_checks=1:${ASAN_OPTIONS:-}"
export UBSAN_OPTIONS="print_stacktrace=1:halt_on_error=1:${UBSAN_OPTIONS:-}"
export TSAN_OPTIONS="halt_on_error=1:second_deadlock_stack=1:${TSAN_OPTIONS:-}"

# What has been compiled before, for another of these builds or in another checkout, is not compiled again.
if command -v ccache >/dev/null; then
    export CMAKE_C_COMPILER_LAUNCHER=${CMAKE_C_COMPILER_LAUNCHER-ccache}
    export CMAKE_CXX_COMPILER_LAUNCHER=${CMAKE_CXX_COMPILER_LAUNCHER-ccache}
    export CCACHE_BASEDIR=${CCACHE_BASEDIR-$PWD} CCACHE_NOHASHDIR=${CCACHE_NOHASHDIR-1}
fi

log=$(mktemp)
summary=$(mktemp)
ran=() # presets whose tests have run
trap 'rm -f "$log" "$summary"' EXIT
times=() # of the stages, in the order in which they ran

# Begins a stage: `took NAME` ends it.
begin() {
    start=$SECONDS
    start_cpu=$(cpu)
}

# Processor time of all children that have ended, in seconds.
cpu() {
    local stat
    read -r stat <"/proc/$$/stat"
    read -ra stat <<<"${stat##*) }"
    echo $(((stat[13] + stat[14]) / 100)) # Linux counts in hundredths
}

took() {
    times+=("$(printf '%5d s %6d s  %s' $((SECONDS - start)) $(($(cpu) - start_cpu)) "$1")")
}

# stage NAME COMMAND...: one line with the time it took; the output only when it fails.
stage() {
    local name=$1 start start_cpu
    shift
    begin
    printf '== %s: ' "$name"
    if ! "$@" >"$log" 2>&1; then
        printf 'FAILED after %d s\n' $((SECONDS - start))
        cat "$log"
        exit 1
    fi
    printf '%d s\n' $((SECONDS - start))
    took "$name"
}

# Names of our C files that match the patterns; what is generated is not tracked.
sources() {
    if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
        git ls-files -z --cached -- "$@" | while IFS= read -r -d '' f; do
            if [ -f "$f" ]; then printf '%s\0' "$f"; fi
        done
    else
        local names=() pattern
        for pattern in "$@"; do names+=(-o -name "$pattern"); done
        find . -path ./build -prune -o -type f \( "${names[@]:1}" \) -print0
    fi
}

check_format() {
    sources '*.c' '*.h' | xargs -0 -r -n20 -P"${jobs:-2}" clang-format --dry-run -Werror --ferror-limit=1 ||
        { echo "Put right with: clang-format -i FILE..."; return 1; }
}

check_code() {
    # One configuration a file: what the build itself compiles. Tests and cmocka's macros are left to the compiler.
    # invalidPointerCast: float32 on a little-endian machine is the wire format, and blobs are aligned.
    # Nor kernels/portable.c, narrow.c and narrow_avx2.c, whose loops are unrolled by macros within macros: cppcheck stops at those.
    sources '*.c' | grep -zv '^\(\./\)\?\(tests/\|kernels/\(portable\|narrow\|narrow_avx2\)\.c\)' | xargs -0 -r cppcheck -j"${jobs:-2}" --quiet --error-exitcode=1 --inline-suppr \
        --enable=warning,portability,performance --std=c11 --library=posix --max-configs=1 -D_GNU_SOURCE -D__x86_64__ \
        -DBANYAN_VERSION='""' -I. --suppress=missingInclude --suppress=missingIncludeSystem \
        --suppress=unmatchedSuppression --suppress=invalidPointerCast --template='{file}:{line}: {severity}: {message} [{id}]'
}

# llama.cpp's sources and a built ggml, for the plug-in: in CI's release build. Where they are not to be had, CTest lists
# llama_plugin as skipped.
plugin=()
fetch_ggml() {
    local start start_cpu code=0
    begin
    printf '== ggml: '
    tests/llama/fetch.sh build/llama >"$log" 2>&1 || code=$?
    case $code in
    0)
        printf '%d s\n' $((SECONDS - start))
        took ggml
        plugin=(-DBANYAN_LLAMA_SOURCE="$PWD/build/llama/llama.cpp" -DBANYAN_GGML_LIB="$PWD/build/llama/lib")
        tests/llama/fetch.sh build/llama-newest newest >"$log" 2>&1 || code=$?
        case $code in
        0) plugin+=(-DBANYAN_GGML_NEWEST_LIB="$PWD/build/llama-newest/lib") ;;
        77) printf '== the newest ggml: skipped\n%s\n' "$(tail -n 1 "$log")" ;;
        *)
            echo "== the newest ggml: FAILED"
            cat "$log"
            exit 1
            ;;
        esac
        ;;
    77) printf 'skipped\n%s\n' "$(tail -n 1 "$log")" ;;
    *)
        printf 'FAILED after %d s\n' $((SECONDS - start))
        cat "$log"
        exit 1
        ;;
    esac
}

# build PRESET TARGET [CMAKE_OPTION...]
build() {
    local preset=$1 target=$2
    shift 2
    cmake --preset "$preset" --log-level=WARNING "$@" &&
        cmake --build --preset "$preset" --target "$target" -- --quiet ${jobs:+-j"$jobs"}
}

# built PRESET: builds it, in a stage of its own. For the thread sanitizer, what its tests need.
built() {
    local options=() target=all
    case $1 in
    release)
        # What takes minutes to build and serves tests of CI alone: llama.cpp's ggml, and without a GPU the module for it.
        if [ "$mode-$all" = release-no ]; then
            [ -e /dev/nvidiactl ] || options=(-DBANYAN_CUDA=OFF)
        else
            fetch_ggml
            options=("${plugin[@]}" -DBANYAN_CUDA=AUTO)
        fi
        ;;
    tsan) target=tests_threads ;;
    esac
    stage "$1 build" build "$1" "$target" "${options[@]}"
}

# tested PRESET [CTEST_OPTION...]: runs its tests. What CTest has said is kept for `report`.
tested() {
    local preset=$1 start start_cpu select=() code=0
    shift
    begin
    case $mode-$all in
    *-yes) ;;
    release-no) select+=(-LE '^(long|ci)$') ;;
    *) select+=(-LE '^long$') ;;
    esac
    echo "== $preset tests"
    ctest --test-dir "build/$preset" --output-on-failure --no-tests=error -j"${jobs:-4}" "${select[@]}" "$@" |
        grep --line-buffered -vE '^ +Start +[0-9]+: |^Internal ctest' | tee "build/$preset/tests.log" || code=$?
    took "$preset tests"
    ran+=("$preset")
    sed -n '/% tests passed/,$p' "build/$preset/tests.log" >"$summary"
    [ "$code" = 0 ] || report
    return "$code"
}

# Names of a build's tests, as a regular expression for ctest -R: those that the build OTHER does not have, and those whose
# answers or times depend on how they are compiled.
only_in() {
    local names
    names=$(comm -23 <(names_of "$1") <(names_of "$2") && names_of "$1" -L '^optimised$')
    printf '^(%s)$' "$(sort -u <<<"$names" | paste -sd'|')"
}

names_of() {
    local preset=$1
    shift
    ctest --test-dir "build/$preset" -N "$@" | sed -n 's/^ *Test *#[0-9]*: \([^ ]*\).*/\1/p' | sort
}

# Where the time has gone, and CTest's last summary.
report() {
    local preset
    echo "== stages: time, and time of all processors"
    printf '%s\n' "${times[@]}"
    for preset in "${ran[@]}"; do
        echo "== slowest tests, $preset"
        sed -n 's/^ *[0-9]*\/[0-9]* Test *#[0-9]*: \([^ ]*\) .* \([0-9.]*\) sec.*/\2 s  \1/p' "build/$preset/tests.log" | sort -rn | sed -n 1,10p
    done
    cat "$summary"
}

# Builds with failpoints, and arms some of them (--all: all). There a worker can be made to start a program, too.
check_failpoints() {
    local some=--some
    [ "$all" = no ] || some=
    cmake --preset failpoints --log-level=WARNING &&
        cmake --build --preset failpoints --target failpoint_life e2e_harden -- --quiet ${jobs:+-j"$jobs"} &&
        ctest --test-dir build/failpoints --output-on-failure -R '^e2e_harden$' &&
        tests/failpoints/run --jobs "${jobs:-4}" $some
}

# What is kept of each fuzz target, as clang builds it with libFuzzer: so that it can be fuzzed.
fuzz() {
    tests/fuzz/run.sh --replay -j "${jobs:-2}"
}

neon() {
    [ "$all" = yes ] || return 0
    [ "$install" = yes ] || stage "packages for aarch64" deploy/install-deps.sh --cross --check
    stage "kernels on aarch64" tests/tools/neon.sh
}

needs=(--dev)
[ "$all" = no ] || needs+=(--packages)
if [ "$install" = yes ]; then
    stage "packages" deploy/install-deps.sh "${needs[@]}"
else
    stage "packages" deploy/install-deps.sh "${needs[@]}" --check
    export BANYAN_NO_INSTALL=1
fi
case $mode in
release)
    neon
    built release
    tested release
    ;;
asan)
    built asan
    tested asan
    ;;
tsan)
    built tsan
    tested tsan -L '^threads$'
    ;;
ci)
    stage "format" check_format
    stage "includes" tests/tools/check_includes.py
    stage "circles" tests/tools/check_circles.py
    stage "words" tests/tools/check_words.py
    stage "links" tests/tools/check_links.py
    stage "cppcheck" check_code
    neon
    built release
    built asan
    built tsan
    stage "simulated traces" tests/sim/same_traces.sh build/release/bin/chaos_test build/asan/bin/chaos_test
    stage "failpoints" check_failpoints
    stage "fuzz targets" fuzz
    # What the address sanitizer's build tests as well is tested there alone.
    tested release -R "$(only_in release asan)"
    tested tsan -L '^threads$'
    tested asan
    ;;
esac
report
