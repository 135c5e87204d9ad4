# SPDX-License-Identifier: Apache-2.0
# fish completion of banyanctl, banyan-coordinator and banyan-worker. The programs know what comes next:
# PROGRAM --complete WORD... (common/cli/complete.h).

# True, with the words in __banyanctl_words, where the program knows them; false: fish is to offer files.
function __banyanctl_asks
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    set -l program (string replace -r '^~' $HOME -- $words[1])
    set -l answer ($program --complete $words[2..-1] "$current" 2>/dev/null)
    set -g __banyanctl_words
    switch "$answer[1]"
        case words
            set __banyanctl_words $answer[2..-1]
        case dirs
            set -l parts (string match -r '^(--[^=]*=)?(.*)$' -- "$current")
            set __banyanctl_words "$parts[2]"(__fish_complete_directories "$parts[3]" '')
        case 'files*'
            return 1
    end
    return 0
end

for program in banyanctl banyan-coordinator banyan-worker
    complete -c $program -e
    complete -c $program -n __banyanctl_asks -f -k -a '$__banyanctl_words'
end
