# SPDX-License-Identifier: Apache-2.0
# Part of tests/gpu.sh: the parts. Each calls run, pass, fail, skip, word, figure, lines and text (run.sh), in any order.
# shellcheck shell=bash

device='' capability='' mig='' compute_mode=''
version=$(cat "$here/gpu/version" 2>/dev/null || git -C "$root" describe --always --dirty 2>/dev/null || echo unknown)

# Sets cuda_module, nccl_module, nccl_library, daemons: a folder with bin/ and lib/ whose workers find the device's module.
find_modules() {
    local kind=${emulated:+-emulated} file
    cuda_module=$(first_of "$from"/lib/{,banyan/}"banyan-cuda$kind.so")
    emulated_module=$(first_of "$from"/lib/{,banyan/}banyan-cuda-emulated.so)
    nccl_module=$(first_of "$from"/lib/{,banyan/}"banyan-nccl$kind.so")
    if [ -n "$emulated" ]; then
        nccl_library=$(first_of "$from/lib/libbanyan-emulated-nccl.so")
    else
        nccl_library=${BANYAN_NCCL_LIBRARY:-$(first_of "$from/lib/libnccl.so.2")}
    fi
    [ -n "$cuda_module" ] || die 3 "there is no banyan-cuda$kind.so in $from/lib: this was built without $([ -n "$emulated" ] && echo "a C++ compiler" || echo nvcc); see docs/GPU.md"
    [ -x "$from/bench/device" ] || die 3 "there is no $from/bench/device: build it (cmake --build --preset release)"
    daemons=$from
    if [ -n "$emulated" ]; then # beside a worker of its own the emulated module has the real one's name
        daemons=$work/emulated
        mkdir -p "$daemons/bin" "$daemons/lib/banyan"
        ln -s "$from"/bin/* "$daemons/bin/"
        for file in "$from"/lib/*.so* "$from"/lib/banyan/*.so*; do
            [ ! -f "$file" ] || ln -sf "$file" "$daemons${file#"$from"}"
        done
        rm "$daemons/bin/banyan-worker" && cp "$from/bin/banyan-worker" "$daemons/bin/"
        file=$daemons${cuda_module#"$from"}
        ln -sf "$cuda_module" "${file%-emulated.so}.so"
    fi
    export BANYAN_BUILD_DIR=$daemons BANYAN_SOURCE_DIR=$root
}

first_of() { # FILE...: the first that is there
    local file
    for file in "$@"; do
        if [ -e "$file" ]; then
            echo "$file"
            return
        fi
    done
}

tool_of() { # NAME: of CUDA's toolkit
    PATH=$PATH:${CUDA_HOME:-/usr/local/cuda}/bin:/usr/local/cuda/compute-sanitizer command -v "$1"
}

bench() { # SECONDS NAME ARGUMENT...: bench/device; the emulated one takes small things alone
    local small_ones=()
    if [ -n "$emulated" ]; then small_ones=(--kv-heads 2 --rotate 1M --samples 2); fi
    if [ -n "$small" ]; then small_ones+=(--samples 1); fi
    if [ -n "$emulated" ] && [ -n "$small" ]; then small_ones+=(--kv-heads 1 --rotate 64K); fi
    run "$1" "$2" "$from/bench/device" --module "$cuda_module" --json --check "${small_ones[@]}" "${@:3}"
}

# ---- 1
part_machine() {
    local one
    figure system "$(sed -n 's/^PRETTY_NAME="\?\([^"]*\)"\?$/\1/p' /etc/os-release 2>/dev/null | sed -n 1p)"
    figure kernel "$(uname -r)"
    figure glibc "$(getconf GNU_LIBC_VERSION 2>/dev/null)"
    figure processor "$(sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo | sed -n 1p)"
    figure processors "$(nproc)"
    figure memory_kib "$(sed -n 's/^MemTotal: *\([0-9]*\).*/\1/p' /proc/meminfo)"
    [ -z "$emulated" ] || figure driver "none: the device is emulated"
    [ -n "$emulated" ] || ask_driver
    # The probe: the driver, the runtime that is linked in, the module, and one answer
    if bench 25 probe --kv bf16 --context 16 --group 1 --rows 1 --dim 64 --samples 1; then
        device=$(sed -n 's/.*"device": "[^ ]* (\([^"]*\))".*/\1/p' "$out_file" | sed -n 1p)
        one=$(sed -n 's/.*"kernel": "\([^"]*\)".*/\1/p' "$out_file" | sed -n 1p)
        figure device "$device"
        figure kernels "$one"
        lines "$out_file"
        pass "a first answer is right"
        word "$device, $one"
        [[ $device != *" MIG "* || $mig == *Enabled* ]] || word "MIG is on: every figure is of a slice of the card"
    elif [ "$code" -eq 1 ] && grep -qE 'no CUDA device|compute capability' "$err_file"; then
        one=$(no_device "$(sed -n 's/^device: [^ ]*: //p' "$err_file" | sed -n 1p)")
        echo "$one" >"$work/no-device"
        skip "$one"
    else
        fail "$why"
    fi
    # What else is needed of the card, where there is no nvidia-smi
    [ -n "$capability" ] || capability=$(printf '%s' "$one" | sed -n 's/.*-sm_\([0-9]*\)\([0-9]\)$/ \1.\2/p')
}

# BANYAN_GPU_DRIVER, for tests: another file in the place of the kernel's, which is there while the driver is loaded.
driver_file=${BANYAN_GPU_DRIVER:-/proc/driver/nvidia/version}

no_device() { # WHAT THE MODULE SAYS: what somebody who is at the machine can do about it
    local said=${1#no CUDA device: }
    case $1 in
    *"the driver supports CUDA"* | *"compute capability"*) echo "no GPU can be used here: $said" ;;
    *insufficient*) # of the driver's library, which is found by its name
        if [ -e "$driver_file" ]; then
            echo "the NVIDIA driver is loaded, but its library libcuda.so.1 is not found: start the container with its GPUs (--gpus all), or install the driver's libraries"
        else
            echo "there is no NVIDIA driver on this machine: install it and load it (nvidia-smi shows the cards), or try --emulated"
        fi
        ;;
    *)
        if [[ $mig == *Enabled* ]]; then said+="; MIG is on: there must be an instance (nvidia-smi -L), and CUDA_VISIBLE_DEVICES must not hide it"; fi
        [ -z "${CUDA_VISIBLE_DEVICES+set}" ] || said+="; CUDA_VISIBLE_DEVICES is '$CUDA_VISIBLE_DEVICES'"
        echo "no GPU can be used here: $said"
        ;;
    esac
}

ask_driver() {
    export CUDA_DEVICE_ORDER=PCI_BUS_ID # nvidia-smi's first card is cuda:0
    local keys=driver_version,name,uuid,compute_cap,memory.total,mig.mode.current,persistence_mode,ecc.mode.current,power.limit keys2 key value used
    keys2=clocks.current.sm,clocks.current.memory,clocks.max.sm,clocks.max.memory,pcie.link.gen.current,pcie.link.width.current,temperature.gpu
    keys2+=,memory.used,utilization.gpu,compute_mode
    if ! command -v nvidia-smi >/dev/null; then
        figure driver "$(sed -n 's/^NVRM version: *//p' "$driver_file" 2>/dev/null)"
        skip "nvidia-smi is not here: no clocks, no MIG"
        return
    fi
    local one_card=()
    if [[ ${CUDA_VISIBLE_DEVICES:-} =~ ^([0-9]+|GPU-[^,]*) ]]; then one_card=(-i "${BASH_REMATCH[1]}"); fi
    if ! run 10 nvidia-smi nvidia-smi "${one_card[@]}" --query-gpu="$keys,$keys2" --format=csv,noheader,nounits; then
        skip "$why"
        return
    fi
    IFS=, read -ra values <"$out_file"
    IFS=, read -ra keys <<<"$keys,$keys2"
    for key in "${!keys[@]}"; do
        value=${values[key]:-}
        figure "${keys[key]}" "${value# }"
    done
    capability=${values[3]:-} mig=${values[5]:-} compute_mode=${values[18]:-}
    figure cards "$(grep -c . "$out_file")"
    word "driver${values[0]:+ ${values[0]}}, MIG${values[5]:-?}, clocks of${values[9]:- ?} (most${values[11]:- ?}) and${values[10]:- ?} MHz"
    [[ $mig != *Enabled* ]] || word "MIG is on: every figure is of a slice of the card"
    used=${values[16]:-}
    if [[ ${used# } =~ ^[0-9]+$ && ${used# } -ge 1024 ]]; then word "others use this card:$used MiB are taken, figures may be theirs"; fi
    text <<TEXT
Driver ${values[0]:-?}, compute capability${values[3]:- ?},${values[4]:- ?} MiB (of them${used:- ?} taken), MIG${values[5]:- ?}, power limit${values[8]:- ?} W, clocks
of multiprocessors${values[9]:- ?} of${values[11]:- ?} MHz, of memory${values[10]:- ?} of${values[12]:- ?} MHz (when it began).
TEXT
}

# ---- 2
suite() { # SECONDS NAME MODULE PART
    run "$1" "$2" "$from/bin/cuda_device_test" "$3" "$4"
    judge "$2"
}

# Lines "type o lse" of what a suite has printed, of the types that it has tested.
worst() { sed -n 's/^\([a-z0-9]*\) *o within \([0-9.]*\), lse within \([0-9.]*\) of the bound (..*).*/\1 \2 \3/p' "$1"; }

part_numbers() {
    local type o lse most=0 first second beside
    suite 25 life "$cuda_module" life
    if [ -n "$small" ]; then
        skip "numbers: left out with --small"
        worst "$dir/life.out" >"$dir/first"
    else
        suite 45 numbers "$cuda_module" numbers
        worst "$out_file" >"$dir/first"
        suite 45 numbers_again "$cuda_module" numbers
        worst "$out_file" >"$dir/again"
        # Bits are promised to repeat on one device; and so do the worst errors
        if [ -s "$dir/first" ] && [ -s "$dir/again" ] && ! cmp -s "$dir/first" "$dir/again"; then
            fail "the largest errors are others the second time: bits do not repeat"
        fi
        suite 45 latents "$cuda_module" latents
    fi
    if [ -z "$emulated" ] && [ -z "$small" ] && [ -n "$emulated_module" ] && run 45 emulated "$from/bin/cuda_device_test" "$emulated_module" numbers; then
        worst "$out_file" >"$dir/beside"
    fi
    {
        echo 'Largest errors against float64, as fractions of what is promised (o, lse; twice, and over the emulation):'
        echo
        echo '| KV type | first | again | emulated |'
        echo '|---|---|---|---|'
    } >"$dir/table"
    while read -r type o lse; do
        figure "$type" "$o"
        figure "${type}_lse" "$lse"
        most=$(awk -v a="$most" -v b="$o" -v c="$lse" 'BEGIN { print (a >= b && a >= c) ? a : (b >= c ? b : c) }')
        first="$o, $lse"
        second=$(sed -n "s/^$type \(.*\) \(.*\)/\1, \2/p" "$dir/again" 2>/dev/null)
        beside=$(sed -n "s/^$type \(.*\) \(.*\)/\1, \2/p" "$dir/beside" 2>/dev/null)
        echo "| $type | $first | ${second:--} | ${beside:--} |" >>"$dir/table"
    done <"$dir/first"
    if [ -s "$dir/first" ]; then
        text <"$dir/table"
        word "largest error $most of what is promised"
    fi
}

# ---- 3
part_bandwidth() {
    local contexts=4K,8K,16K,32K,64K,128K,256K,512K speed fixed late keys ratio
    if [ -n "$emulated" ]; then contexts=64,256,512; fi
    if [ -n "$small" ]; then contexts=${contexts%,*}; fi
    bench 85 bandwidth --kv bf16 --context "$contexts" --group 4 --rows 1 ${emulated:+--dim 64}
    judge bandwidth
    lines "$out_file" # also what came before it was stopped
    [ -s "$dir/lines.jsonl" ] || return 0
    read -r speed keys ratio <<<"$(awk -v table=best -f "$here/gpu/figures.awk" "$dir/lines.jsonl")"
    figure best_gb_per_s "$speed"
    figure best_of_copy "$ratio"
    word "up to $speed GB/s, $ratio of a copy, at $keys keys"
    read -r speed fixed late <<<"$(awk -v table=fit -f "$here/gpu/figures.awk" "$dir/lines.jsonl")"
    if [ -n "$late" ]; then
        figure slope_gb_per_s "$speed"
        figure fixed_us "$fixed"
        figure waiter_us "$late"
        word "a step costs $fixed us and then $speed GB/s; its answer comes $late us later when alone"
    fi
    { echo 'One row, four queries a KV head:' && echo; awk -v table=device -f "$here/gpu/figures.awk" "$dir/lines.jsonl"; } | text
    echo "
Over all sizes: ${fixed:-?} µs + bytes / ${speed:-?} GB/s a step; \`done\` comes ${late:-?} µs after (median)." | text
}

# ---- 4
part_occupancy() {
    local ncu metrics=sm__warps_active.avg.pct_of_peak_sustained_active,dram__throughput.avg.pct_of_peak_sustained_elapsed
    if [ -n "$emulated" ]; then
        skip "the device is emulated"
        return
    fi
    if ! ncu=$(tool_of ncu); then
        skip "ncu is not here (it comes with CUDA's toolkit, in nsight-compute)"
        return
    fi
    metrics+=,dram__bytes_read.sum.per_second,gpu__time_duration.sum,launch__registers_per_thread,launch__occupancy_limit_shared_mem
    if ! run 42 ncu "$ncu" --csv --metrics "$metrics" --launch-count 6 "$from/bench/device" --module "$cuda_module" --kv bf16 --context 128K \
        --group 4 --rows 1 --samples 1 --json; then
        if grep -q ERR_NVGPUCTRPERM "$out_file" "$err_file"; then
            skip "ncu may not read the counters: run as root, or have the driver allow it (NVreg_RestrictProfilingToAdminUsers=0)"
        else
            fail "$why"
        fi
        return
    fi
    # "ID",...,"Kernel Name",...,"Metric Name","Metric Unit","Metric Value": quoted, the values with commas in them
    awk -F '","' '
        /"Metric Name"/ { for (i = 1; i <= NF; i++) { gsub(/"/, "", $i); at[$i] = i }; next }
        at["Metric Name"] && NF >= at["Metric Value"] {
            value = $(at["Metric Value"]); gsub(/[",]/, "", value)
            kernel = $(at["Kernel Name"]); sub(/[(<].*/, "", kernel)
            print kernel "\t" $(at["Metric Name"]) "\t" $(at["Metric Unit"]) "\t" value
        }' "$out_file" >"$dir/metrics"
    if [ ! -s "$dir/metrics" ]; then
        fail "ncu has printed no figure"
        return
    fi
    pass ncu
    figure metrics "$(cat "$dir/metrics")"
    word "warps active: $(sed -n 's/^.*tile_kernel.*warps_active[^\t]*\t[^\t]*\t//p' "$dir/metrics" | sed -n 1p) %, memory: $(sed -n 's/^.*tile_kernel.*dram__throughput[^\t]*\t[^\t]*\t//p' "$dir/metrics" | sed -n 1p) % of its peak"
    { printf '| kernel | metric | unit | value |\n|---|---|---|---|\n'; sed 's/\t/ | /g; s/^/| /; s/$/ |/' "$dir/metrics"; } | text
}

# ---- 5
shape() { # NAME ARGUMENT...
    bench 40 "$1" "${@:2}"
    lines "$out_file"
    judge "$1"
}

part_shapes() {
    local most=128K some=8K batch=64 groups=16,128 small_dim=() kv
    if [ -n "$emulated" ]; then most=100 some=40 batch=4 groups=16 small_dim=(--dim 64); fi
    if [ -n "$emulated" ] && [ -n "$small" ]; then most=40; fi
    for kv in int8 fp8 f32; do shape "$kv" --kv $kv --context $most --group 4 --rows 1 "${small_dim[@]}"; done
    shape 16_pairs --kv bf16 --context $most --group 16 --rows 1 "${small_dim[@]}"
    if [ -z "$small" ]; then
        shape 64_rows --kv bf16 --context $most --group 4 --rows 64 "${small_dim[@]}"
        if [ -n "$emulated" ]; then export BANYAN_EMULATED_CAPABILITY=90; fi
        # Compute capability 9.0 alone; elsewhere the same again
        BANYAN_CUDA_WGMMA=1 shape 64_rows_wgmma --kv bf16 --context $most --group 4 --rows 64 "${small_dim[@]}"
        unset BANYAN_EMULATED_CAPABILITY
    fi
    shape batch --kv bf16 --context $some --group 4 --rows 1 --batch $batch "${small_dim[@]}"
    [ -n "$small" ] || shape 256_dims --kv bf16 --context $most --group 4 --rows 1 --dim 256
    if [[ $("$from/bench/device" --help 2>/dev/null) == *--v-in-k* ]]; then
        # The last options win: one KV head, whatever stood before
        shape mla --kv bf16,f16 --context $most --group $groups --rows 1 --dim 576 --v-in-k 512 --kv-heads 1
    else
        skip "mla: bench/device of this version has no --v-in-k"
    fi
    [ ! -s "$dir/lines.jsonl" ] || word "$(grep -c . "$dir/lines.jsonl") shapes are right"
    awk -v table=device -f "$here/gpu/figures.awk" "$dir/lines.jsonl" | text
}

# ---- 6
part_peers() {
    local python=${PYTHON:-python3} peers
    peers=$(first_of "$from/bench/device_peers.py" "$root/bench/device_peers.py")
    if [ -n "$emulated" ]; then
        skip "the device is emulated"
        return
    fi
    if ! command -v "$python" >/dev/null || ! run 30 torch "$python" -c 'import torch; assert torch.cuda.is_available(), "PyTorch sees no GPU"; print(torch.__version__)'; then
        skip "no PyTorch that sees this GPU in ${PYTHON:-python3} (PYTHON names another)"
        return
    fi
    figure torch "$(cat "$out_file")"
    run 75 peers "$python" -B "$peers" --json --check --kv bf16 --context 4K,16K,64K,128K,256K --group 4 --rows 1 --samples 5
    judge peers
    lines "$out_file"
    if [ "$code" -eq 0 ] && [ ! -s "$dir/lines.jsonl" ]; then fail "no peer has a figure: $(tail -n 1 "$err_file")"; fi
    cat "$work/part-3/lines.jsonl" "$dir/lines.jsonl" 2>/dev/null | awk -v table=peers -f "$here/gpu/figures.awk" >"$dir/table"
    [ "$(wc -l <"$dir/table")" -le 2 ] || text <"$dir/table"
    word "$(sed -n '3,$s/^| \([0-9]*\) |.*| \([0-9.]*\) × as fast |$/\1 keys: \2 x/p' "$dir/table" | paste -sd, | sed 's/,/, /g') as fast as the fastest peer"
}

# ---- 7
part_cluster() {
    local workers=4 tokens=4096 generate=64 rounds=500 milliseconds=500 only=(step_min step_min_stream step_32k) what
    if [ -n "$emulated" ]; then workers=2 tokens=256 generate=4 rounds=20 only=(step_min); fi
    if [ -n "$small" ]; then tokens=64 generate=2; fi
    if [[ $compute_mode == *Exclusive* ]]; then
        skip "the card takes one process at a time (compute mode${compute_mode}; nvidia-smi -c 0 makes it take several)"
        return
    fi
    run 60 model bash "$here/gpu/cluster.sh" "$from" "$daemons" "$root" $workers $tokens $generate
    judge model
    if [ "$code" -eq 0 ]; then
        word "$tokens tokens read and $generate generated over $workers workers on the device, checked against float64"
        tail -n 1 "$out_file" >"$dir/model.jsonl" && lines "$dir/model.jsonl"
    fi
    for what in "${only[@]}"; do
        run 25 "$what" "$from/bench/step_latency" --device cuda:0 --workers $workers --rounds $rounds --only "$what" --json
        judge "$what"
        lines "$out_file"
        [ "$code" -ne 0 ] || word "$what $(sed -n "s/.*\"what\": \"$what\".*\"p50_us\": \([0-9]*\).*/\1/p" "$out_file") us"
    done
    if [ -n "$emulated" ]; then # its workers take whole cores, and a busy coordinator takes them for silent
        skip "sessions: not over an emulated device"
    elif [ -z "$small" ]; then
        run 40 sessions "$from/bench/sessions" --workers $workers --milliseconds $milliseconds --json
        judge sessions
        lines "$out_file"
    fi
    awk -v table=service -f "$here/gpu/figures.awk" "$dir/lines.jsonl" | text
}

# ---- 8
part_sanitizer() {
    local sanitizer tool suite
    if [ -n "$emulated" ]; then
        skip "the device is emulated"
        return
    fi
    if ! sanitizer=$(tool_of compute-sanitizer); then
        skip "compute-sanitizer is not here (it comes with CUDA's toolkit)"
        return
    fi
    for suite in life numbers; do
        for tool in memcheck initcheck racecheck synccheck; do
            run 30 "${tool}_$suite" "$sanitizer" --tool $tool --error-exitcode 9 "$from/bin/cuda_device_test" "$cuda_module" $suite
            # It makes kernels slower by orders of magnitude: that there was no time for it does not count
            if [ "$code" -eq 124 ]; then skip "$why"; else judge "${tool}_$suite"; fi
        done
    done
    word "silent: ${passes[*]:-none}"
}

# ---- 9
part_ptx() {
    if [ -n "$emulated" ]; then
        skip "the device is emulated"
        return
    fi
    if [[ $capability =~ ^\ *8\. ]]; then
        skip "the module's PTX is for 9.0 and later, this card is$capability"
        return
    fi
    export CUDA_FORCE_PTX_JIT=1 CUDA_CACHE_PATH=$work/ptx
    suite 72 ptx "$cuda_module" numbers # the driver compiles for half a minute or more
    unset CUDA_FORCE_PTX_JIT CUDA_CACHE_PATH
    worst "$out_file" | while read -r type o lse; do printf '%s %s, ' "$type" "$o"; done >"$dir/worst"
    [ ! -s "$dir/worst" ] || word "largest errors of what is promised: $(sed 's/, $//' "$dir/worst")"
}

# ---- 10
part_nccl() {
    local formed
    if [ -z "$nccl_module" ]; then
        skip "there is no banyan-nccl.so in $from/lib: this was built without nccl.h"
        return
    fi
    if [ -n "$small" ]; then
        skip "left out with --small"
        return
    fi
    export BANYAN_NCCL_SHARE_GPU=1 NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1 NCCL_NVLS_ENABLE=0
    [ -z "$nccl_library" ] || export BANYAN_NCCL_LIBRARY=$nccl_library
    # Its plans are of 1, 2, 3, 4 and 7 of the ranks
    run 60 conformance "$from/bin/nccl_conformance" "$nccl_module" 7
    judge conformance
    formed=$(sed -n 's/.*communicator ready.* ranks=\([0-9]*\).*/\1/p' "$out_file" "$err_file" | sort -un | paste -sd, | sed 's/,/, /g')
    figure ranks "$formed"
    figure trials "$(grep -oh 'trial_[0-9].*' "$out_file" "$err_file" | tail -n 1)"
    [ -z "$formed" ] || word "communicators of $formed ranks on one card"
    run 60 e2e "$from/bin/nccl_e2e" "$cuda_module" "$nccl_module" gpu
    judge e2e
}
