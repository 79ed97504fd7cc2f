// What a layer costs as its documents grow: measurements, the exponents fitted to them, and whether
// the growth that a mechanism claims (spec::Info) holds. Measuring is analysis/mixer_bench.h.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/spec/mechanism.h"

namespace tessera::analysis {

using spec::Growth;
using spec::Json;

enum class Pass {
  forward,   // without gradients
  backward,  // a forward pass that records them, and the backward pass
};
const char* name_of(Pass pass);

/// One layer over one document of `length` tokens.
struct Point {
  int64_t length = 0;
  double seconds = 0;
  int64_t bytes = 0;  // the most that was held at once, beyond weights and input
};

struct Curve {
  Pass pass = Pass::forward;
  std::vector<Point> points;  // ascending
  std::string left_out;       // which lengths were not measured, and why; "" = none
};

/// The next token after few tokens and after many.
struct Step {
  int64_t shallow = 0, deep = 0;  // tokens before it
  double shallow_seconds = 0, deep_seconds = 0;
  bool constant_state = false;  // as many bytes after both: the time should not grow either
  double ratio() const { return deep_seconds / shallow_seconds; }
};

struct Claim {
  Growth time = Growth::linear, memory = Growth::linear;
};

/// Of one mechanism: a mixer, or attention with a pattern or a position.
struct Cost {
  const spec::Mechanism* mechanism = nullptr;
  Claim claim;
  Json config;  // of the longest layer
  std::vector<Curve> curves;
  std::optional<Step> step;

  std::string title() const;  // "pattern/window"
  const Curve* curve(Pass pass) const;
};

/// All that one run measured, and how.
struct CostRun {
  std::string command, cpu, target;
  int threads = 1, repeats = 1;
  int64_t width = 0;
  int64_t fit_from = 1024;  // shorter documents are measured but not fitted
  std::vector<Cost> costs;
};

/// The exponent b of y = a x^b by least squares in the logarithms; nothing below two different x.
std::optional<double> fit_exponent(const std::vector<std::pair<double, double>>& xy);

/// The exponents of a curve's points from `fit_from` tokens on; nothing below kFewestPoints of
/// them.
inline constexpr size_t kFewestPoints = 3;
struct Exponents {
  double time = 0, memory = 0;
};
std::optional<Exponents> fit(const Curve& curve, int64_t fit_from);
/// What the fit gives for a cost that grows exactly so, over the same lengths: T log T has no
/// exponent of its own.
double claimed_exponent(Growth growth, const Curve& curve, int64_t fit_from);

/// How far a measured exponent may lie above the claimed one, and a step's ratio above 1. Caches
/// that a longer document leaves make linear work look like T^1.1; allocations are exact but for
/// blocks of fixed size.
struct Tolerance {
  double time = 0.15, memory = 0.10, step = 0.10;
};
inline constexpr Tolerance kTolerance;

/// One claim against its measurement. Growing slower than claimed is no failure.
struct Check {
  std::string what;  // "forward time", "backward memory", "decode step"
  double measured = 0, claimed = 0, tolerance = 0;
  bool holds() const { return measured <= claimed + tolerance; }
};
/// Nothing where too few points are fitted.
std::optional<Check> time_check(Growth claim, const Curve& curve, int64_t fit_from);
/// Nothing where the state grows.
std::optional<Check> step_check(const Step& step);
std::vector<Check> checks_of(const Cost& cost, int64_t fit_from);
/// Whether all claims of time hold, that of the step among them.
bool timing_holds(const Cost& cost, int64_t fit_from);

/// What was measured again, over the same lengths: of each length the least time counts, since what
/// else the machine does can only add to it, and the larger memory. Throws Error(internal) where
/// the lengths differ.
void pool(Curve& curve, const Curve& again);
void pool(Step& step, const Step& again);

/// "[mixer/lsh_attention] forward time grows as T^1.42; claimed T log T (T^1.12 here, tolerance
/// 0.15)", one line for every check that does not hold.
std::vector<std::string> failures(const CostRun& run);

/// `from_json` takes claims from the registry, not from the file. Throws Error(file) on anything
/// malformed, or a mechanism that is not registered.
Json to_json(const CostRun& run);
CostRun cost_run_from_json(const Json& json, const std::string& where);

}  // namespace tessera::analysis
