#include "tessera/cli/bench_limits.h"

#include <algorithm>
#include <chrono>
#include <numeric>

#include "tessera/base/team.h"
#include "tessera/model/plan.h"
#include "tessera/nn/head/head_config.h"

namespace tessera::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kTimes = 5;

template <class Call>
double best_of(int times, Call call) {
  double best = 0;
  for (int i = 0; i < times; ++i) {
    const auto begin = Clock::now();
    call();
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    if (i == 0 || seconds < best) best = seconds;
  }
  return best;
}

// of a buffer as large as the model's weights, within limits: no cache holds the smallest
double read_rate(int64_t bytes) {
  const int64_t numbers = std::clamp(bytes, int64_t{512} << 20, int64_t{4} << 30) /
                          static_cast<int64_t>(sizeof(uint64_t));
  std::vector<uint64_t> memory(static_cast<size_t>(numbers), 1);
  std::atomic<uint64_t> sum{0};
  const double seconds = best_of(kTimes, [&] {
    work_together([&](Team& team) {
      const Team::Share share = team.share(numbers);
      // sums that do not wait for one another, of a cache line each; hardware alone asks for too
      // few lines at a time
      constexpr int64_t kAhead = 1024;
      uint64_t own[8] = {};
      for (int64_t i = share.begin; i + 8 <= share.end; i += 8) {
        __builtin_prefetch(memory.data() + i + kAhead);
        for (int64_t j = 0; j < 8; ++j) own[j] += memory[static_cast<size_t>(i + j)];
      }
      sum += std::accumulate(std::begin(own), std::end(own), uint64_t{0});
    });
  });
  require(sum > 0, "bench", "nothing was read");
  return static_cast<double>(numbers) * sizeof(uint64_t) / seconds;
}

double product_rate(const model::Model& model) {
  constexpr int64_t kRows = 512;
  const ops::Weight* largest = nullptr;
  for (const auto& [decl, weight] : model.weights().all())
    if (decl.kind == spec::ParamKind::matrix && weight->shape().size() == 2 &&
        (largest == nullptr || weight->elements() > largest->elements()))
      largest = weight.get();
  if (largest == nullptr) return 0;
  const Tensor x = at::ones({kRows, largest->size(1)}, at::kFloat);
  const ops::ProductSettings products{.arithmetic = model.arithmetic()};
  const double seconds = best_of(kTimes, [&] { ops::linear(x, *largest, nullptr, products); });
  return 2.0 * static_cast<double>(kRows * largest->elements()) / seconds;
}

/// Whether the head multiplies by the table of token embeddings.
bool is_tied_table(const model::ModelSpec& spec,
                   const spec::ParamDecl& decl,
                   const ops::Weight& weight) {
  const auto* head = dynamic_cast<const nn::HeadConfig*>(spec.head.config.get());
  return head != nullptr && head->tied() && decl.kind == spec::ParamKind::embedding &&
         weight.shape().size() == 2 && weight.size(0) == spec.vocab;
}

/// "layers.7.ffn.down.weight" is "ffn.down".
std::string kind_of_matrix(std::string_view name) {
  constexpr std::string_view kWeight = ".weight";
  if (name.ends_with(kWeight)) name.remove_suffix(kWeight.size());
  for (size_t at = 0; (at = name.find('.', at)) != std::string_view::npos;) {
    const size_t begin = ++at;
    while (at < name.size() && name[at] >= '0' && name[at] <= '9') ++at;
    if (at > begin && at < name.size() && name[at] == '.') return std::string(name.substr(at + 1));
  }
  return std::string(name);
}

}  // namespace

std::vector<MatrixRate> MatrixRate::measure(const model::Model& model) {
  std::vector<MatrixRate> rates;
  std::vector<std::vector<const ops::Weight*>> matrices;
  for (const auto& [decl, weight] : model.weights().all()) {
    const bool table = is_tied_table(model.spec(), decl, *weight);
    if ((decl.kind != spec::ParamKind::matrix && !table) || weight->shape().size() != 2) continue;
    const std::string name = table ? "head" : kind_of_matrix(decl.name);
    const auto found = std::find_if(rates.begin(), rates.end(),
                                    [&](const MatrixRate& rate) { return rate.name == name; });
    const auto at = static_cast<size_t>(found - rates.begin());
    if (found == rates.end()) {
      rates.push_back({name, {}, 0, 0});
      matrices.emplace_back();
    }
    const std::string type(name_of(weight->dtype()));
    std::vector<std::string>& types = rates[at].types;
    if (std::find(types.begin(), types.end(), type) == types.end()) types.push_back(type);
    rates[at].bytes += weight->bytes();
    matrices[at].push_back(weight.get());
  }
  const ops::ProductSettings products{.arithmetic = model.arithmetic()};
  for (size_t i = 0; i < rates.size(); ++i) {
    std::vector<Tensor> x;
    for (const ops::Weight* weight : matrices[i]) x.push_back(at::randn({1, weight->size(1)}));
    const double seconds = best_of(kTimes, [&] {
      for (size_t j = 0; j < x.size(); ++j) ops::linear(x[j], *matrices[i][j], nullptr, products);
    });
    rates[i].read_bytes_per_s = static_cast<double>(rates[i].bytes) / seconds;
  }
  return rates;
}

Json MatrixRate::as_json(const Limits& limits) const {
  return {{"name", name},
          {"types", types},
          {"bytes", bytes},
          {"read_bytes_per_s", read_bytes_per_s},
          {"read_share", read_bytes_per_s / limits.read_bytes_per_s}};
}

Limits Limits::measure(const model::Model& model) {
  int64_t bytes = 0;
  for (const auto& [decl, weight] : model.weights().all()) bytes += weight->bytes();
  return {read_rate(bytes), product_rate(model)};
}

Work Work::of_call(
    const model::Model& model, int64_t rows, int64_t tokens, int64_t context, int64_t state_bytes) {
  const model::ModelSpec& spec = model.spec();
  Work work;
  for (const auto& [decl, weight] : model.weights().all()) {
    if (decl.kind != spec::ParamKind::matrix && !is_tied_table(spec, decl, *weight)) continue;
    // every token chooses experts of its own
    const double used =
        std::min(1.0, decl.share * static_cast<double>(decl.share < 1 ? rows * tokens : 1));
    work.bytes += used * static_cast<double>(weight->bytes());
  }
  work.bytes += static_cast<double>(state_bytes);
  // of a prompt the last token alone has logits
  model::ModelSpec body = spec;
  body.head = {};
  const double whole = model::make_plan(spec, context).flops_per_token;
  const double inner = model::make_plan(body, context).flops_per_token;
  work.flops = static_cast<double>(rows) * (inner * static_cast<double>(tokens) + (whole - inner));
  return work;
}

Json Work::as_json(double seconds, const Limits& limits) const {
  const double read = bytes / seconds, done = flops / seconds;
  const double read_share = read / limits.read_bytes_per_s;
  Json out = {{"read_bytes_per_s", read}, {"read_share", read_share}, {"flops_per_s", done}};
  const double flops_share = limits.flops_per_s > 0 ? done / limits.flops_per_s : 0;
  out["flops_share"] = flops_share;
  // what comes to little of both limits waits for something else: short calls, other programs
  constexpr double kLittle = 0.3;
  out["limited_by"] = std::max(read_share, flops_share) < kLittle ? "neither"
                      : read_share >= flops_share                 ? "reading"
                                                                  : "arithmetic";
  return out;
}

}  // namespace tessera::cli
