// Writing over tensors that nobody else sees, and cutting them by documents.
#include "tessera/ops/tensor.h"

#include "tessera/ops/basic/rope.h"
#include "tessera/ops/documents.h"
#include "tessera/ops/ops_testing.h"

namespace tessera::ops::tensor_test {
namespace {

Tensor numbers() {
  return gen({3, 2, 4}, 0.3, 0.1).to(at::kFloat);
}

TEST(Plus, WritesOverWhatNobodyElseSees) {
  const at::NoGradGuard no_gradients;
  const Tensor x = gen({3, 2, 4}, 0.7, 0.2).to(at::kFloat), want = x + numbers();
  Tensor alone = numbers();
  const void* place = alone.data_ptr();
  const Tensor sum = plus(x, std::move(alone));
  EXPECT_EQ(sum.data_ptr(), place);
  EXPECT_TRUE(sum.equal(want));
}

TEST(Plus, LeavesWhatOthersSee) {
  const Tensor x = gen({3, 2, 4}, 0.7, 0.2).to(at::kFloat), kept = numbers();
  const auto stays = [&](Tensor y, const char* what) {
    EXPECT_TRUE(plus(x, std::move(y)).equal(x + numbers())) << what;
    EXPECT_TRUE(kept.equal(numbers())) << what;
  };
  {
    const at::NoGradGuard no_gradients;
    stays(kept, "another tensor");
    stays(kept.view({3, 2, 4}), "a view");
  }
  Tensor alone = numbers();
  const void* place = alone.data_ptr();
  EXPECT_NE(plus(x, std::move(alone)).data_ptr(), place) << "gradients are recorded";
}

TEST(Plus, OtherShapesAndTypes) {
  const at::NoGradGuard no_gradients;
  const Tensor x = numbers();
  EXPECT_TRUE(plus(x, numbers().narrow(0, 0, 1).clone()).equal(x + numbers().narrow(0, 0, 1)));
  EXPECT_TRUE(plus(x, numbers().to(at::kDouble)).equal(x + numbers().to(at::kDouble)));
}

TEST(Rope, WritesOverWhatNobodyElseSees) {
  const at::NoGradGuard no_gradients;
  const RotaryTable table = rotary_table(at::arange(3, at::kLong), {1.0, 0.1}, 1, at::kFloat);
  const Tensor kept = numbers(), want = rope(kept, table, false);
  EXPECT_TRUE(kept.equal(numbers()));
  EXPECT_TRUE(rope(kept.view({3, 2, 4}), table, false).equal(want));
  EXPECT_TRUE(kept.equal(numbers())) << "a view";
  EXPECT_TRUE(rope(kept.transpose(0, 1).contiguous().transpose(0, 1), table, false).equal(want));
  Tensor alone = numbers();
  const void* place = alone.data_ptr();
  const Tensor turned = rope(std::move(alone), table, false);
  EXPECT_EQ(turned.data_ptr(), place);
  EXPECT_TRUE(turned.equal(want));
}

TEST(Cuts, OneDocumentIsTheTensor) {
  const Tensor x = numbers();
  EXPECT_TRUE(Cuts({3})(x, 0).is_same(x));
  EXPECT_TRUE(Cuts({2})(x, 0).equal(x.narrow(0, 0, 2)));
  EXPECT_TRUE(Cuts({1, 2})(x, 1).equal(x.narrow(0, 1, 2)));
}

}  // namespace
}  // namespace tessera::ops::tensor_test
