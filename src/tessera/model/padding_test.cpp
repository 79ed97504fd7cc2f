// Padded tensors become segments with what was said of each row.
#include "tessera/model/padding.h"

#include <gtest/gtest.h>

#include "tessera/base/testing.h"

namespace tessera::model::padding_test {
namespace {

using test::expect_error;

const Tensor ids() {
  return at::arange(1, 9, at::kLong).reshape({2, 4});
}
const Tensor mask() {
  return at::tensor({0, 0, 1, 1, 1, 1, 1, 0}, at::kLong).reshape({2, 4});
}

TEST(Padding, PrefixesAreOfTheirRows) {
  nn::Batch batch = from_padded(ids(), mask());
  set_prefixes(batch, at::tensor({2, 1}, at::kLong));
  EXPECT_EQ(batch.segments[0].prefix, 2);
  EXPECT_EQ(batch.segments[1].prefix, 1);
  expect_error(ErrorKind::input, "prefix_lengths[0] is 3; expected 0 to 2", [&] {
    set_prefixes(batch, at::tensor({3, 1}, at::kLong));
  });
  expect_error(ErrorKind::input, "prefix_lengths[1] is -1", [&] {
    set_prefixes(batch, at::tensor({0, -1}, at::kLong));
  });
  expect_error(ErrorKind::input, "prefix_lengths is [3]; expected [2]", [&] {
    set_prefixes(batch, at::tensor({0, 1, 1}, at::kLong));
  });
}

TEST(Padding, PositionsHaveOneAxisOrThree) {
  const Tensor positions = at::arange(24, at::kLong).reshape({3, 2, 4});
  const nn::Batch three = from_padded(ids(), mask(), positions);
  EXPECT_TRUE(at::equal(
      three.axes_3N, at::tensor({2, 3, 4, 5, 6, 10, 11, 12, 13, 14, 18, 19, 20, 21, 22}, at::kLong)
                         .reshape({3, 5})));
  // whatever else asks for positions counts tokens
  EXPECT_TRUE(at::equal(three.positions_N, at::tensor({0, 1, 0, 1, 2}, at::kLong)));
  const nn::Batch one = from_padded(ids(), mask(), positions[1]);
  EXPECT_FALSE(one.axes_3N.defined());
  EXPECT_TRUE(at::equal(one.positions_N, three.axes_3N[1]));
  expect_error(ErrorKind::input, "position_ids is [2, 2, 4]; expected [2, 4] as input_ids",
               [&] { from_padded(ids(), mask(), positions.narrow(0, 0, 2)); });
  expect_error(ErrorKind::input, "position_ids has another shape than input_ids [2, 4]",
               [&] { from_padded(ids(), mask(), positions[0].t()); });
}

TEST(Padding, StandsAtTheEndsOfARow) {
  const auto of = [](std::initializer_list<int64_t> bits) {
    return at::tensor(bits, at::kLong).reshape({2, 4});
  };
  // both ends at once; counted from the first token
  const nn::Batch batch = from_padded(ids(), of({0, 1, 1, 0, 1, 1, 1, 1}));
  EXPECT_TRUE(at::equal(batch.ids_N, at::tensor({2, 3, 5, 6, 7, 8}, at::kLong)));
  EXPECT_TRUE(at::equal(batch.positions_N, at::tensor({0, 1, 0, 1, 2, 3}, at::kLong)));
  expect_error(ErrorKind::input, "row 1 of attention_mask has a 0 between its tokens, at 2", [&] {
    from_padded(ids(), of({0, 0, 1, 1, 0, 1, 0, 1}));
  });
  expect_error(ErrorKind::input, "row 0 of attention_mask holds no token", [&] {
    from_padded(ids(), of({0, 0, 0, 0, 1, 1, 1, 1}));
  });
}

// a mask that is added to scores, or weighs tokens, is another thing
TEST(Padding, AMaskSaysZeroOrOne) {
  const Tensor bad = mask().clone();
  bad[1][2].fill_(2);
  expect_error(ErrorKind::input, "[input] attention_mask[1, 2] is 2; expected 0 or 1",
               [&] { from_padded(ids(), bad); });
  expect_error(ErrorKind::input, "attention_mask[0, 0] is -1; expected 0 or 1",
               [&] { from_padded(ids(), mask() - 1); });
  expect_error(ErrorKind::input, "global_attention_mask[1, 2] is 2; expected 0 or 1",
               [&] { from_padded(ids(), mask(), {}, {}, bad); });
  from_padded(ids(), mask().to(at::kBool));
}

}  // namespace
}  // namespace tessera::model::padding_test
