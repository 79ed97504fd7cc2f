// Alternating updates and LAuReL against the formulas in double, stream by stream.
#include "tessera/nn/residual/altup.h"

#include <gmock/gmock.h>

#include "tessera/nn/registry.h"
#include "tessera/nn/weights_testing.h"

namespace tessera::nn::altup_test {
namespace {

using ops::gen;
using testing::HasSubstr;

constexpr int64_t kN = 4, kD = 5, kS = 3;

spec::Scope scope() {
  register_mechanisms();
  spec::Scope scope;
  scope.d_model = scope.width = kD;
  scope.path = "residual";
  return scope;
}

spec::AnyPart part_of(const std::string& fields) {
  return spec::read_part(
      spec::Slot::residual,
      spec::parse_json(R"({"type": "altup", "streams": 3, "norm": {"type": "rms_norm", "eps": 0.1})" +
                           fields + "}",
                       "test"),
      scope());
}

struct Built {
  Values values;
  std::unique_ptr<Residual> residual;
  explicit Built(const std::string& fields) {
    const spec::AnyPart part = part_of(fields);
    const auto& config = part.as<AltUpConfig>();
    spec::ParamList list, enter("enter"), leave("leave");
    config.group_params(list, scope());
    config.enter_params(enter, scope());
    config.leave_params(leave, scope());
    list.append(enter);
    list.append(leave);
    draw_weights(list.all(), values);
    residual = build_residual(part, Builder(weights_from(values), "", scope()));
  }
  Tensor times(const std::string& name, const Tensor& x) const {
    return at::matmul(x, values.at(name + ".weight").t());
  }
};

Tensor plain_norm(const Tensor& x) {
  return x / (x.square().mean(-1, true) + 0.1).sqrt();
}

class Plain final : public Norm {
 public:
  Tensor forward(const Tensor& x, const ops::ProductSettings&) const override {
    return plain_norm(x);
  }
};

/// f(x) = factor x^2, with plain norms.
Branch squares(double factor, int norms) {
  Branch f;
  f.name = "layers.0.mixer";
  for (int i = 0; i < norms; ++i) f.norms.push_back(std::make_unique<Plain>());
  f.run = [factor](const Tensor& x, Context&) { return factor * x.square(); };
  return f;
}

Tensor streams() {
  return gen({kN, kS, kD}, 0.37, 0.2);
}

TEST(AltUp, PredictsComputesAndCorrects) {
  const Built m(R"(, "active": 1, "laurel_rank": 2)");
  std::vector<Branch> branches;
  branches.push_back(squares(0.7, 2));
  branches.push_back(squares(-0.4, 2));
  Context context;
  const Tensor h = streams();
  const auto modalities = [&](const Tensor& x) {
    return at::tanh(m.times("router", plain_norm(x) * m.values.at("router_norm.weight") / double{kD}));
  };
  const Tensor coefs = m.times("predict", modalities(h.select(1, 1))).reshape({kN, kS, kS});
  const Tensor p = h + at::matmul(coefs, h);
  const Tensor y0 = p.select(1, 1), n = plain_norm(y0);
  const Tensor learned =
      plain_norm(m.times("laurel_out", m.times("laurel_in", n))) * m.values.at("laurel_norm.weight");
  const Tensor y1 = (y0 + plain_norm(0.7 * n.square()) + n + learned) / std::sqrt(2.0);
  const Tensor y2 = y1 + plain_norm(-0.4 * plain_norm(y1).square());
  const Tensor gain = m.times("correct", modalities(y2)) + 1;
  const Tensor want = p + gain.unsqueeze(-1) * (y2 - y0).unsqueeze(1);
  ops::expect_near(m.residual->forward({h}, branches, context)[0], want, 1e-12);
}

TEST(AltUp, OthersFollowTheActiveStream) {
  const Built m(R"(, "of": "others", "active": 2, "correct_scale": true)");
  std::vector<Branch> branches;
  branches.push_back(squares(0.7, 1));
  Context context;
  const Tensor h = streams();
  const Tensor y = plain_norm(0.7 * (h.select(1, 2) * m.values.at("correct_scale")).square());
  Tensor want = h.clone();
  want.narrow(1, 1, 2).add_(y.unsqueeze(1));
  ops::expect_near(m.residual->forward({h}, branches, context)[0], want, 1e-12);
}

TEST(AltUp, StreamsBeginAndEndAsLongAsTheFirst) {
  const Built m("");
  Context context;
  const auto root = [](const Tensor& x) { return x.square().mean(-1, true).sqrt(); };
  const Tensor x = gen({kN, kD}, 0.7, 0.1);
  const Tensor h = m.residual->enter(x, context)[0];
  ASSERT_EQ(h.sizes(), (std::vector<int64_t>{kN, kS, kD}));
  ops::expect_near(h.select(1, 0), x, 1e-12);
  Tensor sum = h.select(1, 0);
  for (const int64_t s : {1, 2}) {
    const Tensor u = m.times(fmt::format("enter.{}", s), x);
    ops::expect_near(h.select(1, s), u * root(x) / root(u), 1e-12);
    const Tensor v = m.times(fmt::format("leave.{}", s), h.select(1, s));
    sum = sum + v * root(x) / root(v);
  }
  ops::expect_near(m.residual->leave({h}, context), sum / 3, 1e-12);
}

TEST(AltUp, TrainingClampsCoefficients) {
  const Built m(R"(, "clip": 0.05)");
  std::vector<Branch> branches;
  branches.push_back(squares(0.7, 2));
  Context context;
  const Tensor before = m.residual->forward({streams()}, branches, context)[0];
  context.training = true;
  EXPECT_GT((m.residual->forward({streams()}, branches, context)[0] - before).abs().max().item<double>(),
            1e-4);
}

TEST(AltUp, RefusesWhatDoesNotAct) {
  const auto refusal = [](const std::string& fields) {
    try {
      part_of(fields);
      return std::string();
    } catch (const Error& e) {
      return std::string(e.what());
    }
  };
  EXPECT_EQ(refusal(""), "");
  EXPECT_THAT(refusal(R"(, "active": 3)"), HasSubstr("active = 3 of 3 streams"));
  EXPECT_THAT(refusal(R"(, "correct_scale": true)"), HasSubstr("expected it of \"others\""));
  EXPECT_THAT(refusal(R"(, "of": "others", "laurel_rank": 2)"), HasSubstr("leave them out"));
}

}  // namespace
}  // namespace tessera::nn::altup_test
