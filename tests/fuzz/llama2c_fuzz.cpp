#include "tensors.h"

#include "tessera/format/llama2c.h"

using namespace tessera;

TESSERA_FUZZ_TARGET(llama2c) {
  fuzz::run([&] { fuzz::check_tensors(format::read_llama2c(input, "fuzz").tensors, input); });
}
