// The contract suite: every registered mechanism of every slot against every check. See cases.h for
// how a mechanism joins (by being registered) and exceptions.h for what is excused.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <sstream>

#include "checks.h"
#include "exceptions.h"

namespace tessera::contract::contract_test {
namespace {

struct Check {
  const char* name;
  void (*run)(const Case&, Report&);
};

constexpr Check kChecks[] = {
    {"config", check_config},
    {"parameters", check_parameters},
    {"initial", check_initial},
    {"refusals", check_refusals},
    {"types", check_types},
    {"unwritten", check_unwritten},
    {"fast_path", check_fast_path},
    {"gradients", check_gradients},
    {"causality", check_causality},
    {"documents", check_documents},
    {"forms", check_forms},
    {"same_bits", check_same_bits},
    {"state", check_state},
    {"roll_back", check_roll_back},
    {"generate", check_generate},
    {"prefix_cache", check_prefix_cache},
    {"speculation", check_speculation},
    {"beams", check_beams},
    {"session", check_session},
};

struct Item {
  const Case* part;
  const Check* check;
};

std::vector<Item> items() {
  std::vector<Item> all;
  for (const Case& c : cases())
    for (const Check& check : kChecks) all.push_back({&c, &check});
  return all;
}

class Contract : public testing::TestWithParam<Item> {};

TEST_P(Contract, Holds) {
  const auto& [part, check] = GetParam();
  ASSERT_EQ(part->problem, "");
  Report report;
  try {
    check->run(*part, report);
  } catch (const std::exception& e) {
    report.expect(false, "{}", e.what());
  }
  if (const ExceptionEntry* exception = find_exception(part->name, check->name)) {
    EXPECT_FALSE(report.ok()) << "the exception is not needed any more; it says: "
                              << exception->reason;
  } else {
    EXPECT_TRUE(report.ok()) << report.text();
  }
}

std::string name_of_item(const testing::TestParamInfo<Item>& info) {
  return info.param.part->name + "__" + info.param.check->name;
}

INSTANTIATE_TEST_SUITE_P(Every, Contract, testing::ValuesIn(items()), name_of_item);

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

TEST(ContractSuite, NoMechanismDeclaresLessCausalityThanItShows) {
  std::map<const spec::Mechanism*, spec::Causality> worst;
  for (const Case& c : cases()) {
    if (c.mechanism == nullptr || !c.problem.empty()) continue;
    // an encoder among the cases of a mechanism for both shows nothing about decoders
    if (c.encoder_only && c.mechanism->info.causality != spec::Causality::none) continue;
    spec::Causality& shown = worst[c.mechanism];  // bitwise at first
    shown = std::max(shown, shown_causality(c.decoder));
  }
  for (const auto& [mechanism, shown] : worst)
    EXPECT_EQ(shown, mechanism->info.causality)
        << spec::name_of(mechanism->slot) << " " << mechanism->name << " declares "
        << name_of(mechanism->info.causality) << " and shows " << name_of(shown);
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
      "(tests/contract/exceptions.h)\n";
  for (const ExceptionEntry& entry : exceptions()) {
    text += fmt::format("{}\t{}\t{}\n", entry.name, entry.check, entry.reason);
    EXPECT_TRUE(std::any_of(cases().begin(), cases().end(),
                            [&](const Case& c) { return c.name == entry.name; }))
        << entry.name << " is no case";
    EXPECT_TRUE(std::any_of(std::begin(kChecks), std::end(kChecks), [&](const Check& c) {
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
