// Widths of released models by their rule. Expected values are those of their configs.
#include "tessera/spec/width_rule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/testing.h"

namespace tessera::spec::width_rule_test {
namespace {

TEST(WidthRule, GivesTheWidthsOfReleasedModels) {
  struct Known {
    const char* rule;
    int64_t d, width;
  };
  const Known all[] = {
      {"8/3, multiple of 256", 4096, 11008},          // Llama 1 and 2, 7B
      {"8/3, multiple of 256", 5120, 13824},          // 13B
      {"8/3, multiple of 256", 6656, 17920},          // 30B
      {"8/3, multiple of 256", 8192, 22016},          // 65B
      {"1.3 * 8/3, multiple of 4096", 8192, 28672},   // Llama 2 and 3, 70B
      {"1.3 * 8/3, multiple of 1024", 4096, 14336},   // Llama 3, 8B
      {"1.2*8/3 , multiple of 4096", 16384, 53248},   // Llama 3.1, 405B
      {" 1.5 * 8/3, multiple of 256 ", 2048, 8192},   // Llama 3.2, 1B
      {"1.0 * 8/3, multiple of 256", 3072, 8192},     // 3B
      {"8/3, multiple of 64", 4096, 10944},           // xLSTM 7B: 2.667 d in whole 64s
      {"4", 768, 3072},
      {"8/3", 100, 266},
      {"0.5", 7, 3},
  };
  for (const Known& known : all)
    EXPECT_EQ(width_by_rule(known.rule, known.d, Scope()), known.width)
        << known.rule << " of " << known.d;
}

TEST(WidthRule, OtherTextIsRefusedInOneLine) {
  for (const char* rule :
       {"", "8/", "/3", "8/3/2", "8/0", "-2", "8/3,", "8/3, multiple", "8/3, multiple of 0",
        "8/3, multiple of x", "2 *", "* 2", "nan", "inf", "1e400", "0x8", "8 3", "+8/3"})
    EXPECT_THAT(test::error_of([&] { width_by_rule(rule, 64, Scope().at("ffn.d_hidden")); }),
                testing::HasSubstr("ffn.d_hidden"))
        << rule;
  EXPECT_THAT(test::error_of([] { width_by_rule("1/3", 2, Scope().at("w")); }),
              testing::HasSubstr("\"1/3\" of d_model = 2 is 0; expected 1 to"));
  EXPECT_THAT(test::error_of([] { width_by_rule("1000000000", 16, Scope().at("w")); }),
              testing::HasSubstr("expected 1 to"));
}

}  // namespace
}  // namespace tessera::spec::width_rule_test
