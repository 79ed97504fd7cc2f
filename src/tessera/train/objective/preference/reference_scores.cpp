#include "tessera/train/objective/preference/reference_scores.h"

#include <chrono>
#include <cmath>
#include <cstring>

#include "tessera/base/output_file.h"
#include "tessera/base/sha256.h"
#include "tessera/format/safetensors.h"
#include "tessera/model/placement.h"
#include "tessera/train/loop/adapter.h"
#include "tessera/train/objective/preference/preference.h"

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

constexpr const char *kPrefix = "reference-", *kTensor = "log_p";

/// Everything that the scores depend on except the model.
std::string key_of_data(const DataPlan& plan, const PreferenceSource& source) {
  return sha256(fmt::format("{} in groups of {}, {}", source.key(), plan.train.batch,
                            spec::enum_name(plan.train.precision)));
}

std::string key_of(const model::Model& model) {
  Sha256 key;
  key.update(model::resolve(model.spec()).dump());
  for (const auto& [decl, weight] : model.weights().all()) {
    key.update(decl.name);
    key.update(
        {static_cast<const std::byte*>(weight->data()), static_cast<size_t>(weight->bytes())});
  }
  return key.finish();
}

struct CachedScores {
  std::vector<PairScore> scores;
  std::string model, device;
};

/// "" = the CPU; scores of different devices differ in their last digits.
std::string device_of(const ObjectiveOptions& options) {
  return options.device.is_cpu() ? "" : at::DeviceTypeName(options.device.type(), true);
}

std::optional<CachedScores> read(const fs::path& file, const std::string& data, int64_t pairs) {
  try {
    const format::TensorFile tensors = format::open_safetensors(file);
    const auto metadata = [&](const char* key) {
      const auto found = tensors.metadata().find(key);
      return found == tensors.metadata().end() ? std::string() : found->second;
    };
    const format::TensorView& view = tensors.at(kTensor);
    if (metadata("data") != data || view.dtype != DType::f64 ||
        view.shape != std::vector<int64_t>{pairs, 2})
      return std::nullopt;
    CachedScores kept{std::vector<PairScore>(static_cast<size_t>(pairs)), metadata("model"),
                      metadata("device")};
    std::memcpy(kept.scores.data(), view.data.data(), view.data.size());
    return kept;
  } catch (const Error&) {  // incomplete: rebuild the cache
    return std::nullopt;
  }
}

/// The newest file for the data, and for the model and device of `of`, if given.
std::optional<CachedScores> find(const fs::path& cache,
                                 const std::string& data,
                                 const CachedScores* of,
                                 int64_t pairs) {
  std::optional<CachedScores> newest;
  fs::file_time_type written;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(cache, ignored)) {
    if (!entry.path().filename().string().starts_with(kPrefix)) continue;
    std::optional<CachedScores> kept = read(entry.path(), data, pairs);
    if (!kept || (of != nullptr && (kept->model != of->model || kept->device != of->device)))
      continue;
    if (newest && entry.last_write_time() <= written) continue;
    newest = std::move(kept);
    written = entry.last_write_time();
  }
  return newest;
}

void write(const fs::path& cache, const std::string& data, const CachedScores& kept) {
  create_folder(cache);
  const fs::path file = cache / fmt::format("{}{}.safetensors", kPrefix,
                                            sha256(data + kept.model + kept.device).substr(0, 16));
  const std::vector<format::TensorView> views{
      {kTensor,
       DType::f64,
       {std::ssize(kept.scores), 2},
       {reinterpret_cast<const std::byte*>(kept.scores.data()),
        kept.scores.size() * sizeof(PairScore)},
       {}}};
  format::StringMap metadata{{"data", data}, {"model", kept.model}};
  if (!kept.device.empty()) metadata["device"] = kept.device;
  format::write_safetensors(file, views, metadata);
}

/// Numbers of the groups with a pair of the run.
std::vector<int64_t> groups_needed(const DataPlan& plan, const PreferenceSource& source) {
  const int64_t size = plan.train.batch, pairs = source.pairs(),
                samples = plan.train.steps * plan.train.accumulate * size,
                to_learn = pairs - source.valid_samples();
  std::vector<bool> seen(static_cast<size_t>(pairs), samples >= to_learn);
  for (int64_t pair = to_learn; pair < pairs; ++pair) seen[static_cast<size_t>(pair)] = true;
  // an epoch has every pair once
  for (int64_t sample = 0; sample < std::min(samples, to_learn); ++sample)
    seen[static_cast<size_t>(source.pair_of(sample))] = true;
  std::vector<int64_t> out;
  for (int64_t pair = 0; pair < pairs; ++pair)
    if (seen[static_cast<size_t>(pair)] && (out.empty() || out.back() != pair / size))
      out.push_back(pair / size);
  return out;
}

}  // namespace

std::vector<PairScore> reference_scores(const ModelPlan& plan,
                                        const PreferenceSource& source,
                                        const ObjectiveOptions& options) {
  const int64_t size = plan.train.batch, pairs = source.pairs();
  const std::string data = key_of_data(plan, source);
  const std::vector<int64_t> needed = groups_needed(plan, source);
  const auto missing = [&](const CachedScores& kept) {
    std::vector<int64_t> out;
    for (const int64_t group : needed)
      if (std::isnan(kept.scores[static_cast<size_t>(group * size)][0])) out.push_back(group);
    return out;
  };
  if (options.goes_on)
    if (const auto kept = find(options.cache, data, nullptr, pairs); kept && missing(*kept).empty())
      return kept->scores;

  const model::Model start = start_model(plan);
  constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
  const CachedScores none{std::vector<PairScore>(static_cast<size_t>(pairs), {kUnknown, kUnknown}),
                          key_of(start), device_of(options)};
  CachedScores kept = find(options.cache, data, &none, pairs).value_or(none);
  const std::vector<int64_t> groups = missing(kept);
  if (groups.empty()) return kept.scores;
  const auto say = [&](const std::string& line) {
    if (options.say) options.say(line);
  };
  const model::Model model = model::to_device(start, options.device);
  say(fmt::format("reference model: log-probabilities of {} of {} pairs, before the first step",
                  std::min(std::ssize(groups) * size, pairs), pairs));
  using Clock = std::chrono::steady_clock;
  auto metadata = Clock::now();
  for (size_t i = 0; i < groups.size(); ++i) {
    if (options.cancel != nullptr) options.cancel->check("reference");
    std::vector<int64_t> numbers;
    for (int64_t pair = groups[i] * size; pair < std::min(pairs, (groups[i] + 1) * size); ++pair)
      numbers.push_back(pair);
    const std::vector<double> log_p =
        answer_log_p(model, source.numbered_pairs(numbers), plan.train.precision);
    for (size_t row = 0; row < numbers.size(); ++row)
      kept.scores[static_cast<size_t>(numbers[row])] = {log_p[2 * row], log_p[2 * row + 1]};
    if (Clock::now() - metadata > std::chrono::seconds(20)) {
      metadata = Clock::now();
      say(fmt::format("reference: {} of {} batches", i + 1, groups.size()));
    }
  }
  write(options.cache, data, kept);
  return kept.scores;
}

}  // namespace tessera::train
