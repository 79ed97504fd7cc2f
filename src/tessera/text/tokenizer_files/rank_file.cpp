#include "tessera/text/tokenizer_files/rank_file.h"

#include <algorithm>
#include <charconv>
#include <unordered_map>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/base64.h"
#include "tessera/base/error.h"
#include "tessera/spec/json.h"
#include "tessera/text/tokenizer/byte_level.h"

namespace tessera::text {

extern const char* const kGgufTokenizersJson;

namespace {

using spec::Json;
constexpr size_t kMaxRankTokenBytes = 1024;
constexpr int32_t kNormalToken = 1, kControlToken = 3;  // of GGUF's token types

/// One line: bytes and rank; nullopt if it is malformed.
std::optional<std::pair<std::string, int64_t>> rank_line(std::string_view line) {
  const size_t space = line.find(' ');
  if (space == std::string_view::npos || space == 0) return std::nullopt;
  const auto bytes = bytes_of_base64(line.substr(0, space));
  const std::string_view number = line.substr(space + 1);
  int64_t rank = -1;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), rank);
  if (!bytes || bytes->empty() || bytes->size() > kMaxRankTokenBytes || error != std::errc() ||
      end != number.data() + number.size() || rank < 0)
    return std::nullopt;
  return std::pair{*bytes, rank};
}

std::string_view next_line(std::string_view& rest) {
  const size_t end = std::min(rest.find('\n'), rest.size());
  std::string_view line = rest.substr(0, end);
  rest.remove_prefix(std::min(end + 1, rest.size()));
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

using Ranks = std::unordered_map<std::string_view, size_t>;

std::string as_byte_level(std::string_view bytes) {
  std::string out;
  append_as_byte_characters(out, bytes);
  return out;
}

/// All pairs of tokens that form a token, in merge order.
std::vector<std::string> rank_merges(const std::vector<std::string>& tokens, const Ranks& ranks) {
  std::vector<std::string> merges;
  for (const std::string& token : tokens) {
    std::vector<std::pair<size_t, size_t>> halves;  // their ranks
    for (size_t at = 1; at < token.size(); ++at) {
      const auto left = ranks.find(std::string_view(token).substr(0, at)),
                 right = ranks.find(std::string_view(token).substr(at));
      if (left != ranks.end() && right != ranks.end())
        halves.emplace_back(left->second, right->second);
    }
    std::sort(halves.begin(), halves.end());
    for (const auto& [left, right] : halves)
      merges.push_back(as_byte_level(tokens[left]) + ' ' + as_byte_level(tokens[right]));
  }
  return merges;
}

/// The special tokens and the pre-tokenizer for this number of tokens.
const Json& rank_kind(size_t n_tokens, const std::string& where) {
  static const Json kinds =
      spec::parse_json(kGgufTokenizersJson, "gguf_tokenizers.json").at("ranks");
  std::string known;
  for (const Json& kind : kinds) {
    if (kind.at("tokens").get<size_t>() == n_tokens) return kind;
    known += (known.empty() ? "" : ", ") + kind.at("tokens").dump();
  }
  fail(ErrorKind::file, where,
       "{} tokens with ranks; how their texts are split is known for {} alone: expected "
       "tokenizer.json",
       n_tokens, known);
}

}  // namespace

bool is_rank_file(std::string_view content) {
  constexpr size_t kLongestLine = 2 * kMaxRankTokenBytes;
  const std::string_view head = content.substr(0, kLongestLine);
  std::string_view rest = head;
  const std::string_view line = next_line(rest);
  return (line.size() < head.size() || head.size() == content.size()) &&
         rank_line(line).has_value();
}

GgufTokenizerData read_rank_file(std::string_view content, const std::string& where) {
  std::vector<std::string> tokens;
  while (!content.empty()) {
    const std::string_view line = next_line(content);
    if (line.empty()) continue;
    auto token = rank_line(line);
    if (!token)
      fail(ErrorKind::file, where, "token {}: malformed line; expected base64, a space, a rank",
           tokens.size());
    if (token->second != static_cast<int64_t>(tokens.size()))
      fail(ErrorKind::file, where, "token {} has rank {}; expected ranks in order", tokens.size(),
           token->second);
    tokens.push_back(std::move(token->first));
  }
  Ranks ranks;
  for (size_t i = 0; i < tokens.size(); ++i)
    if (!ranks.emplace(tokens[i], i).second)
      fail(ErrorKind::file, where, "token {} is that of rank {} again", i, ranks[tokens[i]]);
  const Json& kind = rank_kind(tokens.size(), where);

  GgufTokenizerData data;
  data.model = gguf_tokenizer_model("byte_level");
  data.pre = kind.at("pre").get<std::string>();
  for (const std::string& token : tokens) data.tokens.push_back(as_byte_level(token));
  data.token_types.assign(tokens.size(), kNormalToken);
  data.merges = rank_merges(tokens, ranks);
  const Json& special = kind.at("special");
  const auto id_of = [&](const char* key) {
    const auto found = std::find(special.begin(), special.end(), kind.at(key));
    return static_cast<int64_t>(tokens.size()) + (found - special.begin());
  };
  data.bos_id = id_of("bos");
  data.eos_id = id_of("eos");
  data.eot_id = id_of("eot");
  data.eom_id = id_of("eom");
  for (const Json& name : special) data.tokens.push_back(name.get<std::string>());
  int64_t reserved = kind.at("first_reserved").get<int64_t>();
  const size_t all = tokens.size() + kind.at("all_special").get<size_t>();
  while (data.tokens.size() < all)
    data.tokens.push_back(fmt::format("<|reserved_special_token_{}|>", reserved++));
  data.token_types.resize(data.tokens.size(), kControlToken);
  return data;
}

}  // namespace tessera::text
