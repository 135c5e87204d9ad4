# SPDX-License-Identifier: Apache-2.0
# Part of tests/gpu.sh: the two files and the table. A file is replaced as a whole, and never half written.
# shellcheck shell=bash

# {"format": 1, "date", "version", "emulated", "small", "minutes", "complete": all parts had their turn,
#  "parts": [{"part", "name", "result": "passed"|"failed"|"not run", "why", "seconds", "words", "passed": [...],
#             "figures": {...}, "lines": [what the benchmarks printed], "output": the end of it where it failed}]}

json_text() { # TEXT: as a JSON string
    local s=$1
    s=${s//\\/\\\\}
    s=${s//\"/\\\"}
    s=${s//$'\n'/\\n}
    s=${s//$'\t'/ }
    s=$(printf '%s' "$s" | tr -d '\000-\037\177-\377')
    printf '"%s"' "$s"
}

json_list() { # TEXT...: of JSON strings
    local all='' one
    for one in "$@"; do all+=${all:+, }$(json_text "$one"); done
    printf '[%s]' "$all"
}

# What will be written, by the part's number: in memory, so that a disk that is full takes nothing away.
part_json=() part_row=() part_md=()

write_part() { # NUMBER RESULT WHY SECONDS WORDS
    local all='' one output=
    for one in "${figures[@]}"; do all+=${all:+, }$one; done
    if [ "$2" = failed ]; then
        output=$(cd "$dir" && tail -n 12 -- *.out *.err 2>/dev/null | tail -c 6000)
    fi
    part_json[$1]=$(
        printf '{"part": %d, "name": "%s", "result": "%s", "why": %s, "seconds": %s, "words": %s, "passed": %s,\n  "figures": {%s},\n' \
            "$1" "${part_names[$1]}" "$2" "$(json_text "$3")" "$4" "$(json_text "$5")" "$(json_list "${passes[@]}")" "$all"
        printf '  "output": %s,\n  "lines": [%s]}' "$(json_text "$output")" "$(paste -sd, "$dir/lines.jsonl" 2>/dev/null)"
    )
    part_row[$1]=$(printf '%s\t%s\t%s\t%s' "$1" "$2" "$4" "$(shown "$5" "$3")" | tr '\n' ' ')
    part_md[$1]=$(cat "$dir/text.md" 2>/dev/null)
}

unwritten=     # the file that could not be written the last time
markdown_text= # of the last time

# A file as a whole, or the one before stays.
replace_file() { # FILE TEXT
    if printf '%s\n' "$2" 2>/dev/null >"$1.part" && mv "$1.part" "$1"; then return 0; fi
    rm -f "$1.part"
    unwritten=$1
}

write_files() {
    local n json_now=() row_now=() # write_markdown reads the rows
    for n in "${!part_names[@]}"; do
        if [ -n "${part_json[n]:-}" ]; then
            json_now[n]=${part_json[n]} row_now[n]=${part_row[n]}
        else # it has not had its turn
            json_now[n]="{\"part\": $n, \"name\": \"${part_names[n]}\", \"result\": \"not run\", \"why\": \"the run ended before\", \"seconds\": 0}"
            row_now[n]=$(printf '%s\tnot run\t0\tthe run ended before' "$n")
        fi
    done
    unwritten=
    replace_file "$json" "$(
        printf '{"format": 1, "date": "%s", "version": %s, "emulated": %s, "small": %s, "minutes": %d, "complete": %s, "parts": [\n' \
            "$date" "$(json_text "$version")" "$([ -n "$emulated" ] && echo true || echo false)" \
            "$([ -n "$small" ] && echo true || echo false)" "$minutes" "$complete"
        for n in "${!part_names[@]}"; do
            printf '%s\n' "${json_now[n]}"
            [ "$n" -eq 10 ] || echo ,
        done
        printf ']}'
    )"
    markdown_text=$(write_markdown)
    replace_file "$markdown" "$markdown_text"
}

write_markdown() {
    local n part result seconds words
    echo "## ${device:-a device}, ${date%T*}"
    echo
    [ -z "$emulated" ] || printf 'The device is emulated: **no figure below is a speed.**\n\n'
    echo "Banyan $version; \`tests/gpu.sh --minutes=$minutes${small:+ --small}${emulated:+ --emulated}\`; all samples are in \`${json##*/}\`."
    echo
    echo '| part | result | seconds | what it says |'
    echo '|---|---|---|---|'
    for n in "${!part_names[@]}"; do
        IFS=$'\t' read -r part result seconds words <<<"${row_now[n]}"
        printf '| %s %s | %s | %s | %s |\n' "$part" "${part_names[$n]}" "$result" "$seconds" "${words//|//}"
    done
    for n in "${!part_names[@]}"; do
        if [ -n "${part_md[n]:-}" ]; then printf '\n%s\n' "${part_md[n]}"; fi
    done
}

about=([1]="what this machine is" [2]="answers are within the promised error" [3]="speed beside the memory's own"
    [4]="how full the processor is" [5]="other types, rows, batches and dims" [6]="other libraries on this card"
    [7]="a cluster, from a model to its answer" [8]="memory errors and races in kernels" [9]="code compiled by the driver"
    [10]="several ranks on this card")

print_table() {
    local n part result seconds words counts=0
    echo
    printf '%-3s %-10s %-39s %-8s %s\n' '' part 'what it is about' result 'what came of it'
    for n in "${!part_names[@]}"; do
        IFS=$'\t' read -r part result seconds words <<<"${part_row[n]:-}"
        [ "$words" != "not asked for" ] || continue
        printf '%-3s %-10s %-39s %-8s %s\n' "$part" "${part_names[$n]}" "${about[$n]}" "$result" "$words"
        [ "$result" = "not run" ] || counts=$((counts + 1))
    done
    echo
    [ -z "$emulated" ] || echo "The device is emulated: no figure above is a speed."
    if [ -n "$any_failed" ]; then
        echo "At least one part has FAILED: its reason is above, the end of its output in the JSON file."
    else
        echo "Nothing has failed; $counts of ${#part_names[@]} parts have run."
    fi
    if [ -z "$unwritten" ]; then
        printf '  %s\n  %s\n' "$json" "$markdown"
    else
        printf 'What the Markdown file would have held:\n\n%s\n' "$markdown_text"
    fi
}
