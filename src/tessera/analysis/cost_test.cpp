// Exponents, claims against them, and what a run looks like in JSON and on paper.
#include "tessera/analysis/cost.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "tessera/analysis/cost_cases.h"
#include "tessera/analysis/cost_report.h"
#include "tessera/base/testing.h"

namespace tessera::analysis::cost_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

/// A curve whose time is seconds(T) and whose peak is bytes(T).
Curve curve_of(const std::function<double(double)>& seconds,
               const std::function<double(double)>& bytes,
               Pass pass = Pass::forward) {
  Curve curve{pass, {}, ""};
  for (const int64_t length : {256, 1024, 2048, 4096, 8192, 16384}) {
    const auto t = static_cast<double>(length);
    curve.points.push_back({length, seconds(t), static_cast<int64_t>(bytes(t))});
  }
  return curve;
}

double linear(double t) {
  return 1e-6 * t;
}
double kilobytes(double t) {
  return 1024 * t;
}

/// A run of one mechanism with these curves.
CostRun run_of(const std::string& name, std::vector<Curve> curves) {
  Cost cost;
  cost.mechanism = cost_mechanisms({name}).front();
  const CostLayer layer = cost_layer(*cost.mechanism, 128, 16384);
  cost.claim = layer.claim();
  cost.config = layer.config();
  cost.curves = std::move(curves);
  CostRun run;
  run.command = "tessera bench mixers";
  run.cpu = "a processor";
  run.target = "avx2";
  run.width = 128;
  run.costs.push_back(std::move(cost));
  return run;
}

TEST(Cost, FitFindsExponents) {
  std::vector<std::pair<double, double>> xy;
  for (const double x : {1024., 2048., 4096., 8192., 16384.})
    xy.emplace_back(x, 3e-7 * std::pow(x, 1.37));
  EXPECT_NEAR(*fit_exponent(xy), 1.37, 1e-12);
  // least squares where nothing lies on a line: numpy.polyfit of the logarithms
  EXPECT_NEAR(*fit_exponent({{1, 2}, {2, 3}, {4, 11}}), 1.22971581, 1e-8);
  EXPECT_FALSE(fit_exponent({{1024, 1}}).has_value());
  EXPECT_FALSE(fit_exponent({{1024, 1}, {1024, 2}}).has_value());
}

TEST(Cost, ShortDocumentsAreNotFitted) {
  // a fixed cost that the shortest document shows alone
  Curve curve = curve_of(linear, kilobytes);
  curve.points[0].seconds = 1;
  EXPECT_NEAR(fit(curve, 1024)->time, 1, 1e-9);
  EXPECT_LT(fit(curve, 256)->time, 0);
  curve.points.resize(3);
  EXPECT_FALSE(fit(curve, 1024).has_value()) << "two points are no fit";
}

TEST(Cost, ClaimsAreFittedLikeMeasurements) {
  const Curve curve = curve_of(linear, kilobytes);
  EXPECT_NEAR(claimed_exponent(Growth::constant, curve, 1024), 0, 1e-9);
  EXPECT_NEAR(claimed_exponent(Growth::linear, curve, 1024), 1, 1e-9);
  // numpy.polyfit of the logarithms of T log2 T
  EXPECT_NEAR(claimed_exponent(Growth::linear_log, curve, 1024), 1.12118618, 1e-8);
  EXPECT_NEAR(claimed_exponent(Growth::three_halves, curve, 1024), 1.5, 1e-9);
  EXPECT_NEAR(claimed_exponent(Growth::quadratic, curve, 1024), 2, 1e-9);
}

TEST(Cost, AFalseClaimIsNamedWithBothNumbers) {
  const auto slow = [](double t) { return 1e-9 * t * t; };
  const auto large = [](double t) { return 16 * std::pow(t, 1.2); };
  EXPECT_THAT(failures(run_of("pattern/window", {curve_of(linear, kilobytes)})), IsEmpty());
  // attention claims T^2 of time and T of memory
  EXPECT_THAT(failures(run_of("attention", {curve_of(slow, kilobytes)})), IsEmpty());
  EXPECT_THAT(failures(run_of("pattern/window", {curve_of(slow, kilobytes)})),
              ElementsAre("[pattern/window] forward time grows as T^2.00; claimed T (T^1.00 here, "
                          "tolerance 0.15)"));
  EXPECT_THAT(failures(run_of("attention", {curve_of(slow, large, Pass::backward)})),
              ElementsAre("[mixer/attention] backward memory grows as T^1.20; claimed T (T^1.00 "
                          "here, tolerance 0.10)"));
}

TEST(Cost, AStepOfConstantStateMustNotSlowDown) {
  CostRun run = run_of("mamba2", {curve_of(linear, kilobytes)});
  run.costs[0].step = Step{1024, 16384, 1e-4, 1.09e-4, true};
  EXPECT_THAT(failures(run), IsEmpty());
  run.costs[0].step->deep_seconds = 1.2e-4;
  EXPECT_THAT(failures(run),
              ElementsAre(HasSubstr("[mixer/mamba2] a decode step after 16384 tokens takes 1.20")));
  run.costs[0].step->constant_state = false;
  EXPECT_THAT(failures(run), IsEmpty());
}

TEST(Cost, PooledPointsKeepTheLeastTimeAndTheLargerMemory) {
  const Curve known = curve_of(linear, kilobytes);
  Curve again = known;
  again.points[1].seconds /= 2;
  again.points[2].seconds *= 2;
  again.points[3].bytes /= 2;
  again.points[4].bytes *= 2;
  Curve pooled = known;
  pool(pooled, again);
  for (size_t i = 0; i < known.points.size(); ++i) {
    SCOPED_TRACE(i);
    EXPECT_EQ(pooled.points[i].length, known.points[i].length);
    EXPECT_EQ(pooled.points[i].seconds, known.points[i].seconds / (i == 1 ? 2 : 1));
    EXPECT_EQ(pooled.points[i].bytes, known.points[i].bytes * (i == 4 ? 2 : 1));
  }
  again.points.pop_back();
  EXPECT_THROW(pool(pooled, again), Error);

  Step step{1024, 16384, 1e-4, 2e-4, true};
  pool(step, {1024, 16384, 2e-4, 1e-4, true});
  EXPECT_EQ(step.shallow_seconds, 1e-4);
  EXPECT_EQ(step.deep_seconds, 1e-4);
  EXPECT_THROW(pool(step, {1024, 8192, 1e-4, 1e-4, true}), Error);
}

TEST(Cost, OnlyClaimsOfTimeAreDoubtedForTheirTiming) {
  const auto square = [](double t) { return 1e-9 * t * t; };
  const auto holds = [](const CostRun& run) { return timing_holds(run.costs[0], run.fit_from); };
  EXPECT_TRUE(holds(run_of("pattern/window", {curve_of(linear, kilobytes)})));
  EXPECT_TRUE(holds(run_of("pattern/window", {curve_of(linear, [](double t) { return t * t; })})));
  EXPECT_FALSE(holds(run_of("pattern/window", {curve_of(square, kilobytes)})));
  CostRun run = run_of("mamba2", {curve_of(linear, kilobytes)});
  run.costs[0].step = Step{1024, 16384, 1e-4, 1.2e-4, true};
  EXPECT_FALSE(holds(run));
  run.costs[0].step->constant_state = false;
  EXPECT_TRUE(holds(run));
}

TEST(Cost, AFailureIsMendedByPoolingOnlyWhereItWasNoise) {
  // one length met a slow moment, another did when it was measured again
  Curve first = curve_of(linear, kilobytes), again = first;
  first.points.back().seconds *= 3;
  again.points[4].seconds *= 3;
  ASSERT_FALSE(time_check(Growth::linear, first, 1024)->holds());
  pool(first, again);
  EXPECT_NEAR(time_check(Growth::linear, first, 1024)->measured, 1, 1e-9);
  // quadratic twice, with noise
  Curve slow = curve_of([](double t) { return 1e-9 * t * t; }, kilobytes);
  Curve noisy = slow;
  for (Point& p : noisy.points) p.seconds *= 1.5;
  noisy.points.back().seconds /= 1.6;
  pool(slow, noisy);
  EXPECT_FALSE(time_check(Growth::linear, slow, 1024)->holds());
}

TEST(Cost, JsonHoldsWhatItWasMadeOf) {
  CostRun run = run_of("attention",
                       {curve_of(linear, kilobytes), curve_of(linear, kilobytes, Pass::backward)});
  run.costs[0].curves[1].left_out = "16384 tokens and more";
  run.costs[0].step = Step{1024, 16384, 1e-4, 3e-4, false};
  const Json json = to_json(run);
  EXPECT_EQ(json["holds"], true);
  EXPECT_EQ(json["rows"][0]["claim"]["time"], "T^2");
  EXPECT_EQ(json["rows"][0]["passes"][1]["left_out"], "16384 tokens and more");
  EXPECT_EQ(json["rows"][0]["checks"].size(), 4u);
  EXPECT_EQ(to_json(cost_run_from_json(json, "here")), json);
}

TEST(Cost, JsonThatIsNoRunIsRefused) {
  const auto message = [](const Json& json) {
    return test::error_of(ErrorKind::file, [&] { cost_run_from_json(json, "run.json"); });
  };
  EXPECT_THAT(message(Json::array()), HasSubstr("run.json"));
  Json json = to_json(run_of("attention", {curve_of(linear, kilobytes)}));
  json["rows"][0]["mechanism"] = "atention";
  EXPECT_THAT(message(json), HasSubstr("did you mean \"attention\"?"));
  json["rows"][0]["mechanism"] = "attention";
  Json& point = json["rows"][0]["passes"][0]["points"][2];
  for (const double seconds : {0.0, 1e-320, 1e306}) {
    point["seconds"] = seconds;
    EXPECT_THAT(message(json), HasSubstr("expected 1e-12 to 1000000000000"));
  }
  point["seconds"] = 1;
  for (const Json& length : {Json(0.5), Json(-1), Json(1e300), Json(1ull << 63)}) {
    point["length"] = length;
    EXPECT_THAT(message(json), HasSubstr("expected a count up to 9223372036854775807"));
  }
  point["length"] = 0;
  EXPECT_THAT(message(json), HasSubstr("length = 0; expected 1 or more"));
}

TEST(Cost, ReportsShowTheFailure) {
  CostRun run =
      run_of("pattern/window", {curve_of([](double t) { return 1e-9 * t * t; }, kilobytes)});
  run.costs[0].curves[0].left_out = "32768 tokens and more would take about 9.9 s a call";
  for (const std::string& text : {cost_text(run), cost_markdown(run, {{"a.svg", "plot"}})}) {
    EXPECT_THAT(text, HasSubstr("NO: time"));
    EXPECT_THAT(text, HasSubstr("[pattern/window] forward time grows as T^2.00"));
    EXPECT_THAT(text, HasSubstr("32768 tokens and more"));
  }
  EXPECT_THAT(cost_markdown(run, {{"a.svg", "plot"}}), HasSubstr("![plot](a.svg)"));
  EXPECT_THAT(cost_markdown(run, {}),
              HasSubstr("| `window` | T; T | forward | 16384 | 268 | T^2.00 | 16.0 | "
                        "T^1.00 | - | NO: time |"));
  EXPECT_THAT(cost_csv(run), HasSubstr("\npattern,window,forward,16384,0.268435,16777216\n"));
  EXPECT_THAT(cost_svg(run, Pass::forward), HasSubstr("patterns that claim T<"));
  EXPECT_THAT(cost_svg(run, Pass::backward), Not(HasSubstr("patterns that claim")));
}

// --- the layers that are measured ---------------------------------------------------------------

std::string title(const spec::Mechanism& m) {
  return std::string(spec::name_of(m.slot)) + "/" + m.name;
}

TEST(CostCases, EveryMechanismGivesAnExample) {
  int64_t mixers = 0;
  for (const spec::Mechanism* mechanism : cost_mechanisms())
    for (const int64_t width : {32, 128, 256})
      for (const int64_t length : {16, 1024, 16384}) {
        SCOPED_TRACE(fmt::format("{} at width {}, {} tokens", title(*mechanism), width, length));
        CostLayer layer;
        EXPECT_NO_THROW(layer = cost_layer(*mechanism, width, length))
            << "give its config static Json example(const Scope&, int64_t length)";
        if (!layer.mixer) continue;
        bool holds_it = layer.position && layer.position.mechanism == mechanism;
        spec::for_each_part(layer.mixer, [&](const spec::AnyPart& part) {
          holds_it = holds_it || part.mechanism == mechanism;
        });
        EXPECT_TRUE(holds_it);
        EXPECT_EQ(layer.position.mechanism != nullptr,
                  mechanism->info.place == spec::Place::embedding);
        mixers += mechanism->slot == spec::Slot::mixer ? 1 : 0;
      }
  EXPECT_GE(mixers, 9 * 39);
}

TEST(CostCases, ClaimsAreThoseOfAllParts) {
  const auto claim = [](const std::string& name) {
    const Claim c = cost_layer(*cost_mechanisms({name}).front(), 128, 4096).claim();
    return std::string(name_of(c.time)) + "; " + name_of(c.memory);
  };
  EXPECT_EQ(claim("attention"), "T^2; T");
  EXPECT_EQ(claim("pattern/window"), "T; T");
  EXPECT_EQ(claim("pattern/strided"), "T^1.5; T");
  EXPECT_EQ(claim("position/t5"), "T^2; T");
  EXPECT_EQ(claim("position/sinusoidal"), "T^2; T");
  EXPECT_EQ(claim("linformer"), "T; T");
  EXPECT_EQ(claim("fourier"), "T log T; T");
  EXPECT_EQ(claim("gmlp"), "T^2; T^2");
  EXPECT_EQ(claim("mamba2"), "T; T");
}

TEST(CostCases, StateIsThatOfAllParts) {
  const auto has_state = [](const std::string& name) {
    return cost_layer(*cost_mechanisms({name}).front(), 128, 4096).has_state();
  };
  for (const char* name :
       {"attention", "pattern/window", "position/sinusoidal", "position/convolutional", "mamba2"})
    EXPECT_TRUE(has_state(name)) << name;
  for (const char* name : {"fourier", "lsh_attention"}) EXPECT_FALSE(has_state(name)) << name;
}

TEST(CostCases, NamesSelect) {
  const auto titles = [](const std::vector<std::string>& only) {
    std::vector<std::string> out;
    for (const spec::Mechanism* m : cost_mechanisms(only)) out.push_back(title(*m));
    return out;
  };
  EXPECT_THAT(titles({"mixer/mamba2", "window"}), ElementsAre("pattern/window", "mixer/mamba2"));
  EXPECT_THROW(titles({"pattern/mamba2"}), Error);
  EXPECT_THROW(titles({"rms_norm"}), Error);
}

}  // namespace
}  // namespace tessera::analysis::cost_test
