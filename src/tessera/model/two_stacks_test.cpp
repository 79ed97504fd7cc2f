// Encoder and decoder together: sources reach their own rows and no others, a state keeps them.
#include <gtest/gtest.h>

#include <filesystem>

#include "tessera/base/testing.h"
#include "tessera/model/large_weights_testing.h"

namespace tessera::model::two_stacks_test {
namespace {

using Rows = std::vector<std::vector<int64_t>>;

Model make_model(const std::string& position = "rope") {
  const Json json = spec::parse_json(fmt::format(R"({{
    "tessera": 1, "arch": "encoder_decoder", "vocab": 17, "d_model": 8, "start": 1,
    "mixer": {{"type": "attention", "n_heads": 2, "position": "{}"}},
    "ffn": {{"type": "mlp", "d_hidden": 12}}, "cross": {{"type": "cross_attention", "n_heads": 2}},
    "stacks": {{"encoder": {{"layers": [{{"repeat": 2}}]}},
                "decoder": {{"layers": [{{"repeat": 2}}]}}}}}})",
                                                 position),
                                     "test");
  const ModelSpec spec = read_model_spec(json);
  return {spec, large_weights(spec, 5)};
}

nn::Encoded encode(const Model& model, const Rows& sources, const std::vector<int64_t>& readers) {
  nn::Batch batch = nn::Batch::of(sources);
  for (size_t i = 0; i < readers.size(); ++i) batch.segments[i].row = readers[i];
  return model.encode(batch);
}

/// Hidden states of whole targets, each beside its source.
Tensor whole(const Model& model, const Rows& sources, const Rows& targets) {
  std::vector<int64_t> readers;
  for (size_t i = 0; i < sources.size(); ++i) readers.push_back(static_cast<int64_t>(i));
  const nn::Encoded encoded = encode(model, sources, readers);
  ForwardOptions options;
  options.encoded = &encoded;
  return model.hidden(nn::Batch::of(targets), options);
}

struct Fed {
  int64_t row;
  std::vector<int64_t> ids, source;  // no source: the state's
};

Tensor feed(const Model& model, State& state, const std::vector<Fed>& fed, bool pending = false) {
  Rows rows, sources;
  std::vector<int64_t> starts, readers;
  for (const Fed& f : fed) {
    rows.push_back(f.ids);
    starts.push_back(state.length(f.row));
    if (f.source.empty()) continue;
    sources.push_back(f.source);
    readers.push_back(f.row);
  }
  nn::Batch batch = nn::Batch::of(rows, starts);
  for (size_t i = 0; i < fed.size(); ++i) {
    batch.segments[i].row = fed[i].row;
    batch.segments[i].pending = pending;
  }
  nn::Encoded encoded;
  if (!sources.empty()) encoded = encode(model, sources, readers);
  ForwardOptions options;
  options.state = &state;
  options.encoded = sources.empty() ? nullptr : &encoded;
  return model.hidden(batch, options);
}

using test::error_of;

const Rows kSources = {{4, 5, 6, 7, 8}, {9, 3}, {2, 2, 11, 12, 13, 14, 15}};
const Rows kTargets = {{1, 5}, {1, 6, 7, 8}, {1}};

TEST(TwoStacks, RowsReadTheirOwnSourceAndNoOther) {
  const Model model = make_model();
  for (const bool gradients : {false, true}) {
    const at::AutoGradMode mode(gradients);
    const Tensor all = whole(model, kSources, kTargets);
    int64_t begin = 0;
    for (size_t r = 0; r < kTargets.size(); ++r) {
      const auto n = static_cast<int64_t>(kTargets[r].size());
      const Tensor alone = whole(model, {kSources[r]}, {kTargets[r]});
      const double difference = (all.narrow(0, begin, n) - alone).abs().max().item<double>();
      EXPECT_LE(difference, gradients ? 1e-5 : 0) << "row " << r;
      begin += n;
    }
    // another source for row 1 changes that row alone
    Rows other = kSources;
    other[1][0] = 10;
    const Tensor changed = whole(model, other, kTargets);
    EXPECT_TRUE(at::equal(changed.narrow(0, 0, 2), all.narrow(0, 0, 2)));
    EXPECT_GT((changed.narrow(0, 2, 4) - all.narrow(0, 2, 4)).abs().max().item<double>(), 1e-3);
    EXPECT_TRUE(at::equal(changed.narrow(0, 6, 1), all.narrow(0, 6, 1)));
  }
}

TEST(TwoStacks, OrderOfTheSourceMattersThroughPositionsOnly) {
  const at::NoGradGuard no_gradients;
  const Rows reversed = {{8, 7, 6, 5, 4}};
  const Model without = make_model("none"), with = make_model("rope");
  const auto moved = [&](const Model& model) {
    return (whole(model, {kSources[0]}, {kTargets[1]}) - whole(model, reversed, {kTargets[1]}))
        .abs()
        .max()
        .item<double>();
  };
  EXPECT_LT(moved(without), 1e-5);
  EXPECT_GT(moved(with), 1e-3);
}

TEST(TwoStacks, StateKeepsTheSourceOfTheFirstCall) {
  const at::NoGradGuard no_gradients;
  const Model model = make_model();
  const Tensor want = whole(model, {kSources[0]}, {{1, 5, 9, 2}});
  State state(model.spec(), 2);
  feed(model, state, {{1, {1}, kSources[1]}});
  EXPECT_EQ(state.source_length(0), 0);
  EXPECT_EQ(state.source_length(1), 2);
  // row 0 begins beside row 1, which goes on
  const Tensor first = feed(model, state, {{0, {1, 5}, kSources[0]}, {1, {6}, {}}});
  EXPECT_TRUE(at::equal(first.narrow(0, 0, 2), want.narrow(0, 0, 2)));
  EXPECT_EQ(state.source_length(0), 5);
  EXPECT_TRUE(at::equal(feed(model, state, {{0, {9}, {}}}), want.narrow(0, 2, 1)));

  // copies keep it too, and go their own ways
  State picked = state.select({0, 1, 0});
  State joined = state.select({1});
  joined.append(state);
  EXPECT_EQ(picked.source_length(2), 5);
  EXPECT_EQ(joined.source_length(1), 5);
  feed(model, picked, {{0, {16}, {}}});
  EXPECT_TRUE(at::equal(feed(model, picked, {{2, {2}, {}}}), want.narrow(0, 3, 1)));
  EXPECT_TRUE(at::equal(feed(model, joined, {{1, {2}, {}}}), want.narrow(0, 3, 1)));

  const test::TemporaryFolder folder;
  const auto path = folder / "state.safetensors";
  state.save(path, "model");
  State loaded(model.spec(), 2);
  loaded.load(path, "model");
  EXPECT_EQ(loaded.bytes(), state.bytes());
  EXPECT_TRUE(at::equal(feed(model, loaded, {{0, {2}, {}}}), want.narrow(0, 3, 1)));
}

TEST(TwoStacks, DroppedTokensLeaveTheSource) {
  const at::NoGradGuard no_gradients;
  const Model model = make_model();
  const Tensor want = whole(model, {kSources[0]}, {{1, 5, 9}});
  State state(model.spec(), 1, 4);
  feed(model, state, {{0, {1, 7, 7}, kSources[0]}}, true);
  state.commit(0, 1);
  EXPECT_TRUE(at::equal(feed(model, state, {{0, {5}, {}}}, true), want.narrow(0, 1, 1)));
  state.commit(0, 1);
  EXPECT_TRUE(at::equal(feed(model, state, {{0, {9}, {}}}), want.narrow(0, 2, 1)));
  // all dropped: the next call begins again, with the source that is there
  State again(model.spec(), 1, 4);
  feed(model, again, {{0, {8, 8}, kSources[0]}}, true);
  again.commit(0, 0);
  EXPECT_TRUE(at::equal(feed(model, again, {{0, {1, 5, 9}, {}}}), want));
}

TEST(TwoStacks, MissingAndSecondSourcesAreRefused) {
  const at::NoGradGuard no_gradients;
  const Model model = make_model();
  EXPECT_NE(error_of([&] { model.hidden(nn::Batch::of(kTargets)); }).find("row 0 has no source"),
            std::string::npos);
  State state(model.spec(), 2);
  feed(model, state, {{0, {1}, kSources[0]}});
  EXPECT_NE(error_of([&] {
              feed(model, state, {{0, {5}, kSources[1]}});
            }).find("row 0 has a source of 5 tokens already"),
            std::string::npos);
  EXPECT_NE(error_of([&] {
              feed(model, state, {{0, {5}, {}}, {1, {1}, {}}});
            }).find("row 1 has no source"),
            std::string::npos);
  // refused calls changed nothing
  EXPECT_TRUE(at::equal(feed(model, state, {{0, {5}, {}}}),
                        whole(model, {kSources[0]}, {{1, 5}}).narrow(0, 1, 1)));
}

TEST(TwoStacks, GradientsReachTheEncoder) {
  const Model model = make_model();
  whole(model, kSources, kTargets).square().sum().backward();
  for (const auto& [decl, weight] : model.weights().all())
    EXPECT_TRUE(weight->dense_tensor().grad().defined() &&
                weight->dense_tensor().grad().abs().max().item<double>() > 0)
        << decl.name;
}

}  // namespace
}  // namespace tessera::model::two_stacks_test
