// Inference attention under patterns: against the definition in double, in split calls, with kept
// first keys before a ring, and with other queries for them.
#include <hwy/aligned_allocator.h>

#include <cstring>
#include <limits>

#include "tessera/base/half.h"
#include "tessera/kernels/attention/attention.h"
#include "tessera/kernels/attention/kv_rows.h"
#include "tessera/kernels/kernels_testing.h"

namespace tessera::kernels::attention_pattern_test {
namespace {

constexpr int64_t kKeep = 3, kWindow = 40;

/// The first keys and a window; key 1 twice. Tiles are exact.
class Kept final : public Visibility {
 public:
  int64_t multiplicity(int64_t head, int64_t query, int64_t key) const override {
    if (key > query || (key >= kKeep && key <= query - kWindow)) return 0;
    return key == 1 && head == 1 ? 2 : 1;
  }
  std::vector<KeyRange> ranges(int64_t, int64_t begin, int64_t end) const override {
    const int64_t from = begin - kWindow + 1;
    if (from <= kKeep) return {{0, end}};
    return {{0, kKeep}, {from, end}};
  }
  Seen tile(int64_t head, KeyRange q, KeyRange k) const override {
    int64_t ones = 0, others = 0, hidden = 0;
    for (int64_t i = q.begin; i < q.end; ++i)
      for (int64_t j = k.begin; j < k.end; ++j) {
        const int64_t m = multiplicity(head, i, j);
        ++(m == 0 ? hidden : m == 1 ? ones : others);
      }
    return hidden > 0 ? (ones + others == 0 ? Seen::none : Seen::some)
                      : (others == 0 ? Seen::all : Seen::some);
  }
  bool same_for_heads() const override { return false; }
  bool scattered() const override { return by_lists; }
  bool by_lists = false;
};

struct Case {
  int64_t T = 600, H = 4, G = 2, K = 19, V = 11;
  Values q{T * H * K, 1}, far{T * H * K, 4}, k{T * G * K, 2}, v{T * G * V, 3};
  Kept who;

  /// Queries [begin, end) over keys from `first`, those below `lead` before them.
  std::vector<float> run(int64_t begin, int64_t end, int64_t lead, int64_t first, bool with_far) {
    std::vector<float> out(at((end - begin) * H * V)), keys, values;
    const auto copy = [&](int64_t from, int64_t to) {
      keys.insert(keys.end(), k.data() + from * G * K, k.data() + to * G * K);
      values.insert(values.end(), v.data() + from * G * V, v.data() + to * G * V);
    };
    copy(0, lead);
    // the rest in two spans, the newer one before the older one
    const int64_t turn = (end - first) / 3;
    copy(end - turn, end);
    copy(first, end - turn);
    std::vector<KeySpan> spans;
    const auto span = [&](int64_t slot, int64_t from, int64_t to) {
      constexpr int64_t kFloat = sizeof(float);
      if (from < to)
        spans.push_back({keys.data() + slot * G * K, values.data() + slot * G * V, G * K * kFloat,
                         K * kFloat, G * V * kFloat, V * kFloat, from, to - from, DType::f32});
    };
    span(0, 0, lead);
    span(lead + turn, first, end - turn);
    span(lead, end - turn, end);
    Attention a;
    a.T = end - begin, a.H = H, a.G = G, a.K = K, a.V = V;
    a.q = q.data() + begin * H * K, a.q_token_stride = H * K, a.q_head_stride = K;
    a.out = out.data(), a.out_token_stride = H * V, a.out_head_stride = V;
    a.first_position = begin;
    a.kv = {spans.data(), static_cast<int64_t>(spans.size())};
    a.visible = &who;
    a.scale = 0.3f;
    if (with_far) a.far_q = far.data() + begin * H * K, a.far_end = kKeep;
    attend(a);
    return out;
  }

  std::vector<double> expected(int64_t i, bool with_far) const {
    std::vector<double> out;
    for (int64_t h = 0; h < H; ++h) {
      std::vector<double> o(at(V));
      double sum = 0;
      for (int64_t j = 0; j <= i; ++j) {
        const float* query = (with_far && j < kKeep ? far : q).data() + (i * H + h) * K;
        double s = 0;
        for (int64_t c = 0; c < K; ++c)
          s += static_cast<double>(query[c]) *
               static_cast<double>(k.data()[(j * G + h / (H / G)) * K + c]);
        const double p = static_cast<double>(who.multiplicity(h, i, j)) * std::exp(0.3 * s);
        sum += p;
        for (int64_t c = 0; c < V; ++c)
          o[at(c)] += p * static_cast<double>(v.data()[(j * G + h / (H / G)) * V + c]);
      }
      for (const double x : o) out.push_back(x / sum);
    }
    return out;
  }
};

void expect_definition_and_same_bits(Case& c, std::initializer_list<bool> with_and_without_far) {
  on_every_target([&] {
    for (const bool with_far : with_and_without_far) {
      const auto whole = c.run(0, c.T, 0, 0, with_far);
      const int64_t row = c.H * c.V;
      for (const int64_t i : {0, 2, 41, 255, 256, 300, 599}) {
        const auto want = c.expected(i, with_far);
        for (int64_t x = 0; x < row; ++x)
          ASSERT_NEAR(whole[at(i * row + x)], want[at(x)], 3e-6) << "row " << i;
      }
      // the same rows from a cache: the kept keys and the window alone
      for (const auto& [begin, end] :
           {std::pair<int64_t, int64_t>{599, 600}, {300, 301}, {256, 290}, {60, 64}}) {
        const int64_t first = begin - kWindow + 1;
        const auto part = c.run(begin, end, kKeep, first, with_far);
        for (size_t x = 0; x < part.size(); ++x)
          ASSERT_EQ(part[x], whole[at(begin * row) + x]) << "call of " << begin << " to " << end;
      }
    }
  });
}

TEST(AttentionPattern, IsTheDefinitionAndCallsDoNotChangeItsBits) {
  Case c;
  expect_definition_and_same_bits(c, {false, true});
}

TEST(AttentionPattern, ScatteredIsTheDefinitionAndCallsDoNotChangeItsBits) {
  Case c;
  c.who.by_lists = true;
  expect_definition_and_same_bits(c, {false});
}

/// Every seventh key, key 14 three times; the first query of each dozen sees nothing.
class Sevenths final : public Visibility {
 public:
  explicit Sevenths(bool by_lists) : by_lists_(by_lists) {}
  int64_t multiplicity(int64_t, int64_t query, int64_t key) const override {
    return key > query || key % 7 != 0 || query % 12 == 0 ? 0 : key == 14 ? 3 : 1;
  }
  std::vector<KeyRange> ranges(int64_t, int64_t, int64_t end) const override {
    std::vector<KeyRange> out;
    for (int64_t key = 0; key < end; key += 7) out.push_back({key, key + 1});
    return out;
  }
  bool scattered() const override { return by_lists_; }

 private:
  bool by_lists_;
};

// Tiles compute the same sums: with everything that joins the scores, and stored types.
TEST(AttentionPattern, ListsGiveWhatTilesGive) {
  constexpr int64_t T = 300, H = 4, G = 2, K = 72, V = 37, kFrom = 20;
  const Values q(T * H * K, 1), k(T * G * K, 2), v(T * G * V, 3), bias(H * T * T, 4);
  const float sinks[H] = {0.5f, -1, -std::numeric_limits<float>::infinity(), 2};
  std::vector<uint16_t> k16(at(T * G * K)), v16(at(T * G * V));
  for (size_t i = 0; i < k16.size(); ++i) k16[i] = float_to_bf16(k.data()[i]);
  for (size_t i = 0; i < v16.size(); ++i) v16[i] = float_to_bf16(v.data()[i]);
  on_every_target([&] {
    for (const bool stored : {false, true}) {
      const auto run = [&](const Visibility& who) {
        std::vector<float> out(at((T - kFrom) * H * V));
        const int64_t bytes = stored ? 2 : 4;
        const void *keys = stored ? static_cast<const void*>(k16.data()) : k.data(),
                   *values = stored ? static_cast<const void*>(v16.data()) : v.data();
        const KeySpan span{keys,
                           values,
                           G * K * bytes,
                           K * bytes,
                           G * V * bytes,
                           V * bytes,
                           0,
                           T,
                           stored ? DType::bf16 : DType::f32};
        Attention a;
        a.T = T - kFrom, a.H = H, a.G = G, a.K = K, a.V = V;
        a.q = q.data() + kFrom * H * K, a.q_token_stride = H * K, a.q_head_stride = K;
        a.out = out.data(), a.out_token_stride = H * V, a.out_head_stride = V;
        a.first_position = kFrom;
        a.kv = {&span, 1};
        a.visible = &who;
        a.scale = 0.2f, a.softcap = 3;
        a.bias = bias.data(), a.bias_head_stride = T * T, a.bias_query_stride = T;
        a.sinks = sinks;
        attend(a);
        return out;
      };
      const auto lists = run(Sevenths(true)), tiles = run(Sevenths(false));
      for (size_t i = 0; i < lists.size(); ++i) ASSERT_NEAR(lists[i], tiles[i], 2e-6) << i;
    }
  });
}

/// Keys that are chosen by chance, for all heads or for each pair of heads.
class ChosenKeys final : public Visibility {
 public:
  explicit ChosenKeys(bool same) : same_(same) {}
  int64_t multiplicity(int64_t head, int64_t query, int64_t key) const override {
    const int64_t who = same_ ? 0 : head / 2;
    return key <= query && (key * 7919 + who * 31 + query) % 5 == 0 ? 1 : 0;
  }
  std::vector<KeyRange> ranges(int64_t, int64_t, int64_t end) const override { return {{0, end}}; }
  bool same_for_heads() const override { return same_; }
  bool scattered() const override { return true; }

 private:
  bool same_;
};

// Heads that read a list together have the bits that each has alone.
TEST(AttentionPattern, HeadsOfAListHaveTheBitsOfEachAlone) {
  constexpr int64_t T = 2, H = 46, G = 2, K = 37, V = 150, S = 333;
  const Values q(T * H * K, 1), k(S * G * K, 2), v(S * G * V, 3);
  std::vector<float> bias(at(H * T * S));
  // head 3 sees nothing
  std::fill_n(bias.begin() + 3 * T * S, T * S, -std::numeric_limits<float>::infinity());
  for (const DType type : {DType::f32, DType::f16, DType::i8}) {
    const int64_t of_key = kv_row_bytes(type, K), of_value = kv_row_bytes(type, V);
    std::vector<uint8_t> keys(at(S * G * of_key)), values(at(S * G * of_value));
    if (type == DType::f32) {
      std::memcpy(keys.data(), k.data(), keys.size());
      std::memcpy(values.data(), v.data(), values.size());
    } else {
      write_kv_rows(type, k.data(), S * G, K, keys.data());
      write_kv_rows(type, v.data(), S * G, V, values.data());
    }
    const auto run = [&](int64_t head, int64_t heads, const Visibility& who, float* out) {
      const int64_t g = heads == 1 ? head / (H / G) : 0;
      const KeySpan span{keys.data() + g * of_key,
                         values.data() + g * of_value,
                         G * of_key,
                         of_key,
                         G * of_value,
                         of_value,
                         0,
                         S,
                         type};
      Attention a;
      a.T = T, a.H = heads, a.G = heads == 1 ? 1 : G, a.K = K, a.V = V;
      a.q = q.data() + head * K, a.q_token_stride = H * K, a.q_head_stride = K;
      a.out = out + head * V, a.out_token_stride = H * V, a.out_head_stride = V;
      a.first_position = S - T;
      a.kv = {&span, 1};
      a.visible = &who;
      a.scale = 0.3f;
      a.bias = bias.data() + head * T * S, a.bias_head_stride = T * S, a.bias_query_stride = S;
      attend(a);
    };
    on_every_target([&] {
      const ChosenKeys same(true);
      std::vector<float> together(at(T * H * V)), alone(at(T * H * V));
      run(0, H, same, together.data());
      for (int64_t h = 0; h < H; ++h) run(h, 1, same, alone.data());
      EXPECT_EQ(together, alone);
      for (int64_t c = 0; c < V; ++c) ASSERT_EQ(together[at(3 * V + c)], 0);
      {
        const Threads one(1);
        run(0, H, same, alone.data());
        EXPECT_EQ(together, alone);
      }
      const ChosenKeys pairs(false);
      run(0, H, pairs, together.data());
      const Threads many(7);
      run(0, H, pairs, alone.data());
      EXPECT_EQ(together, alone);
    });
  }
}

// Several sequences by a team: lists of keys next to calls that see all keys before them.
TEST(AttentionPattern, ATeamTakesListsNextToOtherCalls) {
  constexpr int64_t H = 12, G = 2, K = 24, V = 40, S = 600;
  const Values q(5 * H * K, 1), k(S * G * K, 2), v(S * G * V, 3);
  const ChosenKeys same(true), pairs(false);
  const KeySpan spans[] = {{k.data(), v.data(), 4 * G * K, 4 * K, 4 * G * V, 4 * V, 0, 200},
                           {k.data() + 200 * G * K, v.data() + 200 * G * V, 4 * G * K, 4 * K,
                            4 * G * V, 4 * V, 200, S - 200}};
  const auto calls = [&](float* out) {
    std::vector<Attention> all(3);
    for (int64_t i = 0, query = 0; i < 3; query += all[at(i++)].T) {
      Attention& a = all[at(i)];
      a.T = i == 1 ? 1 : 2, a.H = H, a.G = G, a.K = K, a.V = V;
      a.q = q.data() + query * H * K, a.q_token_stride = H * K, a.q_head_stride = K;
      a.out = out + query * H * V, a.out_token_stride = H * V, a.out_head_stride = V;
      a.first_position = S - a.T;
      a.kv = {spans, 2};
      a.scale = 0.3f;
    }
    all[0].visible = &same, all[2].visible = &pairs;
    return all;
  };
  for (const int threads : {1, 2, 5}) {
    const Threads scope(threads);
    on_every_target([&] {
      std::vector<float> want(at(5 * H * V)), got = want;
      for (const Attention& a : calls(want.data())) attend(a);
      const std::vector<Attention> all = calls(got.data());
      const auto memory =
          hwy::AllocateAligned<float>(static_cast<size_t>(team_floats(all.data(), 3, S)));
      work_together([&](Team& team) { attend(team, all.data(), 3, memory.get()); });
      EXPECT_EQ(got, want);
    });
  }
}

}  // namespace
}  // namespace tessera::kernels::attention_pattern_test
