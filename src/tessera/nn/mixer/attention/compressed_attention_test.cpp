// Compressed attention against its definition, token by token, and its indexer's choice and loss.
#include "tessera/nn/mixer/attention/compressed_attention.h"

#include <algorithm>
#include <cmath>

#include "tessera/base/testing.h"
#include "tessera/nn/mixer/mixer_testing.h"
#include "tessera/ops/attention/compressed_attention.h"

namespace tessera::nn::compressed_attention_test {
namespace {

using ops::gen;

constexpr double kEps = 1e-6, kTheta = 50;

/// The formulas of the header on rows of numbers in double.
class Definition {
 public:
  explicit Definition(const MixerUnderTest& m)
      : m_(m), c_(m.part.as<CompressedAttentionConfig>()) {}

  Tensor operator()(const Tensor& x_TD) const {
    std::vector<Tensor> out;
    for (int64_t i = 0; i < x_TD.size(0); ++i) out.push_back(of_token(x_TD, i));
    return at::stack(out);
  }

 private:
  Tensor w(const std::string& name) const { return m_.values.at(name); }
  Tensor normed(const Tensor& x, const std::string& name) const {
    return c_.norm ? x / (x.square().mean() + kEps).sqrt() * w(name + ".weight") : x;
  }
  /// Pairs of neighbours of the last channels, turned by position * kTheta^(-2m / r).
  Tensor turned(const Tensor& x, int64_t position, double sign = 1) const {
    if (!c_.position || c_.position.type() == "none") return x;
    const int64_t r = c_.rope_head_dim, still = x.size(0) - r;
    Tensor out = x.clone();
    for (int64_t j = 0; j < r; j += 2) {
      const double angle = sign * static_cast<double>(position) *
                           std::pow(kTheta, -static_cast<double>(j) / static_cast<double>(r));
      const double a = x[still + j].item<double>(), b = x[still + j + 1].item<double>();
      out[still + j] = a * std::cos(angle) - b * std::sin(angle);
      out[still + j + 1] = a * std::sin(angle) + b * std::cos(angle);
    }
    return out;
  }
  /// Entry b of the pooling `pool`.
  Tensor entry(const Tensor& x_TD, const std::string& pool, int64_t b) const {
    const int64_t m = c_.block;
    const Tensor kv = at::matmul(x_TD, w(pool + ".kv.weight").t()),
                 gate = at::matmul(x_TD, w(pool + ".gate.weight").t()), place = w(pool + ".place");
    const int64_t width = kv.size(1) / c_.series();
    std::vector<Tensor> contents, logits;
    if (c_.overlap && b > 0)
      for (int64_t j = 0; j < m; ++j) {
        contents.push_back(kv[(b - 1) * m + j].narrow(0, 0, width));
        logits.push_back((gate[(b - 1) * m + j] + place[j]).narrow(0, 0, width));
      }
    const int64_t at = c_.overlap ? width : 0;
    for (int64_t j = 0; j < m; ++j) {
      contents.push_back(kv[b * m + j].narrow(0, at, width));
      logits.push_back((gate[b * m + j] + place[j]).narrow(0, at, width));
    }
    const Tensor weights = at::softmax(at::stack(logits), 0);
    return turned(normed((weights * at::stack(contents)).sum(0), pool + ".norm"), b * m);
  }
  std::vector<int64_t> entries_read(const Tensor& x_TD, const Tensor& latent, int64_t i) const {
    const int64_t met = c_.block > 0 ? (i + 1) / c_.block : 0;
    std::vector<int64_t> all;
    std::vector<double> scores;
    for (int64_t b = 0; b < met; ++b) {
      all.push_back(b);
      if (!c_.indexed()) continue;
      const int64_t heads = c_.index.n_heads, d = c_.index.head_dim;
      const Tensor k = entry(x_TD, "index_pool", b),
                   q = at::mv(w("index_q.weight"), latent).reshape({heads, d}),
                   by = at::mv(w("index_weights.weight"), x_TD[i]);
      double score = 0;
      for (int64_t h = 0; h < heads; ++h)
        score += by[h].item<double>() / std::sqrt(static_cast<double>(heads)) *
                 std::max(0.0, at::dot(turned(q[h], i), k).item<double>() /
                                   std::sqrt(static_cast<double>(d)));
      scores.push_back(score);
    }
    if (!c_.indexed() || met <= c_.index.top_k) return all;
    std::stable_sort(all.begin(), all.end(), [&](int64_t a, int64_t b) {
      return scores[static_cast<size_t>(a)] > scores[static_cast<size_t>(b)];
    });
    all.resize(static_cast<size_t>(c_.index.top_k));
    return all;
  }
  Tensor of_token(const Tensor& x_TD, int64_t i) const {
    const int64_t d = c_.head_dim;
    const Tensor latent = c_.q_lora_rank > 0 ? normed(at::mv(w("q_a.weight"), x_TD[i]), "q_a_norm")
                                             : x_TD[i],
                 q = at::mv(w(c_.q_lora_rank > 0 ? "q_b.weight" : "q.weight"), latent)
                         .reshape({c_.n_heads, d});
    std::vector<Tensor> keys;
    for (const int64_t b : entries_read(x_TD, latent, i)) keys.push_back(entry(x_TD, "pool", b));
    for (int64_t j = std::max<int64_t>(0, i - c_.window + 1); j <= i; ++j)
      keys.push_back(turned(normed(at::mv(w("kv.weight"), x_TD[j]), "kv_norm"), j));
    const Tensor k_SD = at::stack(keys);
    std::vector<Tensor> heads;
    for (int64_t h = 0; h < c_.n_heads; ++h) {
      Tensor own = q[h];
      if (c_.query_norm) own = own / (own.square().mean() + kEps).sqrt();
      Tensor scores = at::mv(k_SD, turned(own, i)) / std::sqrt(static_cast<double>(d));
      if (c_.sinks) scores = at::cat({scores, w("sinks").narrow(0, h, 1)});
      const Tensor weights = at::softmax(scores, 0).narrow(0, 0, k_SD.size(0));
      heads.push_back(turned(at::mv(k_SD.t(), weights), i, -1));
    }
    const Tensor o = at::cat(heads);
    if (c_.o_lora_rank == 0) return at::mv(w("o.weight"), o);
    std::vector<Tensor> groups;
    const int64_t of_group = o.size(0) / c_.o_groups;
    for (int64_t g = 0; g < c_.o_groups; ++g)
      groups.push_back(at::mv(w("o_a.weight").narrow(0, g * c_.o_lora_rank, c_.o_lora_rank),
                              o.narrow(0, g * of_group, of_group)));
    return at::mv(w("o_b.weight"), at::cat(groups));
  }

  const MixerUnderTest& m_;
  const CompressedAttentionConfig& c_;
};

constexpr const char* kHead =
    R"({"type": "compressed_attention", "n_heads": 4, "head_dim": 6, "window": 3, )";
constexpr const char* kRope =
    R"("rope_head_dim": 4, "position": {"type": "rope", "theta": 50, "layout": "interleaved"}, )";

void expect_defined(const std::string& text, int64_t tokens = 19) {
  MixerUnderTest m(text, 8);
  m.fill({.size = 1});
  const Tensor x = gen({tokens, 8}, 1.3, 0.2);
  m.expect_everywhere(x, Definition(m)(x), 1e-12);
}

TEST(CompressedAttention, WindowAlone) {
  expect_defined(fmt::format(R"({}{}"block": 0, "sinks": true}})", kHead, kRope));
}

TEST(CompressedAttention, EntriesOfBlocksAlone) {
  expect_defined(fmt::format(R"({}"block": 4, "norm": null}})", kHead));
  expect_defined(fmt::format(
      R"({}{}"block": 5, "query_norm": {{"type": "rms_norm", "weight": "none"}}, "sinks": true}})",
      kHead, kRope));
  expect_defined(fmt::format(R"({}"block": 1}})", kHead), 9);
}

TEST(CompressedAttention, EntriesOfTwoSeries) {
  expect_defined(fmt::format(R"({}{}"block": 3, "overlap": true}})", kHead, kRope));
}

TEST(CompressedAttention, ChosenEntries) {
  for (const char* more : {"", R"("overlap": true, "sinks": true, )",
                           R"("q_lora_rank": 5, "o_groups": 2, "o_lora_rank": 3, )"})
    expect_defined(
        fmt::format(R"({}{}{}"block": 2, "index": {{"n_heads": 3, "head_dim": 5, "top_k": 3}}}})",
                    kHead, kRope, more));
}

TEST(CompressedAttention, KeepsAWindowAndAnEntryForEveryBlock) {
  const MixerUnderTest m(
      fmt::format(R"({}"block": 4, "overlap": true, "index": {{"n_heads": 2, "head_dim": 6}}}})",
                  kHead),
      8);
  const std::vector<spec::StateDecl> decls = m.state();
  const auto numbers = [&](int64_t length) { return spec::state_bytes(decls, length) / 4; };
  // keys of 3 tokens; projections of 8, of both poolings; an entry and an index key of 6 for each 4
  const int64_t of_window = 3 * 6 + 2 * 8 * 4 * 6;
  EXPECT_EQ(numbers(40), of_window + 10 * 12);
  EXPECT_EQ(numbers(4000), of_window + 1000 * 12);
}

TEST(CompressedAttention, RefusesInOneLine) {
  const auto expect = [](const std::string& more, const std::string& text) {
    const std::string error = test::error_of([&] { MixerUnderTest(kHead + more + "}", 8); });
    EXPECT_NE(error.find(text), std::string::npos) << error;
  };
  expect(R"("block": 0, "overlap": true)", "block = 0 makes no entries, but overlap is of entries");
  expect(R"("block": 0, "index": {"n_heads": 2, "head_dim": 6})", "but index is of entries");
  expect(R"("rope_head_dim": 8)", "rope_head_dim = 8; expected at most head_dim = 6");
  expect(R"("index": {"n_heads": 2, "head_dim": 4})",
         "head_dim = 4; expected at least rope_head_dim = 6");
  expect(R"("index": {"head_dim": 4})", "head_dim = 4 with n_heads = 0");
  expect(R"("o_groups": 2)", "o_groups = 2 with o_lora_rank = 0");
  expect(R"("o_groups": 3, "o_lora_rank": 2)", "o_groups = 3 does not divide n_heads = 4");
  expect(
      R"("position": {"type": "rope", "scaling": {"type": "dynamic", "factor": 2, "original_length": 8}})",
      "entries are rotated once");
}

// --- the indexer -----------------------------------------------------------------------------

TEST(TopEntries, TiesGoToTheEarlierAndNoNumberIsLeast) {
  const auto chosen = [](const std::vector<double>& scores, at::ScalarType type) {
    // one head of one channel whose product is the score; the last of 2 n queries meets all
    const auto n = static_cast<int64_t>(scores.size());
    const Tensor k = at::tensor(scores, at::kDouble).to(type).reshape({n, 1});
    const at::NoGradGuard no_gradients;
    const Tensor entries = ops::top_entries({at::ones({2 * n, 1, 1}, type),
                                             at::ones({2 * n, 1}, type),
                                             {k.narrow(0, 0, 1), k.narrow(0, 1, n - 1)},
                                             1,
                                             0,
                                             2},
                                            2);
    EXPECT_EQ(entries[2][0].item<int32_t>(), 0);
    const int32_t* last = entries.const_data_ptr<int32_t>() + (2 * n - 1) * 2;
    return std::vector<int32_t>(last, last + 2);
  };
  for (const at::ScalarType type : {at::kDouble, at::kFloat}) {
    EXPECT_EQ(chosen({1, 2, 2, 2}, type), (std::vector<int32_t>{1, 2}));
    EXPECT_EQ(chosen({3, -1, 1, -2, 1}, type), (std::vector<int32_t>{0, 2}));
    EXPECT_EQ(chosen({-1, -2, -3}, type), (std::vector<int32_t>{0, 1}));
    EXPECT_EQ(chosen({std::nan(""), 1, 0.5}, type), (std::vector<int32_t>{1, 2}));
  }
}

/// Queries, keys and the attention that they learn, of nine tokens and entries of two.
struct Learning {
  Tensor q = gen({9, 2, 3}, .5, .3), k = gen({4, 3}, .8, .2), w = gen({9, 2}, .6, .9),
         chosen = at::zeros({9, 2}, at::kInt);
  ops::EntryTarget target{gen({9, 3, 4}, .7, .1), gen({9, 4}, 1.1, .4), gen({4, 4}, .9, .2), .5, 3,
                          gen({3}, .4, .2)};
  Tensor loss(bool some) const {
    return ops::entry_index_loss({q, w, {k}, .7, 0, 2}, some ? chosen : Tensor(), target);
  }
};

TEST(EntryIndexLoss, IsTheDivergenceFromTheAttentionsWeights) {
  Learning g;
  g.chosen = ops::top_entries({g.q, g.w, {g.k}, .7, 0, 2}, 2);
  for (const bool some : {false, true}) {
    const Tensor got = g.loss(some);
    for (int64_t i = 0; i < 9; ++i) {
      std::vector<int64_t> read;
      const int64_t met = (i + 1) / 2;
      for (int64_t j = 0; j < (some ? std::min<int64_t>(met, 2) : met); ++j)
        read.push_back(some ? g.chosen[i][j].item<int64_t>() : j);
      if (read.empty()) {
        EXPECT_EQ(got[i].item<double>(), 0);
        continue;
      }
      const Tensor entries = g.target.entry_EK.narrow(0, 0, met);
      const int64_t from = std::max<int64_t>(0, i - 2);
      Tensor sum = at::zeros({met}, at::kDouble);
      for (int64_t h = 0; h < 3; ++h) {
        const Tensor keys = at::cat({entries, g.target.k_SK.narrow(0, from, i + 1 - from)});
        const Tensor scores =
            at::cat({at::mv(keys, g.target.q_THK[i][h]) * .5, g.target.sinks_H.narrow(0, h, 1)});
        sum = sum + at::softmax(scores, 0).narrow(0, 0, met);
      }
      const Tensor at = at::tensor(read, at::kLong),
                   p = sum.index_select(0, at) / sum.index_select(0, at).sum();
      const Tensor products = at::relu(at::matmul(g.q[i], g.k.t()) * .7),
                   scores = at::mv(products.t(), g.w[i]).index_select(0, at);
      const double want = (p * (p.log() - at::log_softmax(scores, 0))).sum().item<double>();
      EXPECT_NEAR(got[i].item<double>(), want, 1e-12) << i << " " << some;
    }
  }
}

TEST(EntryIndexLoss, GradientsAgainstDifferences) {
  Learning g;
  g.chosen = ops::top_entries({g.q, g.w, {g.k}, .7, 0, 2}, 2);
  for (Tensor* input : {&g.q, &g.k, &g.w}) {
    input->requires_grad_(true);
    g.loss(true).sum().backward();
    const Tensor gradient = input->grad().flatten();
    input->requires_grad_(false);
    for (int64_t i = 0; i < input->numel(); ++i) {
      Tensor number = input->view(-1)[i];
      constexpr double kStep = 1e-6;
      number += kStep;
      const double above = g.loss(true).sum().item<double>();
      number -= 2 * kStep;
      const double below = g.loss(true).sum().item<double>();
      number += kStep;
      EXPECT_NEAR(gradient[i].item<double>(), (above - below) / (2 * kStep), 1e-8);
    }
  }
}

TEST(CompressedAttention, ItsIndexerLearnsFromItsLossAlone) {
  MixerUnderTest m(
      fmt::format(
          R"({}{}"block": 2, "overlap": true, "index": {{"n_heads": 2, "head_dim": 4, "top_k": 2}}}})",
          kHead, kRope),
      8);
  m.fill({.size = 1});
  for (auto& [name, value] : m.values) value.requires_grad_(true);
  const Batch batch = Batch::of({std::vector<int64_t>(11, 1), std::vector<int64_t>(7, 1)});
  Context context;
  Tensor loss;
  context.add_loss = [&](const std::string& name, const Tensor& value) {
    EXPECT_EQ(name, "indexer_kl");
    loss = value;
  };
  const Tensor y = m.forward(gen({18, 8}, 1.3, 0.2), batch, at::kDouble, context);
  const auto reached = [&](const Tensor& of, bool index) {
    for (auto& [name, value] : m.values) value.mutable_grad() = Tensor();
    of.backward({}, /*retain_graph=*/true);
    for (const auto& [name, value] : m.values) {
      const bool has = value.grad().defined() && value.grad().abs().max().item<double>() > 0;
      EXPECT_EQ(has, name.starts_with("index_") == index) << name;
    }
  };
  reached(loss, true);
  reached(y.square().sum(), false);
}

}  // namespace
}  // namespace tessera::nn::compressed_attention_test
