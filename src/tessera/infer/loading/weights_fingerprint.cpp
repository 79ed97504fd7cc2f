#include "tessera/infer/loading/weights_fingerprint.h"

#include <cmath>

#include "tessera/base/rng.h"

namespace tessera::infer {
namespace {

using spec::Json;

constexpr int64_t kNumbers = 8;
/// Cosine of the numbers of two weights, over a whole model: 4-bit quantization gives above 0.99,
/// unrelated weights near 0.
constexpr double kAlike = 0.9;

/// The base weight without its adapter.
const ops::Weight& base_of(const ops::Weight& weight) {
  const ops::Weight* base = &weight;
  while (base->parts() != nullptr) base = base->parts()->w.get();
  return *base;
}

/// Numbers along the diagonal of a matrix; empty for other than two axes.
std::vector<double> numbers_of(const ops::Weight& weight) {
  if (weight.shape().size() != 2) return {};
  const at::NoGradGuard guard;
  std::vector<int64_t> ids;
  for (int64_t k = 0; k < kNumbers; ++k) ids.push_back(k * (weight.size(0) - 1) / (kNumbers - 1));
  const Tensor rows =
      ops::rows(weight, at::tensor(ids, at::kLong).to(weight.device())).to(at::kCPU, at::kDouble);
  std::vector<double> out;
  for (int64_t k = 0; k < kNumbers; ++k)
    out.push_back(rows[k][k * (weight.size(1) - 1) / (kNumbers - 1)].item<double>());
  return out;
}

std::string hash_of(const ops::Weight& weight) {
  return fmt::format("{:016x}", sampled_hash(weight));
}

}  // namespace

uint64_t sampled_hash(const ops::Weight& weight) {
  if (const ops::Weight::Adapted* parts = weight.parts()) {
    std::string all = fmt::format("{}", parts->scale);
    for (const ops::WeightPtr& part : parts->all()) all += fmt::format(" {}", sampled_hash(*part));
    return hash_name(all);
  }
  if (!weight.device().is_cpu())
    return sampled_hash({weight.name(), weight.storage()->to(at::kCPU)});
  constexpr int64_t kRuns = 64, kRun = 64;
  const std::string_view all(static_cast<const char*>(weight.data()),
                             static_cast<size_t>(weight.bytes()));
  if (weight.bytes() <= kRuns * kRun) return hash_name(all);
  std::string taken;
  for (int64_t i = 0; i < kRuns; ++i)
    taken += all.substr(static_cast<size_t>((weight.bytes() - kRun) / (kRuns - 1) * i), kRun);
  return hash_name(taken);
}

Json weights_fingerprint(const model::Weights& weights, const std::set<std::string>& but) {
  Json print = Json::object();
  for (const auto& [decl, weight] : weights.all()) {
    if (but.contains(decl.name)) continue;
    const ops::Weight& base = base_of(*weight);
    Json one = {{"type", std::string(name_of(base.dtype()))}, {"hash", hash_of(base)}};
    if (const std::vector<double> numbers = numbers_of(base); !numbers.empty()) {
      one["numbers"] = Json::array();
      // enough digits to restore the numbers from text
      for (const double x : numbers) one["numbers"].push_back(static_cast<float>(x));
    }
    print[decl.name] = std::move(one);
  }
  return print;
}

void check_base(const Json& print, const model::Weights& weights, const std::string& whose) {
  const auto refuse = [&](const std::string& name) {
    fail(ErrorKind::usage, "adapter",
         "{} was trained on other weights: \"{}\" differs; expected its base model", whose, name);
  };
  double product = 0, theirs = 0, ours = 0;
  std::string first;
  for (const auto& [decl, weight] : weights.all()) {
    const auto known = print.find(decl.name);
    if (known == print.end()) continue;
    if (!known->is_object()) refuse(decl.name);
    const ops::Weight& base = base_of(*weight);
    if (known->value("type", Json()) == Json(std::string(name_of(base.dtype())))) {
      if (known->value("hash", Json()) != Json(hash_of(base))) refuse(decl.name);
      continue;
    }
    const std::vector<double> numbers = numbers_of(base);
    const Json& others = known->value("numbers", Json::array());
    if (others.size() != numbers.size()) refuse(decl.name);
    for (size_t k = 0; k < numbers.size(); ++k) {
      if (!others[k].is_number()) refuse(decl.name);
      const double x = others[k].get<double>();
      product += x * numbers[k];
      theirs += x * x;
      ours += numbers[k] * numbers[k];
    }
    if (first.empty() && !numbers.empty()) first = decl.name;
  }
  if (!first.empty() && product < kAlike * std::sqrt(theirs * ours)) refuse(first);
}

}  // namespace tessera::infer
