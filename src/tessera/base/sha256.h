// SHA-256 (FIPS 180-4); checkpoints and caches can be verified with `sha256sum`.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace tessera {

class Sha256 {
 public:
  /// Implementation: `fastest` uses the processor's SHA instructions if available (five times as
  /// fast), `portable` does not.
  enum class Code { fastest, portable };
  explicit Sha256(Code code = Code::fastest);

  Sha256& update(std::span<const std::byte> bytes);
  Sha256& update(std::string_view text) { return update(std::as_bytes(std::span(text))); }
  /// 64 hexadecimal digits; the object cannot be used afterwards.
  std::string finish();

 private:
  using State = std::array<uint32_t, 8>;
  using HashBlocks = void (*)(State& state, const unsigned char* data, size_t blocks);
  friend struct Sha256Code;

  HashBlocks hash_blocks_;
  State state_{0x6a09e667u, 0xbb67ae85u, 0x3c6ef372u, 0xa54ff53au,
               0x510e527fu, 0x9b05688cu, 0x1f83d9abu, 0x5be0cd19u};
  std::array<unsigned char, 64> rest_{};
  uint64_t size_ = 0;
};

inline std::string sha256(std::string_view text) {
  return Sha256().update(text).finish();
}
/// Throws Error(file) if the file cannot be read.
std::string sha256_file(const std::filesystem::path& path);

}  // namespace tessera
