#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs manifests_test.py in a virtual environment of its own, which is made once and kept under the user's cache folder: it has
# the schemas of Kubernetes and of Compose.
#   tests/deploy/manifests.sh SOURCE BIN
# BANYAN_NO_INSTALL=1: ends with code 77 where the environment is not there yet.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
compose=docker-compose==1.29.2 # for its schema alone: of what it runs with, not all is to be had any more
key=$({ cat "$here/requirements.txt"; echo "$compose"; python3 --version; } | sha256sum | cut -c1-12)
venv=${XDG_CACHE_HOME:-$HOME/.cache}/banyan/python-manifests-$key
if [ ! -e "$venv/ready" ]; then
    if [ "${BANYAN_NO_INSTALL:-}" = 1 ]; then
        echo "manifests.sh: $venv is not there, and nothing is to be installed"
        exit 77
    fi
    mkdir -p "$(dirname "$venv")"
    exec 9>"$venv.lock"
    flock 9
    if [ ! -e "$venv/ready" ]; then
        rm -rf "$venv"
        python3 -m venv "$venv"
        "$venv/bin/pip" install --quiet --disable-pip-version-check -r "$here/requirements.txt"
        "$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps "$compose"
        touch "$venv/ready"
    fi
    exec 9>&-
fi
exec "$venv/bin/python" -B "$here/manifests_test.py" "$@"
