#include "tensors.h"

#include "tessera/format/safetensors.h"

using namespace tessera;

TESSERA_FUZZ_TARGET(safetensors) {
  fuzz::run([&] { fuzz::check_tensors(format::read_safetensors(input, "fuzz"), input); });
}
