// A hostile tokenizer.json or vocab.txt (told apart as load_tokenizer() does), and a hostile text
// for it: before the first zero byte stands the file, after it the text. Whatever comes, the
// outcome is a tokenizer or an Error.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/text/tokenizer_json.h"
#include "tessera/text/utf8.h"
#include "tessera/text/vocab_file.h"

namespace {

void require(bool holds) {
  if (!holds) __builtin_trap();
}

void exercise(const tessera::text::Tokenizer& tokenizer, std::string_view text) {
  for (const bool parse_special : {false, true}) {
    const std::vector<int32_t> ids = tokenizer.encode(text, {true, parse_special});
    for (const int32_t id : ids) require(id >= 0 && id < tokenizer.vocab_size());
    const std::string whole = tokenizer.decode(ids, false);
    require(tessera::text::is_valid_utf8(whole));
    tessera::text::StreamDecoder stream(tokenizer, false);
    std::string parts;
    for (const int32_t id : ids) parts += stream.push(id);
    require(parts + stream.finish() == whole);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t zero = std::min(input.find('\0'), size);
  const std::string_view text = zero < size ? input.substr(zero + 1) : "Hello  <s>wörld 12\n";
  try {
    const std::string_view file = input.substr(0, zero);
    const bool is_json = file.find_first_not_of(" \n\r\t") == file.find('{');
    exercise(is_json ? tessera::text::tokenizer_from_json(file, "fuzz")
                     : tessera::text::tokenizer_from_vocab(file, "fuzz"),
             text.substr(0, 4096));
  } catch (const tessera::Error&) {
  }
  return 0;
}
