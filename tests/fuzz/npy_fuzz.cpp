#include "tensors.h"

#include "tessera/format/npy.h"

using namespace tessera;

TESSERA_FUZZ_TARGET(npy) {
  fuzz::run([&] { fuzz::check_tensor(format::read_npy(input, "fuzz"), input); });
}
