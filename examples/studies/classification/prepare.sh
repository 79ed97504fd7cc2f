#!/bin/sh
# A text classification data set of 47 classes from the package lists of a Debian system: the short
# description of a package, and the section of the archive that it is in.
#   examples/studies/classification/prepare.sh out/sections
# writes train.tsv (100 texts of a class), two.tsv and one.tsv (two and one of a class, of those),
# test.tsv (10 of a class, none of them in train.tsv) and prompts.jsonl (test.tsv as multiple choice,
# one.tsv as the examples of the prompt).
set -e
out=${1:-out/sections}
mkdir -p "$out"
# the same order on every machine with the same lists: by the checksum that cksum has of a line
apt-cache dumpavail | awk '
  /^Package: /     {section = text = ""}
  /^Section: /     {section = $2}
  /^Description(-en)?: / {text = $0; sub(/^[^:]*: /, "", text); gsub(/[\t"\\]/, " ", text)}
  /^$/ && text != "" && section ~ /^[a-z0-9-]+$/ && !(text in seen) {seen[text] = 1; print section "\t" text}
' | sort -u | awk -F'\t' '
  # a pseudo-random number of every line: 31 x + character, modulo a prime
  BEGIN {for (i = 1; i < 256; ++i) code[sprintf("%c", i)] = i}
  {h = 7; for (i = 1; i <= length($2); ++i) h = (h * 31 + code[substr($2, i, 1)]) % 1000003; print h "\t" $0}
' | LC_ALL=C sort -n -k1,1 | cut -f2- > "$out/all.tsv"
cut -f1 "$out/all.tsv" | sort | uniq -c | sort -k1,1nr -k2,2 | awk 'NR <= 47 {print $2}' | sort > "$out/classes.txt"
awk -F'\t' -v out="$out" '
  NR == FNR {wanted[$1] = 1; next}
  !($1 in wanted) {next}
  {n = ++count[$1]}
  n <= 10 {print $2 "\t" $1 > (out "/test.tsv.body")}
  n > 10 && n <= 110 {print $2 "\t" $1 > (out "/train.tsv.body")}
  n == 11 {print $2 "\t" $1 > (out "/one.tsv.body")}
  n == 11 || n == 12 {print $2 "\t" $1 > (out "/two.tsv.body")}
' "$out/classes.txt" "$out/all.tsv"
for file in train two one test; do
  {
    printf 'text\tlabel\n'
    cat "$out/$file.tsv.body"
  } > "$out/$file.tsv"
  rm "$out/$file.tsv.body"
done
awk -F'\t' '
  FILENAME ~ /classes/ {choices = choices (choices == "" ? "" : ", ") "\"" $1 "\""; next}
  FNR == 1 {next}
  FILENAME ~ /one.tsv/ {shots = shots "Package: " $1 "\\nSection: " $2 "\\n\\n"; next}
  {printf "{\"description\": \"%s\", \"context\": \"Package: %s\\nSection:\", \"choices\": [%s], \"gold\": \"%s\"}\n",
     shots, $1, choices, $2}
' "$out/classes.txt" "$out/one.tsv" "$out/test.tsv" > "$out/prompts.jsonl"
wc -l "$out"/*.tsv "$out/prompts.jsonl"
