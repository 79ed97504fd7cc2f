#!/usr/bin/env bash
# Builds the server's own code with the thread sanitizer, then with those for addresses and undefined
# behaviour, and runs its tests with many clients, leaving ones, broken requests, faults and ends.
# Fails on the first report; memory that is lost is one, and so is a server that its end leaves
# behind.
#
#   scripts/sanitize.sh [FILTER]     of the tests; all that have clients without it
#
# JOBS chooses the jobs of the builds. What lies below the server is compiled as ever and runs on one
# thread: OpenMP's own synchronisation is none that the thread sanitizer sees.
set -euo pipefail
cd "$(dirname "$0")/.."
filter=${1:-ServiceLoad.*:ServiceFaults.*:ServedDrafts.*:Scheduler*:Service.*}
export OMP_NUM_THREADS=1 OMP_THREAD_LIMIT=1 OMP_WAIT_POLICY=passive
export TSAN_OPTIONS="exitcode=66 second_deadlock_stack=1 suppressions=$PWD/scripts/tsan.supp"
export ASAN_OPTIONS="exitcode=66" UBSAN_OPTIONS="print_stacktrace=1"
for kind in thread address; do
  sanitizers=$kind
  [ "$kind" = address ] && sanitizers=address,undefined
  cmake -S . -B "build/sanitize-$kind" -G Ninja -DCMAKE_BUILD_TYPE=Release -DTESSERA_SANITIZE_SERVE=$sanitizers >/dev/null
  cmake --build "build/sanitize-$kind" -j "${JOBS:-$(nproc)}" --target serve_test serve_tensors_test serve_faults_test
  # a pattern without a test would drop what it meant
  names=$(for program in serve_tensors_test serve_faults_test; do
    "$(find "build/sanitize-$kind" -name $program -type f)" --gtest_list_tests
  done)
  for pattern in ${filter//:/ }; do
    suite=${pattern%%[.*]*}
    grep -q "^$suite" <<<"$names" || { echo "sanitize: no test is named $pattern" >&2; exit 2; }
  done
  for program in serve_test serve_tensors_test serve_faults_test; do
    tests=$filter
    [ $program = serve_test ] && tests='*'
    # addresses that are drawn at random may not leave the sanitizer its own
    setarch -R "$(find "build/sanitize-$kind" -name $program -type f)" --gtest_brief=1 --gtest_filter="$tests"
  done
  echo "sanitize: $kind: no report"
done
