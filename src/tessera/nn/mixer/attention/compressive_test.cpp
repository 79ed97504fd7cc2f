// The compressive memory against its definition, its special cases, and the loss of the
// compression.
#include "tessera/nn/mixer/attention/compressive.h"

#include "tessera/nn/mixer/attention/segment_testing.h"

namespace tessera::nn::compressive_test {
namespace {

using ops::gen;

constexpr int64_t kT = 29, kD = 6, kHeads = 2, kE = 3;

struct Case {
  const char* compression;
  int64_t segment, mem_len, slots, rate;
  bool scaled = false;
  int64_t dilation = 1;
};
constexpr Case kCases[] = {{"mean", 4, 4, 3, 2},
                           {"mean", 4, 3, 3, 3, true},
                           {"max", 3, 4, 2, 3},
                           {"max", 5, 0, 4, 4, true},
                           {"conv", 4, 5, 3, 2, true},
                           {"conv", 4, 5, 2, 3},
                           {"dilated_conv", 4, 3, 2, 3, false, 3},
                           {"dilated_conv", 3, 4, 3, 2, true, 5}};

MixerUnderTest mixer(const Case& c) {
  MixerUnderTest m(
      fmt::format(R"({{"type": "compressive", "n_heads": 2, "segment": {}, "mem_len": {},
      "n_compressed": {}, "rate": {}, "compression": "{}", "distance": "{}", "dilation": {}, "reconstruction": {}}})",
                  c.segment, c.mem_len, c.slots, c.rate, c.compression,
                  c.scaled ? "scaled" : "index", c.dilation,
                  std::string_view(c.compression).ends_with("conv") ? 0.5 : 1.0),
      kD);
  m.fill({.size = 1});
  return m;
}

/// Slot b: tokens b * rate and following.
Tensor slot(MixerUnderTest& m, const Case& c, const Tensor& x, int64_t b) {
  const Tensor block = x.narrow(0, b * c.rate, c.rate);
  if (c.compression == std::string("mean")) return block.mean(0);
  if (c.compression == std::string("max")) return block.amax(0);
  Tensor y = m.values["compress.bias"];
  for (int64_t j = 0; j < c.rate; ++j) {
    const int64_t token = (b + 1) * c.rate - 1 - (c.rate - 1 - j) * c.dilation;
    if (token >= 0) y = y + at::mv(m.values["compress.weight"].narrow(1, j * kD, kD), x[token]);
  }
  return y;
}

/// The first token that a segment sees as it was: blocks leave the memory whole.
int64_t border(const Case& c, int64_t segment) {
  int64_t blocks = 0;
  while ((blocks + 1) * c.rate <= segment - c.mem_len) ++blocks;
  return blocks * c.rate;
}

Tensor definition(MixerUnderTest& m, const Case& c, const Tensor& x) {
  const auto project = [&](const char* name, const Tensor& input) {
    return at::mv(m.values[name], input).reshape({kHeads, kE});
  };
  std::vector<Tensor> rows;
  for (int64_t i = 0; i < x.size(0); ++i) {
    const int64_t segment = i / c.segment * c.segment, from = border(c, segment);
    std::vector<std::pair<Tensor, double>> inputs;  // with their distances
    for (int64_t b = std::max<int64_t>(0, from / c.rate - c.slots); b < from / c.rate; ++b) {
      const int64_t place = c.scaled ? b * c.rate : from - (from / c.rate - b);
      inputs.emplace_back(slot(m, c, x, b).detach(), static_cast<double>(i - place));
    }
    for (int64_t j = from; j <= i; ++j)
      inputs.emplace_back(j < segment ? x[j].detach() : x[j], static_cast<double>(i - j));
    std::vector<Tensor> heads;
    for (int64_t a = 0; a < kHeads; ++a) {
      std::vector<SeenKey> seen;
      for (const auto& [input, distance] : inputs)
        seen.push_back({project("k.weight", input)[a], project("v.weight", input)[a], distance});
      heads.push_back(xl_attend(m, a, project("q.weight", x[i])[a], seen));
    }
    rows.push_back(at::mv(m.values["o.weight"], at::cat(heads)));
  }
  return at::stack(rows);
}

TEST(Compressive, AgainstTheDefinition) {
  const Tensor x = gen({kT, kD}, 1.3, 0.2);
  for (const Case& c : kCases) {
    SCOPED_TRACE(
        fmt::format("{} {} {} {} {}", c.compression, c.segment, c.mem_len, c.slots, c.rate));
    MixerUnderTest m = mixer(c);
    const Tensor want = definition(m, c, x);
    for (const std::vector<int64_t>& calls :
         {std::vector<int64_t>{}, {29}, {5, 1, 13, 1, 1, 8}, {12, 17}, std::vector<int64_t>(29, 1)})
      ops::expect_both([&](at::ScalarType type) { return m.run(x, type, calls); }, want, 1e-12);
  }
}

TEST(Compressive, GradientsStopAtBothMemories) {
  for (const Case& c : kCases) {
    MixerUnderTest m = mixer(c);
    for (auto& [name, value] : m.values) value.requires_grad_(true);
    const Tensor x = gen({kT, kD}, 1.3, 0.2).requires_grad_(true), r = gen({kT, kD}, 0.7, 0.4);
    const auto gradients = [&](const Tensor& y) {
      std::map<std::string, Tensor> out;
      x.mutable_grad() = Tensor();
      for (auto& [name, value] : m.values) value.mutable_grad() = Tensor();
      (y * r).sum().backward();
      out["x"] = x.grad().clone();
      for (auto& [name, value] : m.values) {
        const bool learns_apart = name.starts_with("compress.");
        EXPECT_EQ(value.grad().defined(), !learns_apart) << name;
        if (!learns_apart) out[name] = value.grad().clone();
      }
      return out;
    };
    const auto want = gradients(definition(m, c, x));
    for (const std::vector<int64_t>& calls :
         {std::vector<int64_t>{}, {5, 1, 13, 1, 1, 8}, {12, 17}}) {
      auto got = gradients(m.run(x, at::kDouble, calls));
      for (const auto& [name, gradient] : want)
        ops::expect_near(got[name], gradient, 1e-12, name.c_str());
    }
  }
}

TEST(Compressive, WithoutSlotsItIsTransformerXl) {
  for (const int64_t mem_len : {0, 3, 5}) {
    MixerUnderTest m(fmt::format(R"({{"type": "compressive", "n_heads": 2, "segment": 4,
        "mem_len": {}, "n_compressed": 0}})",
                                 mem_len),
                     kD),
        xl(fmt::format(R"({{"type": "transformer_xl", "n_heads": 2, "segment": 4, "mem_len": {}}})",
                       mem_len),
           kD);
    m.fill({.size = 1});
    xl.values = m.values;
    const Tensor x = gen({kT, kD}, 1.1, 0.3), want = xl.run(x, at::kDouble);
    ops::expect_both([&](at::ScalarType type) { return m.run(x, type); }, want, 1e-13);
    ops::expect_both([&](at::ScalarType type) { return m.run(x, type, {10, 1, 18}); }, want, 1e-13);
  }
}

TEST(Compressive, RateOneIsALongerMemory) {
  for (const char* distance : {"index", "scaled"}) {
    MixerUnderTest m(fmt::format(R"({{"type": "compressive", "n_heads": 2, "segment": 4,
        "mem_len": 3, "n_compressed": 5, "rate": 1, "compression": "mean", "distance": "{}"}})",
                                 distance),
                     kD),
        xl(R"({"type": "transformer_xl", "n_heads": 2, "segment": 4, "mem_len": 8})", kD);
    m.fill({.size = 1});
    xl.values = m.values;
    const Tensor x = gen({kT, kD}, 1.1, 0.3), want = xl.run(x, at::kDouble);
    ops::expect_both([&](at::ScalarType type) { return m.run(x, type); }, want, 1e-13);
    ops::expect_both([&](at::ScalarType type) { return m.run(x, type, {10, 1, 18}); }, want, 1e-13);
  }
}

TEST(Compressive, SpreadTablesAreThoseOfTheDistance) {
  // t5 adds by a table, fire by a function of the distance; both at rate 1 and as a longer memory
  for (const char* position :
       {R"({"type": "t5", "n_buckets": 8, "max_distance": 20})", R"("fire")"}) {
    MixerUnderTest m(fmt::format(R"({{"type": "compressive", "n_heads": 2, "segment": 4,
        "mem_len": 3, "n_compressed": 5, "rate": 1, "compression": "max", "distance": "scaled",
        "position": {}}})",
                                 position),
                     kD),
        xl(fmt::format(R"({{"type": "transformer_xl", "n_heads": 2, "segment": 4, "mem_len": 8,
        "position": {}}})",
                       position),
           kD);
    m.fill({.size = 1});
    xl.values = m.values;
    const Tensor x = gen({kT, kD}, 1.1, 0.3), want = xl.run(x, at::kDouble);
    ops::expect_both([&](at::ScalarType type) { return m.run(x, type); }, want, 1e-12);
  }
}

void expect_reconstruction(const Case& c) {
  MixerUnderTest m = mixer(c);
  for (auto& [name, value] : m.values) value.requires_grad_(true);
  const Tensor x = gen({kT, kD}, 1.3, 0.2).requires_grad_(true);
  // by its definition: content alone, every row sees every row
  const auto read = [&](const Tensor& inputs, const Tensor& rows) {
    const auto project = [&](const char* name, const Tensor& of) {
      return at::matmul(of, m.values[name].detach().t()).reshape({-1, kHeads, kE}).transpose(0, 1);
    };
    const Tensor scores =
        at::matmul(project("q.weight", inputs), project("k.weight", rows).transpose(1, 2)) /
        std::sqrt(static_cast<double>(kE));
    return at::matmul(at::softmax(scores, -1), project("v.weight", rows));
  };
  Tensor want = at::zeros({}, at::kDouble);
  for (int64_t segment = 0; segment + c.segment <= kT; segment += c.segment) {
    const int64_t from = border(c, segment), to = border(c, segment + c.segment);
    if (from == to) continue;
    const Tensor still = x.detach();
    std::vector<Tensor> slots;
    for (int64_t b = from / c.rate; b < to / c.rate; ++b) slots.push_back(slot(m, c, still, b));
    const Tensor inputs = still.narrow(0, segment, c.segment);
    want = want + (read(inputs, still.narrow(0, from, to - from)) - read(inputs, at::stack(slots)))
                      .square()
                      .sum();
  }
  want = 0.5 * want;
  EXPECT_GT(want.item<double>(), 0.1);
  want.backward();
  const Tensor weight = m.values["compress.weight"].grad().clone(),
               bias = m.values["compress.bias"].grad().clone();

  for (const std::vector<int64_t>& calls : {std::vector<int64_t>{29}, {5, 1, 13, 1, 1, 8}}) {
    for (auto& [name, value] : m.values) value.mutable_grad() = Tensor();
    const auto built = build_mixer(m.part, m.builder(at::kDouble));
    RowState row(m.state(), 0, at::TensorOptions().dtype(at::kDouble));
    Tensor got = at::zeros({}, at::kDouble);
    int64_t at = 0;
    for (const int64_t n : calls) {
      Batch batch;
      batch.segments = {{0, 0, n, at}};
      batch.number();
      Context context;
      context.batch = &batch;
      context.training = true;
      context.add_loss = [&](const std::string&, const Tensor& loss) { got = got + loss; };
      const StateRows rows{&row};
      run_mixer(*built, x.narrow(0, at, n), context, &rows);
      at += n;
    }
    ops::expect_near(got, want, 1e-12);
    got.backward();
    for (auto& [name, value] : m.values) {
      if (name.starts_with("compress.")) continue;
      EXPECT_FALSE(value.grad().defined() && value.grad().abs().max().item<double>() > 0) << name;
    }
    EXPECT_FALSE(x.grad().defined());
    ops::expect_near(m.values["compress.weight"].grad(), weight, 1e-12);
    ops::expect_near(m.values["compress.bias"].grad(), bias, 1e-12);
  }
}

TEST(Compressive, ReconstructionTrainsTheCompressionAlone) {
  for (const Case& c : {kCases[5], kCases[6]}) expect_reconstruction(c);
}

}  // namespace
}  // namespace tessera::nn::compressive_test
