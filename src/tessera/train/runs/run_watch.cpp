#include "tessera/train/runs/run_watch.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "tessera/base/error.h"

namespace tessera::train {
namespace {

using spec::Json;

constexpr double kLossDecay = 0.98;     // of the statistics of losses: about the last 50
constexpr int64_t kSettledLosses = 50;  // updates before which they say little

}  // namespace

std::optional<double> value_of(const LogLine& line, const std::string& metric) {
  if (metric == "valid_loss") return line.valid_loss;
  if (metric == "accuracy") return line.accuracy;
  if (const auto score = line.scores.find(metric); score != line.scores.end()) return score->second;
  if (metric == "valid_bits_per_byte") return line.valid_bits_per_byte;
  const auto found = line.losses.find(metric);
  if (found == line.losses.end() || !metric.starts_with("valid_")) return std::nullopt;
  return found->second;
}

bool is_better(const std::string& metric, double a, double b, double delta) {
  // losses fall, scores rise
  return metric.starts_with("valid_") ? a < b - delta : a > b + delta;
}

RunWatch::RunWatch(StopRecipe stop, WatchRecipe watch, int64_t best, std::string best_metric)
    : stop_(std::move(stop)), watch_(watch), best_(best), best_metric_(std::move(best_metric)) {}

void RunWatch::evaluated(const LogLine& line) {
  const auto value = [&](const char* where, const std::string& metric) {
    const auto found = value_of(line, metric);
    if (found) return *found;
    std::vector<std::string> known{"valid_loss"};
    if (line.accuracy) known.emplace_back("accuracy");
    for (const auto& [name, score] : line.scores)
      if (name != "accuracy") known.push_back(name);
    if (line.valid_bits_per_byte) known.emplace_back("valid_bits_per_byte");
    for (const auto& [name, loss] : line.losses)
      if (name.starts_with("valid_")) known.push_back(name);
    fail(ErrorKind::spec, where, "found \"{}\"; expected one of {}", metric,
         fmt::join(known, ", "));
  };
  if (stop_.by_metric() && line.step >= stop_.from) {
    last_ = value("stop.metric", stop_.metric);
    if (!least_ || is_better(stop_.metric, last_, *least_, stop_.min_delta)) {
      least_ = last_;
      best_at_ = line.step;
      waited_ = 0;
    } else {
      ++waited_;
    }
  }
  if (best_ == 0) return;
  const double now = value("checkpoint.metric", best_metric_);
  size_t place = 0;
  while (place < best_values_.size() && !is_better(best_metric_, now, best_values_[place])) ++place;
  best_values_.insert(best_values_.begin() + static_cast<std::ptrdiff_t>(place), now);
  best_steps_.insert(best_steps_.begin() + static_cast<std::ptrdiff_t>(place), line.step);
  const size_t kept = std::min(best_values_.size(), static_cast<size_t>(best_));
  best_values_.resize(kept);
  best_steps_.resize(kept);
}

std::string RunWatch::stop_reason() const {
  if (!least_) return "";
  if (stop_.reach && !is_better(stop_.metric, *stop_.reach, last_))
    return fmt::format("target reached: {} = {:.6g}, stop.reach = {:.6g}", stop_.metric, last_,
                       *stop_.reach);
  if (stop_.patience > 0 && waited_ >= stop_.patience)
    return fmt::format(
        "early stopping: no improvement of {} in {} evaluation{}; best {:.6g} at step {}",
        stop_.metric, waited_, waited_ == 1 ? "" : "s", *least_, best_at_);
  return "";
}

std::optional<RunWatch::Spike> RunWatch::spike(double loss) {
  std::optional<Spike> found;
  if (losses_ >= kSettledLosses && watch_.spike > 0) {
    const double deviation = std::sqrt(variance_), bound = mean_ + watch_.spike * deviation;
    if (deviation > 0 && loss > bound) {
      found = Spike{loss, mean_, (loss - mean_) / deviation};
      loss = bound;
    }
  }
  // the first ones are means of those so far, without zeros for the missing ones
  const double decay = std::min(kLossDecay, static_cast<double>(losses_) / (losses_ + 1.0)),
               off = loss - mean_;
  mean_ += (1 - decay) * off;
  variance_ = decay * (variance_ + (1 - decay) * off * off);
  ++losses_;
  return found;
}

std::optional<RunWatch::Divergence> RunWatch::divergence(int64_t step) {
  if (losses_ < kSettledLosses) return std::nullopt;
  if (!least_mean_ || mean_ < *least_mean_) {
    least_mean_ = mean_;
    least_step_ = step;
  }
  if (stop_.diverged == 0 || mean_ <= *least_mean_ + stop_.diverged) return std::nullopt;
  return Divergence{mean_, *least_mean_, least_step_};
}

std::string RunWatch::expert_loads(const std::string& router, const std::vector<double>& loads) {
  if (watch_.idle_experts == 0) return "";
  std::vector<int64_t>& idle = idle_[router];
  if (idle.size() != loads.size()) idle.assign(loads.size(), 0);
  std::vector<size_t> dead;
  for (size_t e = 0; e < loads.size(); ++e) {
    idle[e] = loads[e] > 0 ? 0 : idle[e] + 1;
    if (idle[e] == watch_.idle_experts) dead.push_back(e);
  }
  if (dead.empty()) return "";
  return fmt::format("{}: expert{} {} of {} got no token in {} update{}", router,
                     dead.size() == 1 ? "" : "s", fmt::join(dead, ", "), loads.size(),
                     watch_.idle_experts, watch_.idle_experts == 1 ? "" : "s");
}

Json RunWatch::to_json() const {
  Json json = {{"last", last_},
               {"waited", waited_},
               {"best_at", best_at_},
               {"best_steps", best_steps_},
               {"best_values", best_values_},
               {"mean", mean_},
               {"variance", variance_},
               {"losses", losses_},
               {"least_step", least_step_},
               {"idle", Json::object()}};
  if (least_) json["least"] = *least_;
  if (least_mean_) json["least_mean"] = *least_mean_;
  for (const auto& [router, idle] : idle_) json["idle"][router] = idle;
  return json;
}

void RunWatch::restore(const Json& json, const std::string& where) {
  // what a run that went on from a checkpoint without it begins with
  if (json.is_null()) return;
  try {
    last_ = json.at("last");
    waited_ = json.at("waited");
    best_at_ = json.at("best_at");
    best_steps_ = json.at("best_steps").get<std::vector<int64_t>>();
    best_values_ = json.at("best_values").get<std::vector<double>>();
    mean_ = json.at("mean");
    variance_ = json.at("variance");
    losses_ = json.at("losses");
    least_step_ = json.at("least_step");
    if (json.contains("least")) least_ = json["least"].get<double>();
    if (json.contains("least_mean")) least_mean_ = json["least_mean"].get<double>();
    for (const auto& [router, idle] : json.at("idle").items())
      idle_[router] = idle.get<std::vector<int64_t>>();
  } catch (const Json::exception& error) {
    fail(ErrorKind::file, "checkpoint", "{}: \"watch\": {}", where, error.what());
  }
  if (best_steps_.size() != best_values_.size())
    fail(ErrorKind::file, "checkpoint", "{}: \"watch\": {} best steps with {} values", where,
         best_steps_.size(), best_values_.size());
  // a recipe that keeps fewer, or none
  if (best_steps_.size() > static_cast<size_t>(best_)) {
    best_steps_.resize(static_cast<size_t>(best_));
    best_values_.resize(static_cast<size_t>(best_));
  }
}

}  // namespace tessera::train
