// Initial values of parameters whose distribution is given behind a function of them.
#include "tessera/ops/random.h"

#include "tessera/ops/ops_testing.h"

namespace tessera::ops::random_test {
namespace {

/// Between equal bounds every draw is the same.
TEST(InitialValues, InverseSoftplusGolden) {
  const auto drawn = [](double tau, double floor) {
    spec::ParamDecl decl{
        "dt_bias", {3}, {spec::Init::Kind::softplus_log_uniform, tau, tau, floor, {}}};
    return initial_values(decl, RandomKey(1), at::kDouble);
  };
  const auto all = [](double value) { return at::full({3}, value, at::kDouble); };
  expect_near(drawn(1e-3, 1e-4), all(-6.90725524), 5e-9);
  expect_near(drawn(1e-2, 1e-4), all(-4.60016602), 5e-9);
  expect_near(drawn(1e-1, 1e-4), all(-2.25216846), 5e-9);
  expect_near(drawn(1e-5, 1e-3), all(-6.90725524), 5e-9);
}

}  // namespace
}  // namespace tessera::ops::random_test
