#include "tessera/analysis/advice.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <tuple>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tessera/base/error.h"
#include "tessera/model/kv_quantization.h"
#include "tessera/model/solve.h"
#include "tessera/nn/registry.h"
#include "tessera/spec/json.h"
#include "tessera/spec/names.h"

namespace tessera::analysis {

extern const char* const kAdviceJson;
extern const char* const kCostJson;

namespace {

using Names = std::vector<std::string>;

constexpr int64_t kHead = 64;            // channels of a head
constexpr int64_t kMultiple = 8;         // of the hidden width that is solved for
constexpr double kSizeTolerance = 0.05;  // of the number of parameters
constexpr double kWeightBytes = 2;       // bf16

template <class T>
std::vector<T> all_of(const Json& list, const auto& read) {
  std::vector<T> out;
  for (const Json& one : list) out.push_back(read(one));
  return out;
}

Named named(const Json& json) {
  return {json.at("name").get<std::string>(), json.at("about").get<std::string>()};
}

AdviceData read_data(const Json& json) {
  AdviceData out;
  out.tasks = all_of<AdviceData::Task>(json.at("tasks"), [](const Json& one) {
    return AdviceData::Task{named(one), one.at("arch").get<Names>()};
  });
  out.needs = all_of<Named>(json.at("needs"), named);
  out.shapes = all_of<Shape>(json.at("shapes"), [](const Json& one) {
    return Shape{one.at("parameters").get<double>(), one.at("width").get<int64_t>(),
                 one.at("layers").get<int64_t>()};
  });
  out.templates = all_of<Template>(json.at("candidates"), [](const Json& one) {
    return Template{one.at("name").get<std::string>(), one.at("about").get<std::string>(),
                    one.at("tags").get<Names>(), one.at("key").get<std::string>(), one.at("spec")};
  });
  out.rules = all_of<Rule>(json.at("rules"), [](const Json& one) {
    return Rule{one.at("id").get<std::string>(),
                one.at("problem").get<std::string>(),
                one.at("remedy").get<std::string>(),
                one.at("when"),
                one.at("prefer").get<Names>(),
                one.at("avoid").get<Names>(),
                all_of<Evidence>(one.at("evidence"), [](const Json& e) {
                  return Evidence{e.value("page", ""), e.value("says", ""), e.value("paper", ""),
                                  e.value("title", "")};
                })};
  });
  return out;
}

// --- questions ---

/// The entry of this name; Error(usage) with the nearest one.
template <class T>
const T& entry(const std::vector<T>& list, const std::string& name, const char* what) {
  Names names;
  for (const T& one : list) {
    if (one.name == name) return one;
    names.push_back(one.name);
  }
  fail(ErrorKind::usage, "advise", "{} \"{}\"{}; expected one of {}", what, name,
       spec::did_you_mean(name, names), fmt::join(names, ", "));
}

bool has(const Names& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// Whether a condition holds. Keys: tasks (a list), need, beyond_training, and *_from, *_to of a
/// number of the question, both inclusive; an unknown number is in no range.
bool holds(const std::string& key, const Json& value, const Question& q) {
  if (key == "tasks") return has(value.get<Names>(), q.task);
  if (key == "need") return has(q.needs, value.get<std::string>());
  if (key == "beyond_training")
    return value.get<bool>() == (q.trained_length > 0 && q.length > q.trained_length);
  const std::map<std::string, double> numbers = {{"length", static_cast<double>(q.length)},
                                                 {"parameters", q.parameters},
                                                 {"sequences", static_cast<double>(q.sequences)},
                                                 {"train_tokens", q.train_tokens}};
  const size_t cut = key.rfind('_');
  const auto number = numbers.find(key.substr(0, cut));
  const std::string end = cut == std::string::npos ? "" : key.substr(cut + 1);
  require(number != numbers.end() && (end == "from" || end == "to"), "advise",
          "condition \"{}\" of a rule", key);
  if (number->second == 0) return false;
  return end == "from" ? number->second >= value.get<double>()
                       : number->second <= value.get<double>();
}

bool applies(const Rule& rule, const Question& question) {
  for (const auto& [key, value] : rule.when.items())
    if (!holds(key, value, question)) return false;
  return true;
}

// --- templates ---

/// Numbers for the names in a template, of a model of this shape.
std::map<std::string, int64_t> numbers_of(const Shape& shape, int64_t vocab) {
  const int64_t heads = shape.width / kHead;
  return {{"$vocab", vocab},
          {"$width", shape.width},
          {"$layers", shape.layers},
          {"$half", shape.layers / 2},
          {"$quarter", shape.layers / 4},
          {"$three_quarters", shape.layers - shape.layers / 4},
          {"$heads", heads},
          {"$kv_heads", std::max<int64_t>(1, heads / 4)},
          {"$inner_heads", 2 * heads},
          {"$latent", shape.width / 2}};
}

Json filled(const Json& json, const std::map<std::string, int64_t>& numbers) {
  if (json.is_string()) {
    const auto number = numbers.find(json.get<std::string>());
    return number == numbers.end() ? json : Json(number->second);
  }
  if (!json.is_structured()) return json;
  Json out = json;
  for (auto& [key, value] : out.items()) value = filled(value, numbers);
  return out;
}

const Shape& shape_for(double parameters, const AdviceData& data) {
  for (const Shape& shape : data.shapes)
    if (parameters <= shape.parameters) return shape;
  fail(ErrorKind::usage, "advise", "{:.3g} parameters; expected at most {:.3g}", parameters,
       data.shapes.back().parameters);
}

// --- costs ---

const Cost* cost_named(const CostRun& run, spec::Slot slot, const std::string& name) {
  for (const Cost& cost : run.costs)
    if (cost.mechanism->slot == slot && cost.mechanism->name == name) return &cost;
  return nullptr;
}

/// What the run says of a mixer: of its pattern, if that is not the full one.
const Cost* cost_of_mixer(const CostRun& run, const spec::AnyPart& mixer) {
  std::string pattern;
  spec::for_each_part(mixer, [&](const spec::AnyPart& part) {
    if (part.mechanism->slot == spec::Slot::pattern && part.type() != "full") pattern = part.type();
  });
  return pattern.empty() ? cost_named(run, spec::Slot::mixer, mixer.type())
                         : cost_named(run, spec::Slot::pattern, pattern);
}

/// Calls `visit` with the mixers of both stacks.
template <class F>
void for_each_mixer(const model::ModelSpec& spec, const F& visit) {
  if (spec.encoder) for_each_mixer(*spec.encoder, visit);
  for (const model::LayerSpec& layer : spec.layers)
    for (const model::GroupSpec& group : layer.groups)
      for (const model::BranchSpec& branch : group.branches)
        if (branch.slot == spec::Slot::mixer) visit(branch.part);
}

void add_time(Candidate& candidate,
              const model::ModelSpec& spec,
              const Question& question,
              const CostRun& costs) {
  const auto seconds = [&](const Cost* cost) -> std::optional<TimeAt> {
    const Curve* curve = cost == nullptr ? nullptr : cost->curve(question.pass);
    return curve == nullptr ? std::nullopt : time_at(*curve, question.length, costs.fit_from);
  };
  const auto attention = seconds(cost_named(costs, spec::Slot::mixer, "attention"));
  if (!attention) return;
  double sum = 0;
  int64_t mixers = 0;
  bool all = true;
  for_each_mixer(spec, [&](const spec::AnyPart& mixer) {
    const auto time = seconds(cost_of_mixer(costs, mixer));
    ++mixers;
    if (!time) {
      all = false;
      return;
    }
    sum += time->seconds;
    candidate.extrapolated |= time->extrapolated || attention->extrapolated;
  });
  if (all && mixers > 0) candidate.time = sum / (static_cast<double>(mixers) * attention->seconds);
}

// --- candidates ---

/// Bytes of weights, and of the states of all sequences.
double bytes_of(const model::ModelSpec& spec, const model::Plan& plan, const Question& question) {
  const bool generates = spec.arch != model::Arch::encoder;
  return static_cast<double>(plan.parameters) * kWeightBytes +
         (generates ? static_cast<double>(plan.state_bytes * question.sequences) : 0);
}

Candidate candidate_of(const Template& from,
                       const AdviceData::Task& task,
                       const Question& question,
                       const AdviceData& data,
                       const CostRun& costs) {
  Candidate out;
  out.name = from.name;
  out.about = from.about;
  const std::string arch = from.spec.at("arch").get<std::string>();
  if (!has(task.arch, arch)) {
    out.excluded =
        fmt::format("{} takes {}, not {}", task.name, fmt::join(task.arch, " or "), arch);
    return out;
  }
  const Json spec =
      filled(from.spec, numbers_of(shape_for(question.parameters, data), question.vocab));
  try {
    out.spec = model::solve(spec, {.key = from.key,
                                   .cost = model::PlanCost::parameters,
                                   .target = question.parameters,
                                   .multiple = kMultiple,
                                   .tolerance = kSizeTolerance})
                   .spec;
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::usage) throw;
    out.excluded = fmt::format(
        "{:.4g} parameters cannot be reached with a vocabulary of {}; give --parameters or --vocab",
        question.parameters, question.vocab);
    return out;
  }
  const model::ModelSpec read = model::read_model_spec(out.spec);
  if (const int64_t longest = read.longest_sequence(); longest > 0 && longest < question.length) {
    out.excluded = fmt::format("at most {} tokens", longest);
    return out;
  }
  const bool halves =
      read.no_state_reason().empty() && model::can_quantize_kv(model::state_layout(read));
  const spec::KvType kv = halves ? spec::KvType::f16 : spec::KvType::f32;
  out.plan = model::make_plan(read, question.length, -1, kv);
  out.bytes = bytes_of(read, out.plan, question);
  if (question.memory > 0 && out.bytes > question.memory) {
    out.excluded =
        fmt::format("{:.4g} bytes of memory; {:.4g} at most", out.bytes, question.memory);
    return out;
  }
  add_time(out, read, question, costs);
  for (const Rule& rule : data.rules) {
    if (!applies(rule, question)) continue;
    const auto tagged = [&](const std::string& tag) { return has(from.tags, tag); };
    if (std::any_of(rule.prefer.begin(), rule.prefer.end(), tagged))
      out.preferred_by.push_back(&rule);
    if (std::any_of(rule.avoid.begin(), rule.avoid.end(), tagged)) out.avoided_by.push_back(&rule);
  }
  out.score =
      static_cast<int64_t>(out.preferred_by.size()) - static_cast<int64_t>(out.avoided_by.size());
  return out;
}

/// Ascending from the best; what was not measured comes last.
auto order_of(const Candidate& c) {
  return std::tuple(-c.score, c.time.value_or(HUGE_VAL), c.bytes, c.name);
}

bool dominates(const Candidate& a, const Candidate& b) {
  const auto values = [](const Candidate& c) {
    return std::array{static_cast<double>(-c.score), c.time.value_or(HUGE_VAL), c.bytes};
  };
  const auto of_a = values(a), of_b = values(b);
  bool better = false;
  for (size_t i = 0; i < of_a.size(); ++i) {
    if (of_a[i] > of_b[i]) return false;
    better |= of_a[i] < of_b[i];
  }
  return better;
}

std::string rounded(double length) {
  return fmt::format("{:.0f}", length);
}

}  // namespace

std::string Evidence::text() const {
  return page.empty() ? fmt::format("{} ({})", paper, title) : "docs/" + page + " (measured)";
}

const AdviceData& advice_data() {
  static const AdviceData data = read_data(spec::parse_json(kAdviceJson, "advice.json"));
  return data;
}

const CostRun& shipped_costs() {
  nn::register_mechanisms();
  static const CostRun run =
      cost_run_from_json(spec::parse_json(kCostJson, "cost.json"), "cost.json");
  return run;
}

std::vector<Candidate> advise(const Question& question,
                              const AdviceData& data,
                              const CostRun& costs) {
  const AdviceData::Task& task = entry(data.tasks, question.task, "task");
  for (const std::string& need : question.needs) entry(data.needs, need, "need");
  std::vector<Candidate> fitting, excluded;
  for (const Template& from : data.templates) {
    Candidate candidate = candidate_of(from, task, question, data, costs);
    (candidate.excluded.empty() ? fitting : excluded).push_back(std::move(candidate));
  }
  std::sort(fitting.begin(), fitting.end(),
            [](const Candidate& a, const Candidate& b) { return order_of(a) < order_of(b); });
  for (Candidate& one : fitting)
    one.pareto = std::none_of(fitting.begin(), fitting.end(),
                              [&](const Candidate& other) { return dominates(other, one); });
  for (Candidate& one : excluded) fitting.push_back(std::move(one));
  return fitting;
}

std::optional<TimeAt> time_at(const Curve& curve, int64_t length, int64_t fit_from) {
  const auto& points = curve.points;
  if (points.size() < 2) return std::nullopt;
  const auto between = [&](const Point& a, const Point& b) {
    const double slope = std::log(b.seconds / a.seconds) /
                         std::log(static_cast<double>(b.length) / static_cast<double>(a.length));
    return a.seconds * std::pow(static_cast<double>(length) / static_cast<double>(a.length), slope);
  };
  if (length > points.back().length) {
    const auto exponents = fit(curve, fit_from);
    const Point& last = points.back();
    if (!exponents) return TimeAt{between(points[points.size() - 2], last), true};
    return TimeAt{
        last.seconds * std::pow(static_cast<double>(length) / static_cast<double>(last.length),
                                exponents->time),
        true};
  }
  size_t i = 1;
  while (i + 1 < points.size() && points[i].length < length) ++i;
  return TimeAt{between(points[i - 1], points[i]), length < points.front().length};
}

Crossover crossover(const Cost& reference, const Cost& of, Pass pass) {
  Crossover out;
  out.title = of.title();
  out.pass = pass;
  const Curve* a = reference.curve(pass);
  const Curve* b = of.curve(pass);
  if (a == nullptr || b == nullptr) return out;
  std::optional<std::pair<double, double>> before;  // logarithms of a length and of the ratio there
  for (const Point& p : a->points)
    for (const Point& q : b->points) {
      if (p.length != q.length) continue;
      out.longest = p.length;
      if (out.length) continue;
      const double x = std::log(static_cast<double>(p.length)), y = std::log(p.seconds / q.seconds);
      if (y > 0 && !before) {
        out.length = static_cast<double>(p.length);
        out.from_start = true;
      } else if (y > 0 && before->second <= 0) {
        const auto [x0, y0] = *before;
        out.length = std::exp(x0 - y0 * (x - x0) / (y - y0));
      }
      before = {x, y};
    }
  return out;
}

std::string rules_markdown(const AdviceData& data) {
  std::string out = "| problem | remedy | evidence |\n|---|---|---|\n";
  for (const Rule& rule : data.rules) {
    Names evidence;
    for (const Evidence& one : rule.evidence)
      evidence.push_back(one.page.empty() ? fmt::format("[{}](https://arxiv.org/abs/{})", one.title,
                                                        one.paper.substr(one.paper.find(':') + 1))
                                          : fmt::format("[measured](../{})", one.page));
    out += fmt::format("| {} | {} | {} |\n", rule.problem, rule.remedy, fmt::join(evidence, "; "));
  }
  return out;
}

std::string crossovers_markdown(const CostRun& costs) {
  std::string out = "| mechanism | forward | with backward |\n|---|---|---|\n";
  const Cost* attention = cost_named(costs, spec::Slot::mixer, "attention");
  if (attention == nullptr) return out;
  const auto cell = [](const Crossover& c) {
    if (c.longest == 0) return std::string("not measured");
    if (!c.length) return fmt::format("none up to {}", c.longest);
    return c.from_start ? "under " + rounded(*c.length) : rounded(*c.length);
  };
  std::vector<std::pair<double, std::string>> rows;
  for (const Cost& cost : costs.costs) {
    if (&cost == attention ||
        (cost.mechanism->slot == spec::Slot::pattern && cost.mechanism->name == "full") ||
        cost.mechanism->slot == spec::Slot::position)
      continue;
    const Crossover forward = crossover(*attention, cost, Pass::forward),
                    backward = crossover(*attention, cost, Pass::backward);
    rows.emplace_back(
        forward.length.value_or(HUGE_VAL),
        fmt::format("| `{}` | {} | {} |\n", cost.mechanism->name, cell(forward), cell(backward)));
  }
  std::stable_sort(rows.begin(), rows.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  for (const auto& [length, row] : rows) out += row;
  return out;
}

}  // namespace tessera::analysis
