#include "tessera/model/solve.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "tessera/base/error.h"

namespace tessera::model {
namespace {

using Pointer = Json::json_pointer;

constexpr int64_t kMostTried = 512;  // neighbours of a value that the spec refuses

std::vector<std::string> steps_of(const std::string& key) {
  std::vector<std::string> steps(1);
  for (const char c : key)
    if (c == '.')
      steps.emplace_back();
    else
      steps.back() += c;
  for (const std::string& step : steps)
    if (step.empty())
      fail(ErrorKind::usage, "solve", "key \"{}\"; expected a path such as ffn.d_hidden", key);
  return steps;
}

/// Where a path begins somewhere below `json`: places that have all of it, and objects (or parts in
/// short form) that only lack its last key.
void find_places(const Json& json,
                 const std::vector<std::string>& steps,
                 const Pointer& at,
                 std::vector<Pointer>& whole,
                 std::vector<Pointer>& lacking) {
  if (json.is_array())
    for (size_t i = 0; i < json.size(); ++i) find_places(json[i], steps, at / i, whole, lacking);
  if (!json.is_object()) return;
  const Json* inner = &json;
  Pointer place = at;
  size_t depth = 0;
  while (depth < steps.size() && inner->is_object() && inner->contains(steps[depth])) {
    inner = &inner->at(steps[depth]);
    place /= steps[depth++];
  }
  if (depth == steps.size())
    whole.push_back(place);
  else if (depth > 0 && depth + 1 == steps.size() && (inner->is_object() || inner->is_string()))
    lacking.push_back(place);
  for (const auto& [key, value] : json.items()) find_places(value, steps, at / key, whole, lacking);
}

/// Sets the key of a spec.
class Knob {
 public:
  Knob(Json spec, const SolveGoal& goal) : spec_(std::move(spec)), goal_(goal) {
    if (goal.key.find('[') != std::string::npos) return;
    const std::vector<std::string> steps = steps_of(goal.key);
    std::vector<Pointer> lacking;
    find_places(spec_, steps, Pointer(), places_, lacking);
    if (!places_.empty()) {
      for (const Pointer& place : places_) {
        const Json& value = spec_[place];
        ratios_.push_back(value.is_number_integer() ? value.get<double>() : 0);
      }
      first_ = ratios_.front();
      return;
    }
    for (Pointer place : lacking) {
      if (Json& part = spec_[place]; part.is_string()) part = Json{{"type", part}};
      places_.push_back(place / steps.back());
    }
  }

  /// The value that the spec has at its first place; 0 = none, or a rule.
  int64_t now() const { return static_cast<int64_t>(first_); }

  Json with(int64_t value) const {
    Json out = spec_;
    if (places_.empty()) {
      apply_override(out, fmt::format("{}={}", goal_.key, value));
      return out;
    }
    for (size_t i = 0; i < places_.size(); ++i) {
      int64_t own = value;
      if (first_ > 0 && i < ratios_.size() && ratios_[i] > 0 && ratios_[i] != first_) {
        const double share = static_cast<double>(value) * ratios_[i] / first_;
        own = goal_.multiple *
              std::max<int64_t>(1, std::llround(share / static_cast<double>(goal_.multiple)));
      }
      out[places_[i]] = own;
    }
    return out;
  }

 private:
  Json spec_;
  const SolveGoal& goal_;
  std::vector<Pointer> places_;
  std::vector<double> ratios_;  // values of the places; 0 = no integer
  double first_ = 0;
};

/// Costs by multiples, each computed once.
class Costs {
 public:
  Costs(const Knob& knob, const SolveGoal& goal) : knob_(knob), goal_(goal) {}

  /// Nothing where the spec is refused.
  std::optional<double> at(int64_t count) {
    const auto [known, is_new] = costs_.emplace(count, std::nullopt);
    if (!is_new) return known->second;
    try {
      const ModelSpec spec = read_model_spec(knob_.with(count * goal_.multiple));
      known->second = cost_of(spec, goal_.cost, goal_.context, goal_.kv);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::spec) throw;
      refusal_ = error;
    }
    return known->second;
  }
  const std::map<int64_t, std::optional<double>>& all() const { return costs_; }
  /// Of a spec that was refused.
  const std::optional<Error>& refusal() const { return refusal_; }

 private:
  const Knob& knob_;
  const SolveGoal& goal_;
  std::map<int64_t, std::optional<double>> costs_;
  std::optional<Error> refusal_;
};

std::string number_text(double value) {
  return value < 1e15 && value == std::floor(value) ? fmt::format("{}", static_cast<int64_t>(value))
                                                    : fmt::format("{:.6g}", value);
}

/// The value nearest to `middle` between low and high (both excluded) that the spec accepts: widths
/// must often be multiples of something. Nothing where none of the next ones is accepted.
std::optional<int64_t> accepted_near(Costs& costs, int64_t middle, int64_t low, int64_t high) {
  for (int64_t away = 0; away < kMostTried; ++away)
    for (const int64_t count : {middle - away, middle + away})
      if (count > low && count < high && costs.at(count)) return count;
  return std::nullopt;
}

/// Costs around the target, by bisection over the values that the spec accepts.
void bisect(Costs& costs, const SolveGoal& goal, int64_t begin) {
  constexpr int64_t kMost = int64_t{1} << 30;
  const std::optional<int64_t> first = accepted_near(costs, 1, 0, kMostTried);
  if (!first) return;
  const double least = *costs.at(*first);
  begin = std::max(*first + 1, begin);
  int64_t low = *first, high = begin;
  for (;; high *= 2) {
    const std::optional<int64_t> accepted = accepted_near(costs, high, low, high + kMostTried);
    if (!accepted) break;
    high = *accepted;
    const double cost = *costs.at(high);
    if (cost >= goal.target) break;
    if (cost == least && high >= 8 * begin)
      fail(ErrorKind::usage, "solve",
           "{} does not depend on \"{}\": {} at any value; expected another key{}",
           name_of(goal.cost), goal.key, number_text(least),
           goal.cost == PlanCost::state_bytes ? ", such as mixer.n_kv_heads or mixer.d_state" : "");
    if (high > kMost / goal.multiple)
      fail(ErrorKind::usage, "solve",
           "\"{}\" = {} has {} {}, less than {}; expected a smaller goal", goal.key,
           high * goal.multiple, number_text(cost), name_of(goal.cost), number_text(goal.target));
    low = high;
  }
  while (const auto middle = accepted_near(costs, low + (high - low) / 2, low, high))
    (*costs.at(*middle) >= goal.target ? high : low) = *middle;
}

/// Tables whose rows are the tokens of the vocabulary: the embedding, and a head of its own.
int64_t embedding_parameters(const ModelSpec& spec) {
  int64_t sum = 0;
  const auto count = [&](const spec::AnyPart& part, const spec::Scope& scope) {
    if (!part) return;
    spec::ParamList list;
    part.config->params(list, scope);
    for (const spec::ParamDecl& decl : list.all())
      if (decl.shape.size() == 2 && decl.shape[0] == spec.vocab &&
          decl.roles.at(0) == spec::Role::vocabulary)
        sum += decl.elements();
  };
  count(spec.embed, spec.scope(0));
  count(spec.head, spec.scope_out());
  if (spec.encoder && !spec.shared_tokens) sum += embedding_parameters(*spec.encoder);
  return sum;
}

/// Costs are linear in the context but for kinks (a window's end): pairs of positions with the mean
/// of all have the mean cost exactly where it is linear.
double mean_flops(const ModelSpec& spec, int64_t context, spec::KvType kv) {
  constexpr int64_t kPairs = 32;
  const int64_t pairs = std::min(kPairs, (context + 1) / 2);
  double sum = 0;
  for (int64_t i = 0; i < pairs; ++i) {
    const int64_t below = 1 + i * (context - 1) / (2 * pairs);
    for (const int64_t position : {below, context + 1 - below})
      sum += make_plan(spec, position, context, kv).flops_per_token;
  }
  return sum / static_cast<double>(2 * pairs);
}

}  // namespace

const char* name_of(PlanCost cost) {
  switch (cost) {
    case PlanCost::parameters:
      return "parameters";
    case PlanCost::body_parameters:
      return "parameters without token table and head";
    case PlanCost::flops:
      return "FLOPs per token";
    case PlanCost::mean_flops:
      return "mean FLOPs per token";
    case PlanCost::state_bytes:
      return "bytes of state";
  }
  return "?";
}

double cost_of(const ModelSpec& spec, PlanCost cost, int64_t context, spec::KvType kv) {
  if (context == 0) context = usual_context(spec);
  if (cost == PlanCost::mean_flops) return mean_flops(spec, context, kv);
  const Plan plan = make_plan(spec, context, -1, kv);
  switch (cost) {
    case PlanCost::parameters:
      return static_cast<double>(plan.parameters);
    case PlanCost::body_parameters:
      return static_cast<double>(plan.parameters - embedding_parameters(spec));
    case PlanCost::state_bytes:
      return static_cast<double>(plan.state_bytes);
    case PlanCost::flops:
    case PlanCost::mean_flops:
      break;
  }
  return plan.flops_per_token;
}

Solution solve(const Json& spec, const SolveGoal& goal) {
  if (goal.multiple < 1)
    fail(ErrorKind::usage, "solve", "multiples of {}; expected 1 or more", goal.multiple);
  if (!(goal.target > 0) || !std::isfinite(goal.target))
    fail(ErrorKind::usage, "solve", "goal {}; expected more than 0", goal.target);
  const Knob knob(spec, goal);
  Costs costs(knob, goal);
  bisect(costs, goal, knob.now() / goal.multiple);
  std::vector<std::pair<double, int64_t>> found;  // distance, count
  for (const auto& [count, cost] : costs.all())
    if (cost) found.emplace_back(std::fabs(*cost - goal.target), count);
  if (found.empty()) throw *costs.refusal();
  std::sort(found.begin(), found.end());
  const auto [distance, best] = found.front();
  if (distance > goal.tolerance * goal.target) {
    std::string nearest;
    for (size_t i = 0; i < std::min<size_t>(2, found.size()); ++i)
      nearest += fmt::format("{}{} ({})", i > 0 ? " and " : "", found[i].second * goal.multiple,
                             number_text(*costs.at(found[i].second)));
    fail(ErrorKind::usage, "solve",
         "{} {} within {:g} % is out of reach of \"{}\" in multiples of {}: the nearest values are "
         "{}; expected another goal, key, multiple or tolerance ({:.2g} takes {})",
         number_text(goal.target), name_of(goal.cost), 100 * goal.tolerance, goal.key,
         goal.multiple, nearest, std::ceil(1000 * distance / goal.target) / 1000,
         best * goal.multiple);
  }
  return {knob.with(best * goal.multiple), best * goal.multiple, *costs.at(best)};
}

}  // namespace tessera::model
