#!/bin/sh
# The made translation of the study of translation: four words of Shakespeare, and the second and the
# fourth of them; 39,286 pairs without repetition.
#   examples/studies/transduction.sh
set -e
mkdir -p out/data
awk 'BEGIN {print "text\tpositive"}
  {for (i = 1; i + 3 <= NF; i += 4) {
     source = $i " " $(i + 1) " " $(i + 2) " " $(i + 3)
     if (!(source in seen)) {seen[source] = 1; print source "\t" $(i + 1) " " $(i + 3)}
   }}' examples/data/shakespeare.txt > out/data/transduction.tsv
