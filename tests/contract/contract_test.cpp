// The contract suite: every registered mechanism of every slot against every check. See cases.h for
// how a mechanism joins (by being registered) and exceptions.h for what is excused.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <set>
#include <span>
#include <sstream>
#include <vector>

#include "device_checks.h"
#include "fake_device/tested_device.h"
#include "tessera/analysis/contract/exceptions.h"
#include "tessera/analysis/contract/order_watch.h"
#include "tessera/analysis/contract/suite.h"
#include "tessera/model/computing_parts.h"
#include "tessera/nn/forgetful_rows.h"
#include "tessera/ops/basic/ordered_sum.h"

namespace tessera::contract::contract_test {
namespace {

/// The checks of the library, and those that need the test device.
const std::vector<Check>& all_checks() {
  static const std::vector<Check> list = [] {
    const std::span<const Check> own = checks();
    std::vector<Check> out(own.begin(), own.end());
    out.push_back({"device", "results on another device are those of the CPU", check_device});
    out.push_back(
        {"recorded", "recorded steps on a device give the results of others", check_recorded});
    return out;
  }();
  return list;
}

struct Item {
  const Case* part;
  const Check* check;
};

std::string name_of(const Item& item) {
  return item.part->name + "__" + item.check->name;
}

/// What a failing test says of its parameter.
void PrintTo(const Item& item, std::ostream* out) {
  *out << item.part->name << " against \"" << item.check->name
       << "\"; alone: contract_test --gtest_filter='*/" << name_of(item) << "'";
}

std::vector<Item> items() {
  std::vector<Item> all;
  for (const Case& c : cases())
    for (const Check& check : all_checks()) all.push_back({&c, &check});
  return all;
}

// a backend has to be there before the first backward pass
class WithTestDevice final : public testing::Environment {
  void SetUp() override {
    if (!test::is_test_device()) return;
    fake_device::Options options;
    options.survey = true;
    fake_device::install(options);
  }
};
[[maybe_unused]] const auto* const kTestDevice =
    testing::AddGlobalTestEnvironment(new WithTestDevice);

class Contract : public testing::TestWithParam<Item> {};

TEST_P(Contract, Holds) {
  const auto& [part, check] = GetParam();
  ASSERT_EQ(part->problem, "");
  const Result result = run_check(*part, *check);
  if (result.exception != nullptr) {
    EXPECT_FALSE(result.holds) << "the exception is not needed any more; it says: "
                               << result.exception;
  } else {
    EXPECT_TRUE(result.holds) << result.failures;
  }
}

INSTANTIATE_TEST_SUITE_P(Every, Contract, testing::ValuesIn(items()), [](const auto& info) {
  return name_of(info.param);
});

// --- the suite itself
// -----------------------------------------------------------------------------

TEST(ContractSuite, EveryMechanismHasACase) {
  for (const spec::Mechanism& mechanism : spec::mechanisms())
    EXPECT_TRUE(std::any_of(cases().begin(), cases().end(), [&](const Case& c) {
      return c.mechanism == &mechanism;
    })) << mechanism.name;
  for (int slot = 0; slot < spec::kSlotCount; ++slot)
    EXPECT_TRUE(std::any_of(cases().begin(), cases().end(), [&](const Case& c) {
      return c.mechanism != nullptr && c.mechanism->slot == static_cast<Slot>(slot);
    })) << spec::name_of(static_cast<Slot>(slot));
}

TEST(ContractSuite, EveryRecordedStepIsThatOfACase) {
  std::set<std::string> shown;
  for (const Case& c : cases()) {
    if (!c.problem.empty() || c.decoder.is_null()) continue;
    const model::ModelSpec spec = model::read_model_spec(c.decoder);
    if (!spec.not_recorded_reason().empty()) continue;
    model::for_each_computing_part(spec, [&](const spec::AnyPart& part) {
      shown.insert(fmt::format("{} {}", name_of(part.mechanism->slot), part.type()));
    });
  }
  for (const spec::Mechanism& m : spec::mechanisms())
    if (m.info.forms.recorded)
      EXPECT_TRUE(shown.contains(fmt::format("{} {}", name_of(m.slot), m.name)))
          << name_of(m.slot) << " " << m.name << " declares a recorded step; no case has one";
}

TEST(ContractSuite, NoMechanismDeclaresLessCausalityThanItShows) {
  std::map<const spec::Mechanism*, spec::Causality> worst;
  for (const Case& c : cases()) {
    if (c.mechanism == nullptr || !c.problem.empty()) continue;
    // an encoder among the cases of a mechanism for both shows nothing about decoders
    if (c.encoder_only && c.mechanism->info.causality != spec::Causality::none) continue;
    spec::Causality& shown = worst[c.mechanism];  // bitwise at first
    // the check "causality" holds every case to what its mechanism declares: one that shows it is
    // enough
    if (shown < c.mechanism->info.causality) shown = std::max(shown, shown_causality(c.decoder));
  }
  for (const auto& [mechanism, shown] : worst)
    EXPECT_EQ(shown, mechanism->info.causality)
        << spec::name_of(mechanism->slot) << " " << mechanism->name << " declares "
        << name_of(mechanism->info.causality) << " and shows " << name_of(shown);
}

TEST(ContractSuite, AFailureNamesTheCaseAndHowToRunItAlone) {
  const Item first = items().front();
  EXPECT_EQ(testing::PrintToString(first),
            fmt::format("{0} against \"config\"; alone: contract_test "
                        "--gtest_filter='*/{0}__config'",
                        first.part->name));
}

const Case& case_named(const std::string& name) {
  const auto found =
      std::find_if(cases().begin(), cases().end(), [&](const Case& c) { return c.name == name; });
  require(found != cases().end(), "contract", "no case {}", name);
  return *found;
}

const Check& check_named(const std::string& name) {
  const auto found = std::find_if(all_checks().begin(), all_checks().end(),
                                  [&](const Check& check) { return name == check.name; });
  require(found != all_checks().end(), "contract", "no check {}", name);
  return *found;
}

// a state that nobody writes: entries per token, of fixed size, and several of both
TEST(ContractSuite, ChecksOfStatesSeeOneThatIsLost) {
  for (const char* name : {"mixer_attention", "mixer_mamba2", "mixer_rwkv7"})
    for (const char* check : {"state", "session", "same_bits"}) {
      const nn::ForgetfulRows lost;
      EXPECT_FALSE(run_check(case_named(name), check_named(check)).holds)
          << name << " passes " << check;
    }
}

TEST(ContractSuite, OperationsThatDependOnThreadsAreSeen) {
  const Threads two(2);
  const Tensor x = at::ones({23, 8}).requires_grad_(true), w = at::ones({8}).requires_grad_(true);
  const auto found = [&](const std::function<void()>& act) {
    OrderWatch watch(23);
    act();
    return fmt::format("{}", fmt::join(watch.found(), "; "));
  };
  EXPECT_EQ(found([&] { x.sum(); }), "sum of [23, 8] over []");
  EXPECT_EQ(found([&] { x.sum(-1); }), "");
  EXPECT_EQ(found([&] { x.sum(0); }), "sum of [23, 8] over [0]");
  EXPECT_EQ(found([&] { x.t().sum(0); }), "");
  EXPECT_EQ(found([&] { at::ones({4}).sum(); }), "");
  EXPECT_EQ(found([&] {
              (x * w).backward(at::ones({23, 8}));
            }),
            "sum of [23, 8] over [0] in MulBackward0");
  EXPECT_EQ(found([&] { (x * ops::spread(w, x)).backward(at::ones({23, 8})); }), "");
}

TEST(ContractSuite, CausalityIsSeenByItsValues) {
  // an encoder reads its future: the experiment must find that out
  Json encoder = host(*spec::find_mechanism(Slot::norm, "rms_norm"), "rms_norm", "encoder");
  EXPECT_EQ(shown_causality(encoder), spec::Causality::none);
  encoder["arch"] = "decoder";
  EXPECT_EQ(shown_causality(encoder), spec::Causality::bitwise);
}

TEST(ContractSuite, ExceptionsAreThoseOfTheGoldenFile) {
  std::string text =
      "# part, check, reason: where a part does not hold to the contract "
      "(src/tessera/analysis/contract/exceptions.h)\n";
  for (const ExceptionEntry& entry : exceptions()) {
    text += fmt::format("{}\t{}\t{}\n", entry.name, entry.check, entry.reason);
    EXPECT_TRUE(std::any_of(cases().begin(), cases().end(),
                            [&](const Case& c) { return c.name == entry.name; }))
        << entry.name << " is no case";
    EXPECT_TRUE(std::any_of(all_checks().begin(), all_checks().end(), [&](const Check& c) {
      return std::string(c.name) == entry.check;
    })) << entry.check;
  }
  std::ifstream file(std::string(TESSERA_SOURCE_DIR) + "/tests/exceptions.golden");
  std::stringstream golden;
  golden << file.rdbuf();
  EXPECT_EQ(golden.str(), text);
}

}  // namespace
}  // namespace tessera::contract::contract_test
