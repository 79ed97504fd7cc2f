// vocab.json and merges.txt, behind tokenizer_config.json and special_tokens_map.json.
#include "tokenizers.h"

#include "tessera/text/tokenizer_files/vocab_merges.h"

using namespace tessera;

TESSERA_FUZZ_TARGET(vocab_merges) {
  const auto parts = fuzz::parts_of<4>(input);
  fuzz::run(
      [&] {
        fuzz::check_tokenizer(text::tokenizer_from_merges(
            parts[2], parts[3], "fuzz", {.config = parts[0], .special_tokens_map = parts[1]}));
      },
      {ErrorKind::file, ErrorKind::input, ErrorKind::spec});
}
