#include "tessera/text/tokenizer/decoder.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/text/tokenizer/byte_level.h"
#include "tessera/text/tokenizer/split.h"
#include "tessera/text/tokenizer_files/json_object.h"
#include "tessera/text/utf8.h"

namespace tessera::text {
namespace {

template <class Derived>
class Cloned : public DecodeStage {
 public:
  std::unique_ptr<DecodeStage> clone() const override {
    return std::make_unique<Derived>(static_cast<const Derived&>(*this));
  }
};

// A stage that must see a token as a whole.
template <class Derived>
class WholeTokens : public Cloned<Derived> {
 public:
  void push(std::string_view text, bool ends, const DecodeStage::Emit& emit) final {
    if (ends && waiting_.empty()) return token(text, emit);
    waiting_ += text;
    if (!ends) return;
    const std::string whole = std::exchange(waiting_, {});
    token(whole, emit);
  }

 protected:
  virtual void token(std::string_view text, const DecodeStage::Emit& emit) = 0;

 private:
  std::string waiting_;
};

// Joins all tokens into one UTF-8 text.
class ByteLevel final : public WholeTokens<ByteLevel> {
 public:
  explicit ByteLevel(bool mapped) : mapped_(mapped) {}
  void finish(const Emit& emit) override {
    std::string out;
    assembler_.finish(out);
    emit(out, true);
  }
  void inside(std::string& token, bool& fused) const override {
    fused = true;
    if (const auto bytes = mapped_ ? bytes_of_token(token) : std::nullopt) token = *bytes;
  }

 protected:
  void token(std::string_view text, const Emit& emit) override {
    std::string out;
    if (const auto bytes = mapped_ ? bytes_of_token(text) : std::nullopt) {
      assembler_.push(*bytes, out);
    } else {
      assembler_.push(text, out);
    }
    if (!out.empty()) emit(out, false);
  }

 private:
  bool mapped_;
  Utf8Assembler assembler_;
};

class ByteFallback final : public WholeTokens<ByteFallback> {
 public:
  void finish(const Emit& emit) override { flush(emit); }
  void inside(std::string& token, bool&) const override {
    if (const auto byte = byte_of(token)) token.assign(1, *byte);
  }

 protected:
  void token(std::string_view text, const Emit& emit) override {
    if (const auto byte = byte_of(text)) {
      run_ += *byte;
      return;
    }
    flush(emit);
    emit(text, true);
  }

 private:
  static std::optional<char> byte_of(std::string_view token) {
    if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
    const auto digit = [](char c) {
      if (c >= '0' && c <= '9') return c - '0';
      if (c >= 'A' && c <= 'F') return c - 'A' + 10;
      if (c >= 'a' && c <= 'f') return c - 'a' + 10;
      return -1;
    };
    if (digit(token[3]) < 0 || digit(token[4]) < 0) return std::nullopt;
    return static_cast<char>(digit(token[3]) * 16 + digit(token[4]));
  }

  void flush(const Emit& emit) {
    const std::string run = std::exchange(run_, {});
    if (run.empty()) return;
    if (is_valid_utf8(run)) return emit(run, true);
    for (size_t i = 0; i < run.size(); ++i) emit(kReplacementCharacter, true);
  }

  std::string run_;
};

class Fuse final : public Cloned<Fuse> {
 public:
  void push(std::string_view text, bool, const Emit& emit) override { emit(text, false); }
  void finish(const Emit& emit) override { emit({}, true); }
  void inside(std::string&, bool& fused) const override { fused = true; }
};

class ReplaceDecoder final : public WholeTokens<ReplaceDecoder> {
 public:
  ReplaceDecoder(Pattern pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}
  void inside(std::string& token, bool&) const override {
    if (is_valid_utf8(token)) token = replaced_in(token);
  }

 protected:
  void token(std::string_view text, const Emit& emit) override { emit(replaced_in(text), true); }

 private:
  std::string replaced_in(std::string_view text) const {
    std::string out;
    for (const Span& span : pattern_.spans(text))
      out += span.is_match ? std::string_view(content_)
                           : text.substr(span.begin, span.end - span.begin);
    return out;
  }
  Pattern pattern_;
  std::string content_;
};

// Drops leading characters as they come; holds back trailing ones until more follows.
class StripDecoder final : public Cloned<StripDecoder> {
 public:
  StripDecoder(std::string character, size_t start, size_t stop)
      : character_(std::move(character)), start_(start), stop_(stop) {}

  void push(std::string_view text, bool ends, const Emit& emit) override {
    while (dropped_ < start_ && text.starts_with(character_)) {
      text.remove_prefix(character_.size());
      ++dropped_;
    }
    if (!text.empty()) dropped_ = start_;  // another character: no more leading ones
    std::string whole = std::exchange(held_, {});
    whole += text;
    size_t end = whole.size();
    for (size_t i = 0; i < stop_ && std::string_view(whole).substr(0, end).ends_with(character_);
         ++i)
      end -= character_.size();
    held_ = whole.substr(end);
    if (ends) {
      held_.clear();
      dropped_ = 0;
    }
    emit(std::string_view(whole).substr(0, end), ends);
  }
  void inside(std::string& token, bool& fused) const override {
    if (fused) return;
    for (size_t i = 0; i < start_ && token.starts_with(character_); ++i)
      token.erase(0, character_.size());
    for (size_t i = 0; i < stop_ && token.ends_with(character_); ++i)
      token.resize(token.size() - character_.size());
  }

 private:
  std::string character_;
  size_t start_;
  size_t stop_;
  size_t dropped_ = 0;
  std::string held_;
};

// The replacement character is a space again, but vanishes from the first token.
class MetaspaceDecoder final : public WholeTokens<MetaspaceDecoder> {
 public:
  MetaspaceDecoder(std::string replacement, bool drop_first)
      : replacement_(std::move(replacement)), drop_first_(drop_first) {}
  void inside(std::string& token, bool&) const override {
    if (is_valid_utf8(token)) token = spaced(token, false);
  }

 protected:
  void token(std::string_view text, const Emit& emit) override {
    emit(spaced(text, std::exchange(first_, false) && drop_first_), true);
  }

 private:
  std::string spaced(std::string_view text, bool drop) const {
    std::string out;
    for_each_character(text, [&](char32_t, size_t begin, size_t end) {
      const std::string_view character = text.substr(begin, end - begin);
      if (character != replacement_) {
        out += character;
      } else if (!drop) {
        out += ' ';
      }
    });
    return out;
  }
  std::string replacement_;
  bool drop_first_;
  bool first_ = true;
};

class JoinBySpaces final : public WholeTokens<JoinBySpaces> {
 public:
  void inside(std::string& token, bool&) const override { token.insert(0, 1, ' '); }

 protected:
  void token(std::string_view text, const Emit& emit) override {
    if (!std::exchange(first_, false)) emit(" ", true);
    emit(text, true);
  }

 private:
  bool first_ = true;
};

// Spaces before English punctuation; in this order, because each sees the result of the one before.
constexpr std::pair<std::string_view, std::string_view> kCleanup[] = {
    {" .", "."},   {" ?", "?"},     {" !", "!"},     {" ,", ","},
    {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},   {" do not", " don't"},
    {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"},
};

std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t found = std::min(text.find(from, at), text.size());
    out += text.substr(at, found - at);
    if (found < text.size()) out += to;
    at = std::min(found + from.size(), text.size());
  }
  return out;
}

class WordPiece final : public WholeTokens<WordPiece> {
 public:
  WordPiece(std::string prefix, bool cleanup) : prefix_(std::move(prefix)), cleanup_(cleanup) {}
  void inside(std::string& token, bool&) const override { token = written(token, false); }

 protected:
  void token(std::string_view text, const Emit& emit) override {
    emit(written(text, std::exchange(first_, false)), true);
  }

 private:
  std::string written(std::string_view text, bool first) const {
    std::string out;
    if (!first) {
      if (text.starts_with(prefix_)) {
        text.remove_prefix(prefix_.size());
      } else {
        out = " ";
      }
    }
    out += text;
    if (cleanup_)
      for (const auto& [from, to] : kCleanup) out = replaced(out, from, to);
    return out;
  }
  std::string prefix_;
  bool cleanup_;
  bool first_ = true;
};

constexpr int64_t kMaxStrip = 1024;

DecodeStagePointer strip_from_json(const spec::Json& value, const std::string& where) {
  const JsonObject object(value, where, {"type", "content", "start", "stop"});
  const auto count = [&](const char* key) {
    const int64_t n = object.integer(key);
    if (n < 0 || n > kMaxStrip)
      fail(ErrorKind::file, where, "{} = {}; expected 0 to {}", key, n, kMaxStrip);
    return static_cast<size_t>(n);
  };
  return make_strip_decoder(object.character("content"), count("start"), count("stop"));
}

DecodeStagePointer metaspace_decoder_from_json(const spec::Json& value, const std::string& where) {
  const JsonObject object(
      value, where,
      {"type", "replacement", "str_rep", "add_prefix_space", "prepend_scheme", "split"});
  const bool prepends = object.string("prepend_scheme", "always") != "never" &&
                        object.boolean("add_prefix_space", true);
  return std::make_shared<MetaspaceDecoder>(object.character("replacement"), prepends);
}

DecodeStagePointer stage_from_json(const spec::Json& value, const std::string& where) {
  const std::string type = type_of(value, where);
  if (type == "Strip") return strip_from_json(value, where);
  if (type == "Metaspace") return metaspace_decoder_from_json(value, where);
  if (type == "Replace") {
    const JsonObject object(value, where, {"type", "pattern", "content"});
    return std::make_shared<ReplaceDecoder>(Pattern::from_json(object.at("pattern"), where),
                                            object.string("content"));
  }
  if (type == "ByteLevel") {
    const JsonObject known(value, where, {"type", "add_prefix_space", "trim_offsets", "use_regex"});
    return make_byte_level_decoder();
  }
  if (type == "WordPiece") {
    const JsonObject object(value, where, {"type", "prefix", "cleanup"});
    return make_word_piece_decoder(object.string("prefix", "##"), object.boolean("cleanup", true));
  }
  // before its keys, which are unknown too
  if (type != "ByteFallback" && type != "Fuse")
    fail(ErrorKind::file, where,
         "decoder \"{}\" is not supported; expected ByteLevel, ByteFallback, Fuse, Replace, Strip, "
         "Metaspace, WordPiece or Sequence",
         type.substr(0, 50));
  const JsonObject bare(value, where, {"type"});
  return type == "Fuse" ? make_fuse_decoder() : make_byte_fallback_decoder();
}

void append_stages(const spec::Json& value,
                   const std::string& where,
                   std::vector<DecodeStagePointer>& stages) {
  if (type_of(value, where) != "Sequence") {
    stages.push_back(stage_from_json(value, where));
    return;
  }
  const JsonObject object(value, where, {"type", "decoders"});
  const spec::Json& list = object.at("decoders");
  if (!list.is_array()) fail(ErrorKind::file, where, "\"decoders\" is no array");
  for (size_t i = 0; i < list.size(); ++i)
    append_stages(list[i], fmt::format("{}.decoders[{}]", where, i), stages);
}

}  // namespace

DecodeStagePointer make_byte_level_decoder() {
  return std::make_shared<ByteLevel>(true);
}
DecodeStagePointer make_utf8_decoder() {
  return std::make_shared<ByteLevel>(false);
}
DecodeStagePointer make_byte_fallback_decoder() {
  return std::make_shared<ByteFallback>();
}
DecodeStagePointer make_fuse_decoder() {
  return std::make_shared<Fuse>();
}
DecodeStagePointer make_replace_decoder(std::string literal, std::string content) {
  return std::make_shared<ReplaceDecoder>(Pattern(std::move(literal)), std::move(content));
}
DecodeStagePointer make_strip_decoder(std::string character, size_t start, size_t stop) {
  return std::make_shared<StripDecoder>(std::move(character), start, stop);
}
DecodeStagePointer make_word_piece_decoder(std::string prefix, bool cleanup) {
  return std::make_shared<WordPiece>(std::move(prefix), cleanup);
}

std::vector<DecodeStagePointer> make_decoder(const spec::Json& value, const std::string& where) {
  constexpr size_t kMaxStages = 64;
  std::vector<DecodeStagePointer> stages;
  if (value.is_null()) {
    stages.push_back(std::make_shared<JoinBySpaces>());
    return stages;
  }
  append_stages(value, where, stages);
  if (stages.size() > kMaxStages)
    fail(ErrorKind::file, where, "{} stages; at most {} are accepted", stages.size(), kMaxStages);
  return stages;
}

}  // namespace tessera::text
