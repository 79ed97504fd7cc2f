// How many architectures load by a drafted family file alone: for each type of a fixed list its own
// family is hidden, its golden folder gets a model_type that no family reads, and the draft's
// logits are compared with those of transformers.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tessera/base/mapped_file.h"
#include "tessera/base/testing.h"
#include "tessera/convert/foreign_config.h"
#include "tessera/convert/propose.h"
#include "tessera/format/safetensors.h"
#include "tessera/infer/loading/load_model.h"
#include "tessera/infer/loading/tensor_files.h"
#include "tessera/model/padding.h"
#include "tessera/nn/head/head_config.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
const fs::path kGoldens = fs::path(TESSERA_SOURCE_DIR) / "tests/golden/families";
constexpr double kTolerance = 1e-4;  // of logits, as of the families' own files

/// Decoders and encoders, dense and of experts.
const char* const kTypes[] = {
    "llama",   "mistral",    "qwen2",      "qwen3",     "gemma",      "gemma2",  "phi",
    "phi3",    "starcoder2", "stablelm",   "cohere",    "olmo",       "olmo2",   "olmo3",
    "granite", "helium",     "arcee",      "seed_oss",  "exaone4",    "smollm3", "glm",
    "glm4",    "ministral",  "nemotron",   "persimmon", "gpt_neox",   "gpt2",    "gptj",
    "mixtral", "qwen2_moe",  "qwen3_moe",  "olmoe",     "granitemoe", "bert",    "roberta",
    "electra", "mpnet",      "distilbert", "ernie",     "deepseek_v3"};

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
  return text;
}

/// The folder of a case as a type of the name "unknown"; `renamed`: with other keys and names too.
void write_unknown(const std::string& type, const test::TemporaryFolder& scratch, bool renamed) {
  const fs::path source = kGoldens / type / "base";
  convert::Json config =
      convert::parse_hf_config(read_text_file(source / "config.json"), source.string());
  config["model_type"] = "unknown";
  std::string text = convert::hf_config_text(config, 1);
  std::vector<format::TensorView> tensors =
      format::open_safetensors(source / "model.safetensors").tensors();
  if (renamed) {
    for (const auto& [from, to] : {std::pair("hidden_size", "n_embd"),
                                   {"num_hidden_layers", "n_layer"},
                                   {"num_attention_heads", "n_head"},
                                   {"intermediate_size", "ffn_width"}})
      text = replaced(text, fmt::format("\"{}\"", from), fmt::format("\"{}\"", to));
    for (format::TensorView& tensor : tensors)
      for (const auto& [from, to] : {std::pair("model.", "net."),
                                     {"layers.", "blocks."},
                                     {"self_attn.", "attn."},
                                     {"mlp.", "ff."},
                                     {"q_proj", "query"},
                                     {"k_proj", "key"},
                                     {"v_proj", "value"}})
        tensor.name = replaced(tensor.name, from, to);
  }
  scratch.write("model/config.json", text);
  format::write_safetensors(scratch / "model" / "model.safetensors", tensors);
}

/// "" where the draft's logits are the golden's, else what kept it from them.
std::string shortfall(const std::string& type, bool renamed) {
  const test::TemporaryFolder scratch;
  write_unknown(type, scratch, renamed);
  const convert::Proposal proposal = convert::propose_family(scratch / "model", {.hidden = {type}});
  if (!proposal.dry.complete()) return "incomplete on the base " + proposal.base;
  scratch.write("families/unknown.json", convert::family_text(proposal.family));
  convert::LoadOptions options;
  options.families = scratch / "families";
  // keys that the hidden family alone reads: without it nothing does, and they are ignored
  for (const convert::DryRun::Key& key : proposal.dry.keys) options.keys.ignore.push_back(key.path);
  const infer::LoadedModel loaded = infer::load_model(scratch / "model", options);
  const format::TensorFile io =
      format::open_safetensors((kGoldens / type / "base" / "io.safetensors").string());
  const auto get = [&](const char* name) { return infer::tensor_or_undefined(io, name); };
  const at::NoGradGuard no_gradients;
  const Tensor ids = get("input_ids"), mask = get("attention_mask");
  const nn::Batch batch = model::from_padded(ids, mask, get("position_ids"), get("token_type_ids"),
                                             get("global_attention_mask"));
  const Tensor hidden = loaded.model.hidden(batch);
  const bool has_logits = get("logits").defined();
  if (has_logits != static_cast<bool>(loaded.model.spec().head))
    return "another head on the base " + proposal.base;
  const Tensor found =
      model::to_padded(has_logits ? loaded.model.logits(hidden) : hidden, ids, mask);
  const Tensor want = has_logits ? get("logits") : get("last_hidden_state");
  if (!found.sizes().equals(want.sizes())) return "other shapes on the base " + proposal.base;
  Tensor real = mask.defined() ? mask.ne(0) : at::ones_like(ids).ne(0);
  const double difference =
      (found.to(at::kDouble) - want.to(at::kDouble)).index({real}).abs().max().item<double>();
  if (difference < kTolerance) return "";
  return fmt::format("logits differ by {:.2g} on the base {}", difference, proposal.base);
}

/// How many types of the list load by their drafts; says what the others lack.
int count_loaded(bool renamed) {
  int loaded = 0;
  for (const char* type : kTypes) {
    std::string why;
    try {
      why = shortfall(type, renamed);
    } catch (const Error& error) {
      why = error.what();
    }
    loaded += why.empty() ? 1 : 0;
    fmt::print("{:<14} {}\n", type, why.empty() ? "loads, with the golden's logits" : why);
  }
  fmt::print("{} of {}\n", loaded, std::size(kTypes));
  return loaded;
}

TEST(ProposedFamilies, UnknownTypesLoadByTheirDrafts) {
  EXPECT_GE(count_loaded(false), 37);
}

TEST(ProposedFamilies, RenamedOnesToo) {
  EXPECT_GE(count_loaded(true), 34);
}

}  // namespace
}  // namespace tessera
