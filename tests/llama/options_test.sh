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
refused "is not a checkout of llama.cpp" --source "$dir"
refused "--version must be like" --version latest
refused "cannot read" --document "$dir/nothing"
refused "cannot read" --model "$dir"
refused "cannot write" --json "$dir/nothing/here.json"
"$root/deploy/llama.sh" --help >"$dir/out" || fail "--help fails"
for option in --source --version --workers --document --ask --tokens --model --kv --json --keep --no-color; do
    grep -qF -- "$option" "$dir/out" || fail "--help does not tell of $option"
done
