# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Daemons of a script's own, in a folder that goes with them: for quickstart.sh and llama.sh, which name themselves in $script and
# source this. Sets $run, the folder, and $pids; at the end of the script, however it comes, the daemons are stopped.
run=$(mktemp -d "${TMPDIR:-/tmp}/banyan.XXXXXX")
pids=()
declare -A pid_of
stop() {
    local status=$?
    trap - EXIT INT TERM
    [ ${#pids[@]} -eq 0 ] || kill "${pids[@]}" 2>/dev/null || true
    [ ${#pids[@]} -eq 0 ] || wait "${pids[@]}" 2>/dev/null || true
    if [ $status -ne 0 ] && compgen -G "$run/*.log" >/dev/null; then
        echo "$script: stopped with status $status; the daemons' last log lines:" >&2
        tail -n 5 "$run"/*.log >&2
    fi
    rm -rf "$run"
    exit $status
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

start() { # NAME PROGRAM ARGS…: in the background, its log in the run directory
    local name=$1
    shift
    "$@" >"$run/$name.log" 2>&1 &
    pids+=($!)
    pid_of[$name]=$!
}
ready() { # NAME: waits for its ready file
    local i
    for ((i = 0; i < 600; i++)); do
        [ -s "$run/$1.ready" ] && return 0
        kill -0 "${pid_of[$1]}" 2>/dev/null || break
        sleep 0.05
    done
    echo "$script: $1 did not start" >&2
    return 1
}
