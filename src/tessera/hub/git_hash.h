// The name that git gives to a file's content: SHA-1 (FIPS 180-4) of "blob SIZE\0" and the content.
// The hub names files by it that are not large (LFS). It detects a damaged file; who
// can change what the server sends could forge it, and a transfer over TLS is what keeps them out.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace tessera::hub {

class Sha1 {
 public:
  Sha1& update(std::span<const std::byte> bytes);
  Sha1& update(std::string_view text) { return update(std::as_bytes(std::span(text))); }
  /// 40 hexadecimal digits; the object is then used up.
  std::string finish();

 private:
  void hash_block(const unsigned char* data);

  std::array<uint32_t, 5> state_{0x67452301u, 0xefcdab89u, 0x98badcfeu, 0x10325476u, 0xc3d2e1f0u};
  std::array<unsigned char, 64> rest_{};
  uint64_t size_ = 0;
};

std::string git_blob_hash(std::span<const std::byte> content);
/// Throws Error(file) when the file cannot be read.
std::string git_blob_hash_of(const std::filesystem::path& path);

}  // namespace tessera::hub
