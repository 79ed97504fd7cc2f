// A hostile tokenizer.json or vocab.txt (told apart as load_tokenizer() does), and a hostile text
// for it: before the first zero byte stands the file, after it the text.
#include "tokenizers.h"

#include "tessera/text/tokenizer_files/tokenizer_json.h"
#include "tessera/text/tokenizer_files/vocab_file.h"

using namespace tessera;

TESSERA_FUZZ_TARGET(tokenizer_json) {
  const std::string_view all = fuzz::text_of(input);
  const size_t zero = std::min(all.find('\0'), all.size());
  const std::string_view file = all.substr(0, zero);
  const bool is_json = file.find_first_not_of(" \n\r\t") == file.find('{');
  fuzz::run(
      [&] {
        fuzz::check_tokenizer(is_json ? text::tokenizer_from_json(file, "fuzz")
                                      : text::tokenizer_from_vocab(file, "fuzz"),
                              zero < all.size() ? all.substr(zero + 1) : fuzz::kSomeText);
      },
      fuzz::kTokenizerKinds);
}
