#include "tessera/train/study/fairness.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "tessera/base/error.h"
#include "tessera/base/sha256.h"

namespace tessera::train {
namespace {

constexpr int64_t kLooks = 64;

void add_numbers(Sha256& hash, const std::vector<int64_t>& numbers) {
  const auto size = static_cast<int64_t>(numbers.size());
  hash.update(std::as_bytes(std::span(&size, 1)));
  hash.update(std::as_bytes(std::span(numbers)));
}

void add_batch(Sha256& hash, const PackedBatch& batch) {
  add_numbers(hash, batch.ids);
  add_numbers(hash, batch.targets);
  for (const std::vector<int64_t>& source : batch.sources) add_numbers(hash, source);
  for (const std::vector<double>& labels : batch.labels)
    hash.update(std::as_bytes(std::span(labels)));
}

/// Numbers below `count`, evenly spread, the first and the last among them.
std::vector<int64_t> looks_at(int64_t count) {
  std::vector<int64_t> out;
  const int64_t looks = std::min(count, kLooks);
  for (int64_t i = 0; i < looks; ++i) out.push_back(looks == 1 ? 0 : i * (count - 1) / (looks - 1));
  return out;
}

/// Keys of training by which two resolved recipes of a study differ; "" = none.
std::string training_difference(const Json& first, const Json& other) {
  std::vector<std::string> keys;
  for (const char* section : {"optimizer", "schedule", "train", "objective", "init", "adapter"}) {
    const Json a = first.value(section, Json()), b = other.value(section, Json());
    if (!a.is_object() || !b.is_object()) {
      if (a != b) keys.emplace_back(section);
      continue;
    }
    for (const auto& [key, value] : a.items())
      if (b.value(key, Json()) != value) keys.push_back(fmt::format("{}.{}", section, key));
    for (const auto& [key, value] : b.items())
      if (!a.contains(key)) keys.push_back(fmt::format("{}.{}", section, key));
  }
  // found by checks of their own
  std::erase_if(keys, [](const std::string& key) {
    return key == "train.steps" || key == "optimizer.lr" || key == "schedule.warmup";
  });
  return fmt::format("{}", fmt::join(keys, ", "));
}

class Judge {
 public:
  Judge(const Study& study, const std::vector<EntryFacts>& facts)
      : study_(study), facts_(facts), first_(study.entries.front()) {
    for (const StudyEntry& entry : study.entries)
      recipes_.push_back(resolve(read_recipe(entry.recipe, "")));
  }

  std::vector<Finding> findings() {
    for (size_t i = 0; i < study_.entries.size(); ++i) {
      reads_the_same(i);
      has_as_much(i);
      is_tuned(i);
      for (const auto& [seed, why] : facts_[i].failed)
        add("failed", true, "{}, seed {}: {}", study_.entries[i].name, seed, why);
    }
    const bool one_rate =
        std::all_of(study_.entries.begin(), study_.entries.end(),
                    [&](const StudyEntry& entry) { return entry.rate == first_.rate; });
    if (!study_.tunes())
      add("rate", false, "{}; \"learning_rates\": \"tune\" searches a rate for each",
          one_rate ? "one learning rate for all models favours those that it suits"
                   : "the learning rates are those of the recipes, without a search");
    if (study_.seeds.size() < 2)
      add("seeds", false, "one seed: differences have no interval");
    else if (study_.seeds.size() < 3)
      add("seeds", false, "two seeds: intervals are very wide; expected three or more");
    std::stable_partition(out_.begin(), out_.end(), [](const Finding& one) { return one.unfair; });
    return std::move(out_);
  }

 private:
  template <class... Args>
  void add(const char* check, bool unfair, fmt::format_string<Args...> text, Args&&... args) {
    out_.push_back({check, unfair, fmt::format(text, std::forward<Args>(args)...)});
  }

  void reads_the_same(size_t i) {
    const StudyEntry& entry = study_.entries[i];
    for (const auto& [seed, order] : facts_[0].orders) {
      const auto own = facts_[i].orders.find(seed);
      if (own == facts_[i].orders.end() || own->second == order) continue;
      add("order", true, "{}: with seed {} it reads other data than {}, or in another order",
          entry.name, seed, first_.name);
      break;
    }
    if (facts_[i].validation != facts_[0].validation)
      add("validation", true, "{}: it is evaluated on other text than {}", entry.name, first_.name);
    if (const std::string keys = training_difference(recipes_[0], recipes_[i]); !keys.empty())
      add("recipe", false, "{}: its training differs from that of {} in {}", entry.name,
          first_.name, keys);
  }

  void has_as_much(size_t i) {
    const StudyEntry& entry = study_.entries[i];
    if (study_.equal.by != EqualBy::none) {
      const double distance = entry.amount / study_.amount - 1;
      if (std::fabs(distance) > study_.equal.tolerance)
        add("equality", true, "{}: {} {}, {:+.1f} % of {}", entry.name,
            spec::enum_name(study_.equal.by), entry.amount, 100 * distance, study_.amount);
    } else if (entry.body_parameters != first_.body_parameters && first_.body_parameters > 0) {
      add("equality", false, "{}: {} parameters without token table and head, {} has {}",
          entry.name, entry.body_parameters, first_.name, first_.body_parameters);
    }
    const bool by_flops = study_.budget.flops.has_value();
    const auto cost = [&](const StudyEntry& one) {
      return by_flops ? one.training_flops() : static_cast<double>(one.steps * one.tokens_per_step);
    };
    // whole steps: at most one more or less
    const double step =
        by_flops ? std::max(entry.training_flops() / static_cast<double>(entry.steps),
                            first_.training_flops() / static_cast<double>(first_.steps))
                 : static_cast<double>(std::max(entry.tokens_per_step, first_.tokens_per_step));
    if (std::fabs(cost(entry) - cost(first_)) > step * (1 + 1e-9))
      add("budget", true, "{}: it trains for {:.6g} {}, {} for {:.6g}", entry.name, cost(entry),
          by_flops ? "FLOPs" : "tokens", first_.name, cost(first_));
  }

  void is_tuned(size_t i) {
    if (facts_[i].rate_at_end)
      add("rate", true,
          "{}: its learning rate {:g} is at an end of those that were tried; expected further ones "
          "in \"learning_rates\"",
          study_.entries[i].name, facts_[i].rate);
  }

  const Study& study_;
  const std::vector<EntryFacts>& facts_;
  const StudyEntry& first_;
  std::vector<Json> recipes_;  // resolved
  std::vector<Finding> out_;
};

}  // namespace

std::string order_of(const Dataset& source, const TrainRecipe& how, int64_t steps) {
  Sha256 hash;
  hash.update(source.key());
  const int64_t samples = how.batch * how.accumulate;
  for (const int64_t step : looks_at(steps)) {
    std::vector<int64_t> begun;
    add_batch(hash, source.train(step * samples, samples, begun));
  }
  return hash.finish();
}

std::string validation_of(const Dataset& source) {
  Sha256 hash;
  hash.update(source.key());
  const int64_t samples = source.valid_samples();
  add_numbers(hash, {samples});
  for (const int64_t sample : looks_at(samples)) add_batch(hash, source.valid({sample}));
  return hash.finish();
}

std::vector<Finding> findings_of(const Study& study, const std::vector<EntryFacts>& facts) {
  require(study.entries.size() == facts.size() && !facts.empty(), "fairness",
          "{} entries, {} facts", study.entries.size(), facts.size());
  return Judge(study, facts).findings();
}

}  // namespace tessera::train
