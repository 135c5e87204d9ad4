#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Installs into a prefix of its own, moves it, builds client/README.md's program against it with pkg-config (shared and static) and with
# CMake's find_package, and runs each against the installed daemons.
#   install_test.sh CMAKE BUILD CC HELLO.C LIBDIR VERSION
set -euo pipefail
cmake=$1 build=$2 cc=$3 hello=$4 libdir=$5 version=$6
dir=$(mktemp -d "${TMPDIR:-/tmp}/banyan-install-XXXXXX")
pids=()
leave() {
    code=$?
    for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
    for pid in "${pids[@]}"; do wait "$pid" || code=1; done
    [ $code = 0 ] || { cat "$dir"/*.log 2>/dev/null; echo "install_test: failed; its folder was $dir"; }
    rm -rf "$dir"
    exit $code
}
trap leave EXIT

for component in runtime development; do
    "$cmake" --install "$build" --prefix "$dir/first" --component $component >"$dir/install.log"
done
mv "$dir/first" "$dir/prefix"
prefix=$dir/prefix lib=$dir/prefix/$libdir
for file in bin/banyan-coordinator bin/banyan-worker bin/banyanctl bin/banyan-llama include/banyan.h "$libdir/libbanyan.so.0" "$libdir/libbanyan.so.$version" \
    "$libdir/libbanyan.so" "$libdir/libbanyan.a" "$libdir/pkgconfig/banyan.pc" "$libdir/cmake/banyan/banyanConfig.cmake"; do
    [ -e "$prefix/$file" ] || { echo "not installed: $file"; exit 1; }
done
for page in man1/banyanctl.1 man1/banyan-llama.1 man3/banyan.3 man3/banyan_attend.3 man8/banyan-coordinator.8 man8/banyan-worker.8; do
    [ -s "$prefix/share/man/$page" ] || { echo "not installed: $page"; exit 1; }
done
for program in banyanctl banyan-coordinator banyan-worker; do # as shells look for them
    cmp <("$prefix/bin/banyanctl" completion bash) "$prefix/share/bash-completion/completions/$program"
    cmp <("$prefix/bin/banyanctl" completion fish) "$prefix/share/fish/vendor_completions.d/$program.fish"
done
cmp <("$prefix/bin/banyanctl" completion zsh) "$prefix/share/zsh/site-functions/_banyanctl"
named=$(for program in "$prefix"/bin/*; do "$program" --tables; done | grep -oE 'docs/[a-z]+/[a-z-]+\.md' || true
    grep -ohE 'docs/[a-z]+/[a-z-]+\.md' "$prefix"/share/banyan/prometheus/*.yaml "$prefix"/lib/systemd/system/* || true)
for page in $(sort -u <<<"$named"); do # that help, alerts and units name
    [ -s "$prefix/share/doc/banyan/$page" ] || { echo "named, and not installed: $page"; exit 1; }
done
[ -s "$prefix/share/doc/banyan/docs/LLAMA.md" ] || { echo "not installed: the page that banyan-llama --help names"; exit 1; }
[ -s "$prefix/share/doc/banyan/docs/operating/alerts.md" ] || { echo "no page of alerts is named"; exit 1; }
soname=$(readelf -d "$lib/libbanyan.so.$version" | sed -n 's/.*SONAME.*\[\(.*\)\]/\1/p')
[ "$soname" = libbanyan.so.0 ] || { echo "the soname is '$soname'"; exit 1; }
if readelf -d "$prefix"/bin/banyan{ctl,-coordinator,-worker} "$lib/libbanyan.so" | grep -E 'R(UN)?PATH'; then
    echo "something installed looks for libraries in the build"
    exit 1
fi

# A module is looked for where modules are installed. This one is none, and the worker says which it was.
mkdir -p "$lib/banyan"
touch "$lib/banyan/banyan-none.so"
said=$("$prefix/bin/banyan-worker" --coordinator "unix://$dir/c.sock" --secret-file "$dir/secret" --device none:0 2>&1) && exit 1
grep -q "$libdir/banyan/banyan-none.so" <<<"$said" || { echo "the module was not found: $said"; exit 1; }

"$(dirname "${BASH_SOURCE[0]}")/../llama/installed.sh" "$prefix" "$lib" "$version"

"$prefix/bin/banyan-coordinator" --listen "unix://$dir/c.sock" --secret-file "$dir/secret" --store :memory: >"$dir/coordinator.log" 2>&1 &
pids+=($!)
"$prefix/bin/banyan-worker" --coordinator "unix://$dir/c.sock" --secret-file "$dir/secret" --memory 64M --device cpu --bandwidth 1G \
    --ready-file "$dir/ready" >"$dir/worker.log" 2>&1 &
pids+=($!)
for _ in $(seq 600); do [ -e "$dir/ready" ] && break || sleep 0.1; done
export BANYAN_ENDPOINT=unix://$dir/c.sock
"$prefix/bin/banyanctl" ping >"$dir/ctl.log"

export PKG_CONFIG_PATH=$lib/pkgconfig
[ "$(pkg-config --modversion banyan)" = "$version" ]
"$cc" -Wall -Werror "$hello" -o "$dir/shared" $(pkg-config --cflags --libs banyan)
LD_LIBRARY_PATH=$lib "$dir/shared" >"$dir/shared.out"
"$cc" -Wall -Werror "$hello" -o "$dir/static" $(pkg-config --cflags banyan) "$lib/libbanyan.a" \
    $(pkg-config --static --libs banyan | sed 's/ *-lbanyan\b//')
"$dir/static" >"$dir/static.out"

mkdir "$dir/project"
cat >"$dir/project/CMakeLists.txt" <<END
cmake_minimum_required(VERSION 3.25)
project(hello LANGUAGES C)
find_package(banyan ${version%.*} REQUIRED)
add_executable(hello "$hello")
target_link_libraries(hello PRIVATE banyan::banyan)
END
"$cmake" -S "$dir/project" -B "$dir/project/build" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_C_COMPILER="$cc" >"$dir/project.log"
"$cmake" --build "$dir/project/build" >>"$dir/project.log"
"$dir/project/build/hello" >"$dir/cmake.out"

grep -q '^1025 tokens' "$dir/shared.out"
cmp "$dir/shared.out" "$dir/static.out"
cmp "$dir/shared.out" "$dir/cmake.out"
