// Merged attention against plain loops (tools/golden/merged_attention.py).
#include "tessera/nn/mixer/attention/merged_attention.h"

#include "tessera/base/testing.h"
#include "tessera/nn/mixer/mixer_testing.h"

namespace tessera::nn::merged_attention_test {
namespace {

using ops::gen;
using spec::Json;

constexpr int64_t kWidth = 8, kTokens = 6, kSource = 4;

Json config(int64_t window) {
  Json out = {{"type", "merged_attention"},
              {"n_heads", 4},
              {"n_kv_heads", 2},
              {"head_dim", 2},
              {"softcap", 1.5},
              {"position", {{"type", "rope"}, {"theta", 100}}}};
  if (window > 0) out["pattern"] = {{"type", "window"}, {"width", window}};
  return out;
}

MixerUnderTest mixer_of(const Json& json) {
  MixerUnderTest m(R"({"type": "short_conv"})", kWidth);  // replaced below: it needs a source
  m.json = json;
  m.scope.source = kWidth;
  m.read();
  m.fill({.frequency_step = 0.13, .phase = 0, .size = 1});
  return m;
}

std::vector<int64_t> zeros(int64_t n) {
  return std::vector<int64_t>(static_cast<size_t>(n));
}

/// The whole document, or in calls of one token that keep keys and values.
Tensor run(const MixerUnderTest& m, at::ScalarType type, bool in_steps) {
  const auto mixer = build_mixer(m.part, m.builder(type));
  const Tensor x = gen({kTokens, kWidth}, 0.41, 0.2).to(type);
  const Encoded encoded{Batch::of({zeros(kSource)}), gen({kSource, kWidth}, 0.53, 0.29).to(type)};
  RowState row(m.state(), 0, at::TensorOptions().dtype(type));
  const StateRows rows{&row};
  std::vector<Tensor> out;
  const int64_t step = in_steps ? 1 : kTokens;
  for (int64_t at = 0; at < kTokens; at += step) {
    Batch batch;
    batch.segments = {{0, 0, step, at}};
    batch.ids_N = at::zeros({step}, at::kLong);
    batch.number();
    Context context;
    context.batch = &batch;
    if (at == 0) context.encoded = &encoded;  // later calls find the source in the state
    out.push_back(run_mixer(*mixer, x.narrow(0, at, step), context, in_steps ? &rows : nullptr));
  }
  return at::cat(out);
}

void expect_golden(int64_t window, const Tensor& want) {
  const MixerUnderTest m = mixer_of(config(window));
  for (const bool in_steps : {false, true}) {
    SCOPED_TRACE(in_steps);
    ops::expect_both([&](at::ScalarType type) { return run(m, type, in_steps); }, want, 1e-9);
  }
}

TEST(MergedAttention, SeesAllTokensAndTheSource) {
  expect_golden(
      0,
      ops::tensor(
          {9.6032429654,  9.6085756733,  9.2185882119,  8.4493256137,  7.3324372128,  5.9138745140,
           4.2520006363,  2.4151891125,  -5.5445088208, -5.1179761147, -4.4808774255, -3.6594245424,
           -2.6874140346, -1.6048367783, -0.4562326342, 0.7111420299,  2.2146299186,  2.3490618634,
           2.3868476907,  2.3264327998,  2.1703028060,  1.9248812771,  1.6002654515,  1.2098108137,
           3.5981413792,  3.5289549865,  3.3145788041,  2.9638327893,  2.4911474861,  1.9159703174,
           1.2619654705,  0.5560402954,  1.1675672611,  1.0855108795,  0.9587939405,  0.7926298872,
           0.5938551128,  0.3706476950,  0.1321909296,  -0.1117044921, -1.2141080399, -0.8369626700,
           -0.4253826206, 0.0036987044,  0.4326278556,  0.8437576448,  1.2201731926,  1.5463878481},
          {kTokens, kWidth}));
}

TEST(MergedAttention, AWindowHidesTokensAlone) {
  expect_golden(
      3,
      ops::tensor(
          {9.6032429654,  9.6085756733,  9.2185882119,  8.4493256137,  7.3324372128,  5.9138745140,
           4.2520006363,  2.4151891125,  -5.5445088208, -5.1179761147, -4.4808774255, -3.6594245424,
           -2.6874140346, -1.6048367783, -0.4562326342, 0.7111420299,  2.2146299186,  2.3490618634,
           2.3868476907,  2.3264327998,  2.1703028060,  1.9248812771,  1.6002654515,  1.2098108137,
           2.3976010216,  2.1790177760,  1.8707844403,  1.4855824833,  1.0392600503,  0.5501799316,
           0.0384640725,  -0.4748342920, 4.9161482816,  4.8697923882,  4.6230813936,  4.1861655880,
           3.5770207503,  2.8207085803,  1.9483456000,  0.9958229437,  -6.1973074528, -5.5414906049,
           -4.6576833578, -3.5822476908, -2.3594296425, -1.0395389211, 0.3231209595,  1.6724868581},
          {kTokens, kWidth}));
}

TEST(MergedAttention, RefusesPlacesWithoutItsSource) {
  const auto refuse = [](const Json& json, int64_t source, bool causal, const char* text) {
    MixerUnderTest m(R"({"type": "short_conv"})", kWidth);
    m.json = json;
    m.scope.source = source;
    m.scope.causal = causal;
    test::expect_error(ErrorKind::spec, text, [&] { m.read(); });
  };
  refuse(config(0), 0, true, "merged_attention stands where no encoder is");
  refuse(config(0), kWidth, false, "use attention and cross_attention");
  refuse(config(0), 2 * kWidth, true, "expected stacks of one width");
  Json sinks = config(0);
  sinks["pattern"] = {{"type", "sink_window"}, {"width", 3}};
  refuse(sinks, kWidth, true, "expected \"full\" or \"window\"");
}

}  // namespace
}  // namespace tessera::nn::merged_attention_test
