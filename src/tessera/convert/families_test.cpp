// Every family against tests/golden/families: each case loads, goes out and comes back, each reject
// is refused with a message that names the culprit, and GGUF files turn into the Hugging Face files
// they were made from. What the models compute is tested where they run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <set>

#include <fmt/ranges.h>

#include "tessera/base/error.h"
#include "tessera/base/mapped_file.h"
#include "tessera/base/testing.h"
#include "tessera/convert/checkpoint.h"
#include "tessera/convert/families_testing.h"
#include "tessera/convert/family.h"
#include "tessera/convert/foreign_config.h"
#include "tessera/convert/gguf_model.h"
#include "tessera/convert/gguf_tokenizer.h"
#include "tessera/convert/tensor_ops.h"
#include "tessera/convert/tokenizer.h"
#include "tessera/format/safetensors.h"
#include "tessera/nn/head/classifier.h"
#include "tessera/nn/mixer/attention/attention.h"
#include "tessera/nn/mixer/attention/latent_attention.h"
#include "tessera/nn/position/rope.h"

namespace tessera::convert::families_test {
namespace {

namespace fs = std::filesystem;
using test::TemporaryFolder;
using testing::HasSubstr;

fs::path golden() {
  return fs::path(TESSERA_SOURCE_DIR) / "tests/golden/families";
}

/// Python writes Infinity into these too.
Json read_facts(const fs::path& path) {
  return parse_hf_config(read_text_file(path), path.string());
}

/// A case as a model folder: its config beside the weights it names.
fs::path materialise(const TemporaryFolder& scratch,
                     const std::string& family,
                     const std::string& name) {
  const fs::path source = golden() / family / name, folder = scratch / (family + "_" + name);
  const Json facts = read_facts(source / "case.json");
  fs::create_directories(folder);
  fs::copy_file(source / "config.json", folder / "config.json");
  fs::create_symlink(
      golden() / family / facts.at("weights").get<std::string>() / "model.safetensors",
      folder / "model.safetensors");
  return folder;
}

/// All that know a Hugging Face dialect.
std::vector<std::string> families() {
  FamilySet set = FamilySet::load();
  std::vector<std::string> names;
  for (const std::string& name : set.names())
    if (set.named(name).dialects.contains("hf")) names.push_back(name);
  return names;
}

std::vector<std::string> cases(const std::string& family) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(golden() / family))
    if (fs::exists(entry.path() / "case.json")) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

void expect_equal(const std::vector<TensorView>& a,
                  const std::vector<TensorView>& b,
                  const std::string& where) {
  ASSERT_EQ(a.size(), b.size()) << where;
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].name, b[i].name) << where;
    EXPECT_TRUE(equal_values(a[i], b[i])) << where << ": " << a[i].name;
  }
}

std::string error_of(const fs::path& path, const LoadOptions& options = {}) {
  return test::error_of([&] { load_checkpoint(path, options); });
}

class Families : public testing::TestWithParam<std::string> {};

TEST_P(Families, EveryCaseLoadsAndComesBack) {
  const TemporaryFolder scratch;
  ASSERT_GE(cases(GetParam()).size(), 5u);
  for (const std::string& name : cases(GetParam())) {
    const std::string where = GetParam() + "/" + name;
    const fs::path folder = materialise(scratch, GetParam(), name);
    if (const auto found = refused_cases().find(where); found != refused_cases().end()) {
      EXPECT_THAT(error_of(folder), HasSubstr(found->second)) << where;
      continue;
    }
    SCOPED_TRACE(where);
    const Checkpoint checkpoint = load_checkpoint(folder);
    EXPECT_EQ(checkpoint.family, GetParam());
    // out and back: the same spec, the same numbers
    const fs::path written = scratch / ("written_" + name);
    write_hf_folder(checkpoint, written);
    const Checkpoint back = load_checkpoint(written);
    EXPECT_EQ(back.spec_json, checkpoint.spec_json);
    expect_equal(back.tensors, checkpoint.tensors, where);
    expect_equal(back.kept, checkpoint.kept, where);
    fs::remove_all(written);
    if (name != "base" && name != "hub") continue;
    // and our own folder
    const fs::path ours = scratch / ("ours_" + name);
    write_tessera_folder(checkpoint, ours);
    const Checkpoint own = load_checkpoint(ours);
    EXPECT_EQ(own.dialect, "tessera");
    EXPECT_EQ(own.family, GetParam());
    EXPECT_EQ(own.spec_json, checkpoint.spec_json);
    expect_equal(own.tensors, checkpoint.tensors, where);
    expect_equal(own.kept, checkpoint.kept, where);
  }
}

TEST_P(Families, WrittenTensorsAreThoseOfTheSource) {
  const TemporaryFolder scratch;
  const Checkpoint checkpoint = load_checkpoint(materialise(scratch, GetParam(), "base"));
  write_hf_folder(checkpoint, scratch / "written");
  const format::TensorFile written = format::open_safetensors_folder(scratch / "written");
  const format::TensorFile source =
      format::open_safetensors(golden() / GetParam() / "base" / "model.safetensors");
  EXPECT_EQ(written.tensors().size() + checkpoint.notes.size(), source.tensors().size());
  for (const TensorView& tensor : written.tensors())
    EXPECT_TRUE(equal_values(tensor, source.at(tensor.name))) << tensor.name;
}

TEST_P(Families, KeysThatMatterMoveTheSpecOrTheTensors) {
  // two cases that the reference tells apart must differ in our spec or tensors
  const TemporaryFolder scratch;
  for (const std::string& name : cases(GetParam())) {
    const Json facts = read_facts(golden() / GetParam() / name / "case.json");
    if (!facts.contains("base") || !facts.contains("moved_by") ||
        refused_cases().contains(GetParam() + "/" + name))
      continue;
    SCOPED_TRACE(name);
    const std::string base = facts["base"];
    if (!fs::exists(scratch / (GetParam() + "_" + base))) materialise(scratch, GetParam(), base);
    const fs::path folder = scratch / (GetParam() + "_" + name);
    if (!fs::exists(folder)) materialise(scratch, GetParam(), name);
    const Checkpoint a = load_checkpoint(scratch / (GetParam() + "_" + base)),
                     b = load_checkpoint(folder);
    const bool same_weights =
        facts["weights"] == read_facts(golden() / GetParam() / base / "case.json")["weights"];
    if (!facts.value("neutral", false) && facts["moved_by"].get<double>() > 5e-4 && same_weights) {
      const bool same_tensors = std::equal(a.tensors.begin(), a.tensors.end(), b.tensors.begin(),
                                           b.tensors.end(), equal_values);
      EXPECT_TRUE(a.spec_json != b.spec_json || !same_tensors);
    }
  }
}

/// The parts of a key with dots.
Json::json_pointer pointer_of(std::string path) {
  std::replace(path.begin(), path.end(), '.', '/');
  return Json::json_pointer("/" + path);
}

TEST_P(Families, IgnoredKeysOfTheConfigComeBack) {
  FamilySet set = FamilySet::load();
  const Dialect& dialect = set.named(GetParam()).dialect("hf");
  const TemporaryFolder scratch;
  const fs::path folder = materialise(scratch, GetParam(), "base");
  const Json before = read_facts(folder / "config.json");
  const Checkpoint plain = load_checkpoint(folder);
  write_hf_folder(plain, scratch / "plain");
  const Json written = read_facts(scratch / "plain" / "config.json");
  // those that stand nowhere yet, in objects that there are
  Json config = before;
  std::map<std::string, int64_t> added;
  for (const auto& [path, why] : dialect.ignored_keys) {
    const Json::json_pointer at = pointer_of(path);
    const auto has_place = [&](const Json& json) {
      return json.contains(at.parent_pointer()) && json[at.parent_pointer()].is_object() &&
             !json.contains(at);
    };
    if (dialect.claims.contains(path) || !has_place(before) || !has_place(written)) continue;
    config[at] = added[path] = 1000 + std::ssize(added);
  }
  std::ofstream(folder / "config.json") << config.dump();
  const Checkpoint checkpoint = load_checkpoint(folder);
  EXPECT_EQ(checkpoint.spec_json, plain.spec_json);
  // by our folder too, which remembers the config
  write_tessera_folder(checkpoint, scratch / "ours");
  for (const Checkpoint& source : {checkpoint, load_checkpoint(scratch / "ours")}) {
    SCOPED_TRACE(source.dialect);
    write_hf_folder(source, scratch / source.dialect);
    const Json back = read_facts(scratch / source.dialect / "config.json");
    for (const auto& [path, value] : added)
      EXPECT_EQ(back.value(pointer_of(path), Json()), Json(value)) << path;
    EXPECT_EQ(load_checkpoint(scratch / source.dialect).spec_json, plain.spec_json);
  }
}

// some of them repeat sizes, which others have after a change of heads
TEST(FamiliesHf, IgnoredKeysOfOtherSizesStayAway) {
  const TemporaryFolder scratch;
  const fs::path folder = materialise(scratch, "modernbert", "base");
  Json config = read_facts(folder / "config.json");
  config["cls_token_id"] = 3;
  config["classifier_dropout"] = 0.5;
  std::ofstream(folder / "config.json") << config.dump();
  const auto written = [&](Checkpoint checkpoint) {
    write_hf_folder(checkpoint, scratch / "written");
    return read_facts(scratch / "written" / "config.json");
  };
  const Json same = written(load_checkpoint(folder));
  EXPECT_EQ(same.value("cls_token_id", Json()), 3);
  EXPECT_EQ(same.value("classifier_dropout", Json()), 0.5);
  Checkpoint other = load_checkpoint(folder);
  other.foreign_config["num_attention_heads"] = 1000;
  EXPECT_FALSE(written(other).contains("cls_token_id"));
}

TEST_P(Families, RejectsNameTheCulprit) {
  const Json rejects = spec::read_json_file(golden() / GetParam() / "rejects.json");
  ASSERT_GE(rejects.size(), 5u);
  for (const Json& reject : rejects) {
    const TemporaryFolder scratch;
    const std::string name = reject.at("name"), base = reject.at("base");
    SCOPED_TRACE(name);
    const fs::path folder = materialise(scratch, GetParam(), base);
    Json config = spec::read_json_file(folder / "config.json");
    if (reject.contains("unset"))
      for (const Json& key : reject["unset"]) config.erase(key.get<std::string>());
    if (reject.contains("set"))
      for (const auto& [path, value] : reject["set"].items()) {
        Json* at = &config;
        std::istringstream parts(path);
        for (std::string part; std::getline(parts, part, '.');) at = &(*at)[part];
        *at = value;
      }
    std::ofstream(folder / "config.json") << config.dump();

    const format::TensorFile source = format::open_safetensors(folder / "model.safetensors");
    std::vector<TensorView> tensors;
    const std::string dropped = reject.value("drop_tensor", "");
    const Json reshaped_tensor = reject.value("reshape_tensor", Json::object());
    const std::vector<float> zeros(4096, 0.0f);
    const auto filled = [&](const std::string& tensor, const Json& shape) {
      const auto axes = shape.get<std::vector<int64_t>>();
      const auto count = static_cast<size_t>(format::element_count(axes));
      return TensorView{tensor, DType::f32, axes, std::as_bytes(std::span(zeros).first(count)),
                        nullptr};
    };
    for (const TensorView& tensor : source.tensors()) {
      if (tensor.name == dropped) continue;
      if (reshaped_tensor.value("name", "") == tensor.name)
        tensors.push_back(filled(tensor.name, reshaped_tensor["shape"]));
      else
        tensors.push_back(tensor);
    }
    if (reject.contains("add_tensor"))
      tensors.push_back(filled(reject["add_tensor"]["name"], reject["add_tensor"]["shape"]));
    const fs::path broken = scratch / "broken";
    fs::create_directories(broken);
    format::write_safetensors(broken / "model.safetensors", tensors);
    fs::copy_file(folder / "config.json", broken / "config.json");
    LoadOptions strict;
    strict.keys.strict = true;
    const std::string error = error_of(broken, strict);
    EXPECT_THAT(error, HasSubstr(reject.at("expect").get<std::string>()));
    EXPECT_EQ(error.find('\n'), std::string::npos);
  }
}

INSTANTIATE_TEST_SUITE_P(All, Families, testing::ValuesIn(families()), [](const auto& info) {
  return info.param;
});

// The keys and values of well-known checkpoints' config.json over a tiny model of their kind; "="
// stands for the tiny model's own sizes.
TEST(FamiliesPublished, ConfigsOfReleasedCheckpointsOpen) {
  std::set<std::string> seen;
  for (const Json& entry :
       spec::read_json_file(fs::path(TESSERA_SOURCE_DIR) / "tests/published_configs.json")) {
    SCOPED_TRACE(entry.at("checkpoint").get<std::string>());
    const TemporaryFolder scratch;
    const fs::path like = entry.at("case").get<std::string>();
    const std::string family = like.parent_path();
    seen.insert(family);
    const fs::path folder = materialise(scratch, family, like.filename());
    Json config = read_facts(folder / "config.json");
    const Json& published = entry.at("config");
    const auto says = [&](const char* key) { return published.contains(key); };
    // beside the newer spelling the older ones would not be read
    if (says("rope_theta") || says("rope_scaling") || says("rotary_emb_base"))
      config.erase("rope_parameters");
    for (const auto& [key, value] : published.items()) {
      if (value == "=")
        EXPECT_TRUE(config.contains(key)) << key;
      else
        config[key] = value;
    }
    std::ofstream(folder / "config.json") << config.dump();
    EXPECT_EQ(error_of(folder), "");
  }
  const std::vector<std::string> known = families();
  EXPECT_EQ(seen, std::set<std::string>(known.begin(), known.end()));
}

// --- heads ------------------------------------------------------------------------------------

/// The base of a family with another class name, without some tensors and with one more.
fs::path with_head(const TemporaryFolder& scratch,
                   const std::string& family,
                   const std::string& architecture,
                   const std::string& dropped,
                   const std::string& added) {
  const fs::path base = materialise(scratch, family, "base"), folder = scratch / architecture;
  fs::create_directories(folder);
  Json config = read_facts(base / "config.json");
  config["architectures"] = Json::array({architecture});
  std::ofstream(folder / "config.json") << config.dump();
  const format::TensorFile source = format::open_safetensors(base / "model.safetensors");
  const std::vector<float> zeros(64, 0.0f);
  std::vector<TensorView> tensors;
  for (const TensorView& tensor : source.tensors())
    if (tensor.name != dropped) tensors.push_back(tensor);
  if (!added.empty())
    tensors.push_back({added, DType::f32, {2, 32}, std::as_bytes(std::span(zeros)), nullptr});
  format::write_safetensors(folder / "model.safetensors", tensors);
  return folder;
}

TEST(FamiliesHeads, AreNamedWhereTheyAreLeftOut) {
  const TemporaryFolder a, b;
  EXPECT_THAT(
      load_checkpoint(with_head(a, "exaone_moe", "ExaoneMoeForCausalLM", "", "mtp.fc.weight"))
          .lost_heads,
      testing::ElementsAre("prediction of further tokens (mtp.*)"));
  EXPECT_THAT(
      load_checkpoint(with_head(b, "bert", "BertForPreTraining", "", "cls.seq_relationship.weight"))
          .lost_heads,
      testing::ElementsAre("next-sentence prediction (cls.seq_relationship.*)"));
}

TEST(FamiliesHeads, WithoutAPlaceAreAnError) {
  // the class answers with this head alone; logits of the vocabulary would be another model's
  const TemporaryFolder a, b, c;
  EXPECT_THAT(error_of(with_head(a, "olmo2", "Olmo2ForQuestionAnswering", "lm_head.weight",
                                 "qa_outputs.weight")),
              HasSubstr("\"qa_outputs.weight\" has no place in family olmo2"));
  EXPECT_THAT(error_of(with_head(b, "mamba", "MambaForSequenceClassification", "lm_head.weight",
                                 "score.weight")),
              HasSubstr("\"score.weight\" has no place in family mamba"));
  const Checkpoint classifier = load_checkpoint(
      with_head(c, "gpt2", "GPT2ForSequenceClassification", "lm_head.weight", "score.weight"));
  EXPECT_TRUE(classifier.lost_heads.empty());
  EXPECT_EQ(classifier.spec.head.as<nn::ClassifierConfig>().n_labels, 2);
}

TEST(FamiliesHeads, OfClassesKeepTheirNames) {
  for (const char* family : {"bert", "llama", "distilbert", "gpt2"}) {
    const TemporaryFolder scratch;
    const Checkpoint named = load_checkpoint(materialise(scratch, family, "named_classes"));
    const auto& head = named.spec.head.as<nn::ClassifierConfig>();
    EXPECT_THAT(head.labels, testing::ElementsAre("red", "green", "blue")) << family;
    const TemporaryFolder out;
    write_hf_folder(named, out.path());
    const Json config = spec::read_json_file(out / "config.json");
    EXPECT_EQ(config["id2label"]["2"], "blue") << family;
    EXPECT_EQ(config["label2id"]["green"], 1) << family;
    EXPECT_EQ(load_checkpoint(out.path()).spec_json, named.spec_json) << family;
    // names that say no more than numbers are none
    EXPECT_TRUE(load_checkpoint(materialise(scratch, family, "classifier"))
                    .spec.head.as<nn::ClassifierConfig>()
                    .labels.empty());
  }
}

TEST(FamiliesHeads, AreMissedWhereTheClassHasThem) {
  const TemporaryFolder a, b;
  EXPECT_THAT(error_of(with_head(a, "llama", "LlamaForCausalLM", "lm_head.weight", "")),
              HasSubstr("lm_head.weight"));
  EXPECT_FALSE(
      load_checkpoint(with_head(b, "llama", "LlamaModel", "lm_head.weight", "")).spec.head);
}

// --- GGUF -------------------------------------------------------------------------------------

double largest_difference(const TensorView& a, const TensorView& b) {
  const TensorView x = as_float32(a), y = as_float32(b);
  double largest = x.shape == y.shape ? 0 : 1e30;
  for (size_t i = 0; i < std::min(x.data.size(), y.data.size()); i += sizeof(float)) {
    float u, v;
    std::memcpy(&u, x.data.data() + i, sizeof u);
    std::memcpy(&v, y.data.data() + i, sizeof v);
    largest = std::max(largest, std::abs(static_cast<double>(u) - v));
  }
  return largest;
}

struct GgufCase {
  std::string family, name;
};

/// Of families that have such files; others may be written as another's (roberta as bert).
std::vector<GgufCase> gguf_cases() {
  std::vector<GgufCase> list;
  FamilySet set = FamilySet::load();
  for (const std::string& family : set.names())
    if (set.named(family).dialects.contains("gguf") && fs::exists(golden() / family / "gguf"))
      for (const auto& entry : fs::directory_iterator(golden() / family / "gguf"))
        if (entry.path().extension() == ".gguf") list.push_back({family, entry.path().stem()});
  return list;
}

/// Whether Hugging Face folders hold the family's models, beside GGUF files.
bool has_folders(const std::string& family) {
  return FamilySet::load().named(family).dialects.contains("hf");
}

/// Null where the layer does not begin with attention.
const spec::Part<spec::Slot::position>* position_of(const Checkpoint& checkpoint, size_t layer) {
  const auto& part = checkpoint.spec.layers[layer].groups[0].branches[0].part;
  if (part.type() == "attention") return &part.as<nn::AttentionConfig>().position;
  if (part.type() == "latent_attention") return &part.as<nn::LatentAttentionConfig>().position;
  return nullptr;
}
const nn::RopeConfig& rope_of(const Checkpoint& checkpoint, size_t layer) {
  return position_of(checkpoint, layer)->as<nn::RopeConfig>();
}

TEST(FamiliesGguf, TurnsIntoTheFolderItWasMadeFrom) {
  ASSERT_GE(gguf_cases().size(), 10u);
  for (const auto& [family, name] : gguf_cases()) {
    if (!has_folders(family)) continue;
    SCOPED_TRACE(family + "/" + name);
    const TemporaryFolder scratch;
    const Checkpoint gguf = load_checkpoint(golden() / family / "gguf" / (name + ".gguf"));
    EXPECT_EQ(gguf.dialect, "gguf");
    EXPECT_EQ(gguf.family, family);
    write_hf_folder(gguf, scratch / "written");
    const Checkpoint written = load_checkpoint(scratch / "written");
    const Checkpoint source = load_checkpoint(materialise(scratch, family, name));
    ASSERT_EQ(written.tensors.size(), source.tensors.size());
    // subtracting the 1 that was added to norm weights rounds
    for (size_t i = 0; i < written.tensors.size(); ++i)
      EXPECT_LE(largest_difference(written.tensors[i], source.tensors[i]), 2.5e-7)
          << written.tensors[i].name;
    // a scaling of the rope may be said in other words
    if (name == "base" || name == "implied" || name == "blocks" || name == "q_lora_rank" ||
        (family == "jamba" && name == "experts") || name == "body" || name == "named_classes") {
      EXPECT_EQ(written.spec_json, source.spec_json);
    }
    // however the file says it, every layer's angles are those of the source, within and beyond the
    // trained length
    for (size_t layer = 0; layer < source.spec.layers.size(); ++layer) {
      const auto *position = position_of(source, layer), *found = position_of(gguf, layer);
      ASSERT_EQ(found == nullptr, position == nullptr);
      if (position == nullptr) continue;
      ASSERT_EQ(found->type(), position->type());
      if (position->type() != "rope") continue;
      for (const int64_t length : {8, 40, 100}) {
        const auto ours = rope_of(gguf, layer).frequencies(length),
                   theirs = rope_of(source, layer).frequencies(length);
        ASSERT_EQ(ours.omega.size(), theirs.omega.size());
        EXPECT_NEAR(ours.factor, theirs.factor, 1e-6);
        for (size_t m = 0; m < theirs.omega.size(); ++m)
          EXPECT_NEAR(ours.omega[m] / theirs.omega[m], 1, 1e-6);
      }
    }
  }
}

void expect_tensors(const std::vector<TensorView>& found, const format::TensorFile& wanted) {
  ASSERT_EQ(found.size(), wanted.tensors().size());
  for (const TensorView& tensor : found) {
    const TensorView& other = wanted.at(tensor.name);
    EXPECT_EQ(tensor.dtype, other.dtype) << tensor.name;
    EXPECT_LE(largest_difference(tensor, other), tensor.name == "rope_freqs.weight" ? 1e-6 : 2.5e-7)
        << tensor.name;
  }
}

TEST(FamiliesGguf, FoldersTurnIntoTheFile) {
  int written = 0;
  for (const auto& [family, name] : gguf_cases()) {
    if (FamilySet::load().named(family).dialect("gguf").write == nullptr) continue;
    // numbers that lie in blocks already
    if (name == "blocks") continue;
    SCOPED_TRACE(family + "/" + name);
    const TemporaryFolder scratch;
    const fs::path path = golden() / family / "gguf" / (name + ".gguf");
    const format::GgufFile wanted = format::open_gguf(path);
    // of the first files, one tensor an expert, or keys and values of the latent in one
    if (wanted.tensors.find("blk.0.ffn_gate.0.weight") != nullptr ||
        wanted.tensors.find("blk.0.attn_kv_b.weight") != nullptr)
      continue;
    GgufModelOptions options;
    options.tokenizer = path;
    const GgufModel model = gguf_model_of(
        load_checkpoint(has_folders(family) ? materialise(scratch, family, name) : path), options);
    ++written;
    for (const format::GgufEntry& entry : wanted.metadata.entries()) {
      if (entry.key == "general.name" || entry.key.ends_with(".rope.scale_linear")) continue;
      // where no layer is dense, the width of one is what the config says in vain
      if ((family.ends_with("_moe") || family.ends_with("_moe_text")) &&
          entry.key.ends_with(".feed_forward_length"))
        continue;
      // the same as no key
      if ((entry.key.ends_with(".rope.scaling.type") && entry.value.text() == "\"none\"") ||
          (entry.key.ends_with(".rope.scaling.factor") && entry.value.text() == "1"))
        continue;
      const format::GgufValue* value = model.find(entry.key);
      // which layers have experts; not all goldens say it as their tensors do
      if (value != nullptr && entry.key.ends_with(".interleave_moe_layer_step")) {
        for (int64_t i = 0; i < model.integer_or(".block_count", 0); ++i)
          EXPECT_EQ((i + 1) % value->as_i64() == 0 &&
                        i >= model.integer_or(".leading_dense_block_count", 0),
                    wanted.tensors.find(fmt::format("blk.{}.ffn_gate_inp.weight", i)) != nullptr);
        continue;
      }
      if (value == nullptr) {
        ADD_FAILURE() << entry.key << " is missing: " << entry.value.text();
        continue;
      }
      EXPECT_EQ(value->text(), entry.value.text()) << entry.key;
    }
    expect_tensors(model.tensors, wanted.tensors);
    // and back
    write_gguf_model(model, scratch / "written.gguf");
    const Checkpoint back = load_checkpoint(scratch / "written.gguf"),
                     reference = load_checkpoint(path);
    if (name == "base") {
      EXPECT_EQ(back.spec_json, reference.spec_json);
    }
  }
  EXPECT_GE(written, 60);
}

// as llama.cpp's converter does; GGUF files hold no others
TEST(FamiliesGguf, MasterWeightsOfBitNetAreRounded) {
  const TemporaryFolder scratch;
  const Checkpoint source = load_checkpoint(materialise(scratch, "bitnet", "base"));
  GgufModelOptions options;
  options.tokenizer = golden() / "bitnet/gguf/offline.gguf";
  write_gguf_model(gguf_model_of(source, options), scratch / "written.gguf");
  const Checkpoint back = load_checkpoint(scratch / "written.gguf");
  int matrices = 0;
  for (size_t i = 0; i < source.tensors.size(); ++i) {
    const TensorView& before = source.tensors[i];
    ASSERT_EQ(back.tensors[i].name, before.name);
    const bool rounded = !equal_values(before, back.tensors[i]);
    EXPECT_EQ(rounded, before.name.starts_with("layers") && before.shape.size() == 2)
        << before.name;
    if (!rounded) continue;
    ++matrices;
    EXPECT_TRUE(equal_values(ternary_rounded(before), back.tensors[i])) << before.name;
    // which can be packed
    EXPECT_EQ(ternary_parts(back.tensors[i], false, DType::f32)[0].dtype, DType::u8);
  }
  EXPECT_EQ(matrices, 14);
  const auto& quantization = back.spec.layers[0].groups[0].branches[0].quantization;
  ASSERT_TRUE(quantization.has_value());
  EXPECT_FALSE(quantization->ternary);
  EXPECT_TRUE(quantization->int8);
}

TEST(FamiliesGguf, TextsBecomeTheIdsOfThePeer) {
  int texts = 0;
  for (const auto& [family, name] : gguf_cases()) {
    if (!fs::exists(golden() / family / name / "case.json")) continue;
    const Json facts = read_facts(golden() / family / name / "case.json");
    for (const Json& entry : facts.value("texts", Json::array())) {
      const fs::path path = golden() / family / "gguf" / (name + ".gguf");
      const text::Tokenizer tokenizer = find_tokenizer(path, 0);
      const auto ids = entry["ids"].get<std::vector<int32_t>>();
      EXPECT_EQ(tokenizer.encode(entry["text"].get<std::string>()), ids) << path;
      EXPECT_EQ(tokenizer.decode(ids), entry["text"].get<std::string>()) << path;
      ++texts;
    }
  }
  EXPECT_GE(texts, 6);
}

TEST(FamiliesGguf, SharesOfTheStepBackApart) {
  // the first files of RWKV 6 hold one tensor for each
  const fs::path path = golden() / "rwkv_cpp/gguf/rwkv6.gguf";
  const GgufModel model = read_gguf_model(path);
  GgufModel apart = model;
  apart.tensors.clear();
  for (const TensorView& tensor : model.tensors) {
    const size_t fused = tensor.name.find("fused");
    if (fused == std::string::npos) {
      apart.tensors.push_back(tensor);
      continue;
    }
    const int64_t width = tensor.shape.back();
    for (size_t i = 0; i < 5; ++i) {
      TensorView part = tensor;
      part.name.replace(fused, 5, 1, "wkvrg"[i]);
      part.shape = {width};
      part.data = tensor.data.subspan(i * tensor.data.size() / 5, tensor.data.size() / 5);
      apart.tensors.push_back(part);
    }
  }
  ASSERT_EQ(apart.tensors.size(), model.tensors.size() + 3 * 4);
  const TemporaryFolder scratch;
  write_gguf_model(apart, scratch / "apart.gguf");
  expect_equal(load_checkpoint(scratch / "apart.gguf").tensors, load_checkpoint(path).tensors,
               "apart");
}

TEST(FamiliesGguf, WhatNobodyReadsIsWrittenAsACopy) {
  const Checkpoint checkpoint = load_checkpoint(golden() / "rwkv_cpp/gguf/rwkv7.gguf");
  for (const TensorView& tensor : checkpoint.tensors)
    EXPECT_TRUE(!tensor.name.starts_with("layers.0.mixer.value_mix")) << tensor.name;
  const GgufModel model = gguf_model_of(checkpoint);
  const auto named = [&](const std::string& name) {
    return *std::find_if(model.tensors.begin(), model.tensors.end(),
                         [&](const TensorView& tensor) { return tensor.name == name; });
  };
  for (const char* part : {"0", "1", "2"}) {
    const TensorView copy = named(std::string("blk.0.time_mix_v") + part + ".weight"),
                     original = named(std::string("blk.0.time_mix_a") + part + ".weight");
    EXPECT_EQ(copy.shape, original.shape);
    EXPECT_TRUE(equal_values(copy, original)) << part;
  }
}

// Converters of 2025 left queries, keys, values and gates of a layer in the matrix that Hugging
// Face files have.
TEST(FamiliesGguf, OlderFilesOfQwen3NextHaveOneProjection) {
  const TemporaryFolder scratch;
  const fs::path base = golden() / "qwen3_next/gguf/implied.gguf";
  const format::GgufFile file = format::open_gguf(base);
  const format::TensorFile hf =
      format::open_safetensors(golden() / "qwen3_next/implied/model.safetensors");
  std::vector<TensorView> tensors;
  for (const TensorView& tensor : file.tensors.tensors()) {
    if (tensor.name.find("attn_gate") != std::string::npos) continue;
    tensors.push_back(tensor);
    if (tensor.name.find("attn_qkv") == std::string::npos) continue;
    const std::string layer = tensor.name.substr(4, tensor.name.find('.', 4) - 4);
    tensors.back() = hf.at("model.layers." + layer + ".linear_attn.in_proj_qkvz.weight");
    tensors.back().name = "blk." + layer + ".ssm_in.weight";
  }
  ASSERT_LT(tensors.size(), file.tensors.tensors().size());
  format::write_gguf(scratch / "old.gguf", file.metadata.entries(), tensors);
  const Checkpoint wanted = load_checkpoint(base), old = load_checkpoint(scratch / "old.gguf");
  EXPECT_EQ(old.spec_json, wanted.spec_json);
  expect_equal(old.tensors, wanted.tensors, "one projection");
}

TEST(FamiliesGguf, TokenizersBecomeHuggingFaces) {
  const TemporaryFolder scratch;
  const fs::path file = golden() / "llama/gguf/base.gguf";
  EXPECT_EQ(copy_tokenizer_to_hf(file, scratch.path()), "");
  EXPECT_FALSE(fs::exists(scratch / "tokenizer.gguf"));
  const text::Tokenizer wanted = find_tokenizer(file), got = find_tokenizer(scratch.path());
  for (const char* text : {"!\"#$%", "!!\"", "</s>!\""})
    EXPECT_EQ(got.encode(text, {true, true}), wanted.encode(text, {true, true})) << text;
  EXPECT_EQ(got.eos(), wanted.eos());
  // of a folder that holds one as a GGUF file had it, too
  const TemporaryFolder ours, again;
  copy_tokenizer(file, ours.path());
  EXPECT_EQ(copy_tokenizer_to_hf(ours.path(), again.path()), "");
  EXPECT_TRUE(fs::exists(again / "tokenizer.json"));
}

// llama.cpp knows RoBERTa as BERT, without the positions before the first that it uses.
TEST(FamiliesGguf, RobertaIsWrittenAsBert) {
  for (const char* name : {"body", "classifier"}) {
    SCOPED_TRACE(name);
    const TemporaryFolder scratch;
    const fs::path path = golden() / "roberta/gguf" / (std::string(name) + ".gguf");
    const format::GgufFile wanted = format::open_gguf(path);
    const Checkpoint source = load_checkpoint(materialise(scratch, "roberta", name));
    GgufModelOptions options;
    options.tokenizer = path;
    const GgufModel model = gguf_model_of(source, options);
    for (const format::GgufEntry& entry : wanted.metadata.entries()) {
      if (entry.key == "general.name") continue;
      const format::GgufValue* value = model.find(entry.key);
      ASSERT_NE(value, nullptr) << entry.key;
      EXPECT_EQ(value->text(), entry.value.text()) << entry.key;
    }
    expect_tensors(model.tensors, wanted.tensors);
    write_gguf_model(model, scratch / "written.gguf");
    const Checkpoint back = load_checkpoint(scratch / "written.gguf");
    EXPECT_EQ(back.family, "bert");
    const TensorView &all = source.tensor("embed.position.weight"),
                     &used = back.tensor("embed.position.weight");
    ASSERT_EQ(used.shape[0], all.shape[0] - 2);  // the id of padding is 1
    EXPECT_TRUE(
        std::equal(used.data.begin(), used.data.end(), all.data.begin() + 2 * all.shape[1] * 4));
  }
}

TEST(FamiliesGguf, EncodersWithOtherHeadsAreRefused) {
  const TemporaryFolder scratch;
  const auto error = [&](const char* family, const char* name) {
    GgufModelOptions options;
    options.tokenizer = golden() / "bert/gguf/body.gguf";
    options.family = "bert";
    const Checkpoint checkpoint = load_checkpoint(materialise(scratch, family, name));
    return test::error_of([&] { gguf_model_of(checkpoint, options); });
  };
  const auto names = [](const char* head) {
    return HasSubstr(std::string("[bert] GGUF files of this family have no place for the head \"") +
                     head + "\"; --to hf and --to tessera keep it");
  };
  EXPECT_THAT(error("bert", "base"), names("masked_lm"));
  EXPECT_THAT(error("roberta", "questions"), names("span"));
  EXPECT_THAT(error("bert", "token_classifier"), names("classifier of tokens"));
  EXPECT_THAT(error("bert", "is_decoder"), HasSubstr("read back it differs at arch"));
  EXPECT_THAT(error("mpnet", "body"), HasSubstr("the model has no types of tokens"));
}

// What llama.cpp's converter makes of BERT's classifiers, whose pooler it leaves out.
TEST(FamiliesGguf, ClassifiersWithoutPoolerReadTheFirstToken) {
  const TemporaryFolder scratch;
  GgufModel model = read_gguf_model(golden() / "bert/gguf/named_classes.gguf");
  std::erase_if(model.tensors, [](const TensorView& tensor) {
    return tensor.name == "cls.weight" || tensor.name == "cls.bias";
  });
  write_gguf_model(model, scratch / "bare.gguf");
  const Checkpoint bare = load_checkpoint(scratch / "bare.gguf");
  const Json& heads = bare.spec_json.at("heads");
  EXPECT_EQ(heads[0].at("labels"), Json({"red", "green", "blue"}));
  EXPECT_EQ(heads[1].at("of"), "first");
  EXPECT_EQ(heads[1].at("dense"), false);
  // and goes back into such a file
  GgufModelOptions options;
  const GgufModel again = gguf_model_of(bare, options);
  EXPECT_EQ(again.tensors.size(), model.tensors.size());
}

// llama.cpp scales no logits of T5: the norm before them, which files hold, does.
TEST(FamiliesGguf, AScaleOfLogitsGoesIntoTheNorm) {
  const TemporaryFolder scratch;
  const Checkpoint source = load_checkpoint(materialise(scratch, "t5", "released"));
  EXPECT_EQ(source.spec_json["head"]["scale"], 0.25);
  GgufModelOptions options;
  options.tokenizer = golden() / "t5/gguf/released_v1_1.gguf";
  write_gguf_model(gguf_model_of(source, options), scratch / "written.gguf");
  const Checkpoint written = load_checkpoint(scratch / "written.gguf");
  EXPECT_EQ(written.spec_json["head"].value("scale", 1.0), 1.0);
  const auto norm_of = [](const Checkpoint& checkpoint) {
    for (const TensorView& tensor : checkpoint.tensors)
      if (tensor.name == "decoder.final_norm.weight") {
        std::vector<float> values(16);
        std::memcpy(values.data(), tensor.data.data(), values.size() * sizeof(float));
        return values;
      }
    return std::vector<float>();
  };
  std::vector<float> expected = norm_of(source);
  for (float& value : expected) value /= 4;
  EXPECT_EQ(norm_of(written), expected);
}

TEST(FamiliesGguf, WhatLlamaCppDoesNotComputeIsNotWritten) {
  struct Unsaid {
    const char *family, *name, *culprit;
  };
  for (const auto& [family, name, culprit] : std::initializer_list<Unsaid>{
           {"dbrx", "moe_normalize_expert_weights", "ffn.router.norm: 2.0"},
           {"dbrx", "moe_normalize_expert_weights_null", "ffn.router.norm: 0.0"},
           {"dbrx", "ffn_act_fn", "ffn.expert.act"},
           {"dbrx", "every_linear", "position.scaling"},
           {"gemma3n_text", "altup_correct_scale", "correct_scale: false; true"},
           {"gemma3n_text", "attention_bias", "mixer.bias.q"},
           {"gemma3n_text", "hidden_activation_relu", "act: \"relu\"; \"gelu_tanh\""},
           {"gemma3n_text", "rope_linear_sliding", "mixer.position.scaling"},
           {"gemma3n_text", "rope_proportional", "mixer.position.type: \"p_rope\"; \"rope\""},
           {"gemma4_text", "attention_bias", "mixer.bias.q"},
           {"gemma4_text", "hidden_activation_gelu", "act: \"gelu\"; \"gelu_tanh\""},
           {"gemma4_text", "rope_linear", "mixer.position.scaling"},
           {"gemma4_text", "rope_proportional_sliding", "mixer.position"},
           {"gemma4_text", "use_bidirectional_attention", "arch: \"encoder\"; \"decoder\""},
           {"gemma4_text", "vocab_size_per_layer_input", "vocab_size_per_layer_input is above"},
           {"minimax", "base", "num_local_experts is 1"},
           {"minimax", "full_attn_alpha_factor", "full_attn_alpha_factor"},
           {"minimax", "rms_norm_eps", "rms_norm_eps is above 1e-5"},
           {"phimoe", "attention_bias", "mixer.bias.q: false"},
           {"phimoe", "rope_longrope_mscales", "long_attention_factor"},
           {"phimoe", "router_jitter_noise", "ffn.router.eps: 0.05"},
           {"qwen2_moe", "base", "decoder_sparse_step"},
           {"qwen3_moe", "base", "decoder_sparse_step"},
           {"qwen3_next", "decoder_sparse_step_some", "decoder_sparse_step"},
           {"qwen3_next", "experts", "linear_value_head_dim"}}) {
    const TemporaryFolder scratch;
    const Checkpoint source = load_checkpoint(materialise(scratch, family, name));
    EXPECT_THAT(test::error_of([&] { gguf_model_of(source, {}); }), HasSubstr(culprit))
        << family << "/" << name;
  }
}

// Cases of which llama.cpp's converter makes no file.
TEST(FamiliesGguf, PerLayerEmbeddingsComeBack) {
  struct Said {
    const char *family, *name, *remark;
  };
  const char* sharing =
      "llama.cpp aborts when it loads this order of layers: llama.cpp takes shared keys and values "
      "of the last two layers that have any, a sliding one before a full one";
  for (const auto& [family, name, remark] : std::initializer_list<Said>{
           {"gemma3n_text", "streams",
            "llama.cpp takes for granted what this model has otherwise: a LAuReL of rank 64, "
            "per-layer embeddings of width 256, a sparsity of 0.95 in the first ten layers and 0 "
            "in others, keys and values shared from layer 20 on"},
           {"gemma3n_text", "implied", ""},
           {"gemma3n_text", "implied_linear", ""},
           {"gemma4_text", "base", ""},
           {"gemma4_text", "layer_types", sharing},
           {"gemma4_text", "moe_per_layer", ""},
           {"gemma4_text", "num_global_key_value_heads", ""},
           {"gemma4_text", "num_kv_shared_layers", ""},
           {"gemma4_text", "partial_rotary_factor", ""},
           {"gemma4_text", "rope_default", ""},
           {"gemma4_text", "tie_word_embeddings", ""},
           {"gemma4_unified_text", "base", ""}}) {
    SCOPED_TRACE(std::string(family) + "/" + name);
    const TemporaryFolder scratch;
    const Checkpoint source = load_checkpoint(materialise(scratch, family, name));
    GgufModelOptions options;
    options.tokenizer = golden() / "gemma4_text/gguf/base.gguf";
    const GgufModel model = gguf_model_of(source, options);
    EXPECT_EQ(fmt::format("{}", fmt::join(model.remarks, "; ")), remark);
    write_gguf_model(model, scratch / "written.gguf");
    const Checkpoint back = load_checkpoint(scratch / "written.gguf");
    EXPECT_EQ(back.spec_json, source.spec_json);
    expect_equal(back.tensors, source.tensors, name);
  }
}

// llama.cpp has a row of per-layer embeddings for every token, and its converter pads with zeros.
TEST(FamiliesGguf, PerLayerEmbeddingsHaveARowForEveryToken) {
  const TemporaryFolder scratch;
  const Checkpoint source = load_checkpoint(materialise(scratch, "gemma3n_text", "base"));
  GgufModelOptions options;
  options.tokenizer = golden() / "gemma4_text/gguf/base.gguf";
  const GgufModel model = gguf_model_of(source, options);
  for (const TensorView& tensor : model.tensors) {
    if (tensor.name != "per_layer_token_embd.weight") continue;
    ASSERT_EQ(tensor.shape, (std::vector<int64_t>{64, 40}));
    std::vector<float> values(64 * 40);
    ASSERT_EQ(tensor.data.size(), values.size() * sizeof(float));
    std::memcpy(values.data(), tensor.data.data(), tensor.data.size());
    EXPECT_NE(values[60 * 40 - 1], 0);
    EXPECT_TRUE(
        std::all_of(values.begin() + 60 * 40, values.end(), [](float v) { return v == 0; }));
  }
  write_gguf_model(model, scratch / "written.gguf");
  EXPECT_EQ(load_checkpoint(scratch / "written.gguf").spec_json.dump(), [&] {
    Json spec = source.spec_json;
    for (Json& layer : spec["layers"])
      for (Json& branch : layer["branches"])
        if (branch.value("name", "") == "per_layer") branch["ffn"]["vocab"] = 64;
    return spec.dump();
  }());
}

TEST(FamiliesGguf, MalformedFilesWithPerLayerEmbeddingsAreRefused) {
  using Change = std::function<void(std::vector<format::GgufEntry>&, std::vector<TensorView>&)>;
  const auto refusal = [](const std::string& family, const std::string& name,
                          const Change& change) {
    const TemporaryFolder scratch;
    const format::GgufFile file = format::open_gguf(golden() / family / "gguf" / (name + ".gguf"));
    std::vector<format::GgufEntry> entries = file.metadata.entries();
    std::vector<TensorView> tensors = file.tensors.tensors();
    change(entries, tensors);
    format::write_gguf(scratch / "changed.gguf", entries, tensors);
    const std::string error = error_of(scratch / "changed.gguf");
    EXPECT_EQ(error.find('\n'), std::string::npos) << error;
    return error;
  };
  const auto with_value = [&](const std::string& key, format::GgufValue value) -> Change {
    return [=](auto& entries, auto&) {
      for (format::GgufEntry& entry : entries)
        if (entry.key.ends_with(key)) entry.value = value;
    };
  };
  const std::vector<int32_t> two = {2, 3};
  const std::vector<float> quantiles = {0.5f, 1.0f},
                           divisors = {1, 1, 1e30f, 1, 1e30f, 1e30f, 1e30f, 1e30f};
  const auto list = [](const auto& values) { return format::GgufValue::array(std::span(values)); };
  EXPECT_THAT(refusal("gemma4_text", "base", with_value(".head_count_kv", list(two))),
              HasSubstr("attention.head_count_kv does not have one entry per layer"));
  EXPECT_THAT(refusal("gemma4_text", "base", with_value(".feed_forward_length", list(two))),
              HasSubstr("feed_forward_length does not have one entry per layer"));
  EXPECT_THAT(
      refusal("gemma4_text", "base",
              with_value(".rope.dimension_count_swa", format::GgufValue::number(uint32_t{4}))),
      HasSubstr("rope.dimension_count or rope.dimension_count_swa differs"));
  EXPECT_THAT(refusal("gemma4_text", "base",
                      with_value(".shared_kv_layers", format::GgufValue::number(uint32_t{5}))),
              HasSubstr("kv_name"));
  EXPECT_THAT(refusal("gemma4_text", "base",
                      [&](auto&, auto& tensors) {
                        for (TensorView& tensor : tensors)
                          if (tensor.name == "rope_freqs.weight")
                            tensor.data = std::as_bytes(std::span(divisors));
                      }),
              HasSubstr("rope_freqs.weight does not have one divisor for each pair"));
  EXPECT_THAT(
      refusal("gemma3n_text", "streams", with_value(".activation_sparsity_scale", list(quantiles))),
      HasSubstr("activation_sparsity_scale does not have one entry per layer"));
  EXPECT_THAT(refusal("gemma3n_text", "streams",
                      with_value(".altup.num_inputs", format::GgufValue::number(uint32_t{3}))),
              HasSubstr("altup_proj.weight"));
  EXPECT_THAT(refusal("gemma3n_text", "implied_linear",
                      with_value(".rope.scaling.type", format::GgufValue::string("yarn"))),
              HasSubstr("found \"yarn\"; expected one of none, linear"));
}

TEST(FamiliesGguf, PairedRowsStayInTheMappedFile) {
  const Checkpoint checkpoint = load_checkpoint(golden() / "llama/gguf/base.gguf");
  EXPECT_EQ(rope_of(checkpoint, 0).layout, nn::RopeLayout::interleaved);
  for (const TensorView& tensor : checkpoint.tensors)
    EXPECT_EQ(tensor.owner.get(), checkpoint.tensors.front().owner.get()) << tensor.name;
}

TEST(FamiliesGguf, ExpertsStayInTheirBlocks) {
  for (const auto& [family, dtype] :
       {std::pair{"mixtral", DType::q4_0}, std::pair{"gpt_oss", DType::mxfp4}}) {
    const Checkpoint checkpoint = load_checkpoint(golden() / family / "gguf/blocks.gguf");
    int stacks = 0;
    for (const TensorView& tensor : checkpoint.tensors) {
      if (tensor.shape.size() != 3) continue;
      ++stacks;
      EXPECT_EQ(tensor.dtype, dtype) << tensor.name;
      EXPECT_EQ(tensor.owner.get(), checkpoint.tensors.front().owner.get()) << tensor.name;
    }
    EXPECT_EQ(stacks, 3 * std::ssize(checkpoint.spec.layers)) << family;
  }
}

// --- families of the user's own ---------------------------------------------------------------

constexpr const char* kInvented = R"~({
  "family": "invented",
  "include": ["decoder"],
  "tables": {"parts": [["mixer.q", "query"], ["mixer.k", "key"], ["mixer.v", "value"], ["mixer.o", "result"], ["ffn.gate", "gate"],
                       ["ffn.up", "up"], ["ffn.down", "down"], ["mixer_norm", "before"], ["ffn_norm", "between"]]},
  "tensors": [
    {"ours": "embed.token.weight", "hf": "words"},
    {"for": "i in range(n_layers)", "rules": [
      {"for": "n in parts",
       "ours": "layers.{i}.{n[0]}.weight", "hf": "stack.{i}.{n[1]}"}
    ]},
    {"ours": "final_norm.weight", "hf": "last"},
    {"if": "not tied", "ours": "head.weight", "hf": "out"}
  ],
  "dialects": {"hf": {
    "types": ["invented"],
    "read": {"d_model": "=config.size.width", "n_heads": "=config.size.heads", "n_kv_heads": "=n_heads / config.share"},
    "write": {"model_type": "invented", "hidden_size": "=absent", "num_attention_heads": "=absent", "num_key_value_heads": "=absent",
              "size": {"width": "=d_model", "heads": "=n_heads"}, "share": "=n_heads / n_kv_heads"},
    "ignored_keys": {"colour": "does not matter"}
  }}
})~";

TEST(FamiliesOfTheUser, ATypeLoadsFromItsFileAlone) {
  const TemporaryFolder scratch;
  const fs::path base = materialise(scratch, "llama", "base");
  const Checkpoint original = load_checkpoint(base);
  Json config = spec::read_json_file(base / "config.json");
  config["model_type"] = "invented";
  config["size"] = {{"width", config["hidden_size"]}, {"heads", config["num_attention_heads"]}};
  config["share"] = 2;
  config["colour"] = "green";
  for (const char* key :
       {"hidden_size", "num_attention_heads", "num_key_value_heads", "attention_bias", "mlp_bias"})
    config.erase(key);
  scratch.write("invented/config.json", config.dump());

  const std::map<std::string, std::string> names = {{"self_attn.q_proj", "query"},
                                                    {"self_attn.k_proj", "key"},
                                                    {"self_attn.v_proj", "value"},
                                                    {"self_attn.o_proj", "result"},
                                                    {"mlp.gate_proj", "gate"},
                                                    {"mlp.up_proj", "up"},
                                                    {"mlp.down_proj", "down"},
                                                    {"input_layernorm", "before"},
                                                    {"post_attention_layernorm", "between"}};
  std::vector<TensorView> tensors;
  const format::TensorFile source = format::open_safetensors(base / "model.safetensors");
  for (TensorView tensor : source.tensors()) {
    if (tensor.name == "model.embed_tokens.weight")
      tensor.name = "words";
    else if (tensor.name == "model.norm.weight")
      tensor.name = "last";
    else if (tensor.name == "lm_head.weight")
      tensor.name = "out";
    else {
      const std::string rest = tensor.name.substr(std::string("model.layers.0.").size());
      tensor.name = "stack." + tensor.name.substr(std::string("model.layers.").size(), 1) + "." +
                    names.at(rest.substr(0, rest.rfind('.')));
    }
    tensors.push_back(tensor);
  }
  format::write_safetensors(scratch / "invented" / "model.safetensors", tensors);

  EXPECT_THAT(error_of(scratch / "invented"),
              testing::AllOf(HasSubstr("\"invented\" is not known"),
                             HasSubstr("tessera list model-types"), HasSubstr("--families")));
  scratch.write("families/anything.json", kInvented);
  const LoadOptions options{scratch / "families"};
  const Checkpoint checkpoint = load_checkpoint(scratch / "invented", options);
  EXPECT_EQ(checkpoint.family, "invented");
  EXPECT_EQ(checkpoint.spec_json, original.spec_json);
  expect_equal(checkpoint.tensors, original.tensors, "invented");
  HfOptions user, builtin;
  user.families = scratch / "families";
  builtin.family = "llama";
  // out in its own terms, and in those of a built-in family
  write_hf_folder(checkpoint, scratch / "written", user);
  EXPECT_EQ(load_checkpoint(scratch / "written", options).spec_json, original.spec_json);
  write_hf_folder(checkpoint, scratch / "other", builtin);
  expect_equal(load_checkpoint(scratch / "other").tensors, original.tensors, "other");
}

// transformers refuses a padding id beyond the vocabulary, and its classes assume one
TEST(FamiliesOfOurOwn, NoPaddingIdThatTheVocabularyLacks) {
  const TemporaryFolder scratch;
  for (const char* family : {"marian", "phi3", "smollm3"}) {
    Checkpoint checkpoint = load_checkpoint(materialise(scratch, family, "base"));
    checkpoint.foreign_config = Json();  // as of a model that was trained here
    HfOptions options;
    options.family = family;
    const fs::path out = scratch / "out" / family;
    write_hf_folder(checkpoint, out, options);
    const Json config = spec::read_json_file(out / "config.json");
    EXPECT_EQ(config.value("pad_token_id", Json("unsaid")), Json(nullptr)) << family;
  }
}

TEST(FamiliesOfTheUser, FragmentsMayStandInShared) {
  const TemporaryFolder scratch;
  scratch.write("families/shared/words.json",
                R"({"fragment": "words", "tables": {"colours": {"red": 1}}})");
  scratch.write(
      "families/x.json",
      R"({"family": "x", "include": ["words"], "spec": {}, "dialects": {"hf": {"read_only": "w"}}})");
  FamilySet set = FamilySet::load(scratch / "families");
  EXPECT_EQ(set.named("x").tables.at("colours"), Json({{"red", 1}}));
}

TEST(FamiliesOfTheUser, AConditionTellsFilesOfOneTypeApart) {
  // of a type that two know: one with a condition first, and one of the user's before all
  const TemporaryFolder scratch;
  const auto family = [](const std::string& name, const std::string& when) {
    return fmt::format(
        R"({{"family": "{}", "spec": {{}}, "dialects": {{"gguf": {{"types": ["shared"], {}"read_only": "w"}}}}}})",
        name, when);
  };
  scratch.write("families/a.json", family("a", ""));
  scratch.write("families/b.json", family("b", R"("when": "config.n > 1", )"));
  scratch.write("families/c.json", family("c", R"("when": "config.n > 2", )"));
  FamilySet set = FamilySet::load(scratch / "families");
  EXPECT_EQ(set.of_type("gguf", "shared", {{"n", 1}}, "test").name, "a");
  EXPECT_EQ(set.of_type("gguf", "shared", {{"n", 2}}, "test").name, "b");
  EXPECT_EQ(set.of_type("gguf", "shared", {{"n", 3}}, "test").name, "c");
  EXPECT_EQ(set.of_type("gguf", "llama", {{"expert_count", 8}}, "test").name, "mixtral");
  EXPECT_EQ(set.of_type("gguf", "llama", Json::object(), "test").name, "llama");
  scratch.write(
      "mine/llama.json",
      R"({"family": "mine", "spec": {}, "dialects": {"gguf": {"types": ["llama"], "read_only": "w"}}})");
  FamilySet mine = FamilySet::load(scratch / "mine");
  EXPECT_EQ(mine.of_type("gguf", "llama", {{"expert_count", 8}}, "test").name, "mine");
  scratch.write("broken/x.json", family("x", R"("when": "1 +", )"));
  EXPECT_THAT(test::error_of([&] { FamilySet::load(scratch / "broken").named("x"); }),
              HasSubstr("x.gguf.when"));
}

TEST(FamiliesOfTheUser, MalformedFilesAreRefused) {
  for (
      const auto& [text, expected] : std::map<std::string, std::string>{
          {"[]", "expected a family file"},
          {"{}", "\"family\" is missing"},
          {R"({"family": 3})", "expected a string"},
          {R"({"unmathematical": ["x"]})",
           "unmathematical] found an array; expected the keys of each dialect"},
          {R"({"family": "x"})", "\"spec\" is missing"},
          {R"({"family": "x", "frobnicate": 1, "spec": {}, "dialects": {"hf": {"read_only": "w"}}})",
           "frobnicate"},
          {R"({"family": "x", "spec": {}})", "\"dialects\" is missing"},
          {R"({"family": "x", "spec": {}, "dialects": {"hf": {}}})", "read_only"},
          {R"({"family": "x", "include": ["frobnicate"]})", "there is no fragment \"frobnicate\""},
          {R"({"family": "x", "spec": {"a": "=1 +"}, "dialects": {"hf": {"read_only": "w"}}})",
           "x.spec.a"},
          {R"({"family": "x", "spec": {}, "tensors": [{"ours": "a", "keep": true}], "dialects": {"hf": {"read_only": "w"}}})",
           "exactly one"},
          {R"({"family": "x", "spec": {}, "tensors": [{"ours": "a", "hf": {"name": "b", "steps": [{"frobnicate": 1}]}}], "dialects": {"hf": {"read_only": "w"}}})",
           "frobnicate"},
          {R"({"family": "x", "spec": {}, "tensors": [{"ours": "a{i", "hf": "b"}], "dialects": {"hf": {"read_only": "w"}}})",
           "without"},
          {R"({"family": "x", "spec": {}, "tensors": [{"ours": {"for": "h in [1]"}, "hf": "b"}], "dialects": {"hf": {"read_only": "w"}}})",
           "\"name\""},
          {R"({"family": "x", "spec": {}, "tensors": [{"same_as": ["a", "b"], "hf": "c"}], "dialects": {"hf": {"read_only": "w"}}})",
           "take one name"},
          {R"~({"family": "x", "spec": {}, "functions": {"sqrt(x)": 1}, "dialects": {"hf": {"read_only": "w"}}})~",
           "function of the language"}}) {
    const TemporaryFolder scratch;
    scratch.write("families/x.json", text);
    EXPECT_THAT(test::error_of([&] {
                  FamilySet set = FamilySet::load(scratch / "families");
                  set.named("x");
                }),
                HasSubstr(expected))
        << text;
  }
}

TEST(FamiliesOfTheUser, ExportRefusesWhatAFamilyCannotSay) {
  const TemporaryFolder scratch;
  const Checkpoint checkpoint = load_checkpoint(materialise(scratch, "qwen3", "base"));
  HfOptions options;
  options.family = "llama";
  test::expect_error(ErrorKind::spec, "qk_norm",
                     [&] { write_hf_folder(checkpoint, scratch / "written", options); });
  EXPECT_FALSE(fs::exists(scratch / "written"));
}

TEST(FamiliesAsData, EveryFileCompilesAndIsWholeBothWays) {
  FamilySet set = FamilySet::load();
  ASSERT_GE(set.names().size(), 12u);
  for (const std::string& name : set.names()) {
    const Family& family = set.named(name);
    EXPECT_FALSE(family.about.empty()) << name;
    for (const auto& [kind, dialect] : family.dialects)
      EXPECT_NE(dialect.write == nullptr, dialect.read_only.empty()) << name << " " << kind;
  }
}

}  // namespace
}  // namespace tessera::convert::families_test
