// Examples of FIPS 180-2, appendix B.
#include "tessera/base/sha256.h"

#include <gtest/gtest.h>

namespace tessera::sha256_test {
namespace {

TEST(Sha256, PublishedExamples) {
  EXPECT_EQ(sha256(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sha256(std::string(1'000'000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, AllCodesAgree) {
  std::string text;
  for (int i = 0; i < 5000; ++i) text += static_cast<char>(i * i / 7 + 3 * i);
  for (const size_t length : {0, 1, 55, 56, 64, 65, 127, 128, 129, 1000, 5000})
    EXPECT_EQ(Sha256(Sha256::Code::fastest).update(text.substr(0, length)).finish(),
              Sha256(Sha256::Code::portable).update(text.substr(0, length)).finish())
        << length;
  EXPECT_EQ(Sha256(Sha256::Code::portable).update("abc").finish(),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(Sha256, PiecesOfAnySize) {
  const std::string text(1000, 'x');
  const std::string whole = sha256(text);
  for (const size_t piece : {1, 55, 56, 63, 64, 65, 130}) {
    Sha256 hash;
    for (size_t at = 0; at < text.size(); at += piece)
      hash.update(std::string_view(text).substr(at, piece));
    EXPECT_EQ(hash.finish(), whole) << piece;
  }
}

}  // namespace
}  // namespace tessera::sha256_test
