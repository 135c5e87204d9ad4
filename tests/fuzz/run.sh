#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Fuzzes: builds the targets with clang's libFuzzer and runs them. Can be started from any directory.
set -euo pipefail

usage() {
    cat <<'TEXT'
Usage: tests/fuzz/run.sh [--replay | --all | --seconds N | --runs N] [--keep] [-j N] [TARGET...]

Builds build/fuzz (clang: deploy/install-deps.sh --dev) and runs each target, all of them if none is named.
  --replay     nothing new: what is kept in tests/fuzz/corpus, and the seeds, once each (CI)
  --all        2 minutes each
  --seconds N  so many seconds each (default: 20)
  --runs N     so many inputs each, however long that takes
  --keep       afterwards puts what is new into tests/fuzz/corpus, as few and as small inputs as reach the same
  -j N         so many targets at a time (default: 1)
  --list       names the targets
  --help       print this help

What has been found before is the start of the next run: build/fuzz/corpus. Prints a row of a table for each target:
inputs that were run, how many a second, edges of the program that they reach, and inputs that were worth keeping.
Ends with 1 when an input was found that fails. It then lies in build/fuzz/found; copy it to
tests/fuzz/corpus/TARGET/found-WHAT, where CTest runs it for ever, and put right what it shows.
TEXT
}

targets=(codec frame stream nng channel sp tls certificate coordinator members worker disk trail dashboard http options
         config snapshot safetensors backup spec text ticket pass secret)
limit=-max_total_time=20
replay=no
keep=no
jobs=1
chosen=()
number() {
    if ! [[ ${2-} =~ ^[1-9][0-9]{0,11}$ ]]; then
        echo "tests/fuzz/run.sh: $1: '${2-}' is not a number; try tests/fuzz/run.sh --help" >&2
        exit 2
    fi
}
while [ $# -gt 0 ]; do
    case $1 in
    --replay) replay=yes limit=-runs=0 ;;
    --all) limit=-max_total_time=120 ;;
    --seconds | --runs | -j)
        number "$1" "${2-}"
        case $1 in
        --seconds) limit=-max_total_time=$2 ;;
        --runs) limit=-runs=$2 ;;
        -j) jobs=$2 ;;
        esac
        shift
        ;;
    --keep) keep=yes ;;
    --list)
        printf '%s\n' "${targets[@]}"
        exit 0
        ;;
    -h | --help)
        usage
        exit 0
        ;;
    *)
        if ! [[ " ${targets[*]} " == *" $1 "* ]]; then
            echo "tests/fuzz/run.sh: unknown target or option '$1'; try tests/fuzz/run.sh --list" >&2
            exit 2
        fi
        chosen+=("$1")
        ;;
    esac
    shift
done
[ ${#chosen[@]} -gt 0 ] && targets=("${chosen[@]}")
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

# A leak, and what is undefined, ends a run; short stacks of allocations make it faster.
export ASAN_OPTIONS="detect_leaks=1:malloc_context_size=8:${ASAN_OPTIONS:-}"
if command -v ccache >/dev/null; then export CMAKE_C_COMPILER_LAUNCHER=${CMAKE_C_COMPILER_LAUNCHER-ccache}; fi
build=$PWD/build/fuzz tree=$PWD/tests/fuzz options=()
if [ "$replay" = yes ]; then # CTest runs the same inputs with gcc's sanitizers: here it is whether clang builds and runs all this
    build=$PWD/build/replay
    options=(-DBANYAN_SANITIZE= -DCMAKE_BUILD_TYPE=Debug)
fi
mkdir -p "$build/found" "$build/log" "$build/seeds"
if ! { cmake --preset fuzz -B "$build" "${options[@]}" && cmake --build "$build" --target fuzz; } >"$build/log/build" 2>&1; then
    tail -40 "$build/log/build" >&2
    exit 1
fi
"$build/bin/fuzz_seeds" "$build/seeds"

# No allocation is larger than what an input of 4 KiB can rightly ask for: parsers have next to nothing to allocate,
# handlers the tables and memory of daemons.
malloc_limit() {
    case $1 in
    coordinator | members | worker | disk | dashboard | options | backup) echo 256 ;;
    *) echo 16 ;;
    esac
}

fuzz_one() {
    local target=$1 log=$build/log/$1 corpus=$build/corpus/$1 rc=0
    [ "$replay" = no ] || corpus=$build/nothing
    mkdir -p "$corpus" "$tree/corpus/$target"
    "$build/bin/fuzz_$target" "$limit" -max_len=4096 -timeout=30 -rss_limit_mb=2048 -print_final_stats=1 \
        -malloc_limit_mb="$(malloc_limit "$target")" -artifact_prefix="$build/found/$target-" \
        -dict="$tree/dict/$target" "$corpus" "$tree/corpus/$target" "$build/seeds/$target" >"$log" 2>&1 || rc=$?
    local inputs rate edges kept
    inputs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    rate=$(sed -n 's/^stat::average_exec_per_sec: *//p' "$log")
    edges=$(sed -n 's/.* cov: \([0-9]*\) .*/\1/p' "$log" | tail -1)
    kept=$(sed -n 's/.* corp: \([0-9]*\)\/.*/\1/p' "$log" | tail -1)
    printf '| %-12s | %10s | %8s | %6s | %6s |\n' "$target" "${inputs:-?}" "${rate:-?}" "${edges:-?}" "${kept:-?}"
    if [ $rc -ne 0 ]; then
        echo "$target has failed, see $log:" >&2
        grep -E 'does not hold|runtime error|ERROR: |Assertion|SUMMARY|Test unit written' "$log" >&2 || tail -5 "$log" >&2
        return 1
    fi
    if [ "$keep" = yes ]; then keep_one "$target" >>"$log" 2>&1; fi
}

# What has failed once stays under its name; the rest is chosen again.
keep_one() {
    local target=$1 new=$build/merged/$1 old=$tree/corpus/$1 most=512
    case $target in disk | snapshot | tls | certificate) most=3000 ;; esac # what is right is as long as that
    rm -rf "$new"
    mkdir -p "$new" "$old"
    cp "$old"/found-* "$new" 2>/dev/null || true
    "$build/bin/fuzz_$target" -merge=1 -use_counters=0 -max_len=$most -timeout=30 "$new" "$build/seeds/$target" "$old" "$build/corpus/$target"
    find "$old" -type f ! -name 'found-*' -delete
    cp -n "$new"/* "$old"
}

printf '| %-12s | %10s | %8s | %6s | %6s |\n' target inputs 'a second' edges kept
printf '|%s|%s|%s|%s|%s|\n' -------------- ------------ ---------- -------- --------
failed=0
for target in "${targets[@]}"; do
    while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n || failed=1; done
    fuzz_one "$target" &
done
while [ "$(jobs -p | wc -l)" -gt 0 ]; do
    wait -n 2>/dev/null || { rc=$?; [ $rc -eq 127 ] && break; failed=1; }
done
exit $failed
