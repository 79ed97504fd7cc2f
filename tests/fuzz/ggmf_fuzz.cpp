#include "tensors.h"

#include "tessera/format/ggmf.h"

using namespace tessera;

TESSERA_FUZZ_TARGET(ggmf) {
  fuzz::run([&] {
    const format::GgmfFile file = format::read_ggmf(input, "fuzz");
    fuzz::check(file.header.n_vocab > 0 && file.header.n_embed > 0 && file.header.n_layer > 0,
                "sizes are positive");
    fuzz::check_tensors(file.tensors, input);
  });
}
