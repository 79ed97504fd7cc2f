#include "tessera/analysis/cost.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "tessera/analysis/cost_cases.h"

namespace tessera::analysis {
namespace {

/// The points that are fitted.
std::vector<Point> fitted(const Curve& curve, int64_t fit_from) {
  std::vector<Point> out;
  for (const Point& p : curve.points)
    if (p.length >= fit_from) out.push_back(p);
  if (out.size() < kFewestPoints) out.clear();
  return out;
}

template <class Value>
std::optional<double> fit_points(const std::vector<Point>& points, const Value& value) {
  std::vector<std::pair<double, double>> xy;
  for (const Point& p : points) xy.emplace_back(static_cast<double>(p.length), value(p));
  return fit_exponent(xy);
}

std::optional<Check> memory_check(Growth claim, const Curve& curve, int64_t fit_from) {
  const auto exponents = fit(curve, fit_from);
  if (!exponents) return std::nullopt;
  return Check{name_of(curve.pass) + std::string(" memory"), exponents->memory,
               claimed_exponent(claim, curve, fit_from), kTolerance.memory};
}

Growth claimed_by(const Check& check, const Claim& claim) {
  return check.what.find("time") != std::string::npos ? claim.time : claim.memory;
}

}  // namespace

const char* name_of(Pass pass) {
  return pass == Pass::forward ? "forward" : "backward";
}

std::string Cost::title() const {
  return std::string(spec::name_of(mechanism->slot)) + "/" + mechanism->name;
}

const Curve* Cost::curve(Pass pass) const {
  for (const Curve& c : curves)
    if (c.pass == pass) return &c;
  return nullptr;
}

std::optional<double> fit_exponent(const std::vector<std::pair<double, double>>& xy) {
  const auto n = static_cast<double>(xy.size());
  double mean_x = 0, mean_y = 0;
  for (const auto& [x, y] : xy) {
    mean_x += std::log(x) / n;
    mean_y += std::log(y) / n;
  }
  double xx = 0, products = 0;
  for (const auto& [x, y] : xy) {
    xx += (std::log(x) - mean_x) * (std::log(x) - mean_x);
    products += (std::log(x) - mean_x) * (std::log(y) - mean_y);
  }
  if (!(xx > 0)) return std::nullopt;
  return products / xx;
}

std::optional<Exponents> fit(const Curve& curve, int64_t fit_from) {
  const auto points = fitted(curve, fit_from);
  const auto time = fit_points(points, [](const Point& p) { return p.seconds; });
  // a layer that holds nothing has no logarithm
  const auto memory = fit_points(
      points, [](const Point& p) { return static_cast<double>(std::max<int64_t>(1, p.bytes)); });
  if (!time || !memory) return std::nullopt;
  return Exponents{*time, *memory};
}

double claimed_exponent(Growth growth, const Curve& curve, int64_t fit_from) {
  const auto exponent = fit_points(fitted(curve, fit_from), [growth](const Point& p) {
    return spec::grown(growth, static_cast<double>(p.length));
  });
  require(exponent.has_value(), "cost", "a claim is compared with a curve that has no fit");
  return *exponent;
}

std::optional<Check> time_check(Growth claim, const Curve& curve, int64_t fit_from) {
  const auto exponents = fit(curve, fit_from);
  if (!exponents) return std::nullopt;
  return Check{name_of(curve.pass) + std::string(" time"), exponents->time,
               claimed_exponent(claim, curve, fit_from), kTolerance.time};
}

std::optional<Check> step_check(const Step& step) {
  if (!step.constant_state) return std::nullopt;
  return Check{"decode step", step.ratio(), 1, kTolerance.step};
}

std::vector<Check> checks_of(const Cost& cost, int64_t fit_from) {
  std::vector<Check> checks;
  const auto add = [&](std::optional<Check> check) {
    if (check) checks.push_back(std::move(*check));
  };
  for (const Curve& curve : cost.curves) {
    add(time_check(cost.claim.time, curve, fit_from));
    add(memory_check(cost.claim.memory, curve, fit_from));
  }
  if (cost.step) add(step_check(*cost.step));
  return checks;
}

bool timing_holds(const Cost& cost, int64_t fit_from) {
  const auto holds = [](const std::optional<Check>& check) { return !check || check->holds(); };
  return std::all_of(cost.curves.begin(), cost.curves.end(),
                     [&](const Curve& curve) {
                       return holds(time_check(cost.claim.time, curve, fit_from));
                     }) &&
         (!cost.step || holds(step_check(*cost.step)));
}

void pool(Curve& curve, const Curve& again) {
  require(
      std::equal(curve.points.begin(), curve.points.end(), again.points.begin(), again.points.end(),
                 [](const Point& a, const Point& b) { return a.length == b.length; }),
      "cost", "two measurements of one curve have different lengths");
  for (size_t i = 0; i < curve.points.size(); ++i) {
    Point& p = curve.points[i];
    p.seconds = std::min(p.seconds, again.points[i].seconds);
    p.bytes = std::max(p.bytes, again.points[i].bytes);
  }
}

void pool(Step& step, const Step& again) {
  require(step.shallow == again.shallow && step.deep == again.deep, "cost",
          "two measurements of one step have different lengths");
  step.shallow_seconds = std::min(step.shallow_seconds, again.shallow_seconds);
  step.deep_seconds = std::min(step.deep_seconds, again.deep_seconds);
}

std::vector<std::string> failures(const CostRun& run) {
  std::vector<std::string> lines;
  for (const Cost& cost : run.costs)
    for (const Check& check : checks_of(cost, run.fit_from)) {
      if (check.holds()) continue;
      if (check.what == "decode step")
        lines.push_back(fmt::format(
            "[{}] a decode step after {} tokens takes {:.2f} times one after {}, with a state of "
            "constant size; claimed 1 (tolerance {:.2f})",
            cost.title(), cost.step->deep, check.measured, cost.step->shallow, check.tolerance));
      else
        lines.push_back(fmt::format(
            "[{}] {} grows as T^{:.2f}; claimed {} (T^{:.2f} here, tolerance {:.2f})", cost.title(),
            check.what, check.measured, spec::name_of(claimed_by(check, cost.claim)), check.claimed,
            check.tolerance));
    }
  return lines;
}

namespace {

Json to_json(const Curve& curve, int64_t fit_from) {
  Json points = Json::array();
  for (const Point& p : curve.points)
    points.push_back({{"length", p.length}, {"seconds", p.seconds}, {"peak_bytes", p.bytes}});
  Json json = {{"pass", name_of(curve.pass)}, {"points", points}};
  if (!curve.left_out.empty()) json["left_out"] = curve.left_out;
  if (const auto exponents = fit(curve, fit_from)) {
    json["time_exponent"] = exponents->time;
    json["memory_exponent"] = exponents->memory;
  }
  return json;
}

Json to_json(const Cost& cost, int64_t fit_from) {
  Json json = {
      {"slot", spec::name_of(cost.mechanism->slot)},
      {"mechanism", cost.mechanism->name},
      {"claim",
       {{"time", spec::name_of(cost.claim.time)}, {"memory", spec::name_of(cost.claim.memory)}}},
      {"config", cost.config},
      {"passes", Json::array()},
      {"checks", Json::array()}};
  for (const Curve& curve : cost.curves) json["passes"].push_back(to_json(curve, fit_from));
  if (cost.step)
    json["step"] = {{"shallow", cost.step->shallow},
                    {"deep", cost.step->deep},
                    {"shallow_seconds", cost.step->shallow_seconds},
                    {"deep_seconds", cost.step->deep_seconds},
                    {"ratio", cost.step->ratio()},
                    {"constant_state", cost.step->constant_state}};
  for (const Check& check : checks_of(cost, fit_from))
    json["checks"].push_back({{"what", check.what},
                              {"measured", check.measured},
                              {"claimed", check.claimed},
                              {"tolerance", check.tolerance},
                              {"holds", check.holds()}});
  return json;
}

/// A count that fits its type.
template <class Count>
Count count_at(const Json& json, const char* key) {
  const Json& value = json.at(key);
  constexpr auto kMost = static_cast<uint64_t>(std::numeric_limits<Count>::max());
  if (!value.is_number_integer() || value < 0 || value.get<uint64_t>() > kMost)
    fail(ErrorKind::file, "cost", "{} = {}; expected a count up to {}", key,
         value.dump().substr(0, 40), kMost);
  return value.get<Count>();
}

/// A time that can have been measured: plots have an axis of a few powers of ten.
double seconds_at(const Json& json, const char* key) {
  constexpr double kLeast = 1e-12, kMost = 1e12;
  const auto seconds = json.at(key).get<double>();
  if (!(seconds >= kLeast && seconds <= kMost))
    fail(ErrorKind::file, "cost", "{} = {}; expected {} to {}", key, seconds, kLeast, kMost);
  return seconds;
}

Curve curve_from_json(const Json& json) {
  Curve curve;
  const auto pass = json.at("pass").get<std::string>();
  if (pass != "forward" && pass != "backward")
    fail(ErrorKind::file, "cost", "pass \"{}\"; expected \"forward\" or \"backward\"", pass);
  curve.pass = pass == "forward" ? Pass::forward : Pass::backward;
  curve.left_out = json.value("left_out", std::string());
  for (const Json& p : json.at("points")) {
    curve.points.push_back({count_at<int64_t>(p, "length"), seconds_at(p, "seconds"),
                            count_at<int64_t>(p, "peak_bytes")});
    if (curve.points.back().length < 1)
      fail(ErrorKind::file, "cost", "length = 0; expected 1 or more");
  }
  return curve;
}

Cost cost_from_json(const Json& json, int64_t width) {
  const std::string title =
      json.at("slot").get<std::string>() + "/" + json.at("mechanism").get<std::string>();
  Cost cost;
  cost.mechanism = cost_mechanisms({title}).front();
  for (const Json& pass : json.at("passes")) cost.curves.push_back(curve_from_json(pass));
  int64_t longest = 1;
  for (const Curve& curve : cost.curves)
    for (const Point& p : curve.points) longest = std::max(longest, p.length);
  cost.claim = cost_layer(*cost.mechanism, width, longest).claim();
  cost.config = json.at("config");
  if (json.contains("step")) {
    const Json& step = json["step"];
    cost.step = Step{count_at<int64_t>(step, "shallow"), count_at<int64_t>(step, "deep"),
                     seconds_at(step, "shallow_seconds"), seconds_at(step, "deep_seconds"),
                     step.at("constant_state").get<bool>()};
  }
  return cost;
}

}  // namespace

Json to_json(const CostRun& run) {
  Json json = {{"command", run.command},   {"cpu", run.cpu},
               {"target", run.target},     {"threads", run.threads},
               {"repeats", run.repeats},   {"width", run.width},
               {"fit_from", run.fit_from}, {"holds", failures(run).empty()},
               {"rows", Json::array()}};
  for (const Cost& cost : run.costs) json["rows"].push_back(to_json(cost, run.fit_from));
  return json;
}

CostRun cost_run_from_json(const Json& json, const std::string& where) {
  try {
    CostRun run;
    run.command = json.at("command").get<std::string>();
    run.cpu = json.at("cpu").get<std::string>();
    run.target = json.at("target").get<std::string>();
    run.threads = count_at<int>(json, "threads");
    run.repeats = count_at<int>(json, "repeats");
    run.width = count_at<int64_t>(json, "width");
    run.fit_from = count_at<int64_t>(json, "fit_from");
    for (const Json& row : json.at("rows")) run.costs.push_back(cost_from_json(row, run.width));
    return run;
  } catch (const nlohmann::json::exception& error) {
    fail(ErrorKind::file, "bench", "{}: {}; expected what `tessera bench mixers --json` writes",
         where, error.what());
  } catch (const Error& error) {
    fail(ErrorKind::file, "bench", "{}: {}", where, error.what());
  }
}

}  // namespace tessera::analysis
