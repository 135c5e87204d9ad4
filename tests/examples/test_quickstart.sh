#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# deploy/quickstart.sh as a person runs it, only smaller; and what it says to wrong options. Takes the name of what to test: run, long or options.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
quickstart=$root/deploy/quickstart.sh
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

fail() {
    echo "FAILED: $*" >&2
    for f in "$dir"/out "$dir"/err; do [ -f "$f" ] && cat "$f" >&2; done
    exit 1
}

# Exit code 2, nothing on standard output, a line on standard error that says `wanted`.
refused() {
    local wanted=$1 status=0
    shift
    "$quickstart" "$@" >"$dir/out" 2>"$dir/err" </dev/null || status=$?
    [ $status -eq 2 ] || fail "$* ended with status $status, not 2"
    [ ! -s "$dir/out" ] || fail "$* did something before it was refused"
    grep -qF -- "$wanted" "$dir/err" || fail "$*: does not say '$wanted'"
    echo "refused: $* ($(head -n 1 "$dir/err"))"
}

test_options() {
    refused "unknown option --nonsense" --nonsense
    refused "--tokens needs a value" --tokens
    refused "--tokens must be a whole number" --tokens many
    refused "--tokens must be a whole number" --tokens 0
    refused "--tokens must be a whole number" --tokens -5
    refused "--tokens must be a whole number" --tokens 1e6
    refused "--tokens must be a whole number" --tokens 99999999999999999999
    refused "--workers must be a whole number" --workers two
    refused "at most 64 workers" --workers 65
    refused "--generate must be a whole number" --generate ''
    refused "cannot read the prompt file" --prompt-file "$dir/nothing"
    refused "cannot read the prompt file" --prompt-file "$dir"
    refused "--kv must be" --kv int3
    refused "model" --model "$dir/nothing"
    refused "cannot write" --json "$dir/nothing/here.json"
    refused "unknown option" 600
    "$quickstart" --help >"$dir/out" || fail "--help fails"
    for option in --workers --tokens --prompt-file --keep --no-color --json --full-check --kv; do
        grep -qF -- "$option" "$dir/out" || fail "--help does not tell of $option"
    done
}

test_run() {
    mkdir "$dir/tmp"
    TMPDIR="$dir/tmp" "$quickstart" --tokens 600 --generate 20 --workers 2 --no-color --json "$dir/numbers.json" >"$dir/out" 2>"$dir/err" </dev/null ||
        fail "the run ended with status $?"
    python3 - "$dir/numbers.json" <<'PYTHON' || fail "the numbers are not right"
import json, sys
n = json.load(open(sys.argv[1]))
print(json.dumps(n))
assert n["workers"] == 2 and n["prompt_tokens"] == 600 and n["generated_tokens"] == 20, n
assert n["tokens_agree"] is True and 0 <= n["max_abs_diff"] < 1e-3, n
assert n["tokens_per_s"] > 0 and 0 < n["step_p50_us"] <= n["step_p99_us"], n
PYTHON
    for word in "tokens/s" "p50" "p99" "RPC" "tree" "compute" "worker-0" "worker-1" "difference" "agree" "Attention of the last token" "Attention mass" "layer 4" "MASS SHARE" "mean of 5 steps"; do
        grep -qiF -- "$word" "$dir/out" || fail "the report does not speak of $word"
    done
    ! grep -q $'\033' "$dir/out" "$dir/err" || fail "--no-color is not without colour"
    [ -z "$(ls "$dir/tmp")" ] || fail "something is left: $(ls "$dir/tmp")"
    ! grep -lsF -- "$dir/tmp" /proc/[0-9]*/cmdline || fail "a process is left"
}

# A long prompt, and every step compared with the dense calculation.
test_long() {
    mkdir "$dir/tmp"
    TMPDIR="$dir/tmp" "$quickstart" --tokens 8192 --full-check --no-color --json "$dir/numbers.json" >"$dir/out" 2>"$dir/err" </dev/null ||
        fail "the run ended with status $?"
    python3 - "$dir/numbers.json" <<'PYTHON' || fail "the numbers are not right"
import json, sys
n = json.load(open(sys.argv[1]))
print(json.dumps(n))
assert n["prompt_tokens"] == 8192, n
assert n["tokens_agree"] is True and 0 <= n["max_abs_diff"] < 1e-3, n
PYTHON
}

"test_${1:?run, long or options}"
