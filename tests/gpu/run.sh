# SPDX-License-Identifier: Apache-2.0
# Part of tests/gpu.sh: a command under a time limit, and what a part says of itself.
# shellcheck shell=bash

#             name       limit, in seconds: of 540; kept: what the parts before it leave to a part at least
part_names=([1]=machine [2]=numbers [3]=bandwidth [4]=occupancy [5]=shapes [6]=peers [7]=cluster [8]=sanitizer [9]=ptx [10]=nccl)
part_limits=([1]=30 [2]=90 [3]=90 [4]=45 [5]=80 [6]=80 [7]=80 [8]=100 [9]=75 [10]=120)
part_kept=([9]=45 [10]=75)

# An emulated device takes its time, more where the machine is busy
patience=1
if [ -n "$emulated" ]; then patience=10; fi

running=      # the part's number
child=        # a process group's leader, while one runs
any_failed=
disk_full=    # where nothing can be written any more
complete=false
json=$out/gpu-$date.json
markdown=$out/gpu-$date.md

# Since 1970. BANYAN_GPU_HURRY=N, for tests: the clock is N times as fast from the script's start on, and so every limit.
now_ms() {
    local now=${EPOCHREALTIME//[!0-9]/}
    now=$((now / 1000))
    echo $((now + (now - 1000 * started_s) * (${BANYAN_GPU_HURRY:-1} - 1)))
}

# Of this part, never beyond the end of all; 1.5 s are left for writing.
left_ms() {
    local now end
    end=$(end_of "${running:-0}")
    now=$(now_ms)
    [ -z "$running" ] || [ "$part_end_ms" -gt "$end" ] || end=$part_end_ms
    echo $((end - now))
}

# When a part must have ended, whatever its limit: later ones that are asked for have time kept, less where all is shorter.
end_of() { # NUMBER
    local n end=$((end_ms - 1500))
    for n in "${!part_kept[@]}"; do
        if [ "$n" -gt "$1" ] && is_wanted "$n"; then
            end=$((end - 1000 * part_kept[n] * (minutes < 9 ? minutes : 9) / 9))
        fi
    done
    echo "$end"
}

is_wanted() { # NUMBER
    [ ${#wanted[@]} -eq 0 ] || [[ " ${wanted[*]} " == *" $1 "* ]]
}

# Can a few bytes be written in this folder? Small files alone tell: one that is empty takes no room.
has_room() { # FOLDER BYTES
    head -c "$2" /dev/zero 2>/dev/null >"$1/.room.$$"
    local status=$?
    rm -f "$1/.room.$$"
    return $status
}

# Ends the command that runs, and all that it has started. What cannot be ended (a process that waits in the driver) is left.
stop_child() {
    local i
    [ -n "$child" ] || return 0
    kill -TERM -- "-$child" 2>/dev/null
    for ((i = 0; i < 20; i++)); do
        kill -0 -- "-$child" 2>/dev/null || break
        sleep 0.05
    done
    kill -KILL -- "-$child" 2>/dev/null
    disown "$child" 2>/dev/null
    child=
}

# run SECONDS NAME COMMAND...: its output is $dir/NAME.out and NAME.err, its code is $code (124: it did not end in time; 125:
# its output could not be kept), and $why is a sentence on a code that is not 0. Succeeds where the code is 0.
run() {
    local limit_ms=$(($1 * 1000 * patience)) name=$2 left end
    shift 2
    left=$(left_ms)
    [ "$limit_ms" -le "$left" ] || limit_ms=$left
    out_file=$dir/$name.out err_file=$dir/$name.err code=124 why="$name: no time was left"
    : >"$out_file" && : >"$err_file"
    [ "$limit_ms" -gt 500 ] || return 1
    set -m # a process group of its own
    (
        "$@" >"$out_file" 2>"$err_file" </dev/null
        exit $?
    ) 2>/dev/null &
    child=$!
    set +m
    end=$(($(now_ms) + limit_ms))
    while kill -0 "$child" 2>/dev/null && [ "$(now_ms)" -lt "$end" ]; do sleep 0.05; done
    code=124
    if ! kill -0 "$child" 2>/dev/null; then
        wait "$child"
        code=$?
    fi
    stop_child
    if ! has_room "$work" 4096; then disk_full=$work code=125; fi
    why=
    case $code in
    0) return 0 ;;
    125) why="$name: what it said is lost: the disk of ${work%/*} is full" ;;
    124) why="$name did not end within $(((limit_ms + 999) / 1000)) s" ;;
    *)
        why=$(grep -v '^harness: the logs are' "$err_file" | tail -n 1)
        [ -n "$why" ] || why=$(tail -n 1 "$out_file")
        why="$name ended with $code${why:+: $(printf '%s' "$why" | tr '\t' ' ' | tr -d '\000-\037\177-\377')}"
        ;;
    esac
    return 1
}

# ---- what a part says; a sentence may hold any character

begin_part() { # NUMBER
    running=$1
    dir=$work/part-$running
    mkdir -p "$dir"
    part_start_ms=$(now_ms)
    part_end_ms=$((part_start_ms + 1000 * patience * part_limits[running]))
    failures=() skips=() passes=() words=() figures=()
    : >"$dir/lines.jsonl" && : >"$dir/text.md"
    printf '%2d %-10s ' "$running" "${part_names[$running]}"
}

fail() { failures+=("$1"); } # something is wrong
skip() { skips+=("$1"); }    # something cannot be had here
pass() { passes+=("$1"); }   # something is right
word() { words+=("$1"); }    # what a reader of the table wants to know
figure() {                   # KEY VALUE: a number, else a text
    local value=$2
    [[ $value =~ ^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?$ ]] || value=$(json_text "$value")
    figures+=("$(json_text "$1"): $value")
}
lines() { # FILE: lines of JSON
    awk -v json_only=1 -f "$here/gpu/figures.awk" "$1" >>"$dir/lines.jsonl"
}
text() { cat >>"$dir/text.md"; } # standard input, for the Markdown file

judge() { # NAME: of the command that has just run
    if [ "$code" -eq 0 ]; then pass "$1"; elif [ "$code" -eq 77 ]; then skip "$why"; else fail "$why"; fi
}

# A part has failed if anything in it has; it has passed if anything has passed, and else has not run.
end_part() {
    local result=passed reason='' seconds=$((($(now_ms) - part_start_ms + 50) / 100))
    seconds=$((seconds / 10)).$((seconds % 10))
    if [ ${#failures[@]} -gt 0 ]; then
        result=failed reason=$(joined "${failures[@]}" "${skips[@]}")
        any_failed=yes
    elif [ ${#passes[@]} -eq 0 ]; then
        result='not run' reason=$(joined "${skips[@]}")
    elif [ ${#skips[@]} -gt 0 ]; then
        reason=$(joined "${skips[@]}")
    fi
    write_part "$running" "$result" "$reason" "$seconds" "$(joined "${words[@]}")"
    printf '%-8s %6s s  %s\n' "$result" "$seconds" "$(shown "$(joined "${words[@]}")" "$reason")"
    running=
}

not_run() { # NUMBER WHY
    dir=$work/part-$1 figures=() passes=()
    write_part "$1" 'not run' "$2" 0 ''
    [ "$2" = "not asked for" ] || printf '%2d %-10s %-8s %6s s  %s\n' "$1" "${part_names[$1]}" 'not run' 0 "$2"
}

joined() { # TEXT...: with semicolons
    local all='' one
    for one in "$@"; do all+=${all:+; }$one; done
    printf '%s' "$all"
}

shown() { # WORDS REASON
    printf '%s' "$1${1:+${2:+ (}}$2${1:+${2:+)}}"
}
