# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2034 # what it sets is for who sources it
# What a folder holds of llama.cpp; for llama.sh, which sources this.
#
#   find_llama DIR     DIR: a checkout, built or not; the folder of a build; or where one is installed
#
# Sets $server, a llama-server, $lib, the folder of its libggml-base.so, and $checkout, the folder of the sources; what is not there
# is empty. Returns 1 if DIR is of no use, and says why in $why.
find_llama() {
    local dir above folder # above: what has llama-server in its bin/
    server='' lib='' checkout='' why=''
    [ -d "$1" ] || { why="$1 is not a folder"; return 1; }
    dir=$(realpath "$1")
    for folder in "$dir" "$dir/bin" "$dir/build/bin"; do
        if [ -f "$folder/llama-server" ] && [ -x "$folder/llama-server" ]; then
            server=$folder/llama-server
            break
        fi
    done
    above=${server%/*/*}
    for folder in "$dir" "$(sources_of "$dir")" "$(sources_of "$above")"; do
        if [ -n "$folder" ] && [ -f "$folder/ggml/src/ggml-backend-impl.h" ]; then
            checkout=$folder
            break
        fi
    done
    if [ -z "$server" ]; then
        [ -n "$checkout" ] || why="$1 is neither a checkout of llama.cpp (no ggml/src/ggml-backend-impl.h) nor a build of one (no llama-server)"
        [ -n "$checkout" ]
        return
    fi
    for folder in "${server%/*}" "$above/lib" "$above/lib64" "$above"/lib/*-linux-gnu; do
        if [ -e "$folder/libggml-base.so" ] || [ -e "$folder/libggml-base.so.0" ]; then
            lib=$folder
            return 0
        fi
    done
    why="$server has no libggml-base.so: build llama.cpp with -DBUILD_SHARED_LIBS=ON, as it does by default"
    return 1
}

# Of a folder that CMake builds in.
sources_of() {
    sed -n 's/^CMAKE_HOME_DIRECTORY:INTERNAL=//p' "$1/CMakeCache.txt" 2>/dev/null || true
}
