// For the tests of this layer: files built byte by byte, broken one rule at a time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/mapped_file.h"
#include "tessera/base/testing.h"

namespace tessera::format::test {

/// Little-endian numbers and text, one after another.
class ByteString {
 public:
  template <class T>
  ByteString& number(T value) {
    text_.append(reinterpret_cast<const char*>(&value), sizeof(T));
    return *this;
  }
  ByteString& raw(std::string_view text) {
    text_ += text;
    return *this;
  }
  ByteString& zeros(size_t count) {
    text_.append(count, '\0');
    return *this;
  }
  /// As GGUF stores strings.
  ByteString& sized(std::string_view text) { return number(uint64_t{text.size()}).raw(text); }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

inline std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

using tessera::test::expect_error;
using tessera::test::SmallFiles;
using tessera::test::TemporaryFolder;

/// What `read` throws, an Error(file); "" when it throws nothing.
inline std::string error_of(const std::function<void()>& read) {
  return tessera::test::error_of(ErrorKind::file, read);
}

/// A name for the failure message, a file, and what its error must contain.
struct Malformed {
  std::string name;
  std::string bytes;
  std::string expected;
};

/// `read(text)` must refuse each, and with the message that belongs to the broken rule.
template <class Read>
void expect_refused(const std::vector<Malformed>& cases, Read read) {
  for (const Malformed& c : cases) {
    const std::string error = error_of([&] { read(c.bytes); });
    EXPECT_NE(error.find(c.expected), std::string::npos)
        << c.name << "\n  error:    " << error << "\n  expected: " << c.expected;
    EXPECT_NE(error, "") << c.name;
  }
}

/// Every proper prefix must be refused.
template <class Read>
void expect_prefixes_refused(std::string_view whole, Read read) {
  for (size_t size = 0; size < whole.size(); ++size) {
    // a copy of exactly that size, so that the address sanitizer sees reads beyond it
    const std::vector<char> prefix(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(size));
    EXPECT_NE(error_of([&] { read(std::string_view(prefix.data(), size)); }), "")
        << size << " bytes";
  }
}

}  // namespace tessera::format::test
