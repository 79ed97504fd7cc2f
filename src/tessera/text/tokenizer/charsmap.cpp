#include "tessera/text/tokenizer/charsmap.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/text/utf8.h"

namespace tessera::text {
namespace {

// released maps have 0.3 MB; checking one takes 255 steps a unit
constexpr size_t kMaxMapBytes = size_t{4} << 20;

// A unit: bits 0 to 7 the byte of its edge, 8 whether a key ends here, 9 the scale of the offset,
// 10 to 31 the offset. At the offset itself (after a zero byte) is a key's value.
uint32_t label_of(uint32_t unit) {
  return unit & (0x80000000u | 0xFFu);
}
bool ends_key(uint32_t unit) {
  return (unit >> 8 & 1) != 0;
}
uint64_t offset_of(uint32_t unit) {
  return uint64_t{unit >> 10} << ((unit & 0x200u) >> 6);
}
uint32_t value_of(uint32_t unit) {
  return unit & 0x7FFFFFFFu;
}

uint32_t u32_at(std::string_view bytes, size_t at) {
  uint32_t value = 0;
  for (size_t i = 4; i-- > 0;) value = value << 8 | static_cast<uint8_t>(bytes[at + i]);
  return value;
}

// Walks every path once, so that lookups need no checks.
void check_paths(const std::vector<uint32_t>& units,
                 std::string_view pool,
                 const std::string& where) {
  std::vector<bool> seen(units.size());
  std::vector<uint64_t> waiting{0};
  seen[0] = true;
  while (!waiting.empty()) {
    const uint64_t at = waiting.back();
    waiting.pop_back();
    const uint64_t base = at ^ offset_of(units[at]);
    if ((base | 0xFF) >= units.size())
      fail(ErrorKind::file, where, "precompiled_charsmap: unit {} of {} leads to {}", at,
           units.size(), base | 0xFF);
    if (ends_key(units[at])) {
      const uint32_t value = value_of(units[base]);
      if (value >= pool.size() || (static_cast<uint8_t>(pool[value]) & 0xC0) == 0x80)
        fail(ErrorKind::file, where,
             "precompiled_charsmap: unit {} names a replacement at byte {} of {}, where no "
             "character begins",
             at, value, pool.size());
    }
    for (uint64_t byte = 1; byte < 256; ++byte) {
      const uint64_t next = base ^ byte;
      if (label_of(units[next]) != byte || seen[next]) continue;
      seen[next] = true;
      waiting.push_back(next);
    }
  }
}

}  // namespace

Charsmap::Charsmap(std::string_view bytes, const std::string& where) {
  if (bytes.size() > kMaxMapBytes)
    fail(ErrorKind::file, where, "precompiled_charsmap: {} bytes; at most {} are read",
         bytes.size(), kMaxMapBytes);
  const size_t size = bytes.size() < 4 ? 0 : u32_at(bytes, 0);
  if (size == 0 || size % 4 != 0 || size > bytes.size() - 4)
    fail(ErrorKind::file, where, "precompiled_charsmap: a trie of {} bytes in {}", size,
         bytes.size());
  for (size_t at = 0; at < size; at += 4) units_.push_back(u32_at(bytes, 4 + at));
  pool_ = bytes.substr(4 + size);
  if (!is_valid_utf8(pool_))
    fail(ErrorKind::file, where, "precompiled_charsmap: the replacements are not valid UTF-8");
  check_paths(units_, pool_, where);
}

std::string_view Charsmap::replacement(uint32_t unit) const {
  const std::string_view rest = std::string_view(pool_).substr(value_of(unit));
  return rest.substr(0, rest.find('\0'));
}

std::optional<Charsmap::Match> Charsmap::match(std::string_view text, bool first) const {
  std::optional<Match> found;
  uint64_t at = offset_of(units_[0]);
  for (size_t i = 0; i < text.size() && text[i] != '\0'; ++i) {
    const auto byte = static_cast<uint8_t>(text[i]);
    at ^= byte;
    const uint32_t unit = units_[at];
    if (label_of(unit) != byte) break;
    at ^= offset_of(unit);
    if (!ends_key(unit)) continue;
    // a key that ends inside a character would leave invalid UTF-8
    if (i + 1 < text.size() && (static_cast<uint8_t>(text[i + 1]) & 0xC0) == 0x80) continue;
    found = {i + 1, replacement(units_[at])};
    if (first) break;
  }
  return found;
}

}  // namespace tessera::text
