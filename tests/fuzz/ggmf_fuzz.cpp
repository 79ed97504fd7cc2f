#include "tensors.h"

#include "tessera/format/ggmf.h"

using namespace tessera;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = fuzz::bytes_of(data, size);
  return fuzz::run([&] {
    const format::GgmfFile file = format::read_ggmf(bytes, "fuzz");
    fuzz::check(file.header.n_vocab > 0 && file.header.n_embed > 0 && file.header.n_layer > 0,
                "sizes are positive");
    fuzz::check_tensors(file.tensors, bytes);
  });
}
