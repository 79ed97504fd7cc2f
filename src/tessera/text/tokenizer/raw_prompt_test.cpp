#include "tessera/text/tokenizer/raw_prompt.h"

#include <gtest/gtest.h>

#include "tessera/text/tokenizer_files/tokenizer_json.h"
#include "tessera/text/tokenizer_files/tokenizer_json_parts.h"

namespace tessera::text {
namespace {

using PromptIds = std::vector<int32_t>;

/// <, s, >, a are 0 to 3, <s> is 4; with `bos` it stands in front of every text.
Tokenizer prompt_tokenizer(bool bos) {
  spec::Json file = empty_tokenizer_json(spec::Json::array({added_token_json(4, "<s>", true)}));
  file["model"] = bpe_json({{"<", 0}, {"s", 1}, {">", 2}, {"a", 3}}, spec::Json::array());
  if (bos) {
    const spec::Json start = {{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}},
                     rest = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
    file["post_processor"] = {{"type", "TemplateProcessing"},
                              {"single", spec::Json::array({start, rest})}};
    file["post_processor"]["special_tokens"]["<s>"] = {
        {"id", "<s>"}, {"ids", spec::Json::array({4})}, {"tokens", spec::Json::array({"<s>"})}};
  }
  return tokenizer_from_json(file.dump(), "test", {R"({"bos_token": "<s>"})"});
}

TEST(RawPrompt, SpellsSpecialTokensUnlessToldOtherwise) {
  const Tokenizer tokenizer = prompt_tokenizer(false);
  EXPECT_EQ(encode_raw_prompt(tokenizer, "a<s>a").ids, (PromptIds{3, 4, 3}));
  EXPECT_EQ(encode_raw_prompt(tokenizer, "a<s>a", {.parse_special = false}).ids,
            (PromptIds{3, 0, 1, 2, 3}));
}

TEST(RawPrompt, WarnsOfABeginOfTextThatIsThereTwice) {
  const Tokenizer puts = prompt_tokenizer(true), plain = prompt_tokenizer(false);
  const RawPrompt twice = encode_raw_prompt(puts, "<s>a");
  EXPECT_EQ(twice.ids, (PromptIds{4, 4, 3}));
  EXPECT_EQ(twice.warning,
            "the prompt begins with <s>, which the tokenizer adds as well, so that the model reads "
            "it twice; leave it out of the text");
  // once, as text, without the tokenizer's, or by the writer's own hand
  for (const RawPrompt& one :
       {encode_raw_prompt(puts, "a<s>"), encode_raw_prompt(puts, "a"),
        encode_raw_prompt(puts, "<s>a", {.parse_special = false}),
        encode_raw_prompt(puts, "<s>a", {.add_special = false, .parse_special = true}),
        encode_raw_prompt(plain, "<s>a"), encode_raw_prompt(plain, "<s><s>a")})
    EXPECT_EQ(one.warning, "");
}

}  // namespace
}  // namespace tessera::text
