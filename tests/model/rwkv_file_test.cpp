// Files of rwkv.cpp, written here tensor by tensor in the layouts of its converter, against the
// same weights in a folder of ours: every version must reach its mixer with every tensor in its
// place.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>

#include <fmt/format.h>
#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/base/testing.h"
#include "tessera/convert/checkpoint.h"
#include "tessera/convert/gguf_model.h"
#include "tessera/format/safetensors.h"
#include "tessera/infer/engine/generate.h"
#include "tessera/infer/loading/load_model.h"
#include "tessera/infer/loading/tensor_files.h"
#include "tessera/model/model_spec.h"
#include "tessera/model/padding.h"
#include "tessera/spec/json.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using Shape = std::vector<int64_t>;
using Floats = std::vector<float>;

constexpr int64_t kD = 24, kH = 3, kK = kD / kH, kHidden = 40, kVocab = 33, kLayers = 2;
constexpr int64_t kMixRank = 5, kDecayRank = 7, kRateRank = 6, kValueRank = 4, kGateRank = 9;

class RwkvFile : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { draw(); }

  std::string version() const { return GetParam().substr(0, 5); }  // "rwkv5" of "rwkv5_1"
  bool ungated() const { return GetParam() == "rwkv5_1"; }

  spec::Json spec_json() const {
    spec::Json mixer = {{"type", version()}};
    if (version() != "rwkv4") mixer["n_heads"] = kH;
    if (version() == "rwkv5") mixer.update({{"gate", !ungated()}, {"norm_eps", 1e-5}});
    if (version() == "rwkv6") mixer.update({{"mix_rank", kMixRank}, {"decay_rank", kDecayRank}});
    if (version() == "rwkv7")
      mixer.update({{"decay_rank", kDecayRank},
                    {"rate_rank", kRateRank},
                    {"value_rank", kValueRank},
                    {"gate_rank", kGateRank}});
    const spec::Json norm = {{"type", "layer_norm"}, {"eps", 1e-5}};
    const spec::Json channel = {
        {"type", "rwkv_channel_mix"}, {"version", version()}, {"d_hidden", kHidden}};
    spec::Json layer = {{"repeat", kLayers}};
    layer["branches"][0]["mixer"] = mixer;
    layer["branches"][1] = {{"name", "channel_mix"}, {"mixer", channel}};
    spec::Json spec = {{"tessera", 1},  {"arch", "decoder"}, {"vocab", kVocab},
                       {"d_model", kD}, {"norm", norm},      {"head", "linear"}};
    spec["embed"] = {{"type", "token"}, {"norm", norm}};
    spec["layers"][0] = layer;
    return spec;
  }

  /// Every parameter of the spec, uniform in (-1, 1).
  void draw() {
    spec_ = model::read_model_spec(spec_json());
    std::mt19937 random(7);
    for (const spec::ParamDecl& decl : model::parameters(spec_)) {
      Floats& values = values_[decl.name];
      values.resize(static_cast<size_t>(format::element_count(decl.shape)));
      for (float& x : values) x = static_cast<float>(random() >> 8) * 0x1p-23f - 1;
      shapes_[decl.name] = decl.shape;
      // without a gate a file holds one number for all keys of a head
      if (ungated() && (decl.name.ends_with(".decay") || decl.name.ends_with(".bonus")))
        for (size_t i = 0; i < values.size(); ++i) values[i] = values[i / kK * kK];
    }
  }

  fs::path write_tessera() const {
    std::vector<format::TensorView> tensors;
    for (const auto& [name, values] : values_)
      tensors.push_back(
          {name, DType::f32, shapes_.at(name), std::as_bytes(std::span(values)), nullptr});
    const fs::path path = folder_ / "ours";
    convert::write_tessera_folder(model::resolve(spec_), tensors, path);
    return path;
  }

  // --- the file -------------------------------------------------------------------------------

  struct Entry {
    std::string name;
    Shape shape;
    Floats values;
  };

  /// A parameter of ours as it is, under its name there.
  void add(const std::string& name, const std::string& ours) {
    entries_.push_back({name, shapes_.at(ours), values_.at(ours)});
  }
  void add(const std::string& name, const std::string& ours, Shape shape) {
    entries_.push_back({name, std::move(shape), values_.at(ours)});
  }
  /// The first of every `stride` numbers, each through a function.
  template <class F>
  void add(
      const std::string& name, const std::string& ours, Shape shape, size_t stride, const F& f) {
    Floats values;
    for (size_t i = 0; i < values_.at(ours).size(); i += stride)
      values.push_back(static_cast<float>(f(static_cast<double>(values_.at(ours)[i]))));
    entries_.push_back({name, std::move(shape), std::move(values)});
  }
  void stack(const std::string& name, const std::vector<std::string>& ours, Shape shape) {
    Floats values;
    for (const std::string& part : ours)
      values.insert(values.end(), values_.at(part).begin(), values_.at(part).end());
    entries_.push_back({name, std::move(shape), std::move(values)});
  }

  void add_layer(int64_t i) {
    const std::string att = fmt::format("blocks.{}.att.", i),
                      ffn = fmt::format("blocks.{}.ffn.", i);
    const std::string ours = fmt::format("layers.{}.", i), time = ours + "mixer.",
                      channel = ours + "channel_mix.";
    for (const char* part : {"weight", "bias"}) {
      add(fmt::format("blocks.{}.ln1.{}", i, part), ours + "mixer_norm." + part);
      add(fmt::format("blocks.{}.ln2.{}", i, part), ours + "channel_mix_norm." + part);
      if (version() != "rwkv4") add(att + "ln_x." + part, time + "norm." + part);
    }
    add(att + "receptance.weight", time + "r.weight");
    add(att + "key.weight", time + "k.weight");
    add(att + "value.weight", time + "v.weight");
    add(att + "output.weight", time + (version() == "rwkv4" ? "out.weight" : "o.weight"));
    add(ffn + "key.weight", channel + "k.weight");
    add(ffn + "value.weight", channel + "v.weight");
    if (version() != "rwkv7") add(ffn + "receptance.weight", channel + "r.weight");
    if (version() == "rwkv4") add_mixer_4(att, ffn, time, channel);
    if (version() == "rwkv5") add_mixer_5(att, ffn, time, channel);
    if (version() == "rwkv6") add_mixer_6(att, ffn, time, channel);
    if (version() == "rwkv7") add_mixer_7(att, ffn, time, channel, i == 0);
  }

  void add_mixer_4(const std::string& att,
                   const std::string& ffn,
                   const std::string& time,
                   const std::string& channel) {
    for (const char* n : {"k", "v", "r"}) add(att + "time_mix_" + n, time + "mix_" + n);
    for (const char* n : {"k", "r"}) add(ffn + "time_mix_" + n, channel + "mix_" + n);
    add(att + "time_decay", time + "time_decay", {kD}, 1, [](double x) { return -std::exp(x); });
    add(att + "time_first", time + "time_first");
  }

  void add_mixer_5(const std::string& att,
                   const std::string& ffn,
                   const std::string& time,
                   const std::string& channel) {
    for (const char* n : {"k", "v", "r"}) add(att + "time_mix_" + n, time + "mix_" + n);
    for (const char* n : {"k", "r"}) add(ffn + "time_mix_" + n, channel + "mix_" + n);
    const auto factor = [](double x) { return std::exp(-std::exp(x)); };
    if (ungated()) {
      add(att + "time_decay", time + "decay", {kH, 1, 1}, kK, factor);
      add(att + "time_first", time + "bonus", {kH, 1, 1}, kK, [](double x) { return x; });
      return;
    }
    add(att + "time_decay", time + "decay", {kH, kK, 1}, 1, factor);
    add(att + "time_faaaa", time + "bonus", {kH, kK, 1});
    add(att + "time_mix_g", time + "mix_g");
    add(att + "gate.weight", time + "g.weight");
  }

  void add_mixer_6(const std::string& att,
                   const std::string& ffn,
                   const std::string& time,
                   const std::string& channel) {
    for (const char* n : {"x", "w", "k", "v", "r", "g"})
      add(att + "time_maa_" + n, time + "mix_" + n);
    for (const char* n : {"k", "r"}) add(ffn + "time_maa_" + n, channel + "mix_" + n);
    add(att + "gate.weight", time + "g.weight");
    add(att + "time_maa_w1", time + "mix_down.weight");
    std::vector<std::string> ups;
    for (const char* n : {"w", "k", "v", "r", "g"}) ups.push_back(time + "mix_up_" + n + ".weight");
    stack(att + "time_maa_w2", ups, {5, kD, kMixRank});
    add(att + "time_decay", time + "decay_up.bias", {kH, kK, 1});
    add(att + "time_decay_w1", time + "decay_down.weight");
    add(att + "time_decay_w2", time + "decay_up.weight");
    add(att + "time_faaaa", time + "bonus", {kH, kK, 1});
  }

  void add_mixer_7(const std::string& att,
                   const std::string& ffn,
                   const std::string& time,
                   const std::string& channel,
                   bool first) {
    std::vector<std::string> mixes;
    for (const char* n : {"r", "w", "k", "v", "a", "g"}) mixes.push_back(time + "mix_" + n);
    stack(att + "x_rwkvag", mixes, {6, 1, kD});
    const auto low_rank = [&](const std::string& n, const std::string& name) {
      add(att + n + "1", time + name + "_down.weight");
      add(att + n + "2", time + name + "_up.weight");
      add(att + n + "0", time + name + "_up.bias", {1, 1, kD});
    };
    low_rank("w", "decay");
    low_rank("a", "rate");
    if (first)  // which published files hold and nothing reads
      entries_.push_back({att + "v0", {1, 1, kD}, Floats(kD, 3)});
    else
      low_rank("v", "value_mix");
    add(att + "g1", time + "gate_down.weight");
    add(att + "g2", time + "gate_up.weight");
    add(att + "k_k", time + "key_scale", {1, 1, kD});
    add(att + "k_a", time + "key_rate", {1, 1, kD});
    add(att + "r_k", time + "bonus");
    add(ffn + "x_k", channel + "mix_k", {1, 1, kD});
  }

  fs::path write_file(const std::string& without = "") {
    entries_.clear();
    add("emb.weight", "embed.token.weight");
    for (const char* part : {"weight", "bias"}) {
      add(std::string("blocks.0.ln0.") + part, std::string("embed.norm.") + part);
      add(std::string("ln_out.") + part, std::string("final_norm.") + part);
    }
    for (int64_t i = 0; i < kLayers; ++i) add_layer(i);
    add("head.weight", "head.weight");

    const fs::path path = folder_ / "model.bin";
    std::ofstream file(path, std::ios::binary);
    const auto number = [&](int64_t value) {
      const auto narrow = static_cast<int32_t>(value);
      file.write(reinterpret_cast<const char*>(&narrow), sizeof(narrow));
    };
    for (const int64_t n : {int64_t{0x67676d66}, int64_t{101}, kVocab, kD, kLayers, int64_t{0}})
      number(n);
    for (Entry& entry : entries_) {
      if (entry.name == without) continue;
      number(static_cast<int64_t>(entry.shape.size()));
      number(static_cast<int64_t>(entry.name.size()));
      number(0);
      for (size_t axis = entry.shape.size(); axis-- > 0;) number(entry.shape[axis]);
      file << entry.name;
      if (damage_.contains(entry.name)) entry.values.front() = damage_.at(entry.name);
      file.write(reinterpret_cast<const char*>(entry.values.data()),
                 static_cast<std::streamsize>(entry.values.size() * sizeof(float)));
    }
    return path;
  }

  const test::TemporaryFolder folder_;
  model::ModelSpec spec_;
  std::map<std::string, Floats> values_;
  std::map<std::string, Shape> shapes_;
  std::vector<Entry> entries_;
  std::map<std::string, float> damage_;  // a tensor's first number
};

Tensor logits_of(const infer::LoadedModel& loaded) {
  const at::NoGradGuard no_gradients;
  const Tensor ids = at::arange(7).reshape({1, 7}) * 4;
  return loaded.model.logits(loaded.model.hidden(model::from_padded(ids, {}, {}, {})));
}

TEST_P(RwkvFile, HoldsTheModelOfOurFolder) {
  const convert::Checkpoint file = convert::load_checkpoint(write_file());
  EXPECT_EQ(file.dialect, "ggmf");
  EXPECT_EQ(file.spec_json, model::resolve(spec_));
  ASSERT_EQ(file.tensors.size(), values_.size());
  for (const format::TensorView& tensor : file.tensors) {
    const Floats& expected = values_.at(tensor.name);
    EXPECT_EQ(tensor.shape, shapes_.at(tensor.name)) << tensor.name;
    ASSERT_EQ(tensor.data.size(), expected.size() * sizeof(float)) << tensor.name;
    Floats found(expected.size());
    std::memcpy(found.data(), tensor.data.data(), tensor.data.size());
    // exp and log round
    const double bound = tensor.name.ends_with("decay") ? 2e-6 : 0;
    for (size_t k = 0; k < found.size(); ++k)
      EXPECT_NEAR(found[k], expected[k], bound) << tensor.name << " " << k;
  }

  const Tensor expected = logits_of(infer::load_model(write_tessera()));
  const infer::LoadedModel loaded = infer::load_model(folder_ / "model.bin");
  EXPECT_LT((logits_of(loaded) - expected).abs().max().item<double>(),
            1e-5 * expected.abs().max().item<double>());
  infer::GenerateOptions options;
  options.max_new_tokens = 5;
  options.context = 100;
  EXPECT_EQ(infer::generate(loaded.model, nullptr, {{1, 2, 3}}, options).rows[0].token_ids.size(),
            5u);
}

// versions 4 and 5 hold a decay in a form whose logarithm is taken
TEST_P(RwkvFile, NamesTheTensorWhoseDecayIsNone) {
  if (version() != "rwkv4" && version() != "rwkv5") return;
  const std::string name = "blocks.1.att.time_decay";
  damage_[name] = version() == "rwkv4" ? 0.5f : 1.5f;  // a state that grows
  const fs::path path = write_file();
  test::expect_error(ErrorKind::file,
                     "[" + path.string() + "] tensor \"" + name + "\": its logarithm is taken",
                     [&] { convert::load_checkpoint(path); });
}

// the one version that transformers has
TEST_P(RwkvFile, Version4GoesToAHuggingFaceFolder) {
  const convert::Checkpoint file = convert::load_checkpoint(write_file());
  convert::HfOptions options;
  options.family = "rwkv";
  if (version() != "rwkv4") {
    EXPECT_THROW(convert::write_hf_folder(file, folder_ / "hf", options), Error);
    return;
  }
  convert::write_hf_folder(file, folder_ / "hf", options);
  const convert::Checkpoint back = convert::load_checkpoint(folder_ / "hf");
  EXPECT_EQ(back.spec_json, file.spec_json);
  for (const format::TensorView& tensor : file.tensors) {
    const format::TensorView& other = back.tensor(tensor.name);
    EXPECT_TRUE(std::ranges::equal(tensor.data, other.data)) << tensor.name;
  }
}

// the two that llama.cpp has
TEST_P(RwkvFile, Versions6And7GoToAGgufFile) {
  const convert::Checkpoint file = convert::load_checkpoint(write_file());
  convert::GgufModelOptions options;
  options.tokenizer =
      fs::path(TESSERA_SOURCE_DIR) / "tests/golden/families/rwkv_cpp/gguf/rwkv7.gguf";
  if (version() != "rwkv6" && version() != "rwkv7") {
    test::expect_error(ErrorKind::file, "of RWKV, GGUF files hold versions 6 and 7",
                       [&] { convert::gguf_model_of(file, options); });
    return;
  }
  convert::write_gguf_model(convert::gguf_model_of(file, options), folder_ / "model.gguf");
  const convert::Checkpoint back = convert::load_checkpoint(folder_ / "model.gguf");
  spec::Json spec = file.spec_json;
  spec["context"] = 1048576;  // what llama.cpp's converter says of texts of any length
  EXPECT_EQ(back.spec_json, spec);
  ASSERT_EQ(back.tensors.size(), file.tensors.size());
  for (const format::TensorView& tensor : file.tensors)
    EXPECT_TRUE(std::ranges::equal(tensor.data, back.tensor(tensor.name).data)) << tensor.name;
}

TEST_P(RwkvFile, NamesTheTensorThatIsMissing) {
  write_file();
  std::vector<std::string> names;
  for (const Entry& entry : entries_)
    if (entry.name != "blocks.0.att.v0") names.push_back(entry.name);
  for (const std::string& name : names) {
    const fs::path path = write_file(name);
    // without the tensor that tells the version a file is taken for an older one
    test::expect_error(ErrorKind::file, name.starts_with("blocks.1.") ? name : "",
                       [&] { convert::load_checkpoint(path); });
  }
}

INSTANTIATE_TEST_SUITE_P(Versions,
                         RwkvFile,
                         ::testing::Values("rwkv4", "rwkv5_1", "rwkv5_2", "rwkv6", "rwkv7"),
                         [](const auto& info) { return info.param; });

// RWKV's own files, against what its own code computes with them (tools/golden/rwkv_pth.py)
class RwkvPth : public ::testing::TestWithParam<std::string> {
 protected:
  fs::path golden(const char* ending) const {
    return fs::path(TESSERA_SOURCE_DIR) / "tests/golden/rwkv_pth" / (GetParam() + ending);
  }
};

TEST_P(RwkvPth, LogitsAndGreedyText) {
  const infer::LoadedModel loaded = infer::load_model(golden(".pth"));
  const format::TensorFile io = format::open_safetensors(golden(".safetensors"));
  const auto get = [&](const char* name) { return infer::tensor_or_undefined(io, name); };
  const at::NoGradGuard no_gradients;
  const nn::Batch batch = model::from_padded(get("input_ids").unsqueeze(0), Tensor());
  const Tensor logits = loaded.model.logits(loaded.model.hidden(batch));
  EXPECT_LT((logits - get("logits")).abs().max().item<double>(), 1e-4);
  const auto list = [&](const char* name) {
    const Tensor t = get(name);
    return std::vector<int64_t>(t.const_data_ptr<int64_t>(),
                                t.const_data_ptr<int64_t>() + t.numel());
  };
  infer::GenerateOptions options;
  options.max_new_tokens = get("greedy_ids").numel();
  options.context = 100;
  EXPECT_EQ(
      infer::generate(loaded.model, nullptr, {list("greedy_prompt")}, options).rows[0].token_ids,
      list("greedy_ids"));
}

TEST_P(RwkvPth, GoesToAFolderOfOursAndComesBack) {
  const test::TemporaryFolder folder;
  const convert::Checkpoint file = convert::load_checkpoint(golden(".pth"));
  EXPECT_EQ(file.family, "rwkv_cpp");
  convert::write_tessera_folder(file, folder / "ours");
  const convert::Checkpoint back = convert::load_checkpoint(folder / "ours");
  EXPECT_EQ(back.spec_json, file.spec_json);
  ASSERT_EQ(back.tensors.size(), file.tensors.size());
  for (const format::TensorView& tensor : file.tensors)
    EXPECT_TRUE(std::ranges::equal(tensor.data, back.tensor(tensor.name).data)) << tensor.name;
}

INSTANTIATE_TEST_SUITE_P(Versions,
                         RwkvPth,
                         ::testing::Values("rwkv4", "rwkv5.0", "rwkv5.2", "rwkv6", "rwkv7"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '.', '_');
                           return name;
                         });

}  // namespace
}  // namespace tessera
