// The tokenizer that the metadata of a GGUF file hold.
#include "tokenizers.h"

#include "tessera/convert/tokenizer.h"

using namespace tessera;

TESSERA_FUZZ_TARGET(gguf_tokenizer) {
  fuzz::run(
      [&] {
        const auto tokenizer = convert::tokenizer_of(format::read_gguf(input, "fuzz"), "fuzz");
        if (tokenizer) fuzz::check_tokenizer(*tokenizer);
      },
      fuzz::kTokenizerKinds);
}
