# Completion of tessera's verbs and options for fish: asks the program's own help.
function __tessera_verbs
    tessera --help 2>/dev/null | string match -rg '^  ([a-z][a-z-]+ +.*)' | string replace -r ' +' \t
end
function __tessera_options
    set -l words (commandline -opc)
    test (count $words) -gt 1; and tessera $words[2] --help 2>/dev/null | string match -rag -- '(--[a-z][a-z0-9-]*)' | sort -u
end
complete -c tessera -n 'test (count (commandline -opc)) -eq 1' -f -a '(__tessera_verbs)'
complete -c tessera -n 'test (count (commandline -opc)) -gt 1; and string match -q -- "-*" (commandline -ct)' -f -a '(__tessera_options)'
