// Reads text and JSON files of other programs: encoding, lines and JSON objects. All training data
// is read with it. Torch-free.
//
// A UTF-8 byte order mark is skipped. UTF-16, UTF-32, compressed files and Parquet are refused by
// name. NaN and Infinity, which Python's json writes, are parsed as non-finite numbers.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "tessera/base/error.h"
#include "tessera/base/mapped_file.h"
#include "tessera/spec/json.h"

namespace tessera::train {

using spec::Json;

class DataFile {
 public:
  /// Throws Error(file) for a file that cannot be read, and for one whose first bytes are not text.
  explicit DataFile(const std::string& path);
  /// The same for a binary file.
  static DataFile of_bytes(const std::string& path);

  const std::string& path() const { return path_; }
  /// The content after the byte order mark.
  std::string_view text() const { return text_; }
  std::span<const std::byte> raw() const { return file_->bytes(); }
  /// Size of the file, and of the byte order mark.
  size_t bytes() const { return file_->bytes().size(); }
  size_t mark() const { return bytes() - text_.size(); }

  /// Where the text is not UTF-8, or its actual encoding; "" for UTF-8.
  std::string not_utf8() const;

 private:
  DataFile(const std::string& path, bool is_text);
  std::string path_;
  std::shared_ptr<const MappedFile> file_;
  std::string_view text_;
};

/// The lines of a UTF-8 file, without line ends.
class DataLines {
 public:
  /// Throws Error(input) for an empty file.
  explicit DataLines(DataFile file);
  explicit DataLines(const std::string& path) : DataLines(DataFile(path)) {}

  /// False after the last line. Throws Error(file) for a line that is not UTF-8.
  bool next(std::string_view& line);
  /// True if only blank lines are left.
  bool only_blank_left() const { return rest_.find_first_not_of(" \t\r\n") == rest_.npos; }
  std::string_view rest() const { return rest_; }
  /// Byte offset of rest() in the file.
  size_t offset() const { return file_.bytes() - rest_.size(); }
  /// "FILE: line N" of the last line read.
  std::string where() const { return where(number_); }
  std::string where(int64_t number) const;
  int64_t number() const { return number_; }
  /// Throws the errors of next() for all remaining lines.
  void check_rest() const;

 private:
  void check_utf8(std::string_view text, int64_t number) const;
  DataFile file_;
  std::string_view rest_;
  int64_t number_ = 0;
};

bool is_blank(std::string_view line);

/// The message of an error without "[where] ", for messages that name a place themselves.
std::string without_place(const Error& error, std::string_view where);

/// A JSON object of a JSON lines file or of one list of objects: its unparsed text.
struct ObjectText {
  std::string_view text;
  std::string where;  // "FILE: line N" of its beginning
  size_t offset = 0;  // in bytes
};

/// Visits them in order. Throws Error(file) for text that is not UTF-8, and for a list that does
/// not close.
void for_each_object(const DataFile& file, const std::function<void(const ObjectText&)>& visit);

/// Parses the object. Throws Error(file) with what it found.
Json parse_object(const ObjectText& object);
Json parse_object(std::string_view text, const std::string& where);

/// The string of an object at a key. Throws Error(file) that names the key.
std::string string_at(const Json& object, const std::string& key, const std::string& where);

/// The type of a value for messages: null, NaN, "a string".
std::string_view found_kind(const Json& value);

}  // namespace tessera::train
