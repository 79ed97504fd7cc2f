// Drafts of family files. How many architectures load by their drafts alone:
// tests/model/proposed_families_test.cpp.
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
#include "tessera/convert/quill_testing.h"
#include "tessera/convert/tensor_ops.h"
#include "tessera/convert/tensor_roles.h"
#include "tessera/format/safetensors.h"

namespace tessera::convert::propose_test {
namespace {

using namespace test_quill;
using testing::AllOf;
using testing::HasSubstr;

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

/// The model of a folder by its draft, which must be complete.
Checkpoint by_draft(const TemporaryFolder& scratch, const fs::path& folder, Proposal& proposal) {
  proposal = propose_family(folder);
  EXPECT_TRUE(proposal.dry.complete()) << family_text(proposal.family);
  scratch.write("families/quill.json", family_text(proposal.family));
  LoadOptions options;
  options.families = scratch / "families";
  return load_checkpoint(folder, options);
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

}  // namespace
}  // namespace tessera::convert::propose_test
