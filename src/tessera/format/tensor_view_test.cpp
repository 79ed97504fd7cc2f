#include "tessera/format/tensor_view.h"

#include <gtest/gtest.h>

#include "tessera/format/file_source.h"
#include "tessera/format/test_support.h"

namespace tessera::format::tensor_view_test {
namespace {

TEST(ElementCount, RefusesNegativeAndOverflow) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(element_count(std::vector<int64_t>{}), 1);
  EXPECT_EQ(element_count(std::vector<int64_t>{2, 3, 4}), 24);
  EXPECT_EQ(element_count(std::vector<int64_t>{0, 5}), 0);
  EXPECT_EQ(element_count(std::vector<int64_t>{kMax}), kMax);
  EXPECT_EQ(checked_element_count(std::vector<int64_t>{kMax, 2}), std::nullopt);
  EXPECT_EQ(checked_element_count(std::vector<int64_t>{-1}), std::nullopt);
  EXPECT_EQ(checked_element_count(std::vector<int64_t>{0, -1}), std::nullopt);
  EXPECT_EQ(test::error_of([] {
              element_count(std::vector<int64_t>{1, -1});
            }),
            "[shape] [1, -1] is negative or overflows 64 bits");
}

TEST(TensorFile, CopiesFindTheirOwnTensors) {
  const TensorFile original("f", "x", {{"b", DType::u8, {0}, {}}, {"a", DType::u8, {0}, {}}});
  auto other = std::make_unique<TensorFile>(original);
  const TensorFile copy = *other;
  other.reset();
  EXPECT_EQ(copy.find("a"), &copy.tensors()[1]);
  EXPECT_EQ(copy.find("b"), &copy.tensors()[0]);
  EXPECT_EQ(copy.find(""), nullptr);
}

TEST(TensorFile, RefusesANameTwiceEvenAmongUnsupported) {
  const auto make = [] {
    TensorFile("f", "x", {{"a", DType::u8, {0}, {}}}, {}, {{"a", "F4", {0}, {}}});
  };
  EXPECT_EQ(test::error_of(make), "[f] x: two tensors are named \"a\"");
}

TEST(Printable, EscapesWhatBreaksALineOrIsNotUtf8) {
  EXPECT_EQ(printable("plain \u00e9 \u20ac \U0001f600"), "plain \u00e9 \u20ac \U0001f600");
  EXPECT_EQ(printable("a\nb\x1b[31m\x7f"), "a\\x0ab\\x1b[31m\\x7f");
  EXPECT_EQ(printable("\xc2\x85|\xff|\xc3"), "\\xc2\\x85|\\xff|\\xc3");  // C1, no lead, cut off
  EXPECT_EQ(printable("\xc0\xaf|\xe0\x80\xaf"), "\\xc0\\xaf|\\xe0\\x80\\xaf");  // overlong
  EXPECT_EQ(printable("\xed\xa0\x80|\xf4\x90\x80\x80"), "\\xed\\xa0\\x80|\\xf4\\x90\\x80\\x80");
  EXPECT_EQ(printable("abcdef", 3), "abc...");
  EXPECT_EQ(in_quotes("a"), "\"a\"");
}

}  // namespace
}  // namespace tessera::format::tensor_view_test
