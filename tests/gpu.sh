#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# All that is known about a GPU in one command, where a driver is and nothing else: correctness, speed, a whole cluster, NCCL.
# Needs bash and coreutils, awk, sed. docs/GPU.md says how to read what it writes.
#
#   tests/gpu/run.sh       a command under a time limit, and what a part says of itself
#   tests/gpu/parts.sh     the parts, in order
#   tests/gpu/cluster.sh   a coordinator and workers on the device, and the quickstart's model over them
#   tests/gpu/report.sh    the two files and the table
#   tests/gpu/figures.awk  figures out of lines of JSON
set -uo pipefail
export LC_ALL=C
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=${here%/*}

usage() {
    cat <<'TEXT'
Usage: tests/gpu.sh [--minutes=N] [--part=N]... [--emulated] [--small] [--from=DIR] [--out=DIR]

Tests and measures Banyan on the first GPU of this machine, the shortest and most informative parts first. Each part has
a time limit of its own, so a hang ends only that part. Writes gpu-DATE.json (everything) and gpu-DATE.md (a report)
after each part, so that they are complete even if the machine goes away, and prints a table at the end.

  1 machine    driver, clocks, MIG, runtime          6 peers      PyTorch's backends, in the same run
  2 numbers    answers against float64, twice        7 cluster    workers on the device, from model to answer
  3 bandwidth  4 k to 512 k keys: GB/s, fixed cost   8 sanitizer  compute-sanitizer's four tools
  4 occupancy  the kernels according to ncu          9 ptx        code that the driver compiles itself
  5 shapes     other types, rows, batches, dims     10 nccl       several ranks on this one card

Options:
  --minutes=N   time limit (default 9, 1 to 120)
  --part=N      only this part and part 1; may be repeated
  --emulated    use an emulated device, without a GPU, to check that everything works. Its figures are not speeds
  --small       fewer and smaller measurements: a minute with --emulated
  --from=DIR    folder with bin/, lib/ and bench/ (default: where this was unpacked, else build/release)
  --out=DIR     folder for the files (default: the current one)
  --help        Print this help and exit.

Parts 4, 6 and 8 need ncu, a Python with PyTorch ($PYTHON or python3) and compute-sanitizer, and say so where these are
not. NCCL is $BANYAN_NCCL_LIBRARY, else the libnccl.so.2 beside the modules, else the system's.
CUDA_VISIBLE_DEVICES selects another card than the first.
Exit codes: 0 every part that could run passed; 1 a part failed, or the files could not be written; 2 usage error;
3 nothing was tested: no device, no disk space, or programs are missing; 130, 143 interrupted, terminated.
TEXT
}

die() { # CODE TEXT...
    echo "gpu.sh: ${*:2}" >&2
    exit "$1"
}

minutes=9 from='' out=. emulated='' small=''
wanted=()
take() { # OPTION VALUE
    case $1 in
    --minutes)
        [[ $2 =~ ^[1-9][0-9]{0,2}$ && $2 -le 120 ]] || die 2 "--minutes: '$2' is not a number from 1 to 120"
        minutes=$2
        ;;
    --part)
        [[ $2 =~ ^([1-9]|10)$ ]] || die 2 "--part: '$2' is not a part: 1 to 10; see tests/gpu.sh --help"
        wanted+=("$2")
        ;;
    --from)
        [ -d "$2" ] || die 2 "--from: there is no folder $2"
        from=$(cd "$2" && pwd)
        ;;
    --out) out=$2 ;;
    esac
}
while [ $# -gt 0 ]; do
    case $1 in
    --minutes=* | --part=* | --from=* | --out=*) take "${1%%=*}" "${1#*=}" ;;
    --minutes | --part | --from | --out)
        [ $# -ge 2 ] || die 2 "$1 needs a value; see tests/gpu.sh --help"
        take "$1" "$2"
        shift
        ;;
    --emulated) emulated=yes ;;
    --small) small=yes ;;
    -h | --help)
        usage
        exit 0
        ;;
    *) die 2 "unknown option '$1'; see tests/gpu.sh --help" ;;
    esac
    shift
done

[[ ${BASH_VERSINFO[0]} -ge 5 ]] || die 3 "bash $BASH_VERSION is too old: 5.0 or later"
for tool in awk sed grep mktemp sort; do
    command -v "$tool" >/dev/null || die 3 "$tool is not on this machine"
done
# Where it was unpacked, or in the source tree
if [ -z "$from" ]; then
    from=$root
    [ -x "$root/bin/cuda_device_test" ] || from=$root/build/release
fi
[ -x "$from/bin/cuda_device_test" ] || die 3 "there is no $from/bin/cuda_device_test: build it (cmake --preset release && cmake --build --preset release), or unpack what deploy/package.sh tar --tests makes"
mkdir -p "$out" 2>/dev/null || die 2 "--out: cannot make the folder $out"
[ -w "$out" ] || die 2 "--out: cannot write to $out"
out=$(cd "$out" && pwd)

started_s=$EPOCHSECONDS
date=$(date -u -d "@$started_s" +%Y-%m-%dT%H-%M-%SZ)
end_ms=$(((started_s + 60 * minutes) * 1000))
work=$(mktemp -d "${TMPDIR:-/tmp}/banyan-gpu.XXXXXX") || die 3 "cannot make a folder in ${TMPDIR:-/tmp} (TMPDIR names another)"

# shellcheck source=tests/gpu/run.sh
. "$here/gpu/run.sh"
# shellcheck source=tests/gpu/report.sh
. "$here/gpu/report.sh"
# shellcheck source=tests/gpu/parts.sh
. "$here/gpu/parts.sh"

leave() { # CODE
    trap - EXIT INT TERM HUP
    stop_child
    rm -rf "$work"
    exit "$1"
}
interrupted() { # CODE
    trap '' INT TERM HUP
    stop_child
    if [ -n "$running" ]; then
        fail "interrupted"
        end_part
    fi
    if [ -e "$json" ]; then
        write_files
        if [ -z "$unwritten" ]; then
            echo "gpu.sh: interrupted; the results so far are in $json" >&2
        else
            echo "gpu.sh: interrupted; $unwritten could not be written: is the disk full?" >&2
        fi
    fi
    leave "$1"
}
trap 'leave $?' EXIT
trap 'interrupted 130' INT
trap 'interrupted 143' TERM HUP
trap : PIPE # the reader of the output (tee) may end; the files are written all the same

for folder in "$work" "$out"; do
    has_room "$folder" $((4 << 20)) || die 3 "the disk of ${folder%/banyan-gpu.*} is full: 4 MiB are needed (--out and TMPDIR name other folders)"
done
find_modules
begin_part 1
part_machine
if [ -s "$work/no-device" ]; then
    echo # after the part's name
    printf 'gpu.sh: %s\n' "$(cat "$work/no-device")" >&2
    leave 3
fi
end_part
write_files
for n in "${!part_names[@]}"; do
    [ "$n" -ne 1 ] || continue
    if ! is_wanted "$n"; then
        not_run "$n" "not asked for"
        continue
    fi
    if [ -n "$disk_full" ]; then
        not_run "$n" "the disk of ${disk_full%/*} is full"
        continue
    fi
    if [ $(($(end_of "$n") - $(now_ms))) -lt 2000 ]; then
        not_run "$n" "no time was left: $minutes minutes are used up, or kept for later parts"
        continue
    fi
    begin_part "$n"
    "part_${part_names[$n]}"
    end_part
    write_files
done
complete=true
write_files
print_table
if [ -n "$unwritten" ]; then
    echo "gpu.sh: $unwritten could not be written: is the disk full? The results so far are above" >&2
    any_failed=yes
fi
[ -z "$any_failed" ]
leave $?
