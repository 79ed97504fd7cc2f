// What the files of families that build on others say.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "tessera/base/error.h"
#include "tessera/base/mapped_file.h"
#include "tessera/convert/family.h"
#include "tessera/convert/propose.h"
#include "tessera/convert/quill_testing.h"

namespace tessera::convert::families_on_others_test {
namespace {

using namespace test_quill;
using testing::AllOf;
using testing::HasSubstr;

// a file without an output matrix is of a language model by its class alone
TEST(FamiliesOnOthers, AClassThatReadsAsAnotherModelIsNotKept) {
  const TemporaryFolder scratch;
  std::vector<TensorView> tensors = llama_tensors();
  std::erase_if(tensors, [](const TensorView& tensor) { return tensor.name == "lm_head.weight"; });
  const fs::path folder = write_quill(scratch, tensors);
  Json config = spec::read_json_file(folder / "config.json");
  config["architectures"] = Json::array({"QuillModel"});
  scratch.write("quill/config.json", config.dump(1));
  scratch.write(
      "families/quill.json",
      R"({"family": "quill", "base": "llama", "dialects": {"hf": {"types": ["quill"]}}})");
  const Checkpoint found = load_checkpoint(folder, {.families = scratch / "families"});
  HfOptions options;
  options.families = scratch / "families";
  const auto class_of = [&](const char* name) {
    Checkpoint one = found;
    one.foreign_config["architectures"] = Json::array({name});
    write_hf_folder(one, scratch / "written", options);
    return spec::read_json_file(scratch / "written/config.json").at("architectures").at(0);
  };
  EXPECT_EQ(class_of("QuillModel"), "QuillModel");
  EXPECT_EQ(class_of("QuillForCausalLM"), "LlamaModel");
}

TEST(FamiliesOnOthers, ReplaceAndDropEntriesOfTheBase) {
  const TemporaryFolder scratch;
  const fs::path folder = write_quill(scratch, llama_tensors());
  LoadOptions options;
  options.families = scratch / "families";
  const std::string quill = R"({
    "family": "quill", "base": "llama", "drop": ["dialects.hf.expect", "tensors.head.bias"],
    "unsure": ["whether it is a llama"],
    "dialects": {"hf": {"types": ["quill"], "read": {"theta": 500}, "ignored_keys": {"colour_*": "of the page"}}}
  })";
  scratch.write("families/quill.json", quill);
  std::string config = read_text_file(folder / "config.json");
  config = replaced(config, "\"hidden_act\"",
                    "\"colour_of_ink\": 3, \"rope_interleaved\": true, \"hidden_act\"");
  scratch.write("quill/config.json", config);
  // a key that the base expects to be false is now known to others alone, until the file has it
  test::expect_error(ErrorKind::file, "\"rope_interleaved\" = true is not known to family quill",
                     [&] { load_checkpoint(folder, options); });
  scratch.write("families/quill.json",
                replaced(quill, "\"colour_*\"",
                         "\"rope_interleaved\": \"its class reads it nowhere\", \"colour_*\""));
  const Checkpoint found = load_checkpoint(folder, options);
  EXPECT_EQ(found.family, "quill");
  EXPECT_THAT(found.remarks, testing::Contains(HasSubstr("unsure: whether it is a llama")));
  EXPECT_THAT(found.remarks, testing::Not(testing::Contains(HasSubstr("colour_of_ink"))));
  EXPECT_EQ(
      found.spec_json.at("layers")[0].at("branches")[0].at("mixer").at("position").at("theta"),
      500);
  // in GGUF it is written for readers of the base
  FamilySet set = FamilySet::load(options.families);
  EXPECT_EQ(set.named("quill").dialect("gguf").types, std::vector<std::string>{"llama"});
  EXPECT_EQ(set.of_type("gguf", "llama", Json::object(), "test").name, "llama");
}

TEST(FamiliesOnOthers, MistakesAreNamedWithTheirLines) {
  const auto error_of = [](const std::string& text) {
    const TemporaryFolder scratch;
    scratch.write("families/x.json", text);
    return test::error_of([&] { FamilySet::load(scratch / "families").named("x"); });
  };
  EXPECT_THAT(error_of("{\"family\": \"x\",\n \"base\": \"lama\"}"),
              AllOf(HasSubstr("x.json:2: x.base"), HasSubstr("\"llama\"")));
  EXPECT_THAT(
      error_of(
          "{\"family\": \"x\", \"base\": \"llama\",\n // a comment\n \"dialects\": {\"hf\": {\n"
          "  \"read\": {\"n_headz\": 3}}}}"),
      AllOf(HasSubstr("x.json:4: x.hf.read.n_headz"), HasSubstr("no expression"),
            HasSubstr("n_heads")));
  EXPECT_THAT(
      error_of("{\"family\": \"x\", \"base\": \"llama\",\n\"drop\": [\"dialects.hf.frobnicate\"]}"),
      AllOf(HasSubstr("x.json:2"), HasSubstr("is not in the base")));
  EXPECT_THAT(error_of("{\"family\": \"x\", \"base\": \"llama\",\n\"dialects\": {\"hf\": "
                       "{\"names\":\n{\"a.*\": \"b\"}}}}"),
              AllOf(HasSubstr("x.json:3"), HasSubstr("stars")));
  EXPECT_THAT(error_of("{\"family\": \"x\",\n\n oops}"), HasSubstr("x.json:3"));
  // a function is named without its parameters
  EXPECT_THAT(error_of("{\"family\": \"x\", \"base\": \"llama\",\n\"functions\": {\n\n"
                       "\"twice(a)\": \"=a +\"}}"),
              HasSubstr("x.json:4: x.functions.twice"));
  // the expression of the file, where the base has the name too
  EXPECT_THAT(error_of("{\"family\": \"x\", \"base\": \"llama\", \"drop\": [\"let.position\"],\n"
                       "\"dialects\": {\"hf\": {\"read\": {\n"
                       "\"positions\": \"=[position for i in range(n_layers)]\"}}}}"),
              AllOf(HasSubstr("x.json:3: x.hf.read.positions"),
                    HasSubstr("there is no value \"position\"")));
  EXPECT_THAT(error_of("{\"family\": \"x\", \"base\": \"x\"}"), HasSubstr("base"));
}

// a name that nothing has would be without effect
TEST(FamiliesOnOthers, MisspeltNamesAreErrorsWithTheNearestOne) {
  const auto error_of = [](const std::string& top, const std::string& hf) {
    const TemporaryFolder scratch;
    scratch.write("families/x.json",
                  fmt::format("{{\"family\": \"x\", \"base\": \"llama\"{},\n\"dialects\": "
                              "{{\"hf\": {{\"types\": [\"x\"]\n{}}}}}}}",
                              top, hf));
    return test::error_of([&] { FamilySet::load(scratch / "families").named("x"); });
  };
  struct Case {
    std::string top, hf, place, what;
  };
  const std::vector<Case> cases = {
      {"", R"(, "keys": {"hiden_size": "n_embd"})", "x.json:3: x.hf.keys.hiden_size",
       "reads no such key (did you mean \"hidden_size\"?)"},
      {"", R"(, "keys": {"rope_parameters.rope_thta": "theta", "no_such": null})",
       "x.hf.keys.no_such", "null takes back an entry of the base"},
      {"", R"(, "keys": {"rope_parameters.rope_thta": "theta"})",
       "x.json:3: x.hf.keys.rope_parameters.rope_thta",
       "no family reads a member \"rope_thta\" of \"rope_parameters\" (did you mean "
       "\"rope_theta\"?)"},
      {"", R"(, "read": {"theta": "=config.rope_parameters.rope_thta ?? 10000"})",
       "x.json:3: x.hf.read.theta",
       "(did you mean \"rope_theta\"?); a member that this type alone"},
      {"", R"(, "expect": {"rope_parameters.rope_typ": ["default"]})",
       "x.hf.expect.rope_parameters.rope_typ", "(did you mean \"rope_type\"?)"},
      {"", R"(, "keys": {"hidden_size": "dim", "intermediate_size": "dim"})",
       "x.hf.keys.hidden_size", "\"dim\" of the file is \"intermediate_size\" already"},
      {"", R"(, "keys": {"rms_norm_eps": "eps"}, "read": {"eps": "=config.eps ?? 1e-6"})",
       "x.hf.read.eps", "\"eps\" is \"rms_norm_eps\" here"},
      {"", R"(, "keys": {"attention_bias": "bias"}, "expect": {"bias": [false]})",
       "x.hf.expect.bias", "\"bias\" is \"attention_bias\" here"},
      {"", R"(, "names": {"model.layers.*.self_atn.*": "h.*.attn.*"})",
       "x.json:3: x.hf.names.model.layers.*.self_atn.*",
       "(did you mean \"model.layers.*.self_attn.*\"?)"},
      {"", R"(, "names": {"modle.embed_tokens.weight": "wte.weight"})",
       "x.hf.names.modle.embed_tokens.weight", "(did you mean \"model.embed_tokens.weight\"?)"},
      {"", R"(, "names": {"model.layers.*.mlp.gate_prj.weight": "h.*.gate.weight"})",
       "x.hf.names.model.layers.*.mlp.gate_prj.weight", "model.layers.*.mlp.gate_proj.weight"},
      {"", R"(, "names": {"model.norm.weight": "a", "lm_head.weight": "a"})", "x.hf.names.",
       "\"a\" of the file is"},
      {"", R"(, "expect": {"attention_bia": null})", "x.hf.expect.attention_bia",
       "null takes back an entry of the base, which has none of this name"},
      {"", R"(, "when": "config.num_hiden_layers > 3")", "x.hf.when",
       "no key \"num_hiden_layers\" (did you mean \"num_hidden_layers\"?)"},
      {"", R"(, "read": {"length": "=n_layer + 1"})", "x.hf.read.length",
       "there is no value \"n_layer\" (did you mean \"n_layers\"?)"},
      {"", R"~(, "read": {"length": "=flor(3.5)"})~", "x.hf.read.length",
       "there is no function \"flor\" (did you mean \"floor\"?)"},
      {"", R"(, "inherited": true)", "x.hf", "unknown key \"inherited\""},
      {R"(, "drop": ["tensors.embd.token.weight"])", "", "x.json:1: x.drop[0]",
       "no rule of the base gives a parameter \"embd.token.weight\""},
      {R"(, "values": {"n_headz": 3})", "", "x.values.n_headz", "no expression of the family"},
      {R"(, "tables": {"activationz": {}})", "", "x.tables.activationz", "no expression"},
      {R"~(, "functions": {"twice(a)": "=2 * a"})~", "", "x.functions.twice(a)", "no expression"},
      {R"(, "tensors": [{"ours": "embed.token.weight", "hf": {"name": "e", "steps": [{"split": {"axis": 0, "size": []}}]}}])",
       "", "x.tensors[0].hf.steps[0].split", "unknown key \"size\" (did you mean \"sizes\"?)"},
      {R"(, "tensors": [{"ours": "embed.token.weight", "hf": {"name": "e", "steps": [{"$if": "true", "then": [], "esle": []}]}}])",
       "", "x.tensors[0].hf.steps[0]", "unknown key \"esle\""},
  };
  for (const Case& one : cases)
    EXPECT_THAT(error_of(one.top, one.hf), AllOf(HasSubstr(one.place), HasSubstr(one.what)))
        << one.top << one.hf;
  const TemporaryFolder scratch;
  scratch.write("families/x.json", R"({"family": "x", "base": "llama", "dialects": {"hff": {}}})");
  EXPECT_THAT(test::error_of([&] { FamilySet::load(scratch / "families").named("x"); }),
              AllOf(HasSubstr("x.dialects.hff"), HasSubstr("did you mean \"hf\"")));
  // what fits
  for (
      const char* hf :
      {"", R"(, "keys": {"hidden_size": "n_embd", "rope_theta": "rotary.base"})",
       R"(, "claims": ["rope_parameters.rope_thta"],
            "read": {"theta": "=config.rope_parameters.rope_thta ?? 10000"})",
       R"(, "read": {"theta": "=config.rope_parameters.base_of_ink ?? 10000"})",
       R"(, "names": {"model.*": "net.*", "model.layers.*": "h.*", "lm_head.weight": "out"})",
       R"(, "names": {"model.layers.*.self_attn.*": "h.*.attn.*"}, "when": "config.quill == true")"})
    EXPECT_EQ(error_of("", hf), "") << hf;
}

// no name in the files of the program's own families is without effect
TEST(FamilyKeys, FilesOfTheProgramHaveNoNameThatNothingHas) {
  FamilySet set = FamilySet::load();
  for (const std::string& name : set.names())
    EXPECT_NO_THROW(set.check_names(name)) << test::error_of([&] { set.check_names(name); });
}

TEST(Families, AnUnknownTypeIsAnsweredWithTheNearestNamesAndTheRemedy) {
  FamilySet set = FamilySet::load();
  const auto error_of = [&](const char* kind, const char* type) {
    return test::error_of([&] { set.of_type(kind, type, Json::object(), "config.json"); });
  };
  EXPECT_EQ(error_of("hf", "lama"),
            "[config.json] model type \"lama\" is not known (did you mean \"llama\"?); `tessera "
            "families propose FOLDER --out DIR/NAME.json` drafts its family file for --families "
            "DIR; known types: `tessera list model-types`");
  EXPECT_THAT(error_of("hf", "qwen3_omni"), AllOf(HasSubstr("is not known"), HasSubstr("propose")));
  EXPECT_THAT(error_of("gguf", "lama"), AllOf(HasSubstr("architecture \"lama\" is not known"),
                                              HasSubstr("\"llama\""), HasSubstr("--families DIR")));
}

TEST(FamiliesOnOthers, FloatsWhereIntegersBelongAreNamed) {
  const TemporaryFolder scratch;
  const fs::path folder = write_quill(scratch, llama_tensors());
  LoadOptions options;
  options.families = scratch / "families";
  const auto error_of = [&](const char* read) {
    scratch.write(
        "families/quill.json",
        fmt::format("{{\"family\": \"quill\", \"base\": \"llama\",\n\"dialects\": {{\"hf\": "
                    "{{\"types\": [\"quill\"],\n\"read\": {{{}}}}}}}}}",
                    read));
    return test::error_of([&] { load_checkpoint(folder, options); });
  };
  EXPECT_THAT(error_of(R"("n_heads": "=config.num_attention_heads * 1.0")"),
              AllOf(HasSubstr("quill.json"), HasSubstr("n_heads"), HasSubstr("integer")));
  EXPECT_THAT(error_of(R"("n_layers": "=config.num_hidden_layers / 1.5")"),
              AllOf(HasSubstr("integer")));
  // a failing expression with its line
  EXPECT_THAT(error_of(R"("n_layers": "=config.num_hidden_layers + config.no_such_key")"),
              HasSubstr("quill.json:3: quill.hf.read.n_layers"));
}

// a default of "let" is not what the file was read with
TEST(FamiliesOnOthers, WhatOnlyReadHasIsNotWrittenByItsDefault) {
  const TemporaryFolder scratch;
  const fs::path folder = write_keys(scratch, {}, {{"row_order", "columns"}});
  HfOptions options;
  options.families = scratch / "families";
  const auto written = [&](const char* values) {
    scratch.write(
        "families/quill.json",
        fmt::format(R"({{"family": "quill", "base": "llama", "let": {{"row_order": "rows"}},
"values": {{{}}}, "dialects": {{"hf": {{"types": ["quill"],
"read": {{"row_order": "=config.row_order ?? 'rows'"}}, "write": {{"row_order": "=row_order"}}}}}}}})",
                    values));
    write_hf_folder(load_checkpoint(folder, {.families = options.families}), scratch / "written",
                    options);
    return spec::read_json_file(scratch / "written/config.json").value("row_order", Json());
  };
  EXPECT_THAT(test::error_of([&] { written(""); }),
              AllOf(HasSubstr("quill.json:3: quill.hf.read.row_order"),
                    HasSubstr("expected it from the spec, as \"values\"")));
  EXPECT_EQ(written(R"("row_order": "columns")"), "columns");
}

TEST(FamiliesOnOthers, ABrokenFileStopsNoOther) {
  const TemporaryFolder scratch;
  const fs::path folder = write_quill(scratch, llama_tensors());
  const char* quill =
      R"({"family": "quill", "base": "llama", "dialects": {"hf": {"types": ["quill"]}}})";
  scratch.write("families/a.json", "{\n oops");
  scratch.write("families/b.json",
                R"({"family": "b", "spec": {}, "dialects": {"hf": {"types": ["b"]}}})");
  scratch.write("families/quill.json", quill);
  LoadOptions options;
  options.families = scratch / "families";
  expect_llama(load_checkpoint(folder, options));
  expect_llama(load_checkpoint(kBase, options));
  FamilySet set = FamilySet::load(options.families);
  EXPECT_EQ(set.broken().size(), 1u);
  EXPECT_THAT(test::error_of([&] { set.of_type("hf", "nowhere", Json::object(), "test"); }),
              AllOf(HasSubstr("a.json:2"), HasSubstr("\"nowhere\"")));
  EXPECT_THAT(test::error_of([&] { set.named("b"); }), HasSubstr("b.json:1"));
  // a type has one reader
  scratch.write("families/second.json",
                replaced(quill, "\"family\": \"quill\"", "\"family\": \"second\""));
  EXPECT_THAT(
      test::error_of([&] { load_checkpoint(folder, options); }),
      AllOf(HasSubstr("claimed by 2 files"), HasSubstr("second.json"), HasSubstr("quill.json")));
  expect_llama(load_checkpoint(kBase, options));
}

/// The JSON blocks of a page that are family files.
std::vector<std::string> families_of_page(const fs::path& page) {
  std::vector<std::string> blocks;
  const std::string text = read_text_file(page);
  constexpr std::string_view kOpen = "```json\n";
  for (size_t at = 0; (at = text.find(kOpen, at)) != std::string::npos;) {
    at += kOpen.size();
    blocks.push_back(text.substr(at, text.find("```", at) - at));
  }
  return blocks;
}

/// The worked files of the docs: each writes its base's golden in its own terms, and reads it back.
TEST(FamiliesOnOthers, WorkedFilesOfTheDocsHold) {
  const fs::path source = TESSERA_SOURCE_DIR;
  const std::vector<std::string> blocks = families_of_page(source / "docs/howto/new_model_type.md");
  ASSERT_EQ(blocks.size(), 4u);
  for (const std::string& block : blocks) {
    const TemporaryFolder scratch;
    const Json json = spec::parse_json(block, "block");
    const auto name = json.at("family").get<std::string>(),
               base = json.at("base").get<std::string>();
    SCOPED_TRACE(name);
    scratch.write("families/x.json", block);
    LoadOptions options;
    options.families = scratch / "families";
    const Checkpoint golden = load_checkpoint(source / "tests/golden/families" / base / "base");
    HfOptions as;
    as.family = name;
    as.families = options.families;
    write_hf_folder(golden, scratch / "written", as);
    const Json config = spec::read_json_file(scratch / "written" / "config.json");
    EXPECT_EQ(config.at("model_type"), name);
    for (const auto& [key, own] : json.at("dialects").at("hf").at("keys").items()) {
      EXPECT_FALSE(config.contains(key)) << key;
      EXPECT_TRUE(config.contains(own.get<std::string>())) << own;
    }
    const Checkpoint back = load_checkpoint(scratch / "written", options);
    EXPECT_EQ(back.family, name);
    EXPECT_EQ(back.spec_json, golden.spec_json);
    ASSERT_EQ(back.tensors.size(), golden.tensors.size());
    for (size_t i = 0; i < golden.tensors.size(); ++i)
      EXPECT_TRUE(equal_values(back.tensors[i], golden.tensors[i])) << golden.tensors[i].name;
    // another program of the base's does not take it for its own
    EXPECT_THAT(test::error_of([&] { load_checkpoint(scratch / "written"); }),
                HasSubstr("is not known"));
  }
}

TEST(FamilySchema, KnowsEveryEntryOfTheFamilies) {
  const Json schema = spec::parse_json(family_schema(), "schema");
  const Json& top = schema.at("properties");
  const Json& dialect = schema.at("$defs").at("dialect").at("properties");
  const Json& rule = schema.at("$defs").at("rule").at("properties");
  const Json& step = schema.at("$defs").at("step").at("properties");
  const std::function<void(const Json&)> steps = [&](const Json& list) {
    for (const Json& one : list)
      for (const auto& [key, value] : one.items()) {
        EXPECT_TRUE(step.contains(key)) << key;
        if (key == "then" || key == "else") steps(value);
      }
  };
  const std::function<void(const Json&)> rules = [&](const Json& list) {
    for (const Json& one : list)
      for (const auto& [key, value] : one.items()) {
        EXPECT_TRUE(rule.contains(key)) << key;
        if (key == "rules") rules(value);
        if (value.is_object() && value.contains("steps")) steps(value.at("steps"));
      }
  };
  const FamilySet set = FamilySet::load();
  for (const std::string& name : set.names()) {
    const Json family = set.merged(name);
    for (const auto& [key, value] : family.items())
      if (key != "base_tensors") {  // those of the base, which no file may have
        EXPECT_TRUE(top.contains(key)) << key;
      }
    for (const char* entry : {"tensors", "base_tensors"})
      if (family.contains(entry)) rules(family.at(entry));
    for (const auto& [kind, json] : family.at("dialects").items())
      for (const auto& [key, value] : json.items())
        if (key != "inherited") {  // of a dialect that is the base's alone, which no file may have
          EXPECT_TRUE(dialect.contains(key)) << key;
        }
  }
}

}  // namespace
}  // namespace tessera::convert::families_on_others_test
