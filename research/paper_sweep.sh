#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Takes every sample of research/data/paper_emulated.jsonl.
set -euo pipefail

usage() {
    cat <<'TEXT'
Usage: research/paper_sweep.sh [--build DIR] [--wrap CMD] [--only NAME,...] >> research/data/paper_emulated.jsonl

Runs research/paper and the service on emulated clusters, in pieces of about a minute at most, and prints one JSON object
a line. --wrap CMD goes before each piece ('nice -n -19', or what keeps a machine quiet). Needs root, Open MPI, 8 GB of
free memory. Pieces:
  short, middle, long, ring, ring-long   16x128 on 2 nodes of 8, from 1 to 16,384 tokens a worker
  grouped, grouped-ring                  32/8x128
  workers                                2 nodes of 1, 2 and 4 hosts, 4,096 tokens a worker
  rates                                  other slow links: half to eight times the base
  node                                   one node of 8, fast links alone
  stream, stream-long, mpi, mpi-long     the whole service
  model                                  the service: a whole model's decode
  fit (only when named)                  the service on one node of 1 to 16: research/data/paper_fit.jsonl, for research/simulate
TEXT
}

build=build/release wrap='' only=short,middle,long,ring,ring-long,grouped,grouped-ring,workers,rates,node,stream,stream-long,mpi,mpi-long,model
while [ $# -gt 0 ]; do
    case $1 in
    --build) build=$2; shift 2 ;;
    --wrap) wrap=$2; shift 2 ;;
    --only) only=$2; shift 2 ;;
    -h | --help) usage; exit 0 ;;
    *) echo "paper_sweep: unknown argument '$1'; try --help" >&2; exit 2 ;;
    esac
done
here=$(dirname "$(realpath "$0")")
# A rank's share of memory is 44 GB/s / 16; NVLink : HBM and a network card : HBM of that
fast=369M slow=41M
own=tree,gather,allreduce1,allreduce3
library=tree-library,allreduce1-library,allreduce3-library

paper() { # NODES PER_NODE SLOW ARGUMENTS...
    local nodes=$1 per_node=$2 rate=$3
    shift 3
    $wrap "$here/netcluster.sh" --nodes "$nodes" --per-node "$per_node" --fast $fast --slow "$rate" -- mpirun -np $((nodes * per_node)) \
        "$build/research/paper" --json --samples --per-node "$per_node" "$@" || echo "paper_sweep: $*: failed" >&2
}

service() { # ENGINE ARGUMENTS...
    service_on 2 8 $slow "$@"
}

service_on() { # NODES PER_NODE SLOW ENGINE ARGUMENTS...
    local nodes=$1 per_node=$2 rate=$3 engine=$4
    shift 4
    $wrap "$here/netcluster.sh" --nodes "$nodes" --per-node "$per_node" --fast $fast --slow "$rate" -- "$here/paper_service.sh" --build "$build" --engine "$engine" -- "$@" ||
        echo "paper_sweep: $engine $*: failed" >&2
}

link() { awk -v m="${1%M}" 'BEGIN { printf "%.0f", m * 1e6 }'; }
s='--json --samples'

for piece in ${only//,/ }; do
    case $piece in
    short)
        paper 2 8 $slow --tokens 1,16,256 --algo $own,$library --seconds 2
        paper 2 8 $slow --tokens 1,16,256 --algo ring,ring-lean --seconds 4 --rounds 50 --floors --link-rate "$(link $slow)"
        ;;
    middle) paper 2 8 $slow --tokens 1024,4096 --algo $own,$library --seconds 3 ;;
    long) paper 2 8 $slow --tokens 16384 --algo $own --seconds 6 ;;
    ring)
        for algo in ring ring-lean; do
            paper 2 8 $slow --tokens 1024,4096 --algo $algo --rounds 3 --floors --link-rate "$(link $slow)"
        done
        ;;
    ring-long) paper 2 8 $slow --tokens 16384 --algo ring --rounds 1 --floors --link-rate "$(link $slow)" ;;
    grouped) paper 2 8 $slow --geometry 32/8x128 --tokens 1,256,1024,4096,16384 --algo $own --seconds 2 ;;
    grouped-ring)
        paper 2 8 $slow --geometry 32/8x128 --tokens 1,256,1024,4096 --algo ring --rounds 3 --floors --link-rate "$(link $slow)"
        paper 2 8 $slow --geometry 32/8x128 --tokens 16384 --algo ring --rounds 1 --floors --link-rate "$(link $slow)"
        ;;
    workers)
        for hosts in 1 2 4; do
            paper 2 $hosts $slow --tokens 4096 --algo tree,allreduce1,allreduce3,ring --seconds 3 --rounds 100 --floors --link-rate "$(link $slow)"
        done
        ;;
    rates)
        for rate in 20.5M 82M 164M 328M; do
            paper 2 8 $rate --tokens 2048 --algo tree,ring --seconds 3 --rounds 20 --floors --link-rate "$(link $rate)"
        done
        ;;
    node) paper 1 8 0 --tokens 1,4096 --algo $own,ring --seconds 3 --floors --link-rate "$(link $fast)" ;;
    stream) service stream $s --tokens 16 + $s --tokens 256 + $s --tokens 1024 + $s --tokens 4096 ;;
    stream-long) service stream $s --tokens 16384 --rounds 40 --seconds 8 ;;
    mpi) service mpi $s --tokens 16 + $s --tokens 256 + $s --tokens 1024 + $s --tokens 4096 ;;
    mpi-long) service mpi $s --tokens 16384 --rounds 40 --seconds 8 ;;
    model) for engine in stream mpi; do service $engine $s --model llama-3.1-8b --tokens 1024; done ;;
    fit) # half a gigabyte of keys and values in all, so that they come from memory
        s='--json --samples --rounds 100 --seconds 1'
        for hosts in 1 2 4 8 16; do
            service_on 1 $hosts 0 stream $s --tokens 64 --layers $((1024 / hosts)) + $s --tokens 256 --layers $((256 / hosts)) + \
                $s --tokens 1024 --layers $((64 / hosts)) + $s --tokens 4096 --layers $((16 / hosts))
        done
        ;;
    *) echo "paper_sweep: no piece '$piece'; try --help" >&2; exit 2 ;;
    esac
done
