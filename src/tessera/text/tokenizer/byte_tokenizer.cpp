#include "tessera/text/tokenizer/byte_tokenizer.h"

#include <algorithm>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/text/tokenizer/piece_cuts.h"
#include "tessera/text/tokenizer/tokenizer_parts.h"

namespace tessera::text {
namespace {

constexpr int32_t kBytes = 256;

class ByteModel final : public Model {
 public:
  const Vocabulary& vocabulary() const override { return vocabulary_; }
  void encode(std::span<const Piece> pieces, std::vector<int32_t>& ids) const override {
    encode_each(pieces, ids, [&](std::string_view text) {
      for (const char byte : text) ids.push_back(static_cast<uint8_t>(byte));
    });
  }

 private:
  static std::vector<std::pair<std::string, int64_t>> all_bytes() {
    std::vector<std::pair<std::string, int64_t>> tokens;
    for (int byte = 0; byte < kBytes; ++byte)
      tokens.emplace_back(std::string(1, static_cast<char>(byte)), byte);
    return tokens;
  }
  Vocabulary vocabulary_{all_bytes(), "bytes"};
};

}  // namespace

Tokenizer byte_tokenizer(const ByteTokenizerOptions& options) {
  TokenizerParts parts;
  parts.where = "bytes";
  parts.any_bytes = true;
  parts.model = std::make_shared<ByteModel>();
  parts.decoder = {make_utf8_decoder()};
  const auto& names = options.specials;
  for (const std::string& name : names) {
    if (name.size() < 2 || std::count(names.begin(), names.end(), name) != 1)
      fail(ErrorKind::usage, "bytes",
           "special token \"{}\"; expected distinct names of two bytes or more", name);
    AddedToken token;
    token.id = kBytes + static_cast<int32_t>(parts.added.size());
    token.content = name;
    token.special = true;
    parts.added.push_back(std::move(token));
  }
  const auto id_of = [&](const std::string& name) -> std::optional<int32_t> {
    if (name.empty()) return std::nullopt;
    const auto found = std::find(names.begin(), names.end(), name);
    if (found == names.end())
      fail(ErrorKind::usage, "bytes", "\"{}\" is not among the {} special tokens", name,
           names.size());
    return kBytes + static_cast<int32_t>(found - names.begin());
  };
  parts.bos = id_of(options.bos);
  parts.eos = id_of(options.eos);
  if (parts.bos) parts.prefix = {*parts.bos};
  return Tokenizer(std::move(parts));
}

}  // namespace tessera::text
