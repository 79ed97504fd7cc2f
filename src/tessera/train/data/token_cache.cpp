#include "tessera/train/data/token_cache.h"

#include <simdjson.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <functional>

#include "tessera/base/partial_path.h"
#include "tessera/base/sha256.h"
#include "tessera/convert/tokenizer.h"
#include "tessera/train/data/data_file.h"

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

constexpr size_t kPieceBytes = size_t{64} << 20;

/// Any bytes are valid for the tokenizer "bytes"; files of ids are not text.
std::vector<DataFile> open_all(const TextData& data, const std::vector<std::string>& paths) {
  const bool any_bytes = data.format == DataFormat::tokens ||
                         (data.format == DataFormat::text && data.tokenizer == "bytes");
  std::vector<DataFile> files;
  for (const std::string& path : paths) {
    files.push_back(any_bytes ? DataFile::of_bytes(path) : DataFile(path));
    if (files.back().text().empty())
      fail(ErrorKind::input, "data", "{}: the file is empty; expected text", path);
  }
  return files;
}

/// Files that are not UTF-8, a line each.
std::vector<std::string> warnings(const TextData& data, const std::vector<DataFile>& files) {
  std::vector<std::string> out;
  if (data.format != DataFormat::text) return out;
  for (const DataFile& file : files)
    if (const std::string what = file.not_utf8(); !what.empty())
      out.push_back(fmt::format("warning: {}: no UTF-8 text: {}", file.path(), what));
  return out;
}

/// How texts of one side of pairs become tokens.
struct Side {
  const text::Tokenizer& tokenizer;
  std::optional<int32_t> separator;  // after every document
  int64_t vocab = 0;                 // of the model
};

/// Tokenizes documents into one split.
class Encoder {
 public:
  Encoder(const Side& text, const Side& source, TokenWriter& out)
      : text_(text), source_(source), out_(out) {}

  void document(std::string_view text, const CancelToken* cancel) {
    if (text.empty()) return;
    append(text, text_, cancel);
    out_.end_document(static_cast<int64_t>(text.size()));
  }
  /// Adds tokens, separator included.
  void tokens(const std::vector<int32_t>& ids, bool end) {
    out_.append(ids);
    if (end) out_.end_document(0);
  }
  /// Adds a pair as two documents, neither empty;
  void pair(std::string_view source, std::string_view text, const CancelToken* cancel) {
    append(source, source_, cancel);
    out_.end_document(0);
    document(text, cancel);
  }

 private:
  void append(std::string_view text, const Side& side, const CancelToken* cancel) {
    while (!text.empty()) {
      if (cancel != nullptr) cancel->check("data");
      const std::string_view piece = text.substr(0, cut(text));
      const std::vector<int32_t> ids = side.tokenizer.encode(piece, {.add_special = false});
      for (const int32_t id : ids)
        if (id >= side.vocab)
          fail(ErrorKind::input, "data",
               "the tokenizer gives id {}; the spec has a vocabulary of {} (spec.vocab)", id,
               side.vocab);
      out_.append(ids);
      text.remove_prefix(piece.size());
    }
    if (side.separator) out_.append(std::span(&*side.separator, 1));
  }
  static size_t cut(std::string_view text) {
    if (text.size() <= kPieceBytes) return text.size();
    const size_t line = text.rfind('\n', kPieceBytes - 1);
    return line == std::string_view::npos ? kPieceBytes : line + 1;
  }

  Side text_, source_;
  TokenWriter& out_;
};

/// The text of a JSON object or of a table row.
struct Line {
  std::string_view text, source;  // no source unless the recipe names one
  size_t offset = 0;              // of the line
};

/// Reads the strings at a recipe's keys.
class LineReader {
 public:
  explicit LineReader(const TextData& data) : data_(data) {}

  Line of(const ObjectText& object) {
    Line line{{}, {}, object.offset};
    const simdjson::dom::element* parsed = parse(object.text);
    // input that the fast parser rejects is parsed again for a precise error
    if (parsed == nullptr || !string_of(*parsed, data_.text_key, line.text) ||
        (data_.source_key && !string_of(*parsed, *data_.source_key, line.source))) {
      const Json json = parse_object(object);
      text_ = string_at(json, data_.text_key, object.where);
      line.text = text_;
      if (data_.source_key) source_ = string_at(json, *data_.source_key, object.where);
      if (data_.source_key) line.source = source_;
    }
    check_pair(line, object.where);
    return line;
  }
  Line of(const Record& row) {
    text_ = string_at(row.values, data_.text_key, row.where);
    if (data_.source_key) source_ = string_at(row.values, *data_.source_key, row.where);
    const Line line{text_, source_, row.offset};
    check_pair(line, row.where);
    return line;
  }

 private:
  /// Both strings of a pair are required.
  void check_pair(const Line& line, const std::string& where) const {
    if (!data_.source_key) return;
    for (const auto& [key, value] :
         {std::pair(&data_.text_key, line.text), std::pair(&*data_.source_key, line.source)})
      if (value.empty())
        fail(ErrorKind::file, "data", "{}: \"{}\": the string is empty; expected a text", where,
             *key);
  }
  const simdjson::dom::element* parse(std::string_view text) {
    return parser_.parse(simdjson::padded_string(text)).get(element_) ? nullptr : &element_;
  }
  static bool string_of(const simdjson::dom::element& element,
                        const std::string& key,
                        std::string_view& out) {
    return !element.at_key(key).get(out);
  }
  const TextData& data_;
  simdjson::dom::parser parser_;
  simdjson::dom::element element_;
  std::string text_, source_;
};

void each_line(const DataFile& file,
               const TextData& data,
               const std::function<void(const Line&)>& visit) {
  LineReader reader(data);
  if (data.format != DataFormat::jsonl)
    return for_each_row(file.path(), label_format(data.format).value(),
                        [&](Record&& row) { visit(reader.of(row)); });
  for_each_object(file, [&](const ObjectText& object) { visit(reader.of(object)); });
}

/// Tokens of a file of ids, unsigned and little-endian.
class TokenFile {
 public:
  TokenFile(const DataFile& source, int64_t vocab)
      : bytes_(source.raw()), path_(source.path()), vocab_(vocab) {
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
  const TextData& data;
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

  /// Adds tokens begin .. end - 1 of a file, split into documents.
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

  /// Adds all of `sources` to one split.
  void whole(const std::vector<DataFile>& sources, Encoder& to) const {
    for (const DataFile& source : sources) {
      if (data.format == DataFormat::tokens) {
        const TokenFile file(source, vocab);
        put(file, 0, file.size(), to);
      } else if (data.format == DataFormat::text)
        to.document(source.text(), cancel);
      else
        each_line(source, data, [&](const Line& line) { put(line, to); });
    }
  }

  /// Text from byte `border` of all sources on is validation; a text is cut there.
  void divide(const std::vector<DataFile>& sources, uint64_t border, bool any_bytes) const {
    uint64_t before = 0;  // bytes of the files so far
    for (const DataFile& source : sources) {
      const std::string_view text = source.text();
      if (data.format == DataFormat::tokens) {
        const TokenFile file(source, vocab);
        const size_t at =
            border <= before ? 0 : std::min<size_t>((border - before) / file.width(), file.size());
        put(file, 0, at, train);
        put(file, at, file.size(), *valid);
      } else if (data.format == DataFormat::text) {
        const uint64_t begin = before + source.mark();
        size_t at = border <= begin
                        ? 0
                        : static_cast<size_t>(std::min<uint64_t>(border - begin, text.size()));
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
      before += source.bytes();
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
    fail(ErrorKind::file, tokenizer, "no file of a tokenizer in this folder");
  }
  std::string sums = sha256_file(files[0]);
  // except for tokenizer.json, pre-tokenization is defined by other files
  if (files[0].filename() != "tokenizer.json")
    for (size_t i = 1; i < files.size(); ++i) sums += "+" + sha256_file(files[i]);
  return sums;
}

std::string cache_key(const TextData& data,
                      const Side& text,
                      const Side& source,
                      const std::vector<DataFile>& train,
                      const std::vector<DataFile>& valid) {
  Json key = {{"version", 1},
              {"tokenizer", fingerprint(data.tokenizer)},
              {"vocab", text.vocab},
              {"format", spec::enum_name(data.format)},
              {"valid_fraction", data.valid_fraction},
              {"separator", text.separator.value_or(-1)}};
  if (has_keys(data.format)) key["text_key"] = data.text_key;
  if (data.source_key) key["source_key"] = *data.source_key;
  if (source.vocab != text.vocab) key["source_vocab"] = source.vocab;
  for (const auto& [name, sources] : {std::pair{"train", &train}, std::pair{"valid", &valid}})
    for (const DataFile& source : *sources)
      key[name].push_back(data.format == DataFormat::tokens ? Sha256().update(source.raw()).finish()
                                                            : sha256(source.text()));
  return sha256(key.dump());
}

void check_size(const TokenSplit& split, const char* name) {
  if (split.tokens() < 2)
    fail(ErrorKind::input, "data", "the {} split has {} tokens; expected at least 2", name,
         split.tokens());
}

}  // namespace

text::Tokenizer open_tokenizer(const DataRecipe& data) {
  return convert::find_tokenizer(data.tokenizer());
}

std::optional<int32_t> separator_of(const TextData& data, const text::Tokenizer& tokenizer) {
  if (!data.document_separator) return tokenizer.eos();
  if (data.document_separator->empty()) return std::nullopt;
  const auto id = tokenizer.id(*data.document_separator);
  if (!id)
    fail(ErrorKind::spec, "data.document_separator", "\"{}\" is not a token of {}",
         *data.document_separator, data.tokenizer);
  return id;
}

TokenData prepare_tokens(const TextData& data,
                         const text::Tokenizer& tokenizer,
                         int64_t vocab,
                         const fs::path& cache,
                         const CancelToken* cancel,
                         int64_t source_vocab) {
  const auto train_files = open_all(data, data.train), valid_files = open_all(data, data.valid);
  const auto separator = separator_of(data, tokenizer);
  if (source_vocab == 0) source_vocab = vocab;
  const text::Tokenizer& of_source = tokenizer.of_source();
  const Side text{tokenizer, separator, vocab},
      source{of_source, data.source_key ? separator_of(data, of_source) : separator, source_vocab};
  const bool has_valid = !data.valid.empty() || data.valid_fraction > 0;
  TokenData out;
  out.separator = separator;
  for (const auto* files : {&train_files, &valid_files})
    for (std::string& line : warnings(data, *files)) out.notes.push_back(std::move(line));
  out.key = cache_key(data, text, source, train_files, valid_files);
  const fs::path folder = cache / out.key.substr(0, 16);

  const auto open = [&] {
    out.train = TokenSplit::open(folder / "train.tokens");
    if (has_valid) out.valid = TokenSplit::open(folder / "valid.tokens");
  };
  std::error_code ignored;
  try {
    open();
  } catch (const Error&) {  // missing or incomplete: rebuild the cache
    try {
      fs::create_directories(cache);
      PartialPath made(folder, PartialPath::Kind::folder);
      const fs::path& partial = made.path();
      const int64_t most = std::max(vocab, source_vocab);
      TokenWriter train_out(partial / "train.tokens", most);
      std::optional<TokenWriter> valid_out;
      Encoder train(text, source, train_out);
      std::optional<Encoder> valid;
      if (has_valid) valid.emplace(text, source, valid_out.emplace(partial / "valid.tokens", most));
      const Splitter splitter{data, vocab, separator, train, valid ? &*valid : nullptr, cancel};
      if (data.valid_fraction > 0) {
        uint64_t bytes = 0;
        for (const DataFile& source : train_files) bytes += source.bytes();
        const auto border = static_cast<uint64_t>(
            std::floor((1 - data.valid_fraction) * static_cast<double>(bytes)));
        splitter.divide(train_files, border, data.tokenizer == "bytes");
      } else {
        splitter.whole(train_files, train);
        if (valid) splitter.whole(valid_files, *valid);
      }
      train_out.finish();
      if (valid_out) valid_out->finish();
      int error = made.rename_to(folder);
      if (error == ENOTEMPTY || error == EEXIST) try {
          open();  // another run has made the same meanwhile
          error = 0;
        } catch (const Error&) {
          fs::remove_all(folder, ignored);
          error = made.rename_to(folder);
        }
      if (error != 0)
        fail(ErrorKind::resource, "data", "{}: {}", folder.string(), std::strerror(error));
    } catch (const fs::filesystem_error& error) {
      fail(ErrorKind::resource, "data", "{}: {}", folder.string(), error.code().message());
    }
    open();
  }
  check_size(out.train, "train");
  if (has_valid) check_size(out.valid, "valid");
  return out;
}

}  // namespace tessera::train
