#include "tessera/train/objective/denoising/fill_in_middle.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "tessera/convert/tokenizer.h"
#include "tessera/train/train_testing.h"

namespace tessera::train::fill_in_middle_test {
namespace {

using Ids = std::vector<int64_t>;
constexpr int64_t kP = 301, kS = 302, kM = 303, kEnd = 300;

Ids range(int64_t from, int64_t n) {
  Ids out(static_cast<size_t>(n));
  std::iota(out.begin(), out.end(), from);
  return out;
}

FillInMiddle::Options options(double rate, double spm_rate, bool middle_alone = false) {
  return {rate, spm_rate, {kP, kS, kM, kEnd}, middle_alone, {}};
}

TEST(FillInMiddle, TellsTheMiddleLast) {
  const Ids ids = range(10, 10);
  const std::span<const int64_t> all(ids);
  const auto at = [&](bool spm) {
    return fill_in_middle({kP, kS, kM, kEnd}, all.first(3), all.subspan(3, 4), all.subspan(7), spm);
  };
  EXPECT_EQ(at(false).given, (Ids{kP, 10, 11, 12, kS, 17, 18, 19, kM}));
  EXPECT_EQ(at(true).given, (Ids{kP, kS, 17, 18, 19, kM, 10, 11, 12}));
  for (const bool spm : {false, true}) EXPECT_EQ(at(spm).asked, (Ids{13, 14, 15, 16, kEnd}));
}

TEST(FillInMiddle, RatesSayHowManyTextsAreToldHow) {
  const FillInMiddle noise({false, 64}, options(0.8, 0.25));
  const Ids ids = range(10, 30);
  std::map<std::string, int> seen;
  for (uint64_t i = 0; i < 2000; ++i) {
    const auto out = noise.apply({ids, true}, RandomKey(7).fold(i));
    ASSERT_TRUE(out);
    EXPECT_EQ(std::ssize(out->given), 1);
    EXPECT_EQ(out->asked.back(), kEnd);
    if (out->given.front() == 10)
      ++seen["plain"];
    else
      ++seen[out->asked.front() == kS ? "spm or no prefix" : "psm"];
    Ids text = out->asked;
    text.push_back(out->given.front());
    std::erase_if(text, [](int64_t id) { return id >= 300; });
    std::sort(text.begin(), text.end());
    EXPECT_EQ(text, ids);
  }
  EXPECT_NEAR(seen["plain"], 400, 90);
  // a quarter of the rest, and of the others those that are cut twice before the first token
  EXPECT_NEAR(seen["psm"], 1600 * 0.75 * (1 - 61.0 / 961), 110);
}

TEST(FillInMiddle, TheMiddleAloneMayBeAskedFor) {
  const FillInMiddle noise({false, 64}, options(1, 0, true));
  const Ids ids = range(10, 30);
  for (uint64_t i = 0; i < 20; ++i) {
    const auto out = noise.apply({ids, false}, RandomKey(i));
    EXPECT_EQ(out->given.back(), kM);
    EXPECT_EQ(out->asked.back(), kEnd);
    EXPECT_EQ(std::ssize(out->given) + std::ssize(out->asked), 34);
  }
}

TEST(FillInMiddle, CutsCharactersAndNeverInsideOne) {
  FillInMiddle::Options how = options(1, 0, true);
  how.characters = convert::find_tokenizer("bytes");
  const FillInMiddle noise({false, 64}, how);
  const std::string text = "a\xC3\xA4\xE2\x82\xAC!";  // of 1, 2, 3 and 1 bytes
  Ids ids;
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  std::map<Ids, int> seen;
  for (uint64_t i = 0; i < 500; ++i) {
    Ids middle = noise.apply({ids, false}, RandomKey(i))->asked;
    middle.pop_back();
    if (!middle.empty()) {
      EXPECT_NE(middle.front() & 0xC0, 0x80);
    }
    ++seen[middle];
  }
  // nothing, and what lies between two of 5 places
  EXPECT_EQ(seen.size(), 11u);
}

TEST(FillInMiddle, DocumentsAreToldAsWholesOfWhichWindowsShowParts) {
  FillInMiddle::Options how = options(0.8, 0.5);
  how.documents = true;
  const FillInMiddle noise({false, 16}, how);
  const Ids ids = range(10, 30);
  const NoiseDocument document{30, [&](int64_t i) { return ids.at(static_cast<size_t>(i)); }};
  std::map<std::string, int> seen;
  for (uint64_t i = 0; i < 200; ++i) {
    const RandomKey key = RandomKey(3).fold(i);
    const Ids whole = noise.transformed(document, 0, 30, key);
    Ids parts = noise.transformed(document, 0, 13, key);
    const Ids rest = noise.transformed(document, 13, 30, key);
    parts.insert(parts.end(), rest.begin(), rest.end());
    EXPECT_EQ(parts, whole);
    if (whole == ids) {
      ++seen["plain"];
      continue;
    }
    ++seen[whole[1] == kS ? "spm" : "psm"];
    // the text but for its last four tokens, and the four that name its parts
    Ids sorted = whole;
    std::sort(sorted.begin(), sorted.end());
    Ids wanted = range(10, 26);
    wanted.insert(wanted.end(), {kEnd, kP, kS, kM});
    EXPECT_EQ(sorted, wanted);
    EXPECT_EQ(whole.front(), kP);
    EXPECT_EQ(whole.back(), kEnd);
    // the middle is what stands between the prefix and the suffix
    const auto at = [&](int64_t id) { return std::find(whole.begin(), whole.end(), id); };
    Ids text;
    if (whole[1] == kS) {
      text.assign(at(kM) + 1, at(kEnd));
      text.insert(text.end(), at(kS) + 1, at(kM));
    } else {
      text.assign(at(kP) + 1, at(kS));
      text.insert(text.end(), at(kM) + 1, at(kEnd));
      text.insert(text.end(), at(kS) + 1, at(kM));
    }
    EXPECT_EQ(text, range(10, 26));
  }
  EXPECT_NEAR(seen["plain"], 40, 29);
  EXPECT_GT(seen["spm"], 40);
  EXPECT_GT(seen["psm"], 40);
  // too short to be cut
  EXPECT_EQ(noise.transformed({4, document.at}, 0, 4, RandomKey(1)), range(10, 4));
}

}  // namespace
}  // namespace tessera::train::fill_in_middle_test
