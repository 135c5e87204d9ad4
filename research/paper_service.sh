#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Starts the service on the hosts of netcluster.sh, one worker a host, and runs research/paper_service on the first.
set -euo pipefail

usage() {
    cat <<'TEXT'
Usage: research/netcluster.sh [...] research/paper_service.sh [--build DIR] [--engine stream|mpi] [--per-node N]
           [--device cpu|cuda|cuda:N] [--device-module PATH] [--memory SIZE] [--] [options of paper_service]...

The coordinator and the client are on the first host, a worker with one compute thread on every host. Workers of a
node (--per-node, default 8, as netcluster.sh was told) are neighbours in the tree. With --engine mpi the workers
are started by mpirun. --device: what the workers compute with and hold keys and values in, --memory of each (default
cpu, 2G); with cuda the workers of a node share its devices out. --build is the build directory (default
build/release). Several sets of options of paper_service, with '+' between them, are run one after the other.
TEXT
}

build=build/release engine=stream per_node=8 device=cpu module='' memory=2G
while [ $# -gt 0 ]; do
    case $1 in
    --build) build=$2; shift 2 ;;
    --engine) engine=$2; shift 2 ;;
    --per-node) per_node=$2; shift 2 ;;
    --device) device=$2; shift 2 ;;
    --device-module) module=$(realpath "$2"); shift 2 ;;
    --memory) memory=$2; shift 2 ;;
    -h | --help) usage; exit 0 ;;
    --) shift; break ;;
    *) break ;;
    esac
done
if [ -z "${NETCLUSTER_AGENT-}" ]; then
    echo "paper_service.sh: runs under research/netcluster.sh; try --help" >&2
    exit 2
fi
build=$(realpath "$build")
read -r -a hosts <<<"$NETCLUSTER_HOSTS"
dir=$(mktemp -d "$NETCLUSTER_DIR/service.XXXXXX")
pids=()
stop() {
    trap - EXIT
    [ ${#pids[@]} -eq 0 ] || kill -TERM "${pids[@]}" 2>/dev/null || true
    wait || true
}
trap stop EXIT

wait_for() { # FILE
    for _ in $(seq 600); do
        [ -s "$1" ] && return 0
        sleep 0.1
    done
    echo "paper_service.sh: $1 was not written; logs:" >&2
    tail -n 5 "$dir"/*.log >&2
    return 1
}

(umask 077 && head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' >"$dir/secret" && echo >>"$dir/secret")
"$build/bin/banyan-coordinator" --listen "unix://$dir/c.sock,tcp://${hosts[0]}:7412" --insecure --store :memory: \
    --secret-file "$dir/secret" --ready-file "$dir/coordinator.ready" >"$dir/coordinator.log" 2>&1 &
pids+=($!)
wait_for "$dir/coordinator.ready"

wanted=$device
[ "$device" != cuda ] || wanted=auto # of the node's devices the one that the fewest have

# One worker: what it is called and where it listens follows from its number. Reports a speed, all the same, so
# that shards are equal.
cat >"$dir/worker" <<WORKER
#!/bin/sh
i=\$1; address=10.77.0.\$((i + 1))
exec "$build/bin/banyan-worker" --coordinator tcp://${hosts[0]}:7412 --name "\$(printf 'w%03d' "\$i")" \
    --host "\$(printf 'node%03d' \$((i / $per_node)))" --listen "tcp://\$address:7500" --edge-listen "tcp://\$address:7501" --insecure \
    --secret-file "$dir/secret" --ready-file "$dir/worker\$i.ready" --memory "$memory" --threads 1 --bind none --numa none --device "$wanted" \
    ${module:+--device-module "$module"} --bandwidth 2G --engine "$engine" >"$dir/worker\$i.log" 2>&1
WORKER
chmod +x "$dir/worker"
if [ "$engine" = mpi ]; then
    mpirun -np ${#hosts[@]} --enable-recovery sh -c "exec \"$dir/worker\" \$OMPI_COMM_WORLD_RANK" >"$dir/mpirun.log" 2>&1 &
    pids+=($!)
else
    for i in "${!hosts[@]}"; do
        # In sessions of their own, as mpirun has them: the kernel shares a machine out to sessions first
        setsid "$NETCLUSTER_AGENT" "${hosts[$i]}" "exec $dir/worker $i" &
        pids+=($!)
    done
fi
for i in "${!hosts[@]}"; do wait_for "$dir/worker$i.ready"; done
for i in "${!hosts[@]}"; do
    if ! grep -q " device=${device%%:*}" "$dir/worker$i.log"; then # 'auto' takes the processor where there is no device
        echo "paper_service.sh: --device $device: a worker has none" >&2
        grep -h "device=" "$dir/worker$i.log" >&2
        exit 1
    fi
done

status=0
while [ $status = 0 ]; do
    set_of=()
    more=no
    while [ $# -gt 0 ]; do
        if [ "$1" = + ]; then
            shift
            more=yes
            break
        fi
        set_of+=("$1")
        shift
    done
    "$build/research/paper_service" --endpoint "unix://$dir/c.sock" --engine "$engine" --device "$device" "${set_of[@]}" || status=$?
    [ "$more" = yes ] || break
done
[ $status = 0 ] || tail -n 3 "$dir"/*.log >&2
exit "$status"
