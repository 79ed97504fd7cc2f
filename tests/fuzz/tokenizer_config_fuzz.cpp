// What stands beside a tokenizer file: tokenizer_config.json, the tokenizer.json or vocab.txt, and
// for the latter added_tokens.json and special_tokens_map.json.
#include "tokenizers.h"

#include "tessera/text/tokenizer_files/tokenizer_json.h"
#include "tessera/text/tokenizer_files/vocab_file.h"

using namespace tessera;

TESSERA_FUZZ_TARGET(tokenizer_config) {
  const auto parts = fuzz::parts_of<4>(input);
  const bool is_json = parts[1].starts_with('{');
  fuzz::run(
      [&] {
        fuzz::check_tokenizer(
            is_json ? text::tokenizer_from_json(parts[1], "fuzz", {parts[0], parts[2], parts[3]})
                    : text::tokenizer_from_vocab(parts[1], "fuzz", {parts[0], parts[2], parts[3]}));
      },
      fuzz::kTokenizerKinds);
}
