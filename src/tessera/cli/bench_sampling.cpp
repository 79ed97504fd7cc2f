// tessera bench sampling: time to sample one token, by vocabulary and filter.
#include <chrono>

#include "tessera/base/cpu.h"
#include "tessera/cli/cli.h"
#include "tessera/infer/sampling/sampling.h"

namespace tessera::cli {
namespace {

struct BenchSamplingArgs {
  std::vector<int64_t> vocabularies = {49152, 131072, 262144};
  int repeats = 50;
  bool json = false;
};

/// Normal logits of standard deviation 2: a flat distribution, of which filters keep much.
std::vector<float> some_logits(int64_t vocab) {
  std::vector<float> logits;
  const RandomKey key(1);
  for (int64_t i = 0; i < vocab; ++i)
    logits.push_back(static_cast<float>(2 * key.normal(static_cast<uint64_t>(i))));
  return logits;
}

double median_ms(const std::vector<float>& logits,
                 const infer::SamplingOptions& options,
                 int repeats) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> ms;
  std::vector<int64_t> seen;
  for (int i = 0; i < repeats; ++i) {
    const auto start = Clock::now();
    seen.push_back(infer::sample(logits, seen, options, RandomKey(7)));
    ms.push_back(std::chrono::duration<double, std::milli>(Clock::now() - start).count());
  }
  std::sort(ms.begin(), ms.end());
  return ms[ms.size() / 2];
}

int bench_sampling(const BenchSamplingArgs& o) {
  const std::pair<const char*, infer::SamplingOptions> filters[] = {
      {"greedy", {}},
      {"all", {.temperature = 1}},
      {"top_k 40", {.temperature = 1, .top_k = 40}},
      {"top_p 0.95", {.temperature = 1, .top_p = 0.95}},
      {"min_p 0.05", {.temperature = 1, .min_p = 0.05}},
      {"top_k 1000, top_p 0.9", {.temperature = 1, .top_k = 1000, .top_p = 0.9}},
      {"typical_p 0.95", {.temperature = 1, .typical_p = 0.95}},
      {"top_n_sigma 1", {.temperature = 1, .top_n_sigma = 1}},
      {"top_h 0.5", {.temperature = 1, .top_h = 0.5}},
      {"eta 0.0003", {.temperature = 1, .eta_cutoff = 0.0003}},
      {"dynamic temperature", {.temperature = 1, .dynatemp_range = 0.5}},
      {"xtc", {.temperature = 1, .xtc_probability = 1}},
      {"dry", {.temperature = 1, .dry_multiplier = 0.8}},
      {"mirostat", {.temperature = 1, .mirostat = 2}}};
  Json rows = Json::array();
  for (const int64_t vocab : o.vocabularies) {
    const std::vector<float> logits = some_logits(vocab);
    for (const auto& [name, options] : filters) {
      const double ms = median_ms(logits, options, o.repeats);
      rows.push_back({{"vocab", vocab}, {"filter", name}, {"ms_per_token", ms}});
      if (!o.json) fmt::print("vocab {:>7} {:<22} {:>8.3f} ms per token\n", vocab, name, ms);
    }
  }
  if (o.json) print_json({{"rows", rows}, {"repeats", o.repeats}, {"cpu", cpu_info().model}});
  return kExitOk;
}

}  // namespace

std::function<int()> add_bench_sampling(CLI::App& app) {
  auto o = std::make_shared<BenchSamplingArgs>();
  group(app, "Workload");
  app.add_option("--vocab", o->vocabularies, "vocabulary sizes, comma-separated")
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str();
  app.add_option("--repeats", o->repeats, "repetitions (median)")
      ->capture_default_str()
      ->check(CLI::Range(1, 100000));
  app.add_flag("--json", o->json, "rows as JSON");
  examples(app, {"tessera bench sampling --vocab 131072"});
  return [o] { return bench_sampling(*o); };
}

}  // namespace tessera::cli
