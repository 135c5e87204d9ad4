#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# deploy/llama.sh --llama DIR with a llama.cpp that is there, in a tree whose tools stand in for the real ones: nothing is fetched or
# compiled. What it finds in DIR, what it builds for it, that stages have their times, and that the command it ends with runs.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
dir=$(realpath "$(mktemp -d)")
trap 'rm -rf "$dir"' EXIT
tree=$dir/tree tools=$dir/tools
export TOOLS_LOG=$dir/tools.log TREE=$tree

fail() {
    echo "FAILED: $*" >&2
    tail -n 40 "$dir/out" "$TOOLS_LOG" >&2 2>/dev/null || true
    exit 1
}
tool() { # FILE: from standard input
    mkdir -p "${1%/*}"
    cat >"$1"
    chmod +x "$1"
}

mkdir -p "$tree/deploy" "$tree/examples/llama"
cp "$root/deploy/llama.sh" "$root/deploy/llama_find.sh" "$root/deploy/loopback.sh" "$tree/deploy/"
tool "$tree/deploy/install-deps.sh" <<<'#!/bin/sh'
tool "$tools/python3" <<'END'
#!/bin/sh
[ "$1 $2" = "-m venv" ] || exit 9
mkdir -p "$3/bin"
for name in pip python; do
    printf '#!/bin/sh\necho "%s $* SERVER=$LLAMA_SERVER PLUGIN=$BANYAN_PLUGIN LOCAL=$BANYAN_LOCAL" >>"$TOOLS_LOG"\n' $name >"$3/bin/$name"
    chmod +x "$3/bin/$name"
done
END
tool "$tools/cmake" <<'END'
#!/bin/sh
echo "cmake $*" >>"$TOOLS_LOG"
server='#!/bin/sh\necho "version: stand-in" >&2\n'
case "$*" in
-S*-DBANYAN_LLAMA_SOURCE=*)
    mkdir -p "$TREE/build/llama-example/bin"
    printf '#!/bin/sh\necho "launcher: $*"\n' >"$TREE/build/llama-example/bin/banyan-llama"
    chmod +x "$TREE/build/llama-example/bin/banyan-llama" ;;
--build*llama-server)
    [ -z "$CMAKE_FAILS" ] || { echo "ninja: a file does not compile"; exit 1; }
    mkdir -p "$2/bin"
    printf "$server" >"$2/bin/llama-server"
    chmod +x "$2/bin/llama-server"
    touch "$2/bin/libggml-base.so"
    echo "[1 of 2, 0s] Building CXX object" ;;
esac
END
run() { # STATUS OPTIONS…
    local wanted=$1 status=0
    shift
    : >"$TOOLS_LOG"
    PATH=$tools:$PATH XDG_CACHE_HOME=$dir/cache "$tree/deploy/llama.sh" "$@" >"$dir/out" 2>&1 </dev/null || status=$?
    [ $status = "$wanted" ] || fail "$* ended with $status, not $wanted"
}
logged() { grep -qF -- "$1" "$TOOLS_LOG" || fail "nothing was run with '$1'"; }
shown() { grep -qE -- "$1" "$dir/out" || fail "'$1' was not printed"; }
runs() { # the command that it ends with
    local command
    command=$(grep -m1 -E '^  .* serve -m ' "$dir/out")
    [ "$(bash -c "$command")" = "launcher: serve -m $dir/a model.gguf" ] || fail "the command printed does not run: $command"
    [ "$(readlink -f "$tree/build/llama-example/bin/llama-server")" = "$1" ] || fail "the launcher would not find $1"
}
touch "$dir/a model.gguf"

# A checkout that is not built
mkdir -p "$dir/checkout/ggml/src"
touch "$dir/checkout/ggml/src/ggml-backend-impl.h"
CMAKE_FAILS=1 run 1 --llama "$dir/checkout" --model "$dir/a model.gguf"
shown 'does not compile'
shown '^llama: the build of llama.cpp failed'
run 0 --llama "$dir/checkout" --model "$dir/a model.gguf" --workers 3
shown '^\[0:[0-9]{2}\] Building llama.cpp in '
shown '^\[1 of 2, 0s\] Building CXX object'
shown '^\[0:[0-9]{2}\] Building the plug-in'
built=$(echo "$dir"/cache/banyan/llama-of-*)
logged "-DBANYAN_LLAMA_SOURCE=$dir/checkout -DBANYAN_GGML_LIB=$built/bin"
logged "goes_on.py --model $dir/a model.gguf --launcher $tree/build/llama-example/bin/banyan-llama SERVER=$built/bin/llama-server"
logged "PLUGIN=$tree/build/llama-example/lib/libggml-banyan.so LOCAL=3"
runs "$built/bin/llama-server"

# One that is built, by the name of the checkout and by that of the build
mkdir -p "$dir/checkout/build/bin"
tool "$dir/checkout/build/bin/llama-server" <<<'#!/bin/sh'
touch "$dir/checkout/build/bin/libggml-base.so.0"
echo "CMAKE_HOME_DIRECTORY:INTERNAL=$dir/checkout" >"$dir/checkout/build/CMakeCache.txt"
for name in checkout checkout/build checkout/build/bin; do
    run 0 --llama "$dir/$name" --model "$dir/a model.gguf" --ask 'Who?'
    ! grep -q 'target llama' "$TOOLS_LOG" || fail "llama.cpp in $name was built again"
    logged "-DBANYAN_LLAMA_SOURCE=$dir/checkout -DBANYAN_GGML_LIB=$dir/checkout/build/bin"
    logged "--ask Who?"
    runs "$dir/checkout/build/bin/llama-server"
done

# Where it is installed, without sources: those of the package give the headers
mkdir -p "$dir/installed/bin" "$dir/installed/lib/x86_64-linux-gnu" "$dir/cache/banyan/llama-0.3.36/source"
touch "$dir/installed/lib/x86_64-linux-gnu/libggml-base.so.0" "$dir/cache/banyan/llama-0.3.36/source/complete"
tool "$dir/installed/bin/llama-server" <<<'#!/bin/sh'
run 0 --llama "$dir/installed" --model "$dir/a model.gguf"
logged "-DBANYAN_LLAMA_SOURCE=$dir/cache/banyan/llama-0.3.36/source/vendor/llama.cpp -DBANYAN_GGML_LIB=$dir/installed/lib/x86_64-linux-gnu"
runs "$dir/installed/bin/llama-server"

# One that does not run
tool "$dir/installed/bin/llama-server" <<<$'#!/bin/sh\nexit 127'
run 1 --llama "$dir/installed" --model "$dir/a model.gguf"
shown "llama-server does not run"
! grep -q goes_on "$TOOLS_LOG" || fail "a llama-server that does not run was used"
