// Parity of families on another device: one case of each, decoders, encoders, encoder-decoders and
// classifiers.
#include <map>

#include "fake_device/tested_device.h"
#include "model/family_parity.h"

namespace tessera::family_device_test {
namespace {

using family_parity::Case;

/// The case "base" of each family, else its first; and every head that is no language model's.
std::vector<Case> one_of_each() {
  std::map<std::string, Case> of;
  for (const Case& c : family_parity::all_cases())
    if (const auto [known, first] = of.emplace(c.family, c);
        !first && c.name == "base" && std::filesystem::is_directory(c.file))
      known->second = c;
  std::vector<Case> out;
  for (const auto& [family, c] : of) out.push_back(c);
  for (const Case& c : family_parity::all_cases())
    if (c.name == "classifier" || c.name == "token_classifier" || c.name == "questions")
      out.push_back(c);
  return out;
}

class FamilyOnDevice : public ::testing::TestWithParam<Case> {};

TEST_P(FamilyOnDevice, LogitsAndGreedyText) {
  const at::Device device = test::tested_device();
  fake_device::reset_counts();
  family_parity::expect_parity(GetParam(), device);
  if (test::is_test_device()) {
    EXPECT_GT(fake_device::counts().operators, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Goldens,
                         FamilyOnDevice,
                         ::testing::ValuesIn(one_of_each()),
                         [](const auto& info) { return info.param.title(); });

}  // namespace
}  // namespace tessera::family_device_test
