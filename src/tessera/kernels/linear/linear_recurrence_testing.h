// What the tests of the linear recurrence and of its gradients share: random inputs of every rule
// with every kind of decay, and the definition in double.
#pragma once

#include <functional>

#include "tessera/kernels/kernels_testing.h"
#include "tessera/kernels/linear/linear_recurrence.h"

namespace tessera::kernels {

enum class RecurrenceRule { plain, bonus, delta, rank_one };

struct RecurrenceCase {
  using Doubles = std::vector<double>;
  enum Array { q, k, v, log_decay, beta, a, b, bonus, state, kArrays };

  RecurrenceRule rule;
  DecayPer decay;
  int64_t T, H, K, V;
  std::vector<Values> values;  // by Array

  RecurrenceCase(RecurrenceRule r, DecayPer d, int64_t t, int64_t h, int64_t kk, int64_t vv)
      : rule(r), decay(d), T(t), H(h), K(kk), V(vv) {
    const int64_t sizes[] = {T * H * K, T * H * K, T * H * V, T * H * K, T * H,
                             T * H * K, T * H * K, H * K,     H * K * V};
    for (uint64_t i = 0; i < kArrays; ++i) {
      const bool direction = i == k || i == a || i == b;
      values.emplace_back(sizes[i], i + 1, direction ? 0.3 : 1.0);
    }
    Values& g = values[log_decay];
    for (int64_t i = 0; i < g.size(); ++i) g[i] = -std::abs(g[i]);
  }

  int64_t decay_at(int64_t t, int64_t h, int64_t c) const {
    return decay == DecayPer::head ? h : decay == DecayPer::token ? t * H + h : (t * H + h) * K + c;
  }
  /// The call for tokens begin .. end; state and y are left to the caller.
  LinearRecurrence call(int64_t begin, int64_t end) const {
    const auto at_token = [&](Array array, int64_t width) {
      return values[array].data() + begin * H * width;
    };
    LinearRecurrence r;
    r.T = end - begin, r.H = H, r.K = K, r.V = V, r.decay = decay;
    r.q = at_token(q, K), r.k = at_token(k, K), r.v = at_token(v, V);
    if (decay != DecayPer::nothing)
      r.log_decay =
          values[log_decay].data() + (decay == DecayPer::head ? 0 : decay_at(begin, 0, 0));
    if (rule == RecurrenceRule::delta) r.beta = at_token(beta, 1);
    if (rule == RecurrenceRule::rank_one) r.a = at_token(a, K), r.b = at_token(b, K);
    if (rule == RecurrenceRule::bonus) r.bonus = values[bonus].data();
    return r;
  }
  /// Whether the rule and the decay read the array.
  bool reads(Array array) const {
    switch (array) {
      case log_decay:
        return decay != DecayPer::nothing;
      case beta:
        return rule == RecurrenceRule::delta;
      case a:
      case b:
        return rule == RecurrenceRule::rank_one;
      case bonus:
        return rule == RecurrenceRule::bonus;
      default:
        return true;
    }
  }
  std::vector<Doubles> doubles() const {
    std::vector<Doubles> out;
    for (const Values& x : values) out.emplace_back(x.data(), x.data() + x.size());
    return out;
  }
  /// y of all tokens from arrays x; x[state] is replaced by the final state.
  Doubles definition(std::vector<Doubles>& x) const {
    Doubles y(at(T * H * V));
    for (int64_t t = 0; t < T; ++t)
      for (int64_t h = 0; h < H; ++h)
        for (int64_t j = 0; j < V; ++j) {
          const int64_t head = t * H + h;
          double seen = 0, out = 0;
          const auto old = [&](int64_t c) -> double& { return x[state][at((h * K + c) * V + j)]; };
          const auto keep = [&](int64_t c) {
            return decay == DecayPer::nothing ? 1 : std::exp(x[log_decay][at(decay_at(t, h, c))]);
          };
          for (int64_t c = 0; c < K; ++c)
            seen += old(c) * (rule == RecurrenceRule::delta ? keep(c) * x[k][at(head * K + c)]
                                                            : x[a][at(head * K + c)]);
          for (int64_t c = 0; c < K; ++c) {
            const double key = x[k][at(head * K + c)], query = x[q][at(head * K + c)],
                         value = x[v][at(head * V + j)];
            const double before = old(c);
            double after = keep(c) * before;
            if (rule == RecurrenceRule::delta)
              after += x[beta][at(head)] * key * (value - seen);
            else
              after += key * value;
            if (rule == RecurrenceRule::rank_one) after += x[b][at(head * K + c)] * seen;
            out += query * (rule == RecurrenceRule::bonus
                                ? before + x[bonus][at(h * K + c)] * key * value
                                : after);
            old(c) = after;
          }
          y[at(head * V + j)] = out;
        }
    return y;
  }
};

inline void for_every_recurrence(int64_t t,
                                 int64_t h,
                                 int64_t k,
                                 int64_t v,
                                 const std::function<void(const RecurrenceCase&)>& body) {
  for (const auto rule : {RecurrenceRule::plain, RecurrenceRule::bonus, RecurrenceRule::delta,
                          RecurrenceRule::rank_one})
    for (const DecayPer decay :
         {DecayPer::nothing, DecayPer::head, DecayPer::token, DecayPer::channel}) {
      SCOPED_TRACE("rule " + std::to_string(static_cast<int>(rule)) + ", decay " +
                   std::to_string(static_cast<int>(decay)));
      body(RecurrenceCase(rule, decay, t, h, k, v));
    }
}

}  // namespace tessera::kernels
