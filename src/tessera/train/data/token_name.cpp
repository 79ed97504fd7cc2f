#include "tessera/train/data/token_name.h"

#include "tessera/base/error.h"
#include "tessera/text/tokenizer/tokenizer.h"

namespace tessera::train {

int64_t id_of(const TokenName& token,
              const text::Tokenizer& tokenizer,
              int64_t vocab,
              const std::string& where) {
  if (const auto* name = std::get_if<std::string>(&token.name)) {
    const auto id = tokenizer.id(*name);
    if (!id)
      fail(ErrorKind::spec, where,
           "found \"{}\", which the tokenizer does not have; expected one of its tokens, or an id",
           *name);
    return *id;
  }
  const int64_t id = std::get<int64_t>(token.name);
  if (id >= vocab)
    fail(ErrorKind::spec, where, "found {}; the spec has a vocabulary of {}", id, vocab);
  return id;
}

}  // namespace tessera::train
