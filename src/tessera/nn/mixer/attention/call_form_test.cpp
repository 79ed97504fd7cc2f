// Which form attention takes over the tokens of a call.
#include "tessera/nn/mixer/attention/call_form.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace tessera::nn::call_form_test {
namespace {

constexpr uint32_t kAll = (brings::packs << 1) - 1;

TEST(CallForm, EveryRowIsTakenAndTheLastServesAll) {
  EXPECT_EQ(call_table().back().needs, 0u);
  std::set<CallForm> taken;
  std::set<std::string> names;
  for (uint32_t brought = 0; brought <= kAll; ++brought) {
    taken.insert(call_form(brought));
    names.insert(name_of(call_form(brought)));
  }
  for (const CallRow& row : call_table())
    EXPECT_TRUE(taken.contains(row.form)) << name_of(row.form);
  EXPECT_EQ(names.size(), call_table().size());
}

TEST(CallForm, Precedence) {
  using namespace brings;
  const std::pair<uint32_t, CallForm> cases[] = {
      {0, CallForm::apart},
      {packs, CallForm::packed},
      {equal | packs, CallForm::together},
      {order | equal | packs, CallForm::ordered},
      {ranks | packs, CallForm::ring},
      {ranks | equal | packs, CallForm::ring_together},
      {past_of_layer | equal | packs, CallForm::after_layer},
      {past | equal | packs, CallForm::after_past},
      // a state does not change what evicting keys needs, nor do ranks
      {evicts | past | ranks | equal, CallForm::heavy},
  };
  for (const auto& [brought, form] : cases)
    EXPECT_STREQ(name_of(call_form(brought)), name_of(form)) << brought;
}

}  // namespace
}  // namespace tessera::nn::call_form_test
