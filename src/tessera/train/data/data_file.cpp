#include "tessera/train/data/data_file.h"

#include <simdjson.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>

#include "tessera/base/error.h"
#include "tessera/spec/names.h"
#include "tessera/text/utf8.h"

namespace tessera::train {
namespace {

using namespace std::string_view_literals;

constexpr std::string_view kMark = "\xEF\xBB\xBF";

/// The file type by its first bytes, and a remedy for those that are not text.
struct Encoding {
  std::string_view begins, name, remedy;
};
constexpr std::string_view kIconv16 = "iconv -f UTF-16 -t UTF-8 makes one",
                           kDatasets = "to_json() of pandas or datasets writes JSON lines";
constexpr std::array kEncodings = {
    Encoding{"\xFF\xFE\0\0"sv, "UTF-32 by its byte order mark",
             "iconv -f UTF-32 -t UTF-8 makes one"},
    Encoding{"\0\0\xFE\xFF"sv, "UTF-32 by its byte order mark",
             "iconv -f UTF-32 -t UTF-8 makes one"},
    Encoding{"\xFF\xFE"sv, "UTF-16 by its byte order mark", kIconv16},
    Encoding{"\xFE\xFF"sv, "UTF-16 by its byte order mark", kIconv16},
    Encoding{"\x1F\x8B"sv, "compressed (gzip)", "gunzip unpacks it"},
    Encoding{"\x28\xB5\x2F\xFD"sv, "compressed (zstd)", "unzstd unpacks it"},
    Encoding{"\xFD\x37zXZ"sv, "compressed (xz)", "unxz unpacks it"},
    Encoding{"BZh"sv, "compressed (bzip2)", "bunzip2 unpacks it"},
    Encoding{"PK\x03\x04"sv, "a zip file", "unzip unpacks it"},
    Encoding{"PAR1"sv, "Parquet", kDatasets},
    Encoding{"ARROW1"sv, "Arrow", kDatasets}};

std::optional<Encoding> foreign_encoding(std::string_view text) {
  for (const Encoding& one : kEncodings)
    if (text.starts_with(one.begins)) return one;
  // every other byte is zero: Latin letters in 16 bits
  if (text.size() >= 4 && text[0] != 0 && text[1] == 0 && text[2] != 0 && text[3] == 0)
    return Encoding{"", "UTF-16 (little-endian)", "iconv -f UTF-16LE -t UTF-8 makes one"};
  if (text.size() >= 4 && text[0] == 0 && text[1] != 0 && text[2] == 0 && text[3] != 0)
    return Encoding{"", "UTF-16 (big-endian)", "iconv -f UTF-16BE -t UTF-8 makes one"};
  return std::nullopt;
}

/// The first invalid UTF-8 byte; npos if there is none.
size_t first_invalid(std::string_view text) {
  if (simdjson::validate_utf8(text.data(), text.size())) return text.npos;
  for (size_t at = 0; at < text.size();) {
    const size_t length = text::character_length(text, at);
    if (length == 0) return at;
    at += length;
  }
  return text.npos;
}

/// Iterates over the items of a JSON list without parsing them.
class ListItems {
 public:
  ListItems(std::string_view text, std::string path) : text_(text), path_(std::move(path)) {
    skip_blanks();
    ++at_;  // the bracket
    opened_ = line_;
  }

  /// The next item: [begin, end) of the text, and its first line.
  struct Item {
    size_t begin = 0, end = 0;
    int64_t line = 1;
  };
  std::optional<Item> next() {
    skip_blanks();
    if (first_ && here() == ']') return close();
    first_ = false;
    Item item{at_, at_, line_};
    for (int depth = 0; at_ < text_.size(); step()) {
      const char c = text_[at_];
      if (c == '"') skip_string();
      if (depth == 0 && (c == ',' || c == ']')) break;
      if (c == '{' || c == '[') ++depth;
      if (c == '}' || c == ']') --depth;
    }
    if (at_ >= text_.size())
      fail(ErrorKind::file, "data",
           "{}: line {}: a list that does not end; expected ] after its last object", path_,
           opened_);
    item.end = at_;
    while (item.end > item.begin && is_space(text_[item.end - 1])) --item.end;
    if (item.end == item.begin)
      fail(ErrorKind::file, "data", "{}: line {}: found {}; expected an object", path_, line_,
           text_[at_] == ',' ? "a comma" : "the end of the list after a comma");
    if (text_[at_] == ',')
      ++at_;
    else
      last_ = true;
    return item;
  }
  /// Throws if anything follows the list.
  std::optional<Item> close() {
    ++at_;
    skip_blanks();
    if (at_ < text_.size())
      fail(ErrorKind::file, "data",
           "{}: line {}: text after the list; expected one list of objects, or an object on every "
           "line",
           path_, line_);
    return std::nullopt;
  }
  bool last() const { return last_; }

 private:
  static bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }
  char here() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  void step() {
    if (at_ >= text_.size()) return;
    if (text_[at_] == '\n') ++line_;
    ++at_;
  }
  void skip_blanks() {
    while (at_ < text_.size() && is_space(text_[at_])) step();
  }
  /// Advances to the closing quote, or to the end of the text.
  void skip_string() {
    for (step(); at_ < text_.size() && text_[at_] != '"'; step())
      if (text_[at_] == '\\') step();
  }

  std::string_view text_;
  std::string path_;
  size_t at_ = 0;
  int64_t line_ = 1, opened_ = 1;
  bool first_ = true, last_ = false;
};

void for_each_item(const DataFile& file, const std::function<void(const ObjectText&)>& visit) {
  const std::string_view text = file.text();
  if (const std::string what = file.not_utf8(); !what.empty())
    fail(ErrorKind::file, "data", "{}: {}", file.path(), what);
  ListItems items(text, file.path());
  while (const auto item = items.next()) {
    visit({text.substr(item->begin, item->end - item->begin),
           fmt::format("{}: line {}", file.path(), item->line), file.mark() + item->begin});
    if (items.last()) {
      items.close();
      return;
    }
  }
}

/// Number literals that JSON lacks, and their placeholders during parsing.
struct NotFinite {
  std::string_view name, quoted;
  double value;
};
constexpr std::array kNotFinite = {
    NotFinite{"NaN", "\"\\u0001NaN\"", std::numeric_limits<double>::quiet_NaN()},
    NotFinite{"-Infinity", "\"\\u0001-Infinity\"", -std::numeric_limits<double>::infinity()},
    NotFinite{"Infinity", "\"\\u0001Infinity\"", std::numeric_limits<double>::infinity()}};

/// The text with these literals as strings; "" if it has none outside of strings.
std::string with_quoted_numbers(std::string_view text) {
  std::string out;
  size_t copied = 0;
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] == '"')
      for (++at; at < text.size() && text[at] != '"'; ++at)
        if (text[at] == '\\') ++at;
    if (at >= text.size()) break;
    for (const NotFinite& one : kNotFinite) {
      if (!text.substr(at).starts_with(one.name)) continue;
      out += text.substr(copied, at - copied);
      out += one.quoted;
      at += one.name.size() - 1;
      copied = at + 1;
      break;
    }
  }
  if (copied == 0) return "";
  return out += text.substr(copied);
}

void restore_numbers(Json& value) {
  if (value.is_structured()) {
    for (Json& inner : value) restore_numbers(inner);
  } else if (value.is_string()) {
    const auto& text = value.get_ref<const std::string&>();
    if (!text.starts_with('\x01')) return;
    for (const NotFinite& one : kNotFinite)
      if (std::string_view(text).substr(1) == one.name) {
        value = one.value;
        return;
      }
  }
}

/// JSON, and Python's literals NaN and Infinity.
Json parse_value(std::string_view text, const std::string& where) {
  try {
    const std::string quoted =
        text.find_first_of("NI") == text.npos ? "" : with_quoted_numbers(text);
    if (quoted.empty()) return spec::parse_json(text, where);
    Json value = spec::parse_json(quoted, where);
    restore_numbers(value);
    return value;
  } catch (const Error& error) {
    // the place comes first, as in all messages about lines
    fail(ErrorKind::file, "data", "{}: {}", where, without_place(error, where));
  }
}

}  // namespace

std::string without_place(const Error& error, std::string_view where) {
  const std::string what = error.what(), place = fmt::format("[{}] ", where);
  return what.starts_with(place) ? what.substr(place.size()) : what;
}

DataFile::DataFile(const std::string& path, bool is_text)
    : path_(path), file_(MappedFile::open(path)) {
  text_ = {reinterpret_cast<const char*>(file_->bytes().data()), file_->bytes().size()};
  if (text_.starts_with(kMark)) text_.remove_prefix(kMark.size());
  if (!is_text) return;
  if (const auto other = foreign_encoding(text_))
    fail(ErrorKind::file, "data", "{}: {}; expected a text in UTF-8 ({})", path, other->name,
         other->remedy);
}

DataFile::DataFile(const std::string& path) : DataFile(path, true) {}

DataFile DataFile::of_bytes(const std::string& path) {
  return DataFile(path, false);
}

std::string DataFile::not_utf8() const {
  if (const auto other = foreign_encoding(text_))
    return fmt::format("{}, which is not UTF-8; expected a text in UTF-8 ({})", other->name,
                       other->remedy);
  const size_t at = first_invalid(text_);
  if (at == text_.npos) return "";
  return fmt::format(
      "line {}: byte {} of the file is 0x{:02x}, which is not UTF-8; expected a text in UTF-8 "
      "(iconv -f latin1 -t utf-8 makes one)",
      1 + std::count(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(at), '\n'),
      mark() + at + 1, static_cast<unsigned char>(text_[at]));
}

DataLines::DataLines(DataFile file) : file_(std::move(file)), rest_(file_.text()) {
  if (rest_.empty())
    fail(ErrorKind::input, "data", "{}: the file is empty; expected examples", file_.path());
}

std::string DataLines::where(int64_t number) const {
  return fmt::format("{}: line {}", file_.path(), number);
}

bool DataLines::next(std::string_view& line) {
  if (rest_.empty()) return false;
  const size_t end = std::min(rest_.find('\n'), rest_.size());
  line = rest_.substr(0, end);
  rest_.remove_prefix(std::min(end + 1, rest_.size()));
  if (line.ends_with('\r')) line.remove_suffix(1);
  ++number_;
  check_utf8(line, number_);
  return true;
}

void DataLines::check_rest() const {
  DataLines all = *this;
  for (std::string_view line; all.next(line);) {
  }
}

void DataLines::check_utf8(std::string_view text, int64_t number) const {
  const size_t at = first_invalid(text);
  if (at == text.npos) return;
  fail(ErrorKind::file, "data",
       "{}: byte {} is 0x{:02x}, which is not UTF-8; expected a file in UTF-8 (iconv -f latin1 -t "
       "utf-8 makes one)",
       where(number), at + 1, static_cast<unsigned char>(text[at]));
}

bool is_blank(std::string_view line) {
  return line.find_first_not_of(" \t\r") == std::string_view::npos;
}

void for_each_object(const DataFile& file, const std::function<void(const ObjectText&)>& visit) {
  const std::string_view text = file.text();
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first == text.npos) return;
  if (text[first] == '[') return for_each_item(file, visit);
  DataLines lines(file);
  const char* begin = lines.rest().data();
  for (std::string_view line; lines.next(line);)
    if (!is_blank(line))
      visit({line, lines.where(), file.mark() + static_cast<size_t>(line.data() - begin)});
}

Json parse_object(std::string_view text, const std::string& where) {
  const Json value = parse_value(text, where);
  if (!value.is_object())
    fail(ErrorKind::file, "data", "{}: found {}; expected an object", where, found_kind(value));
  return value;
}

Json parse_object(const ObjectText& object) {
  return parse_object(object.text, object.where);
}

std::string string_at(const Json& object, const std::string& key, const std::string& where) {
  const auto found = object.find(key);
  if (found == object.end()) {
    std::vector<std::string> names;
    for (const auto& [name, value] : object.items()) names.push_back(name);
    fail(ErrorKind::file, "data", "{}: no \"{}\"{}; expected an object with a string \"{}\"", where,
         key, spec::did_you_mean(key, names), key);
  }
  if (!found->is_string())
    fail(ErrorKind::file, "data", "{}: \"{}\" is {}; expected a string", where, key,
         found_kind(*found));
  return found->get<std::string>();
}

std::string_view found_kind(const Json& value) {
  if (!value.is_number_float() || std::isfinite(value.get<double>())) return spec::kind_of(value);
  return std::isnan(value.get<double>()) ? "NaN" : "infinite";
}

}  // namespace tessera::train
