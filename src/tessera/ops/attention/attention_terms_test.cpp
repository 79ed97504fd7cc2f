// What joins the scores beside q . k: position terms, patterns with multiplicities, sinks; and the
// chunked form, whose values and gradients are those of the definition.
#include <ATen/core/grad_mode.h>

#include "tessera/ops/attention/attention.h"
#include "tessera/ops/ops_testing.h"

namespace tessera::ops::attention_terms_test {
namespace {

constexpr int64_t kLength = 9;

struct Input {
  Tensor q, k, v;  // [T, H, D], [T, G, D], [T, G, Dv]
  explicit Input(at::ScalarType type)
      : q(gen({kLength, 4, 3}, 0.37, 0.11).to(type)),
        k(gen({kLength, 2, 3}, 0.53, 0.29).to(type)),
        v(gen({kLength, 2, 5}, 0.71, 0.05).to(type)) {}
};

/// Own token, and the even ones before it, the first of them twice.
class EvenKeys final : public kernels::Visibility {
 public:
  int64_t multiplicity(int64_t head, int64_t query, int64_t key) const override {
    if (key > query || (head == 1 && key == 2)) return 0;
    return key == 0 ? 2 : key % 2 == 0 || key == query ? 1 : 0;
  }
  std::vector<kernels::KeyRange> ranges(int64_t, int64_t, int64_t end) const override {
    return {{0, end}};
  }
  bool same_for_heads() const override { return false; }
};

/// o of head h, query i, from the formula, one number at a time.
Tensor by_hand(const std::function<double(int64_t h, int64_t i, int64_t j)>& bias,
               const std::function<double(int64_t h, int64_t i, int64_t j)>& times,
               double sink_of_head_h = 0,
               bool sinks = false) {
  const Input in(at::kDouble);
  Tensor out = at::zeros({kLength, 4, 5}, at::kDouble);
  for (int64_t h = 0; h < 4; ++h)
    for (int64_t i = 0; i < kLength; ++i) {
      double total = sinks ? std::exp(sink_of_head_h * static_cast<double>(h + 1)) : 0;
      for (int64_t j = 0; j < kLength; ++j) {
        const double s = 0.5 * (in.q[i][h] * in.k[j][h / 2]).sum().item<double>() + bias(h, i, j);
        const double p = times(h, i, j) * std::exp(s);
        total += p;
        out[i][h] += p * in.v[j][h / 2];
      }
      out[i][h] /= total;
    }
  return out;
}

double causal(int64_t, int64_t i, int64_t j) {
  return j <= i ? 1 : 0;
}
double nothing(int64_t, int64_t, int64_t) {
  return 0;
}

Tensor run(at::ScalarType type, const ScoreOptions& options) {
  const Input in(type);
  return attention(in.q, {{in.k, in.v, 0}}, 0, options);
}

TEST(AttentionTerm, SinksTakeWeight) {
  const Tensor want = by_hand(nothing, causal, 0.3, true);
  expect_both(
      [&](at::ScalarType t) {
        return run(t, {.scale = 0.5, .sinks_H = tensor({0.3, 0.6, 0.9, 1.2}).to(t)});
      },
      want, 1e-12);
}

TEST(AttentionTerm, ABiasByDistanceIsReadFromItsTable) {
  // five distances, from -3 to 1; what lies beyond takes the ends
  const Tensor table = gen({4, 5}, 0.9, 0.4);
  const Tensor want = by_hand(
      [&](int64_t h, int64_t i, int64_t j) {
        return table[h][std::clamp<int64_t>(3 + j - i, 0, 4)].item<double>();
      },
      causal);
  expect_both(
      [&](at::ScalarType t) {
        return run(t, {.scale = 0.5, .term = {.bias_HR = table.to(t), .zero = 3}});
      },
      want, 1e-12);
}

TEST(AttentionTerm, ABiasFromTheQueriesIsAdded) {
  const Tensor rows = gen({kLength, 3}, 0.2, 0.7);
  const auto term = [](const ScoreBlock& block, const std::vector<Tensor>& inputs) {
    return row_products(block.q_BHTD, inputs[0].narrow(0, block.first_key, block.k_BHSD.size(2)));
  };
  const Input in(at::kDouble);
  const Tensor want = by_hand(
      [&](int64_t h, int64_t i, int64_t j) { return (in.q[i][h] * rows[j]).sum().item<double>(); },
      causal);
  expect_both(
      [&](at::ScalarType t) {
        ScoreOptions options{.scale = 0.5};
        options.term.bias = term;
        options.term.inputs = {rows.to(t)};
        return run(t, options);
      },
      want, 1e-12);
}

// More queries than the kernel makes a bias for at a time: each time only for the keys in sight.
TEST(AttentionTerm, AWindowedBiasFromTheQueriesIsThatOfTheDefinition) {
  constexpr int64_t kLong = 150;
  const Tensor q = gen({kLong, 4, 3}, 0.37, 0.11), k = gen({kLong, 2, 3}, 0.53, 0.29),
               v = gen({kLong, 2, 5}, 0.71, 0.05), rows = gen({kLong, 3}, 0.2, 0.7);
  for (const bool causal : {true, false})
    for (const int64_t window : {0, 1, 20}) {
      const auto options = [&](at::ScalarType type) {
        ScoreOptions o{.scale = 0.5, .causal = causal, .window = window};
        o.term.inputs = {rows.to(type)};
        o.term.bias = [](const ScoreBlock& block, const std::vector<Tensor>& inputs) {
          return row_products(block.q_BHTD,
                              inputs[0].narrow(0, block.first_key, block.k_BHSD.size(2)));
        };
        return o;
      };
      const auto heads_first = [](const Tensor& x) { return x.transpose(0, 1).unsqueeze(0); };
      const Tensor want = attention_plain(heads_first(q), heads_first(k), heads_first(v), 0, 0,
                                          options(at::kDouble))
                              .squeeze(0)
                              .transpose(0, 1);
      expect_both(
          [&](at::ScalarType type) {
            return attention(q.to(type), {{k.to(type), v.to(type), 0}}, 0, options(type));
          },
          want, 1e-12);
    }
}

TEST(AttentionTerm, NoQueriesGiveNothing) {
  const at::NoGradGuard no_gradients;
  const Input in(at::kFloat);
  ScoreOptions options{.scale = 0.5};
  options.term.bias_HR = at::ones({4, 5});
  for (const int64_t keys : {int64_t{0}, kLength}) {
    const Tensor y = attention(in.q.narrow(0, 0, 0),
                               {{in.k.narrow(0, 0, keys), in.v.narrow(0, 0, keys), 0}}, 0, options);
    EXPECT_EQ(y.sizes(), (std::vector<int64_t>{0, 4, 5}));
  }
}

TEST(AttentionTerm, APatternCountsKeysAsOftenAsItSays) {
  const EvenKeys who;
  const Tensor want = by_hand(nothing, [&](int64_t h, int64_t i, int64_t j) {
    return static_cast<double>(who.multiplicity(h, i, j));
  });
  expect_both(
      [&](at::ScalarType t) {
        return run(t, {.scale = 0.5, .visibility = std::make_shared<EvenKeys>()});
      },
      want, 1e-12);
}

/// A pattern whose ranges forget the first key, whose rows count every key once, and whose heads
/// are said to be alike.
class ForgetfulKeys final : public kernels::Visibility {
 public:
  int64_t multiplicity(int64_t head, int64_t query, int64_t key) const override {
    return EvenKeys().multiplicity(head, query, key);
  }
  void counts(int64_t,
              kernels::KeyRange queries,
              kernels::KeyRange keys,
              int8_t* out,
              int64_t stride) const override {
    for (int64_t query = queries.begin; query < queries.end; ++query, out += stride)
      std::fill_n(out, keys.end - keys.begin, int8_t{1});
  }
  std::vector<kernels::KeyRange> ranges(int64_t, int64_t, int64_t end) const override {
    return {{1, std::max<int64_t>(end, 2)}};
  }
};

TEST(AttentionTerm, TheDefinitionAsksThePredicateAlone) {
  const EvenKeys who;
  const Tensor want = by_hand(nothing, [&](int64_t h, int64_t i, int64_t j) {
    return static_cast<double>(who.multiplicity(h, i, j));
  });
  const Input in(at::kDouble);
  const auto heads = [](const Tensor& x) { return x.transpose(0, 1).unsqueeze(0); };
  const ScoreOptions options{.scale = 0.5, .visibility = std::make_shared<ForgetfulKeys>()};
  const Tensor found = attention_plain(heads(in.q), heads(in.k), heads(in.v), 0, 0, options);
  expect_near(found.squeeze(0).transpose(0, 1), want, 1e-12);
}

struct Everything {
  Tensor q, k, v, sinks, table, rows;
  std::vector<Tensor> all() const { return {q, k, v, sinks, table, rows}; }
};

Everything leaves() {
  const Input in(at::kDouble);
  const auto head = [](const Tensor& x) {
    return x.transpose(0, 1).unsqueeze(0).contiguous().requires_grad_(true);
  };
  return {head(in.q),
          head(in.k),
          head(in.v),
          gen({4}, 0.3, 0.1).requires_grad_(true),
          gen({4, 7}, 0.4, 0.2).requires_grad_(true),
          gen({kLength, 3}, 0.2, 0.7).requires_grad_(true)};
}

ScoreOptions everything(const Everything& e, int kind) {
  ScoreOptions options{.scale = 0.5, .softcap = 3};
  options.sinks_H = e.sinks;
  options.term.bias_HR = e.table;
  options.term.zero = 4;
  options.term.inputs = {e.rows};
  options.term.bias = [](const ScoreBlock& block, const std::vector<Tensor>& inputs) {
    return row_products(block.q_BHTD, inputs[0].narrow(0, block.first_key, block.k_BHSD.size(2)));
  };
  options.term.values = [](const Tensor& weights, const ScoreBlock& block,
                           const std::vector<Tensor>& inputs) {
    const Tensor rows = inputs[0].narrow(0, block.first_key, block.k_BHSD.size(2));
    return at::constant_pad_nd(at::matmul(weights, rows), {0, 2});
  };
  if (kind == 1) options.window = 4;
  if (kind == 2) options.causal = false;
  if (kind == 3) options.causal = false, options.window = 4;
  if (kind == 4 || kind == 6) options.visibility = std::make_shared<EvenKeys>();
  if (kind >= 5) options.dropout = {.p = 0.4, .key = RandomKey(3)};
  return options;
}

TEST(AttentionChunked, ValuesAndGradientsAreThoseOfTheDefinition) {
  for (int kind = 0; kind < 7; ++kind)
    for (const int64_t chunk : {1, 2, 4, 100}) {
      const Everything a = leaves(), b = leaves();
      const Tensor want = attention_plain(a.q, a.k, a.v, 0, 0, everything(a, kind));
      const Tensor got =
          attention_chunked(b.q, b.k, b.v, 0, {{0, kLength}}, everything(b, kind), chunk);
      expect_near(got, want, 1e-13);
      const Tensor weight = gen(want.sizes().vec(), 0.31, 0.5);
      (want * weight).sum().backward();
      (got * weight).sum().backward();
      const auto wants = a.all(), gots = b.all();
      for (size_t i = 0; i < wants.size(); ++i) {
        ASSERT_TRUE(gots[i].grad().defined()) << "input " << i;
        expect_near(gots[i].grad(), wants[i].grad(), 1e-12);
      }
    }
}

TEST(AttentionTerm, InferenceWithATermOfTheValuesIsTheDefinition) {
  // the weight of key 0 times its row: nothing is summed, so that bits can be compared
  const auto options = [](const Everything& e, int kind) {
    ScoreOptions with = everything(e, kind);
    with.term.values = [](const Tensor& weights, const ScoreBlock& block,
                          const std::vector<Tensor>& inputs) {
      const Tensor of_key_0 = block.first_key == 0 ? weights.narrow(-1, 0, 1)
                                                   : at::zeros_like(weights.narrow(-1, 0, 1));
      return at::constant_pad_nd(of_key_0 * inputs[0][0], {0, 2});
    };
    return with;
  };
  for (int kind = 0; kind < 5; ++kind) {
    const Everything e = leaves();
    const at::NoGradGuard no_gradients;
    const Tensor want =
        attention_plain(e.q, e.k, e.v, 0, 0, options(e, kind)).squeeze(0).transpose(0, 1);
    const auto tokens_first = [](const Tensor& x) {
      return x.to(at::kFloat).squeeze(0).transpose(0, 1).contiguous();
    };
    Everything f32 = e;
    for (Tensor* x : {&f32.sinks, &f32.table, &f32.rows}) *x = x->to(at::kFloat);
    const Tensor q = tokens_first(e.q), k = tokens_first(e.k), v = tokens_first(e.v);
    const Tensor all = attention(q, {{k, v, 0}}, 0, options(f32, kind));
    expect_near(all, want, 2e-6);
    // one query after the others, and keys in two spans: the same bits
    for (int64_t i = 0; i < kLength; ++i) {
      const Tensor one = attention(
          q.narrow(0, i, 1),
          {{k.narrow(0, 0, 4), v.narrow(0, 0, 4), 0}, {k.narrow(0, 4, 5), v.narrow(0, 4, 5), 4}}, i,
          options(f32, kind));
      EXPECT_TRUE(at::equal(one, all.narrow(0, i, 1))) << "kind " << kind << ", query " << i;
    }
  }
}

TEST(AttentionTerm, RowProductsDependOnTheirRowsAlone) {
  const at::NoGradGuard no_gradients;
  const Tensor x = gen({2, 7, 19}, 0.3, 0.1).to(at::kFloat),
               w = gen({1, 11, 19}, 0.7, 0.2).to(at::kFloat);
  const Tensor all = row_products(x, w);
  expect_near(all, at::matmul(x.to(at::kDouble), w.to(at::kDouble).transpose(-1, -2)), 1e-5);
  for (int64_t i = 0; i < 7; ++i)
    EXPECT_TRUE(at::equal(row_products(x.narrow(1, i, 1), w.narrow(1, 3, 5)),
                          all.narrow(1, i, 1).narrow(2, 3, 5)));
}

}  // namespace
}  // namespace tessera::ops::attention_terms_test
