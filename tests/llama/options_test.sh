#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What deploy/llama.sh says to wrong options: code 2 and a sentence, and nothing is installed, built or started.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

fail() {
    echo "FAILED: $*" >&2
    cat "$dir"/out "$dir"/err >&2
    exit 1
}

refused() {
    local wanted=$1 status=0
    shift
    XDG_CACHE_HOME="$dir/cache" "$root/deploy/llama.sh" "$@" >"$dir/out" 2>"$dir/err" </dev/null || status=$?
    [ $status -eq 2 ] || fail "$* ended with status $status, not 2"
    [ ! -s "$dir/out" ] && [ ! -e "$dir/cache" ] || fail "$* did something before it was refused"
    grep -qF -- "$wanted" "$dir/err" || fail "$*: does not say '$wanted'"
}

refused "unknown option --nonsense" --nonsense
refused "--workers needs a value" --workers
refused "--workers must be a whole number" --workers two
refused "at most 64 workers" --workers 65
refused "--tokens must be a whole number" --tokens 0
refused "--kv must be" --kv int3
refused "--llama needs a value" --llama
refused "$dir/nothing is not a folder" --llama "$dir/nothing"
refused "is neither a checkout of llama.cpp" --llama "$dir"
mkdir -p "$dir/static/bin"
install -m 0755 /dev/null "$dir/static/bin/llama-server"
refused "static/bin/llama-server has no libggml-base.so: build llama.cpp with -DBUILD_SHARED_LIBS=ON" --llama "$dir/static"
touch "$dir/static/bin/libggml-base.so.0"
for option in "--version 0.3.36" "--tokens 9" "--kv f16" "--json $dir/json" --keep; do
    # shellcheck disable=SC2086 # an option and its value
    refused "${option%% *} cannot be used with --llama" $option --llama "$dir/static"
    [ ! -e "$dir/json" ] || fail "--json was written"
done
refused "--version must be like" --version latest
refused "cannot read" --document "$dir/nothing"
refused "cannot read" --model "$dir"
refused "cannot write" --json "$dir/nothing/here.json"
"$root/deploy/llama.sh" --help >"$dir/out" || fail "--help fails"
for option in --llama --version --workers --document --ask --tokens --model --kv --json --keep --no-color; do
    grep -qF -- "$option" "$dir/out" || fail "--help does not tell of $option"
done
