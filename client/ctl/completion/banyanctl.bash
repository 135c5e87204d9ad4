# SPDX-License-Identifier: Apache-2.0
# bash completion of banyanctl, banyan-coordinator and banyan-worker. The programs know what comes next:
# PROGRAM --complete WORD... (common/cli/complete.h).

_banyanctl() {
    local line=${COMP_LINE:0:COMP_POINT} words=() word quote="" i
    # bash also splits at = and at colons: what no blank separates is one word of the program's.
    for ((i = 0; i <= COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
        if ((i == 0)) || [[ $line == [[:space:]]* ]]; then
            line=${line#"${line%%[![:space:]]*}"}
            words+=("")
        fi
        ((i < COMP_CWORD)) || word=$line # up to the cursor
        words[${#words[@]} - 1]+=$word
        line=${line#"$word"}
    done

    # As the program would see them.
    for i in "${!words[@]}"; do
        word=${words[i]}
        case $word in
        [\"\']*)
            quote=${word:0:1}
            word=${word#"$quote"}
            word=${word%"$quote"}
            ;;
        *)
            quote=""
            word=${word//\\/}
            ;;
        esac
        words[i]=$word
    done
    words[0]=${words[0]/#\~/$HOME}

    local lines=()
    mapfile -t lines < <("${words[@]:0:1}" --complete "${words[@]:1}" 2>/dev/null)
    COMPREPLY=()
    ((${#lines[@]})) || return 0

    # What stands before the last = or colon is not bash's word, and stays as it is.
    local current=${words[${#words[@]} - 1]} kept="" at
    for at in = :; do
        if [[ $COMP_WORDBREAKS == *$at* && $current == *$at* ]]; then
            at=${current%"${current##*"$at"}"}
            ((${#at} <= ${#kept})) || kept=$at
        fi
    done
    local value=$current before=""
    if [[ $current == --*=* ]]; then
        value=${current#*=}
        before=${current%%=*}=
    fi

    local how=${lines[0]} found=() ending
    case $how in
    words)
        for word in "${lines[@]:1}"; do
            word=${word%%$'\t'*}
            [[ $word != *= ]] || compopt -o nospace
            word=${word#"$kept"}
            [[ -n $quote ]] || printf -v word %q "$word"
            COMPREPLY+=("$word")
        done
        return 0
        ;;
    dirs) mapfile -t found < <(compgen -d -- "$value") ;;
    files) mapfile -t found < <(compgen -f -- "$value") ;;
    files\ *)
        ending=${how#files }
        mapfile -t found < <(compgen -d -- "$value")
        while IFS= read -r word; do
            [[ -d $word || $word != *"$ending" ]] || found+=("$word")
        done < <(compgen -f -- "$value")
        ;;
    esac
    compopt -o filenames # quotes them, and puts a / behind folders
    for word in "${found[@]}"; do
        word=$before$word
        COMPREPLY+=("${word#"$kept"}")
    done
}

complete -F _banyanctl banyanctl banyan-coordinator banyan-worker
