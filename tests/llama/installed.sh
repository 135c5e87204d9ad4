#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# banyan-llama where cmake --install put it: finds the programs and the plug-in that lie there, starts workers, and gives llama-server
# what it needs. A script stands in for llama-server, and a file that is none for the plug-in: no llama.cpp is needed.
#   tests/llama/installed.sh PREFIX LIBDIR VERSION
set -euo pipefail
prefix=$(realpath "$1") lib=$(realpath "$2") version=$3
launcher=$prefix/bin/banyan-llama
dir=$(mktemp -d /tmp/banyan-llama-XXXXXX) # a short path: sockets are in it
export BANYAN_LLAMA_STATE=$dir/state BANYAN_LOCAL_MEMORY=64M LLAMA_SERVER=$dir/llama-server
unset BANYAN_PLUGIN GGML_BACKEND_PATH BANYAN_ENDPOINT BANYAN_COORDINATOR BANYAN_WORKER BANYANCTL BANYAN_LOCAL BANYAN_LLAMA_SAVE BANYAN_KEEP
leave() {
    local code=$?
    "$launcher" stop || code=1
    [ $code = 0 ] || { tail -n 20 "$dir"/out "$dir"/state/cluster/*.log 2>/dev/null || true; }
    rm -rf "$dir"
    exit $code
}
trap leave EXIT
fail() { echo "installed.sh: $*"; exit 1; }
says() { # CODE TEXT ARGS…
    local code=$1 text=$2 status=0
    shift 2
    "$launcher" "$@" >"$dir/out" 2>&1 || status=$?
    [ $status = "$code" ] || fail "$* ended with $status, not $code"
    grep -qF -- "$text" "$dir/out" || fail "$* does not say '$text'"
}

says 0 "banyan-llama $version" --version
says 0 "Usage: banyan-llama serve -m MODEL" --help
says 0 "Exit codes:" serve --help
says 2 "give a command"
says 2 "unknown command 'start'" start
says 2 "stop takes no arguments" stop now
says 2 "serve needs a model" serve
says 2 "cannot read $dir/none.gguf" serve -m "$dir/none.gguf"
printf 'GGUF' >"$dir/model.gguf"
BANYAN_LLAMA_SAVE=0 says 2 "BANYAN_LLAMA_SAVE must be a whole number" serve -m "$dir/model.gguf"
plugin=$lib/banyan/libggml-banyan.so
if [ ! -e "$plugin" ]; then # a build without it
    says 1 "libggml-banyan.so is not there" serve -m "$dir/model.gguf"
    mkdir -p "$lib/banyan"
    touch "$plugin"
    made=$plugin
fi
says 1 "llama-server is not there" serve -m "$dir/model.gguf"
cat >"$LLAMA_SERVER" <<'END'
#!/bin/sh
{ echo "plugin=$GGML_BACKEND_PATH"; echo "endpoint=$BANYAN_ENDPOINT"; echo "keep=$BANYAN_KEEP"; echo "flags=$*"; } >"$BANYAN_LLAMA_STATE/given"
exit "${STAND_IN:-7}"
END
chmod +x "$LLAMA_SERVER"
[ ! -e "$BANYAN_LLAMA_STATE/cluster" ] || fail "workers were started although llama-server was not there"
says 2 "--port must be from 1 to 65535" serve -m "$dir/model.gguf" --port http
[ ! -e "$BANYAN_LLAMA_STATE/cluster" ] || fail "workers were started although --port was wrong"
says 7 "1 worker started on this machine" serve -m "$dir/model.gguf" --port 18080
for line in "plugin=$plugin" "endpoint=unix://$BANYAN_LLAMA_STATE/cluster/c.sock" keep=1d; do
    grep -qxF -- "$line" "$BANYAN_LLAMA_STATE/given" || fail "llama-server was not given $line: $(cat "$BANYAN_LLAMA_STATE/given")"
done
grep -q -- '^flags=-m .* --port 18080 -dev Banyan0 ' "$BANYAN_LLAMA_STATE/given" || fail "llama-server's flags are $(cat "$BANYAN_LLAMA_STATE/given")"
read -ra pids <"$BANYAN_LLAMA_STATE/cluster/pids" || true # no newline at its end
[ ${#pids[@]} -eq 2 ] || fail "the local cluster has ${#pids[@]} processes"
for pid in "${pids[@]}"; do
    [[ $(readlink "/proc/$pid/exe") == "$prefix"/bin/* ]] || fail "process $pid of the local cluster is not an installed program"
done
before=$(cat "$BANYAN_LLAMA_STATE/cluster/pids")
STAND_IN=0 "$launcher" serve -m "$dir/model.gguf" || fail "serve ended with $?, and llama-server with 0"
[ "$(cat "$BANYAN_LLAMA_STATE/cluster/pids")" = "$before" ] || fail "workers were started although some run"
[ -z "${made:-}" ] || rm "$made"
