# Completion of tessera's verbs and options for bash: asks the program's own help, once a verb.
_tessera() {
  local word=${COMP_WORDS[COMP_CWORD]} program=${COMP_WORDS[0]} verb=${COMP_WORDS[1]:-}
  declare -gA _tessera_known
  if ((COMP_CWORD == 1)); then
    [[ ${_tessera_known[.]:-} ]] || _tessera_known[.]=$("$program" --help 2>/dev/null | sed -nE 's/^  ([a-z][a-z-]+) .*/\1/p')
    mapfile -t COMPREPLY < <(compgen -W "${_tessera_known[.]} --help --version" -- "$word")
  elif [[ $word == -* ]]; then
    [[ ${_tessera_known[$verb]:-} ]] || _tessera_known[$verb]=$("$program" "$verb" --help 2>/dev/null | grep -oE -- '--[a-z][a-z0-9-]*' | sort -u)
    mapfile -t COMPREPLY < <(compgen -W "${_tessera_known[$verb]}" -- "$word")
  else
    mapfile -t COMPREPLY < <(compgen -f -- "$word")
  fi
}
complete -o filenames -F _tessera tessera
