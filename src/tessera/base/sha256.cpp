#include "tessera/base/sha256.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include <fmt/format.h>

#include "tessera/base/cpu.h"
#include "tessera/base/mapped_file.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace tessera {
namespace {

// first 32 bits of the fractional parts of the cube roots of the first 64 primes
constexpr std::array<uint32_t, 64> kRound = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

uint32_t big_endian(const unsigned char* p) {
  return uint32_t{p[0]} << 24 | uint32_t{p[1]} << 16 | uint32_t{p[2]} << 8 | uint32_t{p[3]};
}

void portable_block(std::array<uint32_t, 8>& state, const unsigned char* data) {
  std::array<uint32_t, 64> w;
  for (size_t i = 0; i < 16; ++i) w[i] = big_endian(data + 4 * i);
  for (size_t i = 16; i < 64; ++i) {
    const uint32_t s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
    const uint32_t s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
    w[i] = w[i - 16] + s0 + w[i - 7] + s1;
  }
  auto [a, b, c, d, e, f, g, h] = state;
  for (size_t i = 0; i < 64; ++i) {
    const uint32_t t1 = h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) +
                        ((e & f) ^ (~e & g)) + kRound[i] + w[i];
    const uint32_t t2 =
        (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
  }
  const uint32_t out[] = {a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < 8; ++i) state[i] += out[i];
}

}  // namespace

/// Implementations of hashing whole blocks.
struct Sha256Code {
  static void portable(Sha256::State& state, const unsigned char* data, size_t blocks) {
    for (size_t i = 0; i < blocks; ++i) portable_block(state, data + 64 * i);
  }

#if defined(__x86_64__)
  /// Four words of the message schedule from the sixteen before them:
  ///   w_t = s1(w_{t-2}) + w_{t-7} + s0(w_{t-15}) + w_{t-16}
  __attribute__((target("sha,sse4.1"))) static __m128i next_words(__m128i w0,
                                                                  __m128i w1,
                                                                  __m128i w2,
                                                                  __m128i w3) {
    const __m128i minus_7 = _mm_alignr_epi8(w3, w2, 4);
    return _mm_sha256msg2_epu32(_mm_add_epi32(_mm_sha256msg1_epu32(w0, w1), minus_7), w3);
  }

  /// With the SHA extensions, whose instructions keep the state as two registers (a, b, e, f) and
  /// (c, d, g, h), from the highest word on.
  __attribute__((target("sha,sse4.1"))) static void instructions(Sha256::State& state,
                                                                 const unsigned char* data,
                                                                 size_t blocks) {
    const __m128i big_endian = _mm_set_epi8(12, 13, 14, 15, 8, 9, 10, 11, 4, 5, 6, 7, 0, 1, 2, 3);
    auto [a, b, c, d, e, f, g, h] = state;
    __m128i abef = _mm_set_epi32(static_cast<int>(a), static_cast<int>(b), static_cast<int>(e),
                                 static_cast<int>(f)),
            cdgh = _mm_set_epi32(static_cast<int>(c), static_cast<int>(d), static_cast<int>(g),
                                 static_cast<int>(h));
    for (size_t block = 0; block < blocks; ++block, data += 64) {
      const __m128i abef_before = abef, cdgh_before = cdgh;
      __m128i w[4];
      for (int i = 0; i < 4; ++i)
        w[i] = _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(data + 16 * i)),
                                big_endian);
      for (size_t four = 0; four < 16; ++four) {
        __m128i words = w[four % 4];
        if (four >= 4)
          words = w[four % 4] =
              next_words(w[four % 4], w[(four + 1) % 4], w[(four + 2) % 4], w[(four + 3) % 4]);
        const __m128i added = _mm_add_epi32(
            words, _mm_loadu_si128(reinterpret_cast<const __m128i*>(kRound.data() + 4 * four)));
        // two rounds each; the state's halves change places twice
        cdgh = _mm_sha256rnds2_epu32(cdgh, abef, added);
        abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(added, 0x0e));
      }
      abef = _mm_add_epi32(abef, abef_before);
      cdgh = _mm_add_epi32(cdgh, cdgh_before);
    }
    alignas(16) std::array<uint32_t, 4> low, high;
    _mm_store_si128(reinterpret_cast<__m128i*>(low.data()), abef);
    _mm_store_si128(reinterpret_cast<__m128i*>(high.data()), cdgh);
    state = {low[3], low[2], high[3], high[2], low[1], low[0], high[1], high[0]};
  }
#endif

#if defined(__x86_64__)
  /// SHA and SSE4.1; TESSERA_CPU=generic disables them.
  static bool has_instructions() {
    static const bool has = [] {
      unsigned a = 0, b = 0, c = 0, d = 0;
      const bool sha = __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b >> 29 & 1) != 0;
      const bool sse = __get_cpuid(1, &a, &b, &c, &d) != 0 && (c >> 19 & 1) != 0;
      return sha && sse && cpu_info().allowed != CpuTarget::generic;
    }();
    return has;
  }
#endif

  static Sha256::HashBlocks chosen(Sha256::Code code) {
#if defined(__x86_64__)
    if (code == Sha256::Code::fastest && has_instructions()) return instructions;
#else
    static_cast<void>(code);
#endif
    return portable;
  }
};

Sha256::Sha256(Code code) : hash_blocks_(Sha256Code::chosen(code)) {}

Sha256& Sha256::update(std::span<const std::byte> bytes) {
  const auto* data = reinterpret_cast<const unsigned char*>(bytes.data());
  size_t n = bytes.size();
  const size_t held = size_ % 64;
  size_ += n;
  if (held > 0) {
    const size_t take = std::min(n, 64 - held);
    std::memcpy(rest_.data() + held, data, take);
    data += take, n -= take;
    if (held + take < 64) return *this;
    hash_blocks_(state_, rest_.data(), 1);
  }
  hash_blocks_(state_, data, n / 64);
  data += n / 64 * 64, n %= 64;
  if (n > 0) std::memcpy(rest_.data(), data, n);
  return *this;
}

std::string Sha256::finish() {
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

std::string sha256_file(const std::filesystem::path& path) {
  return Sha256().update(MappedFile::open(path)->bytes()).finish();
}

}  // namespace tessera
