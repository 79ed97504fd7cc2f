// Drafts of family files, and what the files of families that build on others say. How many
// architectures load by their drafts alone: tests/model/proposed_families_test.cpp.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include <fmt/ranges.h>

#include "tessera/base/error.h"
#include "tessera/base/mapped_file.h"
#include "tessera/base/testing.h"
#include "tessera/convert/checkpoint.h"
#include "tessera/convert/foreign_config.h"
#include "tessera/convert/propose.h"
#include "tessera/convert/tensor_ops.h"
#include "tessera/convert/tensor_roles.h"
#include "tessera/format/safetensors.h"

namespace tessera::convert::propose_test {
namespace {

namespace fs = std::filesystem;
using test::TemporaryFolder;
using testing::AllOf;
using testing::HasSubstr;

const fs::path kBase = fs::path(TESSERA_SOURCE_DIR) / "tests/golden/families/llama/base";

/// float32 tensors one below another.
TensorView stacked(const std::string& name, const std::vector<TensorView>& parts) {
  auto values = std::make_shared<std::vector<float>>();
  std::vector<int64_t> shape = parts.front().shape;
  shape.front() = 0;
  for (const TensorView& part : parts) {
    const size_t at = values->size();
    values->resize(at + part.data.size() / sizeof(float));
    std::memcpy(values->data() + at, part.data.data(), part.data.size());
    shape.front() += part.shape.front();
  }
  return {name, DType::f32, shape, std::as_bytes(std::span(*values)), values};
}

/// A float32 matrix, turned over.
TensorView turned(const std::string& name, const TensorView& matrix) {
  const auto rows = static_cast<size_t>(matrix.shape[0]),
             columns = static_cast<size_t>(matrix.shape[1]);
  std::vector<float> source(rows * columns);
  std::memcpy(source.data(), matrix.data.data(), matrix.data.size());
  auto values = std::make_shared<std::vector<float>>(rows * columns);
  for (size_t i = 0; i < rows; ++i)
    for (size_t j = 0; j < columns; ++j) (*values)[j * rows + i] = source[i * columns + j];
  return {name,
          DType::f32,
          {matrix.shape[1], matrix.shape[0]},
          std::as_bytes(std::span(*values)),
          values};
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
  return text;
}

/// The golden Llama as a type "quill", by other keys and names, with these tensors.
fs::path write_quill(const TemporaryFolder& scratch, const std::vector<TensorView>& tensors) {
  Json config = spec::read_json_file(kBase / "config.json");
  config["model_type"] = "quill";
  scratch.write("quill/config.json", config.dump(1));
  format::write_safetensors(scratch / "quill" / "model.safetensors", tensors);
  return scratch / "quill";
}

std::vector<TensorView> llama_tensors() {
  return format::open_safetensors(kBase / "model.safetensors").tensors();
}

/// The model of a folder by its draft, which must be complete.
Checkpoint by_draft(const TemporaryFolder& scratch, const fs::path& folder, Proposal& proposal) {
  proposal = propose_family(folder);
  EXPECT_TRUE(proposal.dry.complete()) << family_text(proposal.family);
  scratch.write("families/quill.json", family_text(proposal.family));
  LoadOptions options;
  options.families = scratch / "families";
  return load_checkpoint(folder, options);
}

void expect_llama(const Checkpoint& found) {
  const Checkpoint want = load_checkpoint(kBase);
  EXPECT_EQ(found.spec_json, want.spec_json);
  ASSERT_EQ(found.tensors.size(), want.tensors.size());
  for (size_t i = 0; i < want.tensors.size(); ++i)
    EXPECT_TRUE(equal_values(found.tensors[i], want.tensors[i])) << want.tensors[i].name;
}

TEST(TensorRoles, ByTheWordsOfNames) {
  for (const auto& [name, role] : std::map<std::string, std::string>{
           {"model.layers.*.self_attn.q_proj.weight", "q"},
           {"encoder.layer.*.attention.self.query.weight", "q"},
           {"encoder.layer.*.attention.output.dense.weight", "o"},
           {"encoder.layer.*.output.dense.weight", "down"},
           {"encoder.layer.*.intermediate.dense.weight", "up"},
           {"transformer.h.*.attn.c_attn.weight", "qkv"},
           {"transformer.h.*.attn.c_proj.weight", "o"},
           {"transformer.h.*.mlp.c_proj.weight", "down"},
           {"model.layers.*.mlp.gate_up_proj.weight", "gate_up"},
           {"encoder.layer.*.attention.output.LayerNorm.bias", "norm1"},
           {"encoder.layer.*.output.LayerNorm.weight", "norm2"},
           {"bert.embeddings.LayerNorm.weight", "embed_norm"},
           {"layers.*.block_sparse_moe.gate.weight", "router"},
           {"layers.*.moe.experts.*.gate.weight", "gate"},
           {"model.embed_tokens.weight", "embed"},
           {"model.norm.weight", "final_norm"},
           {"frobnicate.weight", ""}})
    EXPECT_EQ(role_of(name), role) << name;
  EXPECT_EQ(likeness("a.q_proj.weight", "b.k_proj.weight"), 0);
  EXPECT_GT(likeness("a.q_proj.weight", "b.query.weight"), 0.5);
  EXPECT_EQ(numbered("h.3.x.12.weight").pattern, "h.*.x.*.weight");
}

/// What a drafted family loaded goes back under the names that it came by.
void expect_written(const TemporaryFolder& scratch,
                    const Checkpoint& found,
                    const std::vector<TensorView>& tensors) {
  HfOptions options;
  options.families = scratch / "families";
  write_hf_folder(found, scratch / "written", options);
  const format::TensorFile written = format::open_safetensors_folder(scratch / "written");
  for (const TensorView& tensor : tensors)
    EXPECT_TRUE(equal_values(tensor, written.at(tensor.name))) << tensor.name;
}

TEST(Proposals, OtherKeysAndNames) {
  const TemporaryFolder scratch;
  std::vector<TensorView> tensors = llama_tensors();
  const std::vector<std::pair<std::string, std::string>> renames = {
      {"model.layers.", "backbone.blocks."},
      {"self_attn.", "attn."},
      {"q_proj", "query"},
      {"k_proj", "key"},
      {"v_proj", "value"},
      {"model.embed_tokens", "backbone.wte"},
      {"model.norm", "backbone.ln_f"},
      {"input_layernorm", "ln_1"},
      {"post_attention_layernorm", "ln_2"}};
  for (TensorView& tensor : tensors)
    for (const auto& [from, to] : renames) tensor.name = replaced(tensor.name, from, to);
  const fs::path folder = write_quill(scratch, tensors);
  std::string config = read_text_file(folder / "config.json");
  for (const auto& [from, to] : {std::pair("hidden_size", "n_embd"),
                                 {"num_hidden_layers", "n_layer"},
                                 {"num_attention_heads", "n_head"},
                                 {"intermediate_size", "ffn_width"}})
    config = replaced(config, std::string("\"") + from, std::string("\"") + to);
  scratch.write("quill/config.json", config);
  Proposal proposal;
  const Checkpoint found = by_draft(scratch, folder, proposal);
  expect_llama(found);
  // a key that no family has is a guess, which readers are told of
  EXPECT_THAT(found.remarks, testing::Contains(HasSubstr("ffn_width")));
  expect_written(scratch, found, tensors);
  EXPECT_EQ(spec::read_json_file(scratch / "written" / "config.json").at("n_embd"), 32);
}

TEST(Proposals, PackedAndTurnedProducts) {
  const TemporaryFolder scratch;
  const format::TensorFile llama = format::open_safetensors(kBase / "model.safetensors");
  std::vector<TensorView> tensors;
  for (const TensorView& tensor : llama.tensors())
    if (tensor.name.find("_proj") == std::string::npos) tensors.push_back(tensor);
  for (const char* layer : {"model.layers.0.", "model.layers.1."}) {
    const auto at = [&](const char* name) {
      return llama.at(std::string(layer) + name + ".weight");
    };
    tensors.push_back(
        stacked(std::string(layer) + "attn.qkv.weight",
                {at("self_attn.q_proj"), at("self_attn.k_proj"), at("self_attn.v_proj")}));
    tensors.push_back(turned(std::string(layer) + "attn.out.weight", at("self_attn.o_proj")));
    tensors.push_back(stacked(std::string(layer) + "ff.gate_up.weight",
                              {at("mlp.gate_proj"), at("mlp.up_proj")}));
    tensors.push_back(turned(std::string(layer) + "ff.down.weight", at("mlp.down_proj")));
  }
  Proposal proposal;
  const Checkpoint found = by_draft(scratch, write_quill(scratch, tensors), proposal);
  expect_llama(found);
  EXPECT_THAT(proposal.unsure, testing::Contains(HasSubstr("attn.qkv.weight")));
  expect_written(scratch, found, tensors);
}

/// The golden Llama's folder as a type "quill", with keys renamed and added.
fs::path write_keys(const TemporaryFolder& scratch,
                    const std::map<std::string, std::string>& renamed,
                    const Json& added) {
  Json config = spec::read_json_file(kBase / "config.json");
  config["model_type"] = "quill";
  for (const auto& [from, to] : renamed) {
    config[to] = config.at(from);
    config.erase(from);
  }
  config.update(added);
  scratch.write("quill/config.json", config.dump(1));
  format::write_safetensors(scratch / "quill" / "model.safetensors", llama_tensors());
  return scratch / "quill";
}

// a key of another family's that says a size leads to no other base
TEST(Proposals, OneOddKeyDoesNotDecideTheBase) {
  {
    const TemporaryFolder scratch;
    Proposal proposal;
    expect_llama(
        by_draft(scratch, write_keys(scratch, {{"head_dim", "d_head"}}, Json::object()), proposal));
    EXPECT_EQ(proposal.family["dialects"]["hf"]["keys"]["head_dim"], "d_head");
  }
  const TemporaryFolder scratch;
  Proposal proposal;
  expect_llama(by_draft(scratch, write_keys(scratch, {}, {{"d_head", 4}}), proposal));
  EXPECT_THAT(proposal.unsure, testing::Contains(HasSubstr("\"d_head\" = 4 is ignored")));
}

// words of names and the range of numbers: an epsilon, the base of a rotation
TEST(Proposals, KeysAreKnownByTheirWordsAndRanges) {
  const TemporaryFolder scratch;
  Proposal proposal;
  const fs::path folder = write_keys(scratch, {{"rms_norm_eps", "epsilon_of_scales"}},
                                     {{"rope_parameters", nullptr}, {"wave_base", 1000.0}});
  const Checkpoint found = by_draft(scratch, folder, proposal);
  const Json& mixer = found.spec_json.at("layers")[0].at("branches")[0].at("mixer");
  EXPECT_EQ(mixer.at("position").at("theta"), 1000);
  const Json& keys = proposal.family["dialects"]["hf"]["keys"];
  EXPECT_EQ(keys.value("rms_norm_eps", Json()), "epsilon_of_scales") << keys;
  EXPECT_EQ(keys.value("rope_theta", Json()), "wave_base") << keys;
}

/// A checkpoint whose spec has another value at a JSON pointer.
Checkpoint with_option(const Checkpoint& checkpoint, const std::string& pointer, Json value) {
  Checkpoint out = checkpoint;
  out.spec_json[Json::json_pointer(pointer)] = std::move(value);
  out.spec = model::read_model_spec(out.spec_json);
  return out;
}

// the base writes the angle in "rope_parameters", and its own class; the class of the file reads
// its own names
TEST(Proposals, ARenamedKeyAndTheClassAreWrittenAsTheyWere) {
  const TemporaryFolder scratch;
  Proposal proposal;
  const Json classes = Json::array({"QuillForCausalLM"});
  const fs::path folder =
      write_keys(scratch, {},
                 {{"rope_parameters", nullptr}, {"wave_base", 7000.0}, {"architectures", classes}});
  const Checkpoint found = by_draft(scratch, folder, proposal);
  Json& hf = proposal.family["dialects"]["hf"];
  ASSERT_EQ(hf["keys"].value("rope_theta", Json()), "wave_base");
  HfOptions options;
  options.families = scratch / "families";
  const auto written = [&](const Checkpoint& checkpoint) {
    write_hf_folder(checkpoint, scratch / "written", options);
    return spec::read_json_file(scratch / "written/config.json");
  };
  const Json config = written(found);
  EXPECT_EQ(config.value("wave_base", 0.0), 7000);
  EXPECT_EQ(config.value("architectures", Json()), classes);
  expect_llama(load_checkpoint(kBase));
  EXPECT_EQ(load_checkpoint(scratch / "written", {.families = options.families}).spec_json,
            found.spec_json);
  // another angle has a place in what the base writes only, which no reader of the file's name has
  Checkpoint turned = found;
  for (size_t i = 0; i < found.spec_json.at("layers").size(); ++i)
    turned =
        with_option(turned, fmt::format("/layers/{}/branches/0/mixer/position/theta", i), 5000.0);
  EXPECT_THAT(test::error_of([&] { written(turned); }),
              AllOf(HasSubstr("quill.json:"), HasSubstr("quill.hf.keys.rope_theta"),
                    HasSubstr("\"wave_base\" of the config that was read is not written"),
                    HasSubstr("expected that name instead of \"rope_theta\"")));
  // a file that names the class writes its own
  hf["write"]["architectures"] = Json::array({"PenForCausalLM"});
  scratch.write("families/quill.json", family_text(proposal.family));
  EXPECT_EQ(written(found).value("architectures", Json()), Json::array({"PenForCausalLM"}));
}

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

TEST(Proposals, WhatHasNoPlaceIsNamed) {
  const TemporaryFolder scratch;
  std::vector<TensorView> tensors = llama_tensors();
  tensors.push_back(stacked("model.layers.0.mystery.weight", {tensors.front(), tensors.front()}));
  const Proposal proposal = propose_family(write_quill(scratch, tensors));
  EXPECT_FALSE(proposal.dry.complete());
  EXPECT_THAT(proposal.dry.unmapped, testing::ElementsAre("model.layers.0.mystery.weight"));
  test::expect_error(ErrorKind::usage, "is known", [&] { propose_family(kBase); });
}

/// The model of a family's golden folder as a type "quill", by a draft without that family.
Checkpoint by_evidence(const TemporaryFolder& scratch,
                       const std::string& family,
                       Proposal& proposal) {
  const fs::path golden = fs::path(TESSERA_SOURCE_DIR) / "tests/golden/families" / family / "base";
  Json config = parse_hf_config(read_text_file(golden / "config.json"), "config.json");
  config["model_type"] = "quill";
  scratch.write("quill/config.json", hf_config_text(config, 1));
  format::write_safetensors(scratch / "quill" / "model.safetensors",
                            format::open_safetensors(golden / "model.safetensors").tensors());
  proposal = propose_family(scratch / "quill", {.hidden = {family}});
  EXPECT_TRUE(proposal.dry.complete()) << family_text(proposal.family);
  scratch.write("families/quill.json", family_text(proposal.family));
  LoadOptions options;
  options.families = scratch / "families";
  // keys that the withheld family alone reads
  for (const DryRun::Key& key : proposal.dry.keys) options.keys.ignore.push_back(key.path);
  return load_checkpoint(scratch / "quill", options);
}

/// Biases and layer norms (starcoder2), one norm for two branches and a rotary share (phi), norms
/// before and after both branches (glm4), of (1 + w) (nemotron), fused products (phi3), soft caps
/// and windows by layer (gemma2), queries, keys and values head by head (persimmon).
TEST(ProposedForms, ShowInKeysNamesAndShapes) {
  for (const char* family : {"starcoder2", "phi", "glm4", "nemotron", "phi3", "gemma2", "persimmon",
                             "smollm3", "electra", "mpnet"}) {
    SCOPED_TRACE(family);
    const TemporaryFolder scratch;
    Proposal proposal;
    Checkpoint found = by_evidence(scratch, family, proposal);
    Checkpoint want =
        load_checkpoint(fs::path(TESSERA_SOURCE_DIR) / "tests/golden/families" / family / "base");
    // a trained length is no part of the mathematics
    found.spec_json.erase("context");
    want.spec_json.erase("context");
    EXPECT_EQ(found.spec_json, want.spec_json);
    ASSERT_EQ(found.tensors.size(), want.tensors.size());
    for (size_t i = 0; i < want.tensors.size(); ++i)
      EXPECT_TRUE(equal_values(found.tensors[i], want.tensors[i])) << want.tensors[i].name;
  }
}

TEST(ProposedForms, WhatNoKeyShowsIsUnsure) {
  const auto unsure_of = [](const char* family) {
    const TemporaryFolder scratch;
    Proposal proposal;
    by_evidence(scratch, family, proposal);
    return fmt::format("{}", fmt::join(proposal.unsure, "\n"));
  };
  EXPECT_THAT(unsure_of("nemotron"), HasSubstr("lie around 0"));
  EXPECT_THAT(unsure_of("olmo"), HasSubstr("no weights of norms"));
  EXPECT_THAT(unsure_of("persimmon"), HasSubstr("head by head"));
  EXPECT_THAT(unsure_of("olmo"), HasSubstr("rotary positions turn channels i and i + d/2"));
}

// rules hold for models of other sizes
TEST(ProposedForms, FusedRowsAreInTermsOfTheFamily) {
  const TemporaryFolder scratch;
  Proposal proposal;
  by_evidence(scratch, "persimmon", proposal);
  EXPECT_THAT(proposal.family.at("tensors").dump(), HasSubstr("=(n_heads + 2 * "));
}

// cohere's template has no windows: what sets them would be read without effect
TEST(ProposedForms, AKeyWithoutEffectStaysUnclaimed) {
  const Proposal proposal =
      propose_family(fs::path(TESSERA_SOURCE_DIR) / "tests/golden/families/cohere2/base",
                     {.families = {}, .base = "cohere", .hidden = {"cohere2"}});
  EXPECT_FALSE(
      proposal.family.at("dialects").at("hf").value("read", Json::object()).contains("patterns"));
  EXPECT_GT(proposal.dry.refused_keys(), 0U);
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
}  // namespace tessera::convert::propose_test
