// Numbers of FIPS 180-4 and of `git hash-object`.
#include "tessera/hub/git_hash.h"

#include <gtest/gtest.h>

#include "tessera/base/testing.h"

namespace tessera::hub {
namespace {

TEST(Sha1, HasTheNumbersOfTheStandard) {
  EXPECT_EQ(Sha1().update("abc").finish(), "a9993e364706816aba3e25717850c26c9cd0d89d");
  EXPECT_EQ(Sha1().finish(), "da39a3ee5e6b4b0d3255bfef95601890afd80709");
  EXPECT_EQ(Sha1().update("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq").finish(),
            "84983e441c3bd26ebaae4aa1f95129e5e54670f1");
  // in pieces of every length around a block
  const std::string million(1'000'000, 'a');
  for (const size_t piece : {size_t{1'000'000}, size_t{63}, size_t{64}, size_t{65}, size_t{1000}}) {
    Sha1 hash;
    for (size_t at = 0; at < million.size(); at += piece)
      hash.update(std::string_view(million).substr(at, piece));
    EXPECT_EQ(hash.finish(), "34aa973cd4c4daa4f61eeb2bdbad27316534016f") << piece;
  }
}

TEST(GitHash, NamesContentsAsGitDoes) {
  const test::TemporaryFolder folder;
  EXPECT_EQ(git_blob_hash({}), "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391");
  EXPECT_EQ(git_blob_hash_of(folder.write("a", "hello\n")),
            "ce013625030ba8dba906f756967f9e9ca394464a");
  EXPECT_EQ(git_blob_hash_of(folder.write("b", "")), "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391");
}

}  // namespace
}  // namespace tessera::hub
