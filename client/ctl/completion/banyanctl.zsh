#compdef banyanctl banyan-coordinator banyan-worker
# SPDX-License-Identifier: Apache-2.0
# zsh completion of banyanctl, banyan-coordinator and banyan-worker. The programs know what comes next:
# PROGRAM --complete WORD... (common/cli/complete.h).

_banyanctl() {
    local -a answer plain open
    local how line word about
    local program=${(Q)words[1]/#\~/$HOME}
    answer=("${(@f)$($program --complete "${(@Q)words[2,CURRENT-1]}" "${(Q)PREFIX}" 2>/dev/null)}")
    how=$answer[1]
    case $how in
    words)
        for line in "${(@)answer[2,-1]}"; do
            word=${line%%$'\t'*}
            about=
            [[ $line != *$'\t'* ]] || about=:${line#*$'\t'}
            if [[ $word == *= ]]; then # its value follows at once
                open+=("${word//:/\\:}$about")
            else
                plain+=("${word//:/\\:}$about")
            fi
        done
        _describe -t banyan 'banyan' plain -- open -S ''
        ;;
    dirs)
        compset -P '--*='
        _files -/
        ;;
    files)
        compset -P '--*='
        _files
        ;;
    files\ *)
        compset -P '--*='
        _files -g "*${how#files }"
        ;;
    *) return 1 ;;
    esac
}

# A file of the path of functions is run; a script that is sourced only says whose function this is.
if [[ $funcstack[1] == _banyanctl ]]; then
    _banyanctl "$@"
else
    compdef _banyanctl banyanctl banyan-coordinator banyan-worker
fi
