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

double read_rate() {
  constexpr int64_t kNumbers = int64_t{64} << 20;  // 512 MiB: no cache holds them
  std::vector<uint64_t> memory(static_cast<size_t>(kNumbers), 1);
  std::atomic<uint64_t> sum{0};
  const double seconds = best_of(kTimes, [&] {
    work_together([&](Team& team) {
      const Team::Share share = team.share(kNumbers);
      // sums that do not wait for one another
      uint64_t own[8] = {};
      for (int64_t i = share.begin; i + 8 <= share.end; i += 8)
        for (int64_t j = 0; j < 8; ++j) own[j] += memory[static_cast<size_t>(i + j)];
      sum += std::accumulate(std::begin(own), std::end(own), uint64_t{0});
    });
  });
  require(sum > 0, "bench", "nothing was read");
  return static_cast<double>(kNumbers) * sizeof(uint64_t) / seconds;
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
  const double seconds = best_of(kTimes, [&] { ops::linear(x, *largest); });
  return 2.0 * static_cast<double>(kRows * largest->elements()) / seconds;
}

}  // namespace

Limits Limits::measure(const model::Model& model) {
  return {read_rate(), product_rate(model)};
}

Work Work::of_call(
    const model::Model& model, int64_t rows, int64_t tokens, int64_t context, int64_t state_bytes) {
  const model::ModelSpec& spec = model.spec();
  const auto* head = dynamic_cast<const nn::HeadConfig*>(spec.head.config.get());
  const bool tied = head != nullptr && head->tied();
  Work work;
  for (const auto& [decl, weight] : model.weights().all()) {
    const bool table = tied && decl.kind == spec::ParamKind::embedding &&
                       weight->shape().size() == 2 && weight->size(0) == spec.vocab;
    if (decl.kind != spec::ParamKind::matrix && !table) continue;
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
