#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A small cluster on one machine: hosts are network namespaces, grouped into nodes. Runs CMD on the first host.
# A host is what a GPU is in a cluster of them: it has a fast port within its node and a slow one of its own
# to all other nodes.
#
#     node 0 (bridge)                 spine (bridge)                 node 1 (bridge)
#       |-- eth0 [host 0] eth1 --------|      |-------- eth1 [host 8] eth0 --|
#       |-- eth0 [host 1] eth1 --------|      |-------- eth1 [host 9] eth0 --|
#      ...  fast, like NVLink      slow, like a network card of each GPU
#
# Every line is a veth pair with tc tbf at both ends. A host has one address; hosts of its own node are routed
# through eth0, all others through eth1. Everything lies in namespaces of its own: the machine's own network is
# not touched.
set -euo pipefail

usage() {
    cat <<'TEXT'
Usage: research/netcluster.sh [options] [--] CMD...

Runs CMD on the first of some hosts: network namespaces joined by veth pairs and bridges, with rates set by
tc tbf at two levels. mpirun starts ranks on them, one a host, without further options; anything else with
  $NETCLUSTER_AGENT ADDRESS COMMAND...      (an rsh for these hosts; $NETCLUSTER_HOSTS lists the addresses)
Needs root and iproute2. Takes everything down at the end, also when interrupted.

  --nodes N       nodes (default 2)
  --per-node N    hosts of a node (default 8); 250 hosts in all at most
  --fast RATE     of a host's port within its node, each way, bytes a second: 369M, 1.5G (default: not limited)
  --slow RATE     of a host's port to other nodes, each way (default: not limited)
  --mtu BYTES     of every link (default 9000)
  --burst BYTES   that pass a limited link at once after it was idle (default: what the rate brings in 200 us,
                  at least two packets): less, and the rate is not reached
  --clean         only remove what killed runs have left, then end
  --help          print this help

Ends with CMD's exit status; 2: wrong arguments, 77: not root or no namespaces here.
TEXT
}

die() { echo "netcluster: $2" >&2; exit "$1"; }

bytes_of() { # 369M -> 369000000
    local number=${1%[kMG]} unit=${1##*[0-9.]}
    [[ $number =~ ^[0-9]+(\.[0-9]+)?$ ]] || die 2 "'$1' is not a number of bytes; try research/netcluster.sh --help"
    awk -v n="$number" -v u="$unit" 'BEGIN { m["k"] = 1e3; m["M"] = 1e6; m["G"] = 1e9; m[""] = 1; printf "%.0f", n * m[u] }'
}

count_of() {
    [[ $2 =~ ^[0-9]+$ ]] && (($2 >= 1 && $2 <= $3)) || die 2 "$1: '$2' is not 1 to $3"
    echo "$2"
}

nodes=2 per_node=8 fast=0 slow=0 mtu=9000 burst=0 clean_only=no
while [ $# -gt 0 ]; do
    case $1 in
    --nodes) nodes=$(count_of "$1" "${2-}" 250); shift 2 ;;
    --per-node) per_node=$(count_of "$1" "${2-}" 250); shift 2 ;;
    --fast) fast=$(bytes_of "${2-}"); shift 2 ;;
    --slow) slow=$(bytes_of "${2-}"); shift 2 ;;
    --mtu) mtu=$(count_of "$1" "${2-}" 65000); shift 2 ;;
    --burst) burst=$(bytes_of "${2-}"); shift 2 ;;
    --clean) clean_only=yes; shift ;;
    -h | --help) usage; exit 0 ;;
    --) shift; break ;;
    -*) die 2 "unknown option '$1'; try research/netcluster.sh --help" ;;
    *) break ;;
    esac
done
hosts=$((nodes * per_node))
[ "$clean_only" = yes ] || [ $# -gt 0 ] || die 2 "no command; try research/netcluster.sh --help"
((hosts <= 250)) || die 2 "$hosts hosts: at most 250"
[ "$(id -u)" = 0 ] || die 77 "needs root: network namespaces and traffic control are the kernel's"
command -v ip >/dev/null && command -v tc >/dev/null || die 77 "needs ip and tc: apt-get install iproute2"

# Ends what runs in the namespaces of a prefix, then removes them. Links go with them.
remove() {
    local prefix=$1 ns pids
    for ns in $(ip netns list 2>/dev/null | awk -v p="$prefix-" 'index($1, p) == 1 { print $1 }'); do
        pids=$(ip netns pids "$ns" 2>/dev/null) || true
        [ -z "$pids" ] || kill -KILL $pids 2>/dev/null || true
    done
    for ns in $(ip netns list 2>/dev/null | awk -v p="$prefix-" 'index($1, p) == 1 { print $1 }'); do
        ip netns del "$ns" 2>/dev/null || true
    done
    rm -rf "/tmp/$prefix".??????
}

# A prefix is bnc<pid of its script>: what has no script any more was left by one that was killed.
for stale in $(ip netns list 2>/dev/null | sed -n 's/^\(bnc[0-9]*\)-.*/\1/p' | sort -u); do
    [ -d "/proc/${stale#bnc}" ] || remove "$stale"
done
[ "$clean_only" = no ] || exit 0

prefix=bnc$$
child=
finish() {
    local status=$?
    trap - EXIT INT TERM HUP
    trap '' INT TERM HUP
    if [ -n "$child" ]; then
        kill -TERM "$child" 2>/dev/null || true
        for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
            kill -0 "$child" 2>/dev/null || break
            sleep 0.1
        done
    fi
    remove "$prefix"
    exit "$status"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
trap 'exit 129' HUP

dir=$(mktemp -d "/tmp/$prefix.XXXXXX")
fabric=$prefix-fabric
ip netns add "$fabric" 2>"$dir/error" || die 77 "no network namespaces here: $(cat "$dir/error")"

limit() { # NAMESPACE DEVICE RATE
    [ "$3" != 0 ] || return 0
    local most=$burst
    [ "$most" != 0 ] || most=$(($3 / 5000))
    ((most >= 2 * mtu + 100)) || most=$((2 * mtu + 100))
    tc -n "$1" qdisc add dev "$2" root tbf rate "$(($3 * 8))bit" burst "${most}b" limit 4mb
}

in_fabric() { ip -n "$fabric" "$@"; }

# A line between a host and a bridge: NAMESPACE DEVICE BRIDGE DEVICE-AT-BRIDGE RATE
join() {
    in_fabric link add "$4" mtu "$mtu" type veth peer name "$2" mtu "$mtu" netns "$1"
    in_fabric link set "$4" master "$3" up
    ip -n "$1" link set "$2" up
    limit "$1" "$2" "$5"
    limit "$fabric" "$4" "$5"
}

bridge() {
    in_fabric link add "$1" type bridge
    in_fabric link set "$1" mtu "$mtu" up
}

bridge spine
addresses=()
for ((node = 0; node < nodes; node++)); do
    bridge "node$node"
    for ((i = 0; i < per_node; i++)); do
        host=$((node * per_node + i))
        ns=$prefix-$host
        ip netns add "$ns"
        ip -n "$ns" link set lo up
        join "$ns" eth0 "node$node" "fast$host" "$fast"
        ip -n "$ns" addr add "10.77.0.$((host + 1))/32" dev eth0
        for ((peer = node * per_node; peer < (node + 1) * per_node; peer++)); do
            echo "route add 10.77.0.$((peer + 1))/32 dev eth0 src 10.77.0.$((host + 1))"
        done >"$dir/routes"
        if [ "$nodes" -gt 1 ]; then
            join "$ns" eth1 spine "slow$host" "$slow"
            echo "route add 10.77.0.0/24 dev eth1 src 10.77.0.$((host + 1))" >>"$dir/routes"
        fi
        ip -n "$ns" -batch "$dir/routes"
        mkdir "$dir/tmp$host"
        addresses+=("10.77.0.$((host + 1))")
    done
done

# The rsh of these hosts: agent [-options] ADDRESS COMMAND..., the command going through a shell as rsh does it.
# Each host has a name and a /tmp of its own for the launcher's session files.
cat >"$dir/agent" <<AGENT
#!/bin/sh
while :; do case \$1 in -*) shift ;; *) break ;; esac; done
host=\$((\${1##*.} - 1))
shift
exec ip netns exec "$prefix-\$host" unshare --uts -- bash -c 'hostname "host\$0"; TMPDIR=$dir/tmp\$0; export TMPDIR; eval "\$*"' "\$host" "\$@"
AGENT
chmod +x "$dir/agent"
printf '%s slots=1\n' "${addresses[@]}" >"$dir/hostfile"

export NETCLUSTER_AGENT=$dir/agent NETCLUSTER_HOSTS="${addresses[*]}" NETCLUSTER_DIR=$dir
export BANYAN_NETCLUSTER="${nodes}x${per_node}, fast $fast, slow $slow bytes/s"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_plm_rsh_agent=$dir/agent OMPI_MCA_plm_rsh_no_tree_spawn=1 OMPI_MCA_orte_default_hostfile=$dir/hostfile
export OMPI_MCA_btl=tcp,self OMPI_MCA_pml=ob1 OMPI_MCA_btl_tcp_if_include=eth0 OMPI_MCA_oob_tcp_if_include=eth0
export OMPI_MCA_hwloc_base_binding_policy=none OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_mpi_yield_when_idle=1

printf -v command '%q ' "$@"
"$dir/agent" 10.77.0.1 "exec $command" &
child=$!
status=0
wait "$child" || status=$?
child=
exit "$status"
