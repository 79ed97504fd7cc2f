// A model of sentencepiece behind its tokenizer_config.json.
#include "tokenizers.h"

#include "tessera/text/tokenizer_files/sentence_piece.h"

using namespace tessera;

TESSERA_FUZZ_TARGET(sentence_piece) {
  const auto parts = fuzz::parts_of<2>(input);
  fuzz::run(
      [&] {
        fuzz::check_tokenizer(text::tokenizer_from_sentence_piece(
            std::as_bytes(std::span(parts[1])), "fuzz", {.config = parts[0]}));
      },
      {ErrorKind::file, ErrorKind::input, ErrorKind::spec});
}
