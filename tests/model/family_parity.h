// Every family against what transformers computed (tests/golden/families; llama.cpp, where that has
// no class): logits within 1e-4, padded rows included, and 16 greedy tokens. A case that changes
// one config key must be met as well, and the goldens guarantee that it moved the reference by more
// than 5e-4.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "tessera/base/mapped_file.h"
#include "tessera/base/testing.h"
#include "tessera/convert/families_testing.h"
#include "tessera/format/safetensors.h"
#include "tessera/infer/engine/generate.h"
#include "tessera/infer/loading/load_model.h"
#include "tessera/infer/loading/tensor_files.h"
#include "tessera/model/call_plan.h"
#include "tessera/model/padding.h"
#include "tessera/model/placement.h"
#include "tessera/nn/embed/feature_batch.h"
#include "tessera/nn/head/head_config.h"
#include "tessera/nn/position/position_config.h"
#include "tessera/spec/json.h"

namespace tessera::family_parity {

namespace fs = std::filesystem;
inline const fs::path kFamilies = fs::path(TESSERA_SOURCE_DIR) / "tests/golden/families";
inline constexpr double kTolerance = 1e-4;

/// Whether angles change once, and then stay (LongRoPE).
inline bool stays_beyond(const model::ModelSpec& spec) {
  const model::CallPlan calls(spec);
  const int64_t trained = calls.until_in_cuts();
  return trained != nn::kAnglesStay && calls.until(trained + 1) == nn::kAnglesStay;
}

struct Case {
  std::string family, name, file;  // file: the folder, or the GGUF
  std::string title() const {
    std::string title =
        family + "_" + name + (fs::path(file).extension() == ".gguf" ? "_gguf" : "");
    for (char& c : title)
      if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
    return title;
  }
};

inline void PrintTo(const Case& c, std::ostream* out) {
  *out << c.file;
}

inline std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const auto& family : fs::directory_iterator(kFamilies)) {
    if (!family.is_directory()) continue;
    for (const auto& entry : fs::directory_iterator(family.path())) {
      const std::string name = entry.path().filename();
      // of cases that are GGUF files alone, folders hold the results
      if (fs::exists(entry.path() / "config.json"))
        cases.push_back({family.path().filename(), name, entry.path()});
    }
    if (fs::exists(family.path() / "gguf"))
      for (const auto& entry : fs::directory_iterator(family.path() / "gguf"))
        cases.push_back({family.path().filename(), entry.path().stem(), entry.path()});
  }
  std::sort(cases.begin(), cases.end(),
            [](const Case& a, const Case& b) { return a.file < b.file; });
  return cases;
}

/// Python writes the bare word Infinity, which is not JSON; no story depends on it.
inline spec::Json read_story(const fs::path& path) {
  std::string text = read_text_file(path);
  for (size_t at = 0; (at = text.find(" Infinity", at)) != std::string::npos;)
    text.replace(at, 9, " 0");
  return spec::parse_json(text, path.string());
}

/// A folder with this case's config and the weights it names.
class CaseFolder {
 public:
  explicit CaseFolder(const Case& c) {
    const fs::path family = kFamilies / c.family;
    story_ = read_story(family / c.name / "case.json");
    const fs::path io = family / story_["io"].get<std::string>();
    io_ = (io / "io.safetensors").string();
    // a respelled case shares the results, and what is said of them
    length_dependent_ = read_story(io / "case.json").value("length_dependent", false);
    if (fs::is_directory(c.file)) {
      path_ = folder_.path();
      fs::copy_file(fs::path(c.file) / "config.json", path_ / "config.json");
      fs::create_symlink(family / story_["weights"].get<std::string>() / "model.safetensors",
                         path_ / "model.safetensors");
    } else {
      path_ = c.file;
    }
  }
  const fs::path& path() const { return path_; }
  const std::string& io() const { return io_; }
  const spec::Json& story() const { return story_; }
  bool length_dependent() const { return length_dependent_; }

 private:
  spec::Json story_;
  std::string io_;
  test::TemporaryFolder folder_;
  fs::path path_;
  bool length_dependent_ = false;
};

/// Within the tolerance wherever `real` holds.
inline void expect_close(const Tensor& found, const Tensor& expected, const Tensor& real) {
  const Tensor want = expected.to(at::kDouble).index({real});
  EXPECT_LT((found.to(at::kCPU, at::kDouble).index({real}) - want).abs().max().item<double>(),
            kTolerance);
}

/// A case with its weights on `device`: logits, and greedy text.
inline void expect_parity(const Case& c, at::Device device) {
  const CaseFolder folder(c);
  const auto& all_refused = convert::refused_cases();
  if (const auto refused = all_refused.find(c.family + "/" + c.name);
      refused != all_refused.end()) {
    EXPECT_THAT(test::error_of([&] { infer::load_model(folder.path()); }),
                testing::HasSubstr(refused->second));
    return;
  }
  infer::LoadedModel loaded = infer::load_model(folder.path());
  if (!device.is_cpu()) loaded.model = model::to_device(loaded.model, device);
  const format::TensorFile io = format::open_safetensors(folder.io());
  const auto get = [&](const char* name) { return infer::tensor_or_undefined(io, name); };
  Tensor ids = get("input_ids"), mask = get("attention_mask");
  const at::NoGradGuard no_gradients;
  nn::Batch batch;
  const model::ModelSpec& reader =
      loaded.model.spec().encoder ? *loaded.model.spec().encoder : loaded.model.spec();
  if (const auto* features =
          dynamic_cast<const nn::FeatureEmbedConfig*>(reader.embed.config.get())) {
    batch = nn::feature_batch(*features, get(features->input().c_str()).unbind());
    ids = batch.ids_N.reshape({static_cast<int64_t>(batch.segments.size()), -1});
    mask = at::ones_like(ids);
  } else {
    batch = model::from_padded(ids, mask, get("position_ids"), get("token_type_ids"),
                               get("global_attention_mask"));
  }
  // beside an encoder, what was read so far is its source
  const bool pair = get("decoder_input_ids").defined();
  ASSERT_EQ(pair, loaded.model.spec().encoder != nullptr);
  nn::Encoded encoded;
  model::ForwardOptions call;
  if (pair) {
    encoded = loaded.model.encode(batch);
    call.encoded = &encoded;
    expect_close(model::to_padded(encoded.x_SD.cpu(), ids, mask), get("encoder_last_hidden_state"),
                 mask.defined() ? mask.ne(0) : at::ones_like(ids).ne(0));
    ids = get("decoder_input_ids");
    mask = get("decoder_attention_mask");
    batch = model::from_padded(ids, mask);
  }
  const Tensor hidden = loaded.model.hidden(batch, call);
  const bool has_logits = get("logits").defined();
  const model::ModelSpec& spec = loaded.model.spec();
  ASSERT_EQ(has_logits, static_cast<bool>(spec.head));
  // what a row has once
  const Tensor rows = at::ones({ids.size(0)}, at::kBool);
  const Tensor pooled = spec.pooler ? loaded.model.pooled(hidden, batch) : Tensor();
  if (get("pooler_output").defined()) {
    ASSERT_TRUE(pooled.defined());
    expect_close(pooled, get("pooler_output"), rows);
  }
  if (has_logits && spec.head.as<nn::HeadConfig>().reads() == nn::HeadInput::pooled) {
    expect_close(loaded.model.logits(pooled), get("logits"), rows);
    return;
  }
  Tensor real = mask.defined() ? mask.ne(0) : at::ones_like(ids).ne(0);
  // the reference's factors follow the longest row of the batch, ours each row's own length; in
  // other cases it lets padding into a row: the longest row is compared
  if (folder.length_dependent() || folder.story().contains("padding_leaks"))
    real = real.logical_and(real.sum(1, true).eq(real.sum(1).max()));
  expect_close(
      model::to_padded((has_logits ? loaded.model.logits(hidden) : hidden).cpu(), ids, mask),
      has_logits ? get("logits") : get("last_hidden_state"), real);

  // modules for tokens further ahead: what each makes of the row before it, and of its own tokens
  if (const fs::path ahead = fs::path(c.file) / "ahead.safetensors"; fs::exists(ahead)) {
    const format::TensorFile goldens = format::open_safetensors(ahead);
    ASSERT_EQ(goldens.tensors().size(), spec.predictors.size());
    const Tensor row = ids[0];
    Tensor h = loaded.model.hidden(model::from_padded(ids.narrow(0, 0, 1), Tensor()));
    for (size_t k = 0; k < spec.predictors.size(); ++k) {
      const int64_t n = row.numel() - static_cast<int64_t>(k) - 1;
      h = loaded.model.predict(
          k, h.narrow(0, 0, n),
          model::from_padded(row.narrow(0, row.numel() - n, n).unsqueeze(0), Tensor()));
      const Tensor want = infer::tensor_or_undefined(goldens, fmt::format("ahead_{}", k));
      ASSERT_TRUE(want.defined());
      expect_close(loaded.model.logits(h), want, at::ones({n}, at::kBool));
    }
  }

  // an encoder's logits are not of the next token
  if (!get("greedy_ids").defined() || spec.arch == model::Arch::encoder) return;
  const auto list = [&](const char* name) {
    const Tensor t = get(name);
    return std::vector<int64_t>(t.const_data_ptr<int64_t>(),
                                t.const_data_ptr<int64_t>() + t.numel());
  };
  infer::GenerateOptions options;
  options.max_new_tokens = static_cast<int64_t>(list("greedy_ids").size());
  options.context = 1000;  // some tiny configs state less than the reference was asked for
  // factors of such models follow the length seen: the uncached text is defined by whole passes
  // only
  if (folder.length_dependent() && stays_beyond(loaded.model.spec())) return;
  std::vector<std::vector<int64_t>> prompts;
  if (const Tensor prompt = get("greedy_prompt"); prompt.is_floating_point())
    options.features.push_back(prompt);
  else
    prompts.push_back(list("greedy_prompt"));
  EXPECT_EQ(infer::generate(loaded.model, nullptr, prompts, options).rows[0].token_ids,
            list("greedy_ids"));
  if (spec.predictors.empty()) return;
  options.speculation.predictors = true;
  const infer::Generation drafted = infer::generate(loaded.model, nullptr, prompts, options).rows[0];
  EXPECT_EQ(drafted.token_ids, list("greedy_ids"));
  EXPECT_GT(drafted.drafted_tokens, 0);
  EXPECT_LE(drafted.accepted_tokens, drafted.drafted_tokens);
}

}  // namespace tessera::family_parity
