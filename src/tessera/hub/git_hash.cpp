#include "tessera/hub/git_hash.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include <fmt/format.h>

#include "tessera/base/mapped_file.h"

namespace tessera::hub {

void Sha1::hash_block(const unsigned char* data) {
  std::array<uint32_t, 80> w;
  for (size_t i = 0; i < 16; ++i) {
    const unsigned char* p = data + 4 * i;
    w[i] = uint32_t{p[0]} << 24 | uint32_t{p[1]} << 16 | uint32_t{p[2]} << 8 | uint32_t{p[3]};
  }
  for (size_t i = 16; i < 80; ++i) w[i] = std::rotl(w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16], 1);
  auto [a, b, c, d, e] = state_;
  for (size_t i = 0; i < 80; ++i) {
    // choice, parity, majority, parity, 20 rounds each
    const uint32_t f = i < 20              ? ((b & c) | (~b & d))
                       : i < 40 || i >= 60 ? b ^ c ^ d
                                           : ((b & c) | (b & d) | (c & d));
    constexpr uint32_t kRound[] = {0x5a827999u, 0x6ed9eba1u, 0x8f1bbcdcu, 0xca62c1d6u};
    const uint32_t next = std::rotl(a, 5) + f + e + kRound[i / 20] + w[i];
    e = d, d = c, c = std::rotl(b, 30), b = a, a = next;
  }
  const uint32_t out[] = {a, b, c, d, e};
  for (size_t i = 0; i < 5; ++i) state_[i] += out[i];
}

Sha1& Sha1::update(std::span<const std::byte> bytes) {
  const auto* data = reinterpret_cast<const unsigned char*>(bytes.data());
  for (size_t n = bytes.size(); n > 0;) {
    const size_t held = size_ % 64, take = std::min(n, 64 - held);
    std::memcpy(rest_.data() + held, data, take);
    size_ += take, data += take, n -= take;
    if (held + take == 64) hash_block(rest_.data());
  }
  return *this;
}

std::string Sha1::finish() {
  // a one bit, zeros, and the length in bits as the last eight bytes of a block
  const uint64_t bits = size_ * 8;
  std::array<std::byte, 72> padding{std::byte{0x80}};
  const size_t zeros = (size_ % 64 < 56 ? 56 : 120) - size_ % 64;
  for (size_t i = 0; i < 8; ++i) padding[zeros + i] = static_cast<std::byte>(bits >> (56 - 8 * i));
  update(std::span(padding).first(zeros + 8));
  std::string text;
  for (const uint32_t word : state_) text += fmt::format("{:08x}", word);
  return text;
}

std::string git_blob_hash(std::span<const std::byte> content) {
  return Sha1()
      .update(fmt::format("blob {}", content.size()))
      .update(std::string_view("\0", 1))
      .update(content)
      .finish();
}

std::string git_blob_hash_of(const std::filesystem::path& path) {
  return git_blob_hash(MappedFile::open(path)->bytes());
}

}  // namespace tessera::hub
