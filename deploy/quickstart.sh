#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Banyan's main job, from a fresh Debian 12 machine: installs what is needed, builds, starts a coordinator and workers on loopback, feeds a
# long text through a language model whose KV cache lives only in that cluster, generates, checks the result against float64 attention in a
# separate process, and stops everything.
set -euo pipefail

usage() {
    cat <<'USAGE'
usage: deploy/quickstart.sh [options]
  --workers N        workers to start (default 4)
  --tokens N         tokens of prompt (default 16384)
  --generate N       tokens to generate (default 160)
  --prompt-file F    text to read (default: the King James text of the example)
  --ask TEXT         end of the prompt (default with the shipped text: a verse's reference, so that the model
                     continues with that verse; '' for none)
  --model DIR        config.json and model.safetensors (default: the shipped model)
  --kv TYPE          type of K and V in the cluster: f32 (default), f16, bf16, int8 or fp8
  --full-check       compare the logits of every prompt token instead of 128 of them
  --keep             leave the cluster up and print how to use it
  --json FILE        write the run's numbers as one JSON object
  --no-color         plain output
  -h, --help
USAGE
}

root=$(cd "$(dirname "$0")/.." && pwd)
workers=4 tokens=16384 generate=160 prompt= ask= ask_given= model=$root/examples/model kv=f32 keep= json= full= color=1
need() { [ $# -ge 2 ] || { echo "quickstart: $1 needs a value; see --help" >&2; exit 2; }; }
number() {
    [[ $2 =~ ^[1-9][0-9]{0,8}$ ]] || { echo "quickstart: $1 must be a whole number above 0, not '$2'" >&2; exit 2; }
}
while [ $# -gt 0 ]; do
    case $1 in
        --workers) need "$@"; number "$1" "$2"; workers=$2; shift ;;
        --tokens) need "$@"; number "$1" "$2"; tokens=$2; shift ;;
        --generate) need "$@"; number "$1" "$2"; generate=$2; shift ;;
        --prompt-file) need "$@"; prompt=$2; shift ;;
        --ask) need "$@"; ask=$2; ask_given=1; shift ;;
        --model) need "$@"; model=$2; shift ;;
        --kv) need "$@"; kv=$2; shift ;;
        --json) need "$@"; json=$2; shift ;;
        --full-check) full=--full-check ;;
        --keep) keep=1 ;;
        --no-color) color= ;;
        -h | --help) usage; exit 0 ;;
        *) echo "quickstart: unknown option $1; see --help" >&2; exit 2 ;;
    esac
    shift
done
[ "$workers" -le 64 ] || { echo "quickstart: at most 64 workers on one machine" >&2; exit 2; }
if [ -z "$prompt" ]; then
    prompt=$root/examples/text/kjv.txt
    [ -n "$ask_given" ] || ask=$(cat "$root/examples/text/ask")
fi
[ -r "$prompt" ] && [ ! -d "$prompt" ] || { echo "quickstart: cannot read the prompt file $prompt" >&2; exit 2; }
case $kv in f32 | f16 | bf16 | int8 | fp8) ;; *) echo "quickstart: --kv must be f32, f16, bf16, int8 or fp8, not '$kv'" >&2; exit 2 ;; esac
[ -r "$model/config.json" ] || { echo "quickstart: there is no model in $model: config.json cannot be read" >&2; exit 2; }
if [ -n "$json" ]; then # before minutes of work, not after
    { : >"$json"; } 2>/dev/null || { echo "quickstart: cannot write $json" >&2; exit 2; }
    json=$(realpath "$json")
fi
[ -t 1 ] && [ -z "${NO_COLOR:-}" ] || color=
bold= dim= plain=
[ -n "$color" ] && bold=$'\033[1m' dim=$'\033[2m' plain=$'\033[0m'
say() { echo "${bold}$*${plain}"; }

# ---- packages and build ------------------------------------------------------------------------------------------------------
"$root/deploy/install-deps.sh"
bin=$root/build/release/bin
say "Building"
log=$(mktemp)
if ! (cd "$root" && cmake --preset release && cmake --build --preset release --target quickstart) >"$log" 2>&1; then
    cat "$log" >&2
    echo "quickstart: the build failed; see its output above" >&2
    rm -f "$log"
    exit 1
fi
rm -f "$log"

# ---- cluster -----------------------------------------------------------------------------------------------------------------
script=quickstart
# shellcheck source=deploy/loopback.sh
source "$root/deploy/loopback.sh"
say "Starting a coordinator and $workers workers on loopback"
start coordinator "$bin/banyan-coordinator" --listen "unix://$run/coordinator.sock,nng+tcp://127.0.0.1:0" \
    --secret-file "$run/secret" --store "$run/store.db" --ready-file "$run/coordinator.ready"
ready coordinator
for ((w = 0; w < workers; w++)); do
    start "worker-$w" "$bin/banyan-worker" --name "worker-$w" --coordinator "unix://$run/coordinator.sock" \
        --listen "tcp://127.0.0.1:0" --edge-listen "unix://$run/worker-$w.sock" --secret-file "$run/secret" \
        --threads 1 --memory 2G --ready-file "$run/worker-$w.ready"
done
for ((w = 0; w < workers; w++)); do ready "worker-$w"; done
endpoint=$(python3 -c 'import json,sys; print([e for e in json.load(open(sys.argv[1]))["endpoints"] if e.startswith("nng+tcp")][0])' "$run/coordinator.ready")

# ---- the job -----------------------------------------------------------------------------------------------------------------
options=(--model "$model" --json "$run/numbers.json")
[ -n "$color" ] || options+=(--no-color)
say "Reading $tokens tokens; their KV cache lives only in the cluster"
"$bin/generate" "${options[@]}" --endpoint "$endpoint" --prompt-file "$prompt" --tokens "$tokens" --generate "$generate" --ask "$ask" \
    --kv "$kv" --record "$run/record" ${full:+"$full"} --keep-session --session quickstart
"$bin/generate" "${options[@]}" --check "$run/record"
echo
say "Attention of the last token by layer, and the time of its steps"
export BANYAN_ENDPOINT=$endpoint
"$bin/banyanctl" session mass quickstart --wait 0s
echo
"$bin/banyanctl" session trace quickstart --wait 0s
[ -n "$json" ] && cp "$run/numbers.json" "$json"

if [ -n "$keep" ]; then
    trap - EXIT INT TERM
    rm -f "$run/record"
    echo
    say "The cluster stays up. Try:"
    echo "  export BANYAN_ENDPOINT=$endpoint"
    echo "  $bin/banyanctl status"
    echo "  $bin/banyanctl plan quickstart"
    echo "  $bin/banyanctl session show quickstart"
    echo "  $bin/banyanctl session mass quickstart --heads --wait 0s"
    echo "${dim}Stop it with:  kill ${pids[*]}; rm -rf $run${plain}"
    exit 0
fi
say "Stopping"
