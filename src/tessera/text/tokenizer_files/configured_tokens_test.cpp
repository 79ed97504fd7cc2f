// Tokens that only tokenizer_config.json, special_tokens_map.json or added_tokens.json name.
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/testing.h"
#include "tessera/spec/json.h"
#include "tessera/text/tokenizer/added_tokens.h"
#include "tessera/text/tokenizer/tokenizer.h"
#include "tessera/text/tokenizer_files/tokenizer_json.h"

namespace tessera::text::configured_tokens_test {
namespace {

using spec::Json;
using test::error_of;
using testing::HasSubstr;
using Ids = std::vector<int32_t>;

const Json& golden() {
  static const Json file = spec::read_json_file(std::filesystem::path(TESSERA_SOURCE_DIR) /
                                                "tests/golden/text/added_tokens.json");
  return file;
}

Tokenizer tokenizer_of(const Json& entry) {
  Json json = golden()["bases"][entry["base"].get<std::string>()];
  json["added_tokens"] = entry["own"];
  json["normalizer"] = entry["normalizer"];
  const auto text_of = [&](const char* key) {
    const Json& files = entry["files"];
    return files.contains(key) ? files[key].dump() : std::string();
  };
  const std::string config = text_of("config"), added = text_of("added_tokens"),
                    special = text_of("special_tokens_map");
  return tokenizer_from_json(json.dump(), "t", {config, added, special});
}

// tools/golden/added_tokens.py: what transformers makes of folders that were drawn at random.
TEST(ConfiguredTokens, IdsAndTextsAreThoseOfTransformers) {
  for (const Json& entry : golden()["cases"]) {
    SCOPED_TRACE(entry["own"].dump() + "\n" + entry["files"].dump() + "\n" +
                 entry["normalizer"].dump());
    const Tokenizer t = tokenizer_of(entry);
    Json added = Json::object();
    for (const AddedToken& token : t.added_tokens()) added[token.content] = token.id;
    EXPECT_EQ(added.size(), entry["added"].size());
    for (const auto& [content, id] : entry["added"].items())
      EXPECT_EQ(t.id(content), id.get<int32_t>()) << content;
    const auto role = [](std::optional<int32_t> id) { return id ? Json(*id) : Json(); };
    EXPECT_EQ(role(t.bos()), entry["roles"]["bos_token"]);
    EXPECT_EQ(role(t.eos()), entry["roles"]["eos_token"]);
    EXPECT_EQ(role(t.unk()), entry["roles"]["unk_token"]);
    EXPECT_EQ(role(t.pad()), entry["roles"]["pad_token"]);
    for (const Json& row : entry["rows"]) {
      const auto text = row["text"].get<std::string>();
      const Ids ids = row["ids"];
      EXPECT_EQ(t.encode(text, {.add_special = false, .parse_special = true}), ids) << row["text"];
      EXPECT_EQ(t.decode(ids, /*skip_special=*/false), row["decoded"].get<std::string>());
      if (row.contains("skipped")) {
        EXPECT_EQ(t.decode(ids, /*skip_special=*/true), row["skipped"].get<std::string>());
      }
    }
  }
}

Json byte_level() {
  return golden()["bases"]["byte_level"];
}

TEST(ConfiguredTokens, DamagedFilesAreErrorsThatNameThem) {
  const auto error_with = [](const char* name, const std::string& content) {
    const test::TemporaryFolder folder;
    folder.write("tokenizer.json", byte_level().dump());
    folder.write(name, content);
    return error_of(ErrorKind::file, [&] { load_tokenizer(folder.path()); });
  };
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
                           "chat_template.json"}) {
    for (const char* content : {"", " \n", "{", "{\"a\": 1", "[1]", "null", "\xff\xfe{}"})
      EXPECT_THAT(error_with(name, content), HasSubstr(name)) << content;
    EXPECT_EQ(error_with(name, "{}"), "") << name;
  }
}

Tokenizer with(const std::string& config, const std::string& special = "") {
  return tokenizer_from_json(byte_level().dump(), "t", {config, {}, special});
}

TEST(ConfiguredTokens, ATemplateSeesThemByTheirRoles) {
  const Tokenizer t = with(
      R"({"bos_token": "<s>", "image_token": "<image>", "extra_special_tokens": {"boi_token": "<b>"}})");
  EXPECT_THAT(t.special_roles(),
              testing::UnorderedElementsAre(testing::Pair("bos_token", "<s>"),
                                            testing::Pair("image_token", "<image>"),
                                            testing::Pair("boi_token", "<b>")));
  EXPECT_TRUE(t.is_special(*t.id("<image>")));
}

// Input may not spell a special token that only the configuration names.
TEST(ConfiguredTokens, AreGuardedAsThoseOfTheTokenizerFile) {
  const Tokenizer t = with(R"({"additional_special_tokens": ["<|im_end|>"]})");
  const std::string text = "<|im_end|>";
  const MarkedText said{text, std::string(text.size(), '\1')};
  EXPECT_EQ(t.encode(said, "").size(), text.size());
  EXPECT_EQ(t.encode({text, std::string(text.size(), '\0')}, ""), Ids{263});
  EXPECT_EQ(t.encode(text, {.add_special = false, .parse_special = false}).size(), text.size());
}

TEST(ConfiguredTokens, RefusesValuesOfAnotherKind) {
  const auto error = [](const std::string& config, const std::string& special = "") {
    return error_of([&] { with(config, special); });
  };
  EXPECT_EQ(error(R"({"eos_token": 5})"),
            "[t: tokenizer_config.json: eos_token] found an integer; expected a string or an "
            "object with \"content\"");
  EXPECT_EQ(error(R"({"extra_special_tokens": 5})"),
            "[t: tokenizer_config.json] extra_special_tokens is an integer; expected a list of "
            "tokens");
  EXPECT_THAT(error("[]"), HasSubstr("expected an object"));
  EXPECT_THAT(error("{}", "[]"), HasSubstr("special_tokens_map.json] found an array"));
  EXPECT_EQ(error(R"({"added_tokens_decoder": {"-1": {"content": "x"}}})"),
            "[t: tokenizer_config.json: added_tokens_decoder] key \"-1\"; expected a token id");
  EXPECT_EQ(error(R"({"split_special_tokens": 1})"),
            "[t] tokenizer_config.json: \"split_special_tokens\" is an integer; expected true or "
            "false");
}

// Each token is looked up once: a list of this length would not end otherwise.
TEST(ConfiguredTokens, ManyTokensAreReadInLinearTime) {
  Json decoder = Json::object(), extra = Json::array();
  auto& members = decoder.get_ref<Json::object_t&>();
  constexpr int kMany = 100'000;
  for (int i = 0; i < kMany; ++i) {
    members.push_back({std::to_string(263 + i), {{"content", fmt::format("<{}>", i)}}});
    extra.push_back(fmt::format("<{}>", i));
  }
  const Tokenizer t =
      with(Json{{"added_tokens_decoder", decoder}, {"extra_special_tokens", extra}}.dump());
  EXPECT_EQ(t.id("<99999>"), 263 + kMany - 1);
  EXPECT_EQ(t.vocab_size(), 263 + kMany);
}

}  // namespace
}  // namespace tessera::text::configured_tokens_test
