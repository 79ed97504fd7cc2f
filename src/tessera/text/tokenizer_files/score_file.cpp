#include "tessera/text/tokenizer_files/score_file.h"

#include <cstring>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/text/tokenizer/sentencepiece_bpe.h"
#include "tessera/text/tokenizer/tokenizer_parts.h"
#include "tessera/text/utf8.h"

namespace tessera::text {
namespace {

constexpr int32_t kUnk = 0, kBos = 1, kEos = 2, kFirstByte = 3, kFirstText = 3 + 256;

class Reader {
 public:
  Reader(std::span<const std::byte> bytes, const std::string& where)
      : bytes_(bytes), where_(where) {}
  bool at_end() const { return at_ == bytes_.size(); }
  size_t left() const { return bytes_.size() - at_; }

  template <class Value>
  Value read(std::string_view what) {
    Value value;
    std::memcpy(&value, take(sizeof(Value), what).data(), sizeof(Value));
    return value;
  }
  std::span<const std::byte> take(size_t size, std::string_view what) {
    if (size > left())
      fail(ErrorKind::file, where_, "byte {}: {} of {} bytes; {} bytes are left", at_, what, size,
           left());
    at_ += size;
    return bytes_.subspan(at_ - size, size);
  }

 private:
  std::span<const std::byte> bytes_;
  const std::string& where_;
  size_t at_ = 0;
};

struct Tokens {
  std::vector<std::pair<std::string, int64_t>> texts;
  std::vector<float> scores;
};

Tokens read_tokens(std::span<const std::byte> file, const std::string& where, int32_t vocab_size) {
  Reader reader(file, where);
  const auto longest = reader.read<int32_t>("the longest token's length");
  if (longest < 1 || longest > static_cast<int32_t>(kMaxTokenBytes))
    fail(ErrorKind::file, where, "longest token = {} bytes; expected 1 to {}", longest,
         kMaxTokenBytes);
  Tokens out;
  while (!reader.at_end()) {
    const size_t id = out.scores.size();
    if (id == kMaxTokens || (vocab_size > 0 && id == static_cast<size_t>(vocab_size)))
      fail(ErrorKind::file, where, "{} bytes follow after {} tokens", reader.left(), id);
    out.scores.push_back(reader.read<float>("a score"));
    const auto length = reader.read<int32_t>("a length");
    if (length < 0 || length > longest)
      fail(ErrorKind::file, where, "token {} has length {}; expected 0 to {}", id, length, longest);
    const auto bytes = reader.take(static_cast<size_t>(length), "a token");
    std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    if (!is_valid_utf8(text)) fail(ErrorKind::file, where, "token {} is not valid UTF-8", id);
    out.texts.emplace_back(std::move(text), static_cast<int64_t>(id));
  }
  if (vocab_size > 0 && out.scores.size() != static_cast<size_t>(vocab_size))
    fail(ErrorKind::file, where, "{} tokens; expected {}", out.scores.size(), vocab_size);
  return out;
}

AddedToken special(int32_t id, const std::string& content) {
  AddedToken token;
  token.id = id;
  token.content = content;
  token.special = true;
  return token;
}

}  // namespace

Tokenizer tokenizer_from_scores(std::span<const std::byte> file,
                                const std::string& where,
                                int32_t vocab_size) {
  Tokens tokens = read_tokens(file, where, vocab_size);
  if (tokens.texts.size() < kFirstText)
    fail(ErrorKind::file, where, "{} tokens; expected at least {}", tokens.texts.size(),
         kFirstText);
  TokenizerParts parts;
  parts.where = where;
  for (const int32_t id : {kUnk, kBos, kEos})
    parts.added.push_back(special(id, tokens.texts[static_cast<size_t>(id)].first));
  ScoreOptions options;
  options.from_text.resize(tokens.texts.size(), true);
  std::fill_n(options.from_text.begin(), kFirstText, false);
  options.join_unknown = false;
  options.unk = kUnk;
  auto vocabulary = std::make_shared<Vocabulary>(std::move(tokens.texts), where);
  const std::vector<int32_t> bytes = vocabulary->byte_tokens();
  for (int32_t byte = 0; byte < 256; ++byte)
    if (bytes[static_cast<size_t>(byte)] != kFirstByte + byte)
      fail(ErrorKind::file, where, "token {} is \"{}\"; expected \"<0x{:02X}>\"", kFirstByte + byte,
           vocabulary->token(kFirstByte + byte)->substr(0, 50), byte);
  parts.normalizer = make_prepend(" ");
  parts.model =
      make_score_model(std::move(vocabulary), std::move(tokens.scores), std::move(options), where);
  parts.prefix = {kBos};
  parts.decoder = {make_byte_fallback_decoder()};
  parts.drop_space_after = kBos;
  parts.bos = kBos;
  parts.eos = kEos;
  parts.unk = kUnk;
  return Tokenizer(std::move(parts));
}

}  // namespace tessera::text
