# Completion of harness and psring for bash: commands, options and their choices, as the program's own help lists them.
# shellcheck disable=SC2207 # the words have no blanks

# The commands, one per line.
_psring_commands() {
    "$1" --help 2>/dev/null | awk '/^commands:/ { list = 1; next } list && /^  [a-z]/ { print $1; next } list { exit }'
}

# The options of a command and the words that their values are, one option per line: "--mode none|ps|ring|both". A sweep has
# those of run, too, but for what all its runs would write to one file.
_psring_options() {
    {
        "$1" "$2" --help=all 2>/dev/null
        [ "$2" != sweep ] || "$1" run --help=all 2>/dev/null | grep -vE '^  --(json|report|trace|save|plan) '
    } | awk '/^  (-[a-z], )?--[a-z]/ { sub(/^ +(-[a-z], )?/, ""); if (!seen[$1]++) print $1, ($2 ~ /^[a-z0-9-]+(\|[a-z0-9,-]+)+$/ ? $2 : "") }'
}

_psring() {
    local program=${COMP_WORDS[0]} word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} command=run options
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ] && [ "${word#-}" = "$word" ]; then
        COMPREPLY=($(compgen -W "$(_psring_commands "$program")" -- "$word"))
        return
    fi
    [ "${COMP_WORDS[1]#-}" = "${COMP_WORDS[1]}" ] && command=${COMP_WORDS[1]}
    [ "$command" = help ] && options=$(_psring_commands "$program") || options=
    if [ -n "$options" ]; then
        COMPREPLY=($(compgen -W "$options" -- "$word"))
        return
    fi
    case "$command ${COMP_WORDS[*]:0:$COMP_CWORD} " in
    "compare "*" -- "*) command=run ;; # compare --builds A B -- OPTIONS
    esac
    options=$(_psring_options "$program" "$command")
    if [ "${word#-}" != "$word" ]; then
        COMPREPLY=($(compgen -W "$(cut -d ' ' -f 1 <<<"$options")" -- "$word"))
        return
    fi
    case $before in
    --model) options=$("$program" models 2>/dev/null | awk '/^[a-z]/ && NR > 1 { print $1 }') ;;
    --device) options="auto cpu cuda reference $("$program" profiles 2>/dev/null | awk '/^[a-z0-9]/ { print "sim:" $1 }')" ;;
    --vary)
        options=$(awk '{ sub(/^--/, "", $1); print $1 "=" }' <<<"$options")
        compopt -o nospace 2>/dev/null
        ;;
    --policy) options=$("$program" policies 2>/dev/null | awk '/^[a-z]/ { print $2 }') ;;
    *) options=$(awk -v option="$before" '$1 == option { gsub(/\|/, " ", $2); print $2 }' <<<"$options") ;;
    esac
    COMP_WORDBREAKS=${COMP_WORDBREAKS//:/} # sim:PROFILE is one word
    COMPREPLY=($(compgen -W "$options" -- "$word"))
}
complete -o default -F _psring harness psring
