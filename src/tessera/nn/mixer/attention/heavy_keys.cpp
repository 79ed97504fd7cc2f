#include "tessera/nn/mixer/attention/heavy_keys.h"

#include <cmath>
#include <limits>
#include <numeric>

#include "tessera/nn/mixer/attention/attend.h"
#include "tessera/ops/attention/key_weights.h"

namespace tessera::nn {
namespace {

/// The places of the `keep` largest of `sums` [G, n], ascending: [G, keep]. At equal ones the
/// earlier place stays; what is no number counts as the largest.
Tensor heaviest(const Tensor& sums_GN, int64_t keep) {
  const Tensor sums = sums_GN.to(at::kCPU, at::kDouble).contiguous();
  const int64_t groups = sums.size(0), n = sums.size(1);
  Tensor places = at::empty({groups, keep}, at::kLong);
  std::vector<int64_t> order(static_cast<size_t>(n));
  for (int64_t g = 0; g < groups; ++g) {
    const double* of = sums.const_data_ptr<double>() + g * n;
    const auto weight = [&](int64_t j) {
      return std::isnan(of[j]) ? std::numeric_limits<double>::infinity() : of[j];
    };
    std::iota(order.begin(), order.end(), 0);
    std::nth_element(order.begin(), order.begin() + keep, order.end(), [&](int64_t a, int64_t b) {
      return weight(a) != weight(b) ? weight(a) > weight(b) : a < b;
    });
    std::sort(order.begin(), order.begin() + keep);
    std::copy_n(order.begin(), keep, places.data_ptr<int64_t>() + g * keep);
  }
  return places.to(sums_GN.device());
}

/// Of entries [n, G, width] those that each head keeps, [keep, G, width].
Tensor kept(const Tensor& entries, const Tensor& places_GK) {
  const Tensor index =
      places_GK.t().unsqueeze(-1).expand({places_GK.size(1), entries.size(1), entries.size(2)});
  return at::gather(entries, 0, index);
}

}  // namespace

Tensor HeavyKeys::attend(const Tensor& q_THD,
                         const Tensor& k_TGD,
                         const Tensor& v_TGD,
                         int64_t start,
                         const ops::ScoreOptions& options) {
  TokenBuffer &keys = row_.tokens(kKeys), &values = row_.tokens(kValues);
  require(keys.length() == start, "attention", "the state holds {} tokens, the call starts at {}",
          keys.length(), start);
  const int64_t end = start + q_THD.size(0);
  std::vector<Tensor> out;
  for (int64_t at = start, n; at < end; at += n) {
    n = std::min(end, (at / who_.every + 1) * who_.every) - at;
    keys.append(k_TGD.narrow(0, at - start, n));
    values.append(v_TGD.narrow(0, at - start, n));
    const int64_t first = who_.first_of_last(at), places_before = held(at) + at - first;
    Tensor sums = row_.fixed_in_place(kSums).narrow(1, 0, places_before + n);
    out.push_back(ops::attention_with_weights(q_THD.narrow(0, at - start, n), places(at, n),
                                              places_before, options, sums));
    if ((at + n) % who_.every == 0) evict(at + n);
  }
  return out.size() == 1 ? out[0] : at::cat(out);
}

std::vector<ops::KeyValues> HeavyKeys::places(int64_t length, int64_t fresh) const {
  const int64_t heavy = held(length), first = who_.first_of_last(length);
  std::vector<ops::KeyValues> all;
  if (heavy > 0)
    all.push_back({row_.fixed(kHeavyKeys).narrow(0, 0, heavy),
                   row_.fixed(kHeavyValues).narrow(0, 0, heavy), 0});
  for (ops::KeyValues part :
       held_keys(row_.tokens(kKeys), row_.tokens(kValues), first, length + fresh)) {
    part.first += heavy - first;
    all.push_back(std::move(part));
  }
  return all;
}

/// Once `length` tokens are there, a multiple of `every`.
void HeavyKeys::evict(int64_t length) {
  const int64_t before = length - who_.every, first = who_.first_of_last(before),
                heavy = held(before), leaving = who_.first_of_last(length) - first;
  if (leaving == 0) return;
  const int64_t n = heavy + leaving, stay = std::min(n, who_.keep);
  const Tensor sums = row_.fixed(kSums);
  // all of them, or the heaviest
  const Tensor chosen = n > stay ? heaviest(sums.narrow(1, 0, n), stay) : Tensor();
  const auto joined = [&](size_t slot, const TokenBuffer& last) {
    Tensor& entries = row_.fixed(slot);
    Tensor all = at::cat({entries.narrow(0, 0, heavy), last.joined(first, first + leaving)});
    if (chosen.defined()) all = kept(all, chosen);
    entries = stay == who_.keep ? all : at::cat({all, entries.narrow(0, stay, who_.keep - stay)});
  };
  joined(kHeavyKeys, row_.tokens(kKeys));
  joined(kHeavyValues, row_.tokens(kValues));
  if (!chosen.defined()) return;
  const int64_t rest = length - who_.first_of_last(length);
  row_.fixed(kSums) =
      at::cat({sums.narrow(1, 0, n).gather(1, chosen), sums.narrow(1, n, rest),
               at::zeros({sums.size(0), who_.most() - stay - rest}, sums.options())},
              1);
}

}  // namespace tessera::nn
