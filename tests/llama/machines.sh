#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Two machines hold a context that one refuses: hosts are network namespaces (research/netcluster.sh), each with a worker of little
# memory. llama.cpp runs on the first. Ends with 0, 1, or 77 where there are no namespaces.
#
#     tests/llama/machines.sh FOLDER_OF_LLAMA_COMPLETION PLUGIN MODEL FOLDER_OF_BANYAN_PROGRAMS
set -euo pipefail
here=$(realpath "$(dirname "${BASH_SOURCE[0]}")")

if [ "${1-}" != --inside ]; then
    [ $# = 4 ] || { echo "machines: four arguments are expected: see the script's head" >&2; exit 2; }
    exec "$here/../../research/netcluster.sh" --nodes 2 --per-node 1 -- "$here/machines.sh" --inside "$@"
fi
llama=$2 plugin=$3 model=$4 bin=$5
read -r -a hosts <<<"$NETCLUSTER_HOSTS"
first=${hosts[0]} second=${hosts[1]}
dir=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; wait 2>/dev/null || true; rm -rf "$dir"' EXIT
secret=$dir/secret

ready() { # FILE
    for _ in $(seq 600); do
        [ -e "$1" ] && return
        sleep 0.1
    done
    echo "machines: $1 did not appear"; cat "$dir"/*.log; exit 1
}

worker() { # NAME ADDRESS
    local command=("$bin/banyan-worker" --name="$1" --host="$1" --coordinator="tcp://$first:7412" --secret-file="$secret" --memory=84M
        --listen="tcp://$2:7421" --edge-listen="tcp://$2:7431" --insecure --device=cpu --threads=1 --ready-file="$dir/$1.json")
    if [ "$2" = "$first" ]; then
        "${command[@]}" >"$dir/$1.log" 2>&1 &
    else
        $NETCLUSTER_AGENT "$2" "${command[@]}" >"$dir/$1.log" 2>&1 &
    fi
    ready "$dir/$1.json"
}

ask() { # [VARIABLE=VALUE...] -- the answer, greedily
    env "$@" "$llama/llama-completion" -m "$model" -f "$dir/prompt" -n 8 -no-cnv --temp 0 -t 2 -c 4096 --no-display-prompt \
        "${options[@]}" 2>"$dir/llama.log"
}

# Some 2,100 tokens, 23 KB each with SmolLM2's 30 layers.
for i in $(seq 90); do echo "Line $i of the log says that pump number $((i * 37 % 101)) ran for $((i * 7 % 60)) minutes and then stopped."; done >"$dir/prompt"
echo "The last line of the log is about pump number" >>"$dir/prompt"

options=(-fa off) # adds in float32; with -fa on llama.cpp adds in float16, and other tokens may follow
plain=$(ask)
"$bin/banyan-coordinator" --listen="tcp://$first:7412" --insecure --store="$dir/store.db" --secret-file="$secret" \
    --ready-file="$dir/coordinator.json" >"$dir/coordinator.log" 2>&1 &
ready "$dir/coordinator.json"
worker one "$first"
options=(-fa on -dev Banyan0 -ngl 99 -ot ".*=CPU")
# Each chunk once: with two hosts the default is two copies.
ours=(BANYAN_REPLICAS=1 GGML_BACKEND_PATH="$plugin" BANYAN_ENDPOINT="tcp://$first:7412")

if ask "${ours[@]}" >/dev/null; then
    echo "machines: one machine held a context that is larger than its memory"; exit 1
fi
grep -q RESOURCE_EXHAUSTED "$dir/llama.log" || { echo "machines: one machine failed for another reason:"; tail -5 "$dir/llama.log"; exit 1; }
grep -m1 'RESOURCE_EXHAUSTED' "$dir/llama.log"

worker two "$second"
both=$(ask "${ours[@]}") || { echo "machines: two machines failed, too:"; tail -5 "$dir/llama.log"; exit 1; }
[ "$both" = "$plain" ] || { printf 'machines: other tokens:\n%s\n%s\n' "$plain" "$both"; exit 1; }
echo "two machines hold what one refuses; both answers: $both"
