// Files of texts and examples as editors and other programs write them: their encoding, their lines
// and the JSON objects in them. Every kind of data reads its files through this. Torch-free.
//
// A byte order mark of UTF-8 is skipped. UTF-16, UTF-32, compressed files and Parquet are refused
// by name. NaN and Infinity, which Python's json writes, are numbers that are not finite.
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
  /// Throws Error(file) for a file that cannot be read, and one that is no text by its first bytes.
  explicit DataFile(const std::string& path);
  /// The same of a file whose bytes may be anything.
  static DataFile of_bytes(const std::string& path);

  const std::string& path() const { return path_; }
  /// All of it behind the mark.
  std::string_view text() const { return text_; }
  std::span<const std::byte> raw() const { return file_->bytes(); }
  /// Bytes of the file, and of the mark in front of text().
  size_t bytes() const { return file_->bytes().size(); }
  size_t mark() const { return bytes() - text_.size(); }

  /// Where a text is not UTF-8, or what it is instead; "" where it is UTF-8.
  std::string not_utf8() const;

 private:
  DataFile(const std::string& path, bool is_text);
  std::string path_;
  std::shared_ptr<const MappedFile> file_;
  std::string_view text_;
};

/// The lines of a file, each of which is UTF-8, without their ends.
class DataLines {
 public:
  /// Throws Error(input) for an empty file.
  explicit DataLines(DataFile file);
  explicit DataLines(const std::string& path) : DataLines(DataFile(path)) {}

  /// False behind the last one. Throws Error(file) for a line that is not UTF-8.
  bool next(std::string_view& line);
  /// Whether nothing but blank lines is left.
  bool only_blank_left() const { return rest_.find_first_not_of(" \t\r\n") == rest_.npos; }
  std::string_view rest() const { return rest_; }
  /// Of rest(), in the file's bytes.
  size_t offset() const { return file_.bytes() - rest_.size(); }
  /// "FILE: line N", of the line that was read last.
  std::string where() const { return where(number_); }
  std::string where(int64_t number) const;
  int64_t number() const { return number_; }
  /// Throws as next() would for any of the lines left.
  void check_rest() const;

 private:
  void check_utf8(std::string_view text, int64_t number) const;
  DataFile file_;
  std::string_view rest_;
  int64_t number_ = 0;
};

bool is_blank(std::string_view line);

/// What an error says, without "[where] " in front of it: for messages that name a place
/// themselves.
std::string without_place(const Error& error, std::string_view where);

/// An object of a file of JSON lines, or of one list of objects: its text, not yet parsed.
struct ObjectText {
  std::string_view text;
  std::string where;  // "FILE: line N", in which it begins
  size_t offset = 0;  // in the file's bytes
};

/// Visits them in order. Throws Error(file) for what is not UTF-8, and a list that does not close.
void for_each_object(const DataFile& file, const std::function<void(const ObjectText&)>& visit);

/// The object. Throws Error(file) with what it found.
Json parse_object(const ObjectText& object);
Json parse_object(std::string_view text, const std::string& where);

/// The string of an object at a key. Throws Error(file) that names the key.
std::string string_at(const Json& object, const std::string& key, const std::string& where);

/// What a value is, in words for messages: null, NaN, "a string".
std::string_view found_kind(const Json& value);

}  // namespace tessera::train
