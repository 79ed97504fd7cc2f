#include "tessera/infer/evaluation/expert_use.h"
#include "tessera/base/ranking.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace tessera::infer {
namespace {

constexpr int64_t kPairs = 8, kChoicesAnExpert = 20;

double rounded(double value) {
  return std::round(value * 1e4) / 1e4;
}

std::vector<double> numbers(const Tensor& values) {
  const Tensor here = values.to(at::kCPU, at::kDouble).contiguous();
  return {here.const_data_ptr<double>(), here.const_data_ptr<double>() + here.numel()};
}

double sum_of(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum;
}

}  // namespace

void ExpertUse::add(const std::string& name, const Tensor& value) {
  const size_t dot = name.rfind('.');
  if (dot == std::string::npos) return;
  const std::string what = name.substr(dot + 1);
  if (what != "load" && what != "tokens" && what != "together" && what != "entropy" &&
      what != "dropped")
    return;
  Tensor& sum = sums_[name.substr(0, dot)][what];
  sum = sum.defined() ? sum + value : value.clone();
}

spec::Json ExpertUse::to_json() const {
  spec::Json out = spec::Json::object();
  for (const auto& [router, counts] : sums_) {
    const auto load = counts.find("load");
    if (load == counts.end()) continue;
    const auto number = [&](const char* what) {
      const auto found = counts.find(what);
      return found == counts.end() ? 0.0 : found->second.item<double>();
    };
    std::vector<double> share = numbers(load->second);
    const double choices = std::max(1.0, sum_of(share)), tokens = std::max(1.0, number("tokens"));
    for (double& s : share) s = rounded(s / choices);
    spec::Json& json = out[router];
    json["load"] = share;
    if (counts.contains("entropy")) json["entropy"] = rounded(number("entropy") / tokens);
    if (counts.contains("dropped")) json["dropped"] = rounded(number("dropped") / choices);
    const auto together = counts.find("together");
    if (together == counts.end()) continue;
    const std::vector<double> both = numbers(together->second);
    const auto e = static_cast<size_t>(together->second.size(0));
    std::vector<std::pair<size_t, size_t>> pairs;
    for (size_t i = 0; i < e; ++i)
      for (size_t j = i + 1; j < e; ++j)
        if (both[i * e + j] > 0) pairs.emplace_back(i, j);
    const auto most = std::min<size_t>(kPairs, pairs.size());
    std::partial_sort(pairs.begin(), pairs.begin() + static_cast<std::ptrdiff_t>(most), pairs.end(),
                      [&](const auto& a, const auto& b) {
                        const double x = both[a.first * e + a.second],
                                     y = both[b.first * e + b.second];
                        return ranks_before(x, a, y, b);
                      });
    json["together"] = spec::Json::array();
    for (size_t p = 0; p < most; ++p)
      json["together"].push_back({pairs[p].first, pairs[p].second,
                                  rounded(both[pairs[p].first * e + pairs[p].second] / tokens)});
  }
  return out;
}

std::string ExpertUse::Collapse::text() const {
  return fmt::format(
      "{}: {} of {} experts get under a tenth of an even share; give its losses a \"balance\", or "
      "a "
      "larger balance_weight",
      router, idle, experts);
}

std::vector<ExpertUse::Collapse> ExpertUse::collapsed() const {
  std::vector<Collapse> out;
  for (const auto& [router, counts] : sums_) {
    const auto load = counts.find("load");
    if (load == counts.end()) continue;
    const std::vector<double> count = numbers(load->second);
    const auto experts = static_cast<int64_t>(count.size());
    const double choices = sum_of(count);
    if (choices < static_cast<double>(kChoicesAnExpert * experts)) continue;
    const int64_t idle = std::count_if(count.begin(), count.end(), [&](double c) {
      return c < 0.1 * choices / static_cast<double>(experts);
    });
    if (2 * idle >= experts) out.push_back({router, idle, experts});
  }
  return out;
}

}  // namespace tessera::infer
