#include "tessera/text/tokenizer/raw_prompt.h"

#include <fmt/format.h>

namespace tessera::text {
namespace {

bool puts_bos_in_front(const Tokenizer& tokenizer) {
  const std::vector<int32_t> around = tokenizer.surround({});
  return !around.empty() && around.front() == tokenizer.bos();
}

}  // namespace

RawPrompt encode_raw_prompt(const Tokenizer& of_model,
                            std::string_view text,
                            const EncodeOptions& options) {
  const Tokenizer& tokenizer = of_model.of_source();
  RawPrompt out{tokenizer.encode(text, options), {}};
  const bool twice = options.add_special && out.ids.size() > 1 && out.ids[0] == out.ids[1] &&
                     out.ids[0] == tokenizer.bos() && puts_bos_in_front(tokenizer);
  if (twice)
    out.warning = fmt::format(
        "the prompt begins with {}, which the tokenizer adds as well, so that the "
        "model reads it twice; leave it out of the text",
        tokenizer.token(out.ids[0]));
  return out;
}

}  // namespace tessera::text
