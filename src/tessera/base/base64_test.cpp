#include "tessera/base/base64.h"

#include <gtest/gtest.h>

namespace tessera::base64_test {
namespace {

// RFC 4648, section 10, and bytes that are no text.
TEST(Base64, ThereAndBack) {
  const std::string bytes("\0\xFF\xBFz", 4);
  for (const auto& [plain, coded] : {std::pair<std::string, std::string>{"", ""},
                                     {"f", "Zg=="},
                                     {"fo", "Zm8="},
                                     {"foo", "Zm9v"},
                                     {"foob", "Zm9vYg=="},
                                     {"fooba", "Zm9vYmE="},
                                     {"foobar", "Zm9vYmFy"},
                                     {bytes, "AP+/eg=="}}) {
    EXPECT_EQ(base64(plain), coded);
    EXPECT_EQ(bytes_of_base64(coded), plain);
  }
}

TEST(Base64, NothingElseIsRead) {
  for (const char* text : {"A", "AA", "AA=A", "AAB=", "A===", "====", "AAA\n", "AA A", "-_AA"})
    EXPECT_EQ(bytes_of_base64(text), std::nullopt) << text;
}

}  // namespace
}  // namespace tessera::base64_test
