#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Part of tests/gpu.sh: a coordinator and workers on one device, the quickstart's model over them, and a check
# of what it said. The last line is the model's numbers, as JSON. The caller ends its process group.
#     cluster.sh PROGRAMS DAEMONS ROOT WORKERS TOKENS GENERATE
set -euo pipefail
programs=$1/bin daemons=$2/bin examples=$3/examples workers=$4 tokens=$5 generate=$6
run=$(mktemp -d "${TMPDIR:-/tmp}/banyan-cluster.XXXXXX")
pids=()
stop() {
    local status=$?
    trap - EXIT TERM
    [ ${#pids[@]} -eq 0 ] || kill "${pids[@]}" 2>/dev/null || true
    wait || true
    if [ $status -ne 0 ]; then tail -n 3 "$run"/*.log >&2; fi
    [ $status -eq 0 ] || [ -z "${said:-}" ] || echo "$said" >&2
    rm -rf "$run"
    exit $status
}
trap stop EXIT
trap 'exit 143' TERM

start() { # NAME PROGRAM ARGUMENT...
    "$2" "${@:3}" --ready-file "$run/$1.ready" >"$run/$1.log" 2>&1 &
    pids+=($!)
}
ready() { # NAME PID
    until [ -s "$run/$1.ready" ]; do
        kill -0 "$2" 2>/dev/null || {
            said="$1 did not start: $(tail -n 1 "$run/$1.log")"
            exit 1
        }
        sleep 0.05
    done
}
start coordinator "$daemons/banyan-coordinator" --listen "unix://$run/coordinator.sock,nng+tcp://127.0.0.1:0" \
    --secret-file "$run/secret" --store "$run/store.db" --heartbeat 6s # no worker is lost here; a busy one is not to be judged
ready coordinator "${pids[0]}"
for ((w = 0; w < workers; w++)); do
    start "worker-$w" "$daemons/banyan-worker" --name "worker-$w" --coordinator "unix://$run/coordinator.sock" --device cuda:0 \
        --listen "tcp://127.0.0.1:0" --edge-listen "unix://$run/worker-$w.sock" --secret-file "$run/secret" \
        --memory 128M
done
for ((w = 0; w < workers; w++)); do ready "worker-$w" "${pids[$((w + 1))]}"; done
endpoint=$(grep -o 'nng+tcp://[0-9.:]*' "$run/coordinator.ready" | sed -n 1p)
said="the model over the cluster has failed"
"$programs/generate" --no-color --model "$examples/model" --json "$run/numbers.json" --endpoint "$endpoint" \
    --prompt-file "$examples/text/kjv.txt" --ask "$(cat "$examples/text/ask")" --tokens "$tokens" --generate "$generate" --record "$run/record"
said="what the model said is not what float64 attention says"
"$programs/generate" --no-color --model "$examples/model" --json "$run/numbers.json" --check "$run/record"
said="the coordinator's end was not orderly"
tr -d '\n' <"$run/numbers.json"
echo
