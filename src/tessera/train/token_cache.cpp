#include "tessera/train/token_cache.h"

#include <simdjson.h>

#include <cmath>
#include <functional>

#include "tessera/convert/tokenizer.h"
#include "tessera/base/sha256.h"

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

constexpr size_t kPieceBytes = size_t{64} << 20;

struct SourceText {
  std::shared_ptr<const MappedFile> file;
  std::string_view text() const {
    return {reinterpret_cast<const char*>(file->bytes().data()), file->bytes().size()};
  }
};

std::vector<SourceText> open_all(const std::vector<std::string>& paths) {
  std::vector<SourceText> sources;
  for (const std::string& path : paths) {
    sources.push_back({MappedFile::open(path)});
    if (sources.back().text().empty())
      fail(ErrorKind::input, "data", "{}: the file is empty; expected text", path);
  }
  return sources;
}

/// Turns documents into tokens of one split.
class Encoder {
 public:
  Encoder(const text::Tokenizer& tokenizer, std::optional<int32_t> separator, TokenWriter& out)
      : tokenizer_(tokenizer), separator_(separator), out_(out) {}

  void document(std::string_view text, const CancelToken* cancel) {
    if (text.empty()) return;
    append(text, cancel);
    out_.end_document(static_cast<int64_t>(text.size()));
  }
  /// What is tokens already, its separator among them.
  void tokens(const std::vector<int32_t>& ids, bool end) {
    out_.append(ids);
    if (end) out_.end_document(0);
  }
  /// Two documents, neither empty; only the text's bytes count.
  void pair(std::string_view source, std::string_view text, const CancelToken* cancel) {
    append(source, cancel);
    out_.end_document(0);
    document(text, cancel);
  }

 private:
  void append(std::string_view text, const CancelToken* cancel) {
    while (!text.empty()) {
      if (cancel != nullptr) cancel->check("data");
      const std::string_view piece = text.substr(0, cut(text));
      out_.append(tokenizer_.encode(piece, {.add_special = false}));
      text.remove_prefix(piece.size());
    }
    if (separator_) out_.append(std::span(&*separator_, 1));
  }
  static size_t cut(std::string_view text) {
    if (text.size() <= kPieceBytes) return text.size();
    const size_t line = text.rfind('\n', kPieceBytes - 1);
    return line == std::string_view::npos ? kPieceBytes : line + 1;
  }

  const text::Tokenizer& tokenizer_;
  std::optional<int32_t> separator_;
  TokenWriter& out_;
};

/// What a line of a JSON-lines file holds.
struct Line {
  std::string_view text, source;  // no source unless the recipe names one
  size_t offset = 0;              // of the line
};

void each_line(const SourceText& source,
               const DataRecipe& data,
               const std::function<void(const Line&)>& visit) {
  simdjson::dom::parser parser;
  const std::string_view text = source.text();
  int64_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    ++number;
    const auto bad = [&](std::string_view what, const std::string& key) {
      fail(ErrorKind::file, "data", "{}: line {}: {}; expected an object with a string \"{}\"",
           source.file->path().string(), number, what, key);
    };
    if (line.find_first_not_of(" \t\r") != std::string_view::npos) {
      simdjson::dom::element element;
      if (const auto error = parser.parse(simdjson::padded_string(line)).get(element))
        bad(simdjson::error_message(error), data.text_key);
      const auto string_at = [&](const std::string& key) {
        std::string_view value;
        if (const auto error = element.at_key(key).get(value))
          bad(simdjson::error_message(error), key);
        // half a pair has no meaning
        if (data.source_key && value.empty()) bad("the string is empty", key);
        return value;
      };
      Line found{string_at(data.text_key), {}, begin};
      if (data.source_key) found.source = string_at(*data.source_key);
      visit(found);
    }
    begin = end + 1;
  }
}

/// Tokens of a file of ids, unsigned and little-endian.
class TokenFile {
 public:
  TokenFile(const SourceText& source, int64_t vocab)
      : bytes_(source.file->bytes()), path_(source.file->path().string()), vocab_(vocab) {
    if (vocab > int64_t{1} << 16) width_ = 4;
    if (bytes_.size() % width_ != 0)
      fail(ErrorKind::file, "data",
           "{}: {} bytes; expected a multiple of {}: a vocabulary of {} has ids of {} bits", path_,
           bytes_.size(), width_, vocab, 8 * width_);
  }
  size_t width() const { return width_; }
  size_t size() const { return bytes_.size() / width_; }
  int32_t at(size_t i) const {
    uint32_t id = 0;
    for (size_t b = 0; b < width_; ++b)
      id |= std::to_integer<uint32_t>(bytes_[i * width_ + b]) << (8 * b);
    if (id >= vocab_)
      fail(ErrorKind::file, "data", "{}: token {} is {}; expected 0 to {}", path_, i, id,
           vocab_ - 1);
    return static_cast<int32_t>(id);
  }

 private:
  std::span<const std::byte> bytes_;
  std::string path_;
  int64_t vocab_;
  size_t width_ = 2;
};

struct Splitter {
  const DataRecipe& data;
  int64_t vocab;
  std::optional<int32_t> separator;
  Encoder& train;
  Encoder* valid;
  const CancelToken* cancel;

  void put(const Line& line, Encoder& to) const {
    if (data.source_key)
      to.pair(line.source, line.text, cancel);
    else
      to.document(line.text, cancel);
  }

  /// Tokens begin .. end - 1 of a file, as the documents that they are of.
  void put(const TokenFile& file, size_t begin, size_t end, Encoder& to) const {
    constexpr size_t kMost = size_t{1} << 20;
    std::vector<int32_t> ids;
    for (size_t i = begin; i < end; ++i) {
      ids.push_back(file.at(i));
      const bool ends = ids.back() == separator;
      if (!ends && ids.size() < kMost) continue;
      if (cancel != nullptr) cancel->check("data");
      to.tokens(ids, ends);
      ids.clear();
    }
    to.tokens(ids, true);
  }

  /// All of `sources` into one split.
  void whole(const std::vector<SourceText>& sources, Encoder& to) const {
    for (const SourceText& source : sources) {
      if (data.format == DataFormat::tokens) {
        const TokenFile file(source, vocab);
        put(file, 0, file.size(), to);
      } else if (data.format == DataFormat::text)
        to.document(source.text(), cancel);
      else
        each_line(source, data, [&](const Line& line) { put(line, to); });
    }
  }

  /// What begins at byte `border` of all sources together goes to valid; a text is cut there.
  void divide(const std::vector<SourceText>& sources, uint64_t border, bool any_bytes) const {
    uint64_t before = 0;  // bytes of the files so far
    for (const SourceText& source : sources) {
      const std::string_view text = source.text();
      if (data.format == DataFormat::tokens) {
        const TokenFile file(source, vocab);
        const size_t at =
            border <= before ? 0 : std::min<size_t>((border - before) / file.width(), file.size());
        put(file, 0, at, train);
        put(file, at, file.size(), *valid);
      } else if (data.format == DataFormat::text) {
        size_t at = border <= before
                        ? 0
                        : static_cast<size_t>(std::min<uint64_t>(border - before, text.size()));
        while (!any_bytes && at > 0 && at < text.size() &&
               (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80)
          --at;
        train.document(text.substr(0, at), cancel);
        valid->document(text.substr(at), cancel);
      } else {
        each_line(source, data, [&](const Line& line) {
          put(line, before + line.offset < border ? train : *valid);
        });
      }
      before += text.size();
    }
  }
};

/// SHA-256 of the tokenizer's files, or its name when it has none.
std::string fingerprint(const std::string& tokenizer) {
  if (tokenizer == "bytes") return "bytes";
  if (!fs::is_directory(tokenizer)) return sha256_file(tokenizer);
  const auto files = text::tokenizer_files_in(tokenizer);
  if (files.empty()) {
    for (const char* name : {"tokenizer.gguf", "tokenizer.bin"})
      if (fs::exists(fs::path(tokenizer) / name)) return sha256_file(fs::path(tokenizer) / name);
    fail(ErrorKind::file, tokenizer, "no tokenizer.json or vocab.txt in this folder");
  }
  std::string sums = sha256_file(files[0]);
  // a vocab.txt leaves it to the other files how a text is cut
  if (files[0].filename() == "vocab.txt")
    for (size_t i = 1; i < files.size(); ++i) sums += "+" + sha256_file(files[i]);
  return sums;
}

std::string cache_key(const DataRecipe& data,
                      std::optional<int32_t> separator,
                      int64_t vocab,
                      const std::vector<SourceText>& train,
                      const std::vector<SourceText>& valid) {
  Json key = {{"version", 1},
              {"tokenizer", fingerprint(data.tokenizer)},
              {"vocab", vocab},
              {"format", spec::enum_name(data.format)},
              {"valid_fraction", data.valid_fraction},
              {"separator", separator.value_or(-1)}};
  if (data.format == DataFormat::jsonl) key["text_key"] = data.text_key;
  if (data.source_key) key["source_key"] = *data.source_key;
  for (const auto& [name, sources] : {std::pair{"train", &train}, std::pair{"valid", &valid}})
    for (const SourceText& source : *sources)
      key[name].push_back(Sha256().update(source.file->bytes()).finish());
  return sha256(key.dump());
}

void check_size(const TokenSplit& split, const char* name) {
  if (split.tokens() < 2)
    fail(ErrorKind::input, "data", "the {} split has {} tokens; expected at least 2", name,
         split.tokens());
}

}  // namespace

text::Tokenizer open_tokenizer(const DataRecipe& data) {
  return convert::find_tokenizer(data.tokenizer);
}

std::optional<int32_t> separator_of(const DataRecipe& data, const text::Tokenizer& tokenizer) {
  if (!data.document_separator) return tokenizer.eos();
  if (data.document_separator->empty()) return std::nullopt;
  const auto id = tokenizer.id(*data.document_separator);
  if (!id)
    fail(ErrorKind::spec, "data.document_separator", "\"{}\" is not a token of {}",
         *data.document_separator, data.tokenizer);
  return id;
}

TokenData prepare_tokens(const DataRecipe& data,
                         const text::Tokenizer& tokenizer,
                         int64_t vocab,
                         const fs::path& cache,
                         const CancelToken* cancel) {
  const auto train_files = open_all(data.train), valid_files = open_all(data.valid);
  const auto separator = separator_of(data, tokenizer);
  const bool has_valid = !data.valid.empty() || data.valid_fraction > 0;
  TokenData out;
  out.separator = separator;
  out.key = cache_key(data, separator, vocab, train_files, valid_files);
  const fs::path folder = cache / out.key.substr(0, 16);

  const auto open = [&] {
    out.train = TokenSplit::open(folder / "train.tokens");
    if (has_valid) out.valid = TokenSplit::open(folder / "valid.tokens");
  };
  std::error_code ignored;
  try {
    open();
  } catch (const Error&) {  // not there, or not whole: it is only a cache
    const fs::path partial = folder.string() + ".partial";
    fs::remove_all(folder, ignored);
    fs::remove_all(partial, ignored);
    try {
      TokenWriter train_out(partial / "train.tokens", vocab);
      std::optional<TokenWriter> valid_out;
      Encoder train(tokenizer, separator, train_out);
      std::optional<Encoder> valid;
      if (has_valid)
        valid.emplace(tokenizer, separator, valid_out.emplace(partial / "valid.tokens", vocab));
      const Splitter splitter{data, vocab, separator, train, valid ? &*valid : nullptr, cancel};
      if (data.valid_fraction > 0) {
        uint64_t bytes = 0;
        for (const SourceText& source : train_files) bytes += source.text().size();
        const auto border = static_cast<uint64_t>(
            std::floor((1 - data.valid_fraction) * static_cast<double>(bytes)));
        splitter.divide(train_files, border, data.tokenizer == "bytes");
      } else {
        splitter.whole(train_files, train);
        if (valid) splitter.whole(valid_files, *valid);
      }
      train_out.finish();
      if (valid_out) valid_out->finish();
      fs::rename(partial, folder);
    } catch (const fs::filesystem_error& error) {
      fs::remove_all(partial, ignored);
      fail(ErrorKind::resource, "data", "{}: {}", folder.string(), error.code().message());
    } catch (...) {
      fs::remove_all(partial, ignored);
      throw;
    }
    open();
  }
  check_size(out.train, "train");
  if (has_valid) check_size(out.valid, "valid");
  return out;
}

}  // namespace tessera::train
