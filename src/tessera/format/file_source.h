// The base of every reader of this layer: a name for messages, and a cursor over hostile bytes.
//
// All formats here are little-endian, and so is every machine tessera runs on.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"

namespace tessera::format {

static_assert(std::endian::native == std::endian::little);

/// Text from a file made safe for one line of a message: control characters and bytes that are not
/// UTF-8 become \xNN, and what follows the first `limit` bytes becomes "...".
std::string printable(std::string_view text, size_t limit = 400);
/// printable() in double quotes, for names.
std::string in_quotes(std::string_view name);

inline std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// A file of a repository that was cloned without its large files holds this text instead of them.
inline bool is_lfs_pointer(std::string_view text) {
  return text.starts_with("version https://git-lfs.github.com/spec/");
}
inline constexpr const char* kLfsPointer =
    "is a Git LFS pointer, not the file that it stands for; expected that file: run \"git lfs "
    "pull\" "
    "in the repository, or download it";

/// a * b, or nothing when it does not fit.
inline std::optional<int64_t> checked_multiply(int64_t a, int64_t b) {
  int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

/// Which format is read from which file; both appear in every message.
struct FileSource {
  std::string_view format;
  std::string_view file;

  /// Throws Error(file) "[format] file: ...", always one line.
  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format_text, Args&&... args) const {
    refuse(fmt::format(format_text, std::forward<Args>(args)...));
  }

 private:
  [[noreturn]] void refuse(std::string_view what) const;
};

/// A cursor that never leaves its bytes.
class ByteReader {
 public:
  ByteReader(std::span<const std::byte> bytes, const FileSource& source)
      : bytes_(bytes), source_(source) {}

  size_t position() const { return position_; }
  size_t remaining() const { return bytes_.size() - position_; }
  std::span<const std::byte> bytes() const { return bytes_; }
  const FileSource& source() const { return source_; }

  /// The next `count` bytes, or Error(file) "byte P: the file ends inside <what>: ...".
  std::span<const std::byte> take(uint64_t count, std::string_view what) {
    if (count > remaining())
      source_.fail("byte {}: the file ends inside {}: {} bytes left; expected {}", position_, what,
                   remaining(), count);
    const auto taken = bytes_.subspan(position_, static_cast<size_t>(count));
    position_ += static_cast<size_t>(count);
    return taken;
  }

  template <class T>
  T read(std::string_view what) {
    static_assert(std::is_trivially_copyable_v<T>);
    T value;
    std::memcpy(&value, take(sizeof(T), what).data(), sizeof(T));
    return value;
  }

 private:
  std::span<const std::byte> bytes_;
  FileSource source_;
  size_t position_ = 0;
};

}  // namespace tessera::format
