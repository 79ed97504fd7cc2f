#!/bin/sh
# cuda_kernels.sh SOURCE TARGETS COMPILER ARGUMENTS...: compiles CUDA kernels to a fatbin and writes it as the C++
# source SOURCE; what ptxas prints about them goes to ptxas.txt next to it.
set -eu
source=$1 targets=$2
shift 2
folder=$(dirname "$source")
mkdir -p "$folder"
if ! "$@" -Xptxas -v -fatbin -o "$folder/kernels.fatbin" >"$folder/ptxas.txt" 2>&1; then
  cat "$folder/ptxas.txt" >&2
  rm -f "$folder/ptxas.txt"
  exit 1
fi
{
  echo '// Generated from src/tessera/cuda by nvcc.'
  echo '#include "tessera/cuda/driver.h"'
  echo
  echo 'namespace tessera::cuda {'
  echo 'namespace {'
  # the driver reads it in words of 8 bytes
  echo 'alignas(16) constexpr unsigned char kModule[] = {'
  od -An -v -tu1 "$folder/kernels.fatbin" | sed 's/\([0-9]\)\( \|$\)/\1,/g'
  echo '};'
  echo '}  // namespace'
  echo
  echo 'std::span<const unsigned char> compiled_kernels() {'
  echo '  return kModule;'
  echo '}'
  echo 'const char* compiled_targets() {'
  echo "  return \"$targets\";"
  echo '}'
  echo
  echo '}  // namespace tessera::cuda'
} >"$source"
