# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2034,SC2154 # variables of package.sh and tar.sh
# What deploy/package.sh tar --tests adds: part of tar.sh. All of it is for tests/gpu.sh, which lies there, too.
#
#   bin/ bench/     the suites of devices and of NCCL, the example `generate`, benchmarks
#   lib/            the emulated CUDA runtime and NCCL; libnccl.so.2, where it is found, with machine code for $nccl_keep alone
#   examples/       the model and the text that the quickstart uses
# The name is not that of a format: no underscore is in one.
nccl_keep=80,90
most_bytes=$((60 << 20))
programs=(cuda_device_test nccl_conformance nccl_e2e generate)
benchmarks=(device step_latency sessions)
more_targets=("${programs[@]}" "${benchmarks[@]/#/bench_}" banyan_cuda_emulated banyan_nccl_emulated banyan_emulated_nccl)
need python3 python3
need strip binutils

install_more() {
    local obj=$work/obj file
    mkdir -p "$tree/lib/banyan" "$tree/bench" "$tree/tests/gpu" "$tree/examples/text" &&
        install -m 0755 "${programs[@]/#/$obj/bin/}" "$tree/bin/" &&
        install -m 0755 "${benchmarks[@]/#/$obj/bench/}" "$root/bench/device_peers.py" "$tree/bench/" &&
        install -m 0755 "$obj"/lib/libbanyan-emulated-*.so "$tree/lib/" &&
        install -m 0755 "$obj"/lib/banyan-*-emulated.so "$tree/lib/banyan/" &&
        install -m 0755 "$root/tests/gpu.sh" "$tree/tests/" &&
        install -m 0644 "$root"/tests/gpu/*.{sh,awk} "$tree/tests/gpu/" &&
        cp -r "$root/examples/model" "$tree/examples/" && cp "$root"/examples/text/{kjv.txt,ask} "$tree/examples/text/" &&
        cat "$root/deploy/package/tar_tests.README" >>"$tree/README" && echo "$version" >"$tree/tests/gpu/version" &&
        for file in "${programs[@]/#/$tree/bin/}" "${benchmarks[@]/#/$tree/bench/}" "$tree"/lib/libbanyan-emulated-*.so \
            "$tree"/lib/banyan/*-emulated.so; do
            strip --strip-unneeded "$file" || return
        done
}

# NCCL of the toolkit that the modules were compiled with, or the system's. It needs glibc alone.
find_nccl() {
    local include
    include=$(sed -n 's/^BANYAN_NCCL_INCLUDE:[A-Z]*=//p' "$work/obj/CMakeCache.txt")
    nccl=$(for folder in "${include%/*}"/lib "${include%/*}"/lib64 "/usr/lib/$(uname -m)-linux-gnu" /usr/lib64; do
        if [ -f "$folder/libnccl.so.2" ]; then readlink -f "$folder/libnccl.so.2" && break; fi
    done)
}

bring_more() {
    [ "$cuda" = on ] || return 0
    find_nccl
    if [ -z "$nccl" ]; then
        echo "package.sh: libnccl.so.2 was not found: tests/gpu.sh will look for it on the machine where it runs" >&2
        return 0
    fi
    python3 -B "$root/deploy/package/fatbin.py" "$nccl_keep" "$nccl" "$tree/lib/libnccl.so.2" >>"$work/log" ||
        die 1 "the machine code of $nccl could not be sorted; see $work/log"
    strip --strip-unneeded "$tree/lib/libnccl.so.2"
    chmod 0755 "$tree/lib/libnccl.so.2"
    echo "libnccl.so.2             NVIDIA's NCCL, BSD licence (https://github.com/NVIDIA/nccl), machine code for sm_${nccl_keep/,/, sm_} alone" \
        >>"$tree/share/doc/banyan/LIBRARIES"
    # Debian's, beside it, of a wheel in a folder of its own and of wheels that lie in one folder
    bring_nvidia_licence nccl /usr/share/doc/libnccl2/copyright "${nccl%/*/*}"/{LICENSE,License}.txt \
        "${nccl%/*/*}"/dist-info/nvidia_nccl_*/licenses/*.txt "${nccl%/*/*/*/*}"/nvidia_nccl_*.dist-info/licenses/*.txt
}

check_size() { # FILE
    [ "$(stat -c %s "$1")" -le $most_bytes ] || die 1 "$1 is larger than $((most_bytes >> 20)) MiB"
}
