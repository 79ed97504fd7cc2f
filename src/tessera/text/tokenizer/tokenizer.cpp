#include "tessera/text/tokenizer/tokenizer.h"

#include <algorithm>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/text/tokenizer/tokenizer_parts.h"
#include "tessera/text/utf8.h"

namespace tessera::text {

constexpr size_t kMaxTextBytes = size_t{1} << 30;

class TokenizerState {
 public:
  explicit TokenizerState(TokenizerParts parts)
      : parts_(std::move(parts)),
        added_(std::move(parts_.added), parts_.normalizer.get(), parts_.where) {
    check_added_tokens();
    if (!parts_.bos && parts_.prefix.size() == 1) parts_.bos = parts_.prefix[0];
    if (!parts_.eos && parts_.suffix.size() == 1) parts_.eos = parts_.suffix[0];
    for (const auto* ids : {&parts_.prefix, &parts_.suffix})
      for (const int32_t id : *ids) check_named(id, "the post-processor adds");
    if (parts_.between)
      for (const int32_t id : *parts_.between) check_named(id, "the post-processor adds");
    for (const auto& id : {parts_.bos, parts_.eos, parts_.unk, parts_.pad})
      if (id) check_named(*id, "a special token has");
  }

  const TokenizerParts& parts() const { return parts_; }
  int32_t vocab_size() const { return vocab_size_; }
  const std::vector<AddedToken>& added_tokens() const { return added_.all(); }

  std::optional<std::string_view> token(int32_t id) const {
    if (const AddedToken* added = added_.by_id(id)) return added->content;
    return parts_.model->vocabulary().token(id);
  }

  /// The decoded form of the token.
  std::optional<std::string_view> text(int32_t id) const {
    if (const AddedToken* added = added_.by_id(id)) return added_.text(*added);
    return parts_.model->vocabulary().token(id);
  }

  std::optional<int32_t> id(std::string_view token) const {
    if (const AddedToken* added = added_.by_content(token)) return added->id;
    const int32_t id = parts_.model->vocabulary().id(token);
    return id == kNoToken ? std::nullopt : std::optional(id);
  }

  bool is_special(int32_t id) const {
    const AddedToken* added = added_.by_id(id);
    return added != nullptr && added->special;
  }

  void encode(std::string_view text,
              bool parse_special,
              std::vector<int32_t>& ids,
              const Guard* guard = nullptr) const {
    Pieces pieces;
    for (const Segment& segment : added_.split(text, false, parse_special, guard)) {
      const std::string_view part = text.substr(segment.begin, segment.end - segment.begin);
      if (segment.id != kNoToken) {
        pieces.list.push_back({part, false, segment.id});
      } else {
        // normalization loses the origin of bytes: none is input, or all
        std::optional<Guard> inner;
        if (guard != nullptr &&
            guard->input.substr(segment.begin, part.size()).find('\1') != std::string_view::npos)
          inner = Guard{{}, guard->template_source};
        add_normalized(part, segment.begin == 0, parse_special, pieces, inner);
      }
    }
    if (parts_.pre_tokenizer) parts_.pre_tokenizer->apply(pieces);
    for (const Piece& piece : pieces.list)
      if (piece.text.size() > kMaxTextBytes)
        fail(ErrorKind::input, "tokenizer", "a piece of {} bytes; at most {} are encoded",
             piece.text.size(), kMaxTextBytes);
    parts_.model->encode(pieces.list, ids);
  }

 private:
  void check_added_tokens() {
    const Vocabulary& vocabulary = parts_.model->vocabulary();
    vocab_size_ = vocabulary.size();
    const size_t largest = static_cast<size_t>(vocab_size_) + 2 * added_.all().size() + 65536;
    for (const AddedToken& added : added_.all()) {
      const int32_t id = vocabulary.id(added.content);
      if (id != kNoToken && id != added.id)
        fail(ErrorKind::file, parts_.where, "added token \"{}\" has id {}, in the vocabulary {}",
             added.content, added.id, id);
      const auto token = vocabulary.token(added.id);
      if (token && *token != added.content)
        fail(ErrorKind::file, parts_.where,
             "id {} is \"{}\" in the vocabulary, and added token \"{}\"", added.id,
             token->substr(0, 50), added.content);
      if (added.id < 0 || static_cast<size_t>(added.id) > largest)
        fail(ErrorKind::file, parts_.where, "added token \"{}\" has id {}; expected 0 to {}",
             added.content, added.id, largest);
      vocab_size_ = std::max(vocab_size_, added.id + 1);
    }
  }

  void check_named(int32_t id, std::string_view who) const {
    if (!token(id)) fail(ErrorKind::file, parts_.where, "{} id {}, which is no token", who, id);
  }

  /// `guard`: all of the text counts as input.
  void add_normalized(std::string_view text,
                      bool at_start,
                      bool parse_special,
                      Pieces& out,
                      std::optional<Guard> guard) const {
    NormalizedText normal{{}, at_start, 0};
    if (parts_.normalizer) {
      normal = normalize(parts_.normalizer.get(), text, at_start);
      text = out.keep(std::move(normal.text));
    }
    std::string all;
    if (guard) {
      all.assign(text.size(), '\1');
      guard->input = all;
    }
    for (const Segment& segment :
         added_.split(text, true, parse_special, guard ? &*guard : nullptr)) {
      const std::string_view part = text.substr(segment.begin, segment.end - segment.begin);
      out.list.push_back({part, normal.at_start && segment.begin == 0, segment.id});
    }
  }

  TokenizerParts parts_;
  AddedTokens added_;
  int32_t vocab_size_ = 0;
};

Tokenizer::Tokenizer(TokenizerParts parts)
    : state_(std::make_shared<const TokenizerState>(std::move(parts))) {}

std::vector<int32_t> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  const TokenizerParts& parts = state_->parts();
  if (text.size() > kMaxTextBytes)
    fail(ErrorKind::input, "tokenizer", "a text of {} bytes; at most {} are encoded at once",
         text.size(), kMaxTextBytes);
  std::string repaired;
  if (!parts.any_bytes && !is_valid_utf8(text)) {
    repaired = to_valid_utf8(text);
    text = repaired;
  }
  std::vector<int32_t> ids;
  if (options.add_special) ids = parts.prefix;
  state_->encode(text, options.parse_special && !parts.split_special, ids);
  if (options.add_special) ids.insert(ids.end(), parts.suffix.begin(), parts.suffix.end());
  return ids;
}

std::vector<int32_t> Tokenizer::encode(const MarkedText& text, std::string_view guarded) const {
  require(text.text.size() == text.input.size(), "tokenizer", "{} bytes with {} marks",
          text.text.size(), text.input.size());
  if (text.text.size() > kMaxTextBytes || (!state_->parts().any_bytes && !is_valid_utf8(text.text)))
    fail(ErrorKind::input, "tokenizer", "a chat that is too long, or no UTF-8");
  const Guard guard{text.input, guarded};
  std::vector<int32_t> ids;
  state_->encode(text.text, true, ids, &guard);
  return ids;
}

std::vector<int32_t> Tokenizer::surround(std::span<const int32_t> ids) const {
  const TokenizerParts& parts = state_->parts();
  std::vector<int32_t> out = parts.prefix;
  out.insert(out.end(), ids.begin(), ids.end());
  out.insert(out.end(), parts.suffix.begin(), parts.suffix.end());
  return out;
}

Tokenizer::Pair Tokenizer::surround(std::span<const int32_t> first,
                                    std::span<const int32_t> second) const {
  const TokenizerParts& parts = state_->parts();
  const std::vector<int32_t>& between = parts.between ? *parts.between : parts.suffix;
  Pair out{parts.prefix};
  out.ids.insert(out.ids.end(), first.begin(), first.end());
  out.ids.insert(out.ids.end(), between.begin(), between.end());
  out.second = out.ids.size();
  out.ids.insert(out.ids.end(), second.begin(), second.end());
  out.ids.insert(out.ids.end(), parts.suffix.begin(), parts.suffix.end());
  return out;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  StreamDecoder decoder(*this, skip_special);
  std::string text;
  for (const int32_t id : ids) text += decoder.push(id);
  return text + decoder.finish();
}

std::string_view Tokenizer::token(int32_t id) const {
  const auto token = state_->token(id);
  if (!token)
    fail(ErrorKind::input, "tokenizer", "no token has id {}; expected 0 to {}", id,
         vocab_size() - 1);
  return *token;
}

std::optional<std::string> Tokenizer::bytes_of(int32_t id) const {
  const auto token = state_->text(id);
  if (!token || state_->is_special(id)) return std::nullopt;
  std::string bytes(*token);
  bool fused = false;
  for (const DecodeStagePointer& stage : state_->parts().decoder) stage->inside(bytes, fused);
  return bytes;
}
bool Tokenizer::has(int32_t id) const {
  return state_->token(id).has_value();
}
std::optional<int32_t> Tokenizer::id(std::string_view token) const {
  return state_->id(token);
}
int32_t Tokenizer::vocab_size() const {
  return state_->vocab_size();
}
const std::vector<AddedToken>& Tokenizer::added_tokens() const {
  return state_->added_tokens();
}
bool Tokenizer::is_special(int32_t id) const {
  return state_->is_special(id);
}
std::optional<int32_t> Tokenizer::bos() const {
  return state_->parts().bos;
}
std::optional<int32_t> Tokenizer::eos() const {
  return state_->parts().eos;
}
std::optional<int32_t> Tokenizer::unk() const {
  return state_->parts().unk;
}
std::optional<int32_t> Tokenizer::pad() const {
  return state_->parts().pad;
}
std::vector<int32_t> Tokenizer::ends() const {
  std::vector<int32_t> ids;
  if (eos()) ids.push_back(*eos());
  for (const int32_t id : state_->parts().further_ends)
    if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
  return ids;
}
const std::vector<std::string>& Tokenizer::notes() const {
  return state_->parts().notes;
}
const std::vector<std::pair<std::string, std::string>>& Tokenizer::special_roles() const {
  return state_->parts().special_roles;
}
bool Tokenizer::truncates_left() const {
  return state_->parts().truncates_left;
}
const std::string& Tokenizer::chat_template() const {
  return state_->parts().chat_template;
}
const std::string& Tokenizer::tool_template() const {
  const TokenizerParts& parts = state_->parts();
  return parts.tool_template.empty() ? parts.chat_template : parts.tool_template;
}

const Tokenizer& Tokenizer::of_source() const {
  const auto& source = state_->parts().source;
  return source ? *source : *this;
}

Tokenizer with_lower_case(const Tokenizer& tokenizer) {
  TokenizerParts parts = tokenizer.state_->parts();
  parts.added = tokenizer.added_tokens();
  std::vector<NormalizerPointer> steps = {make_lower_case()};
  if (parts.normalizer) steps.push_back(parts.normalizer);
  parts.normalizer = make_sequence(std::move(steps));
  if (parts.source)
    parts.source = std::make_shared<const Tokenizer>(with_lower_case(*parts.source));
  return Tokenizer(std::move(parts));
}

Tokenizer with_chat_template(const Tokenizer& tokenizer, std::string source) {
  TokenizerParts parts = tokenizer.state_->parts();
  parts.added = tokenizer.added_tokens();
  parts.chat_template = std::move(source);
  parts.tool_template.clear();
  return Tokenizer(std::move(parts));
}

struct StreamDecoder::State {
  std::shared_ptr<const TokenizerState> tokenizer;
  bool skip_special = true;
  std::vector<std::unique_ptr<DecodeStage>> stages;
  int32_t previous = kNoToken;

  void reset() {
    stages.clear();
    for (const auto& stage : tokenizer->parts().decoder) stages.push_back(stage->clone());
    previous = kNoToken;
  }

  // Passes a text through the stages from `from` on.
  void run(size_t from, std::string_view text, bool ends, std::string& out) {
    if (from == stages.size()) {
      out += text;
      return;
    }
    stages[from]->push(text, ends,
                       [&, from](std::string_view t, bool e) { run(from + 1, t, e, out); });
  }

  void finish(std::string& out) {
    for (size_t i = 0; i < stages.size(); ++i)
      stages[i]->finish([&, i](std::string_view t, bool e) { run(i + 1, t, e, out); });
  }
};

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, bool skip_special)
    : state_(std::make_unique<State>()) {
  state_->tokenizer = tokenizer.state_;
  state_->skip_special = skip_special;
  state_->reset();
}
StreamDecoder::~StreamDecoder() = default;
StreamDecoder::StreamDecoder(StreamDecoder&&) noexcept = default;
StreamDecoder& StreamDecoder::operator=(StreamDecoder&&) noexcept = default;

void StreamDecoder::prime(std::span<const int32_t> ids) {
  for (const int32_t id : ids) push(id);
}

std::string StreamDecoder::push(int32_t id) {
  std::string out;
  const TokenizerState& tokenizer = *state_->tokenizer;
  auto token = tokenizer.text(id);
  if (!token) return out;
  const int32_t previous = std::exchange(state_->previous, id);
  if (state_->skip_special && tokenizer.is_special(id)) return out;
  if (previous != kNoToken && previous == tokenizer.parts().drop_space_after &&
      token->starts_with(' '))
    token->remove_prefix(1);
  state_->run(0, *token, true, out);
  return out;
}

std::string StreamDecoder::finish() {
  std::string out;
  state_->finish(out);
  state_->reset();
  return out;
}

}  // namespace tessera::text
