// Every key that a family claims, in every dialect, is held to something: a parity case changes it
// and the outcome depends on it, a reject refuses it, the reference was measured not to care
// (keys.json) and neither do we, or the family's ignored_keys say why. A key that is claimed and
// held to nothing can be read wrongly, or not at all, without a test that fails.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <set>

#include "tessera/base/error.h"
#include "tessera/base/mapped_file.h"
#include "tessera/convert/family.h"
#include "tessera/convert/foreign_config.h"
#include "tessera/convert/mapping.h"
#include "tessera/convert/params_testing.h"
#include "tessera/format/file_source.h"
#include "tessera/format/ggmf.h"
#include "tessera/format/gguf.h"
#include "tessera/format/llama2c.h"
#include "tessera/format/safetensors.h"
#include "tessera/format/tensor_folder.h"

namespace tessera::convert {
namespace {

namespace fs = std::filesystem;

const fs::path kGolden = fs::path(TESSERA_SOURCE_DIR) / "tests/golden/families";

Json read_facts(const fs::path& path) {
  return parse_hf_config(read_text_file(path), path.string());
}

// --- paths into a config ------------------------------------------------------------------------

using Flat = std::map<std::string, Json>;

/// Nested keys as dotted paths; an empty object is a value.
void flatten(const Json& json, const std::string& prefix, Flat& out) {
  for (const auto& [key, value] : json.items()) {
    if (value.is_object() && !value.empty())
      flatten(value, prefix + key + ".", out);
    else
      out[prefix + key] = value;
  }
}

Flat flat(const Json& json) {
  Flat out;
  flatten(json, "", out);
  return out;
}

/// The config with another value at a path; null in place of a value = without it.
Json with(Json config, const std::string& path, const Json* value) {
  Json* at = &config;
  std::string rest = path;
  for (size_t dot; (dot = rest.find('.')) != std::string::npos; rest.erase(0, dot + 1)) {
    Json& next = (*at)[rest.substr(0, dot)];
    if (!next.is_object()) {
      if (value == nullptr) return config;
      next = Json::object();
    }
    at = &next;
  }
  if (value != nullptr)
    (*at)[rest] = *value;
  else
    at->erase(rest);
  return config;
}

/// Another value of the same kind; tools/golden/families.py tries the same one on the reference.
Json other(const Json& value) {
  if (value.is_boolean()) return !value.get<bool>();
  if (value.is_number_integer()) return value.get<int64_t>() + 3;
  if (value.is_number()) return value.get<double>() * 2 + 0.05;
  if (value.is_string()) return value == "float32" ? "bfloat16" : value.get<std::string>() + "x";
  if (value.is_array() && !value.empty()) {
    Json longer = value;
    longer.push_back(value.front());
    return longer;
  }
  return 3;
}

void erase_members(Json& json, const std::set<std::string>& names) {
  if (json.is_object())
    for (const std::string& name : names) json.erase(name);
  if (json.is_structured())
    for (Json& member : json) erase_members(member, names);
}

// --- what a config comes to ---------------------------------------------------------------------

class Held {
 public:
  Held(FamilySet& set, const Family& family, std::string dialect)
      : set_(set), family_(family), dialect_name_(std::move(dialect)) {}

  const Dialect& dialect() const { return family_.dialect(dialect_name_); }

  /// The spec and the tensors as one text, or the error. `all`: with what changes no number of a
  /// pass: how long texts may be, how many tokens are computed at once, and what generation starts
  /// with (which the greedy texts of the cases hold).
  std::string outcome(const Json& config, const format::TensorFile& file, bool all = true) {
    try {
      const Foreign foreign{dialect_name_, config, &file, "config"};
      Importer importer(family_, foreign, set_);
      Checkpoint checkpoint;
      checkpoint.spec = model::read_model_spec(importer.spec_json());
      Json spec = model::resolve(checkpoint.spec);
      if (!all) erase_members(spec, {"context", "chunk", "start"});
      importer.read_tensors(checkpoint);
      std::string text = spec.dump();
      for (const TensorView& tensor : checkpoint.tensors)
        text += fmt::format(" {:x}", std::hash<std::string_view>{}(format::text_of(tensor.data)));
      return text;
    } catch (const Error& error) {
      return std::string(kRefused) + error.what();
    }
  }
  static bool refused(const std::string& outcome) { return outcome.starts_with(kRefused); }

  void hold(const std::string& path) { held_.insert(path); }
  /// An object is held by its members, and so are names with a star.
  bool holds(const std::string& path) const {
    if (path.ends_with(".*")) return holds(path.substr(0, path.size() - 2));
    // members of an object that is refused whole
    for (size_t dot = path.rfind('.'); dot != std::string::npos; dot = path.rfind('.', dot - 1)) {
      const auto whole = dialect().expect.find(path.substr(0, dot));
      if (whole != dialect().expect.end() &&
          std::all_of(whole->second.begin(), whole->second.end(),
                      [](const Json& value) { return value.is_null(); }))
        return true;
      if (dot == 0) break;
    }
    const auto found = held_.lower_bound(path);
    return found != held_.end() && (*found == path || found->starts_with(path + "."));
  }

  /// Holds what may have some values only; they must mean the same, and any other be refused.
  void try_expected(const Json& config, const format::TensorFile& file) {
    const Json strange = "frobnicate";
    for (const auto& [path, allowed] : dialect().expect) {
      const std::string error = outcome(with(config, path, &strange), file);
      EXPECT_TRUE(refused(error) && error.find(path) != std::string::npos) << path << ": " << error;
      std::set<std::string> outcomes;
      for (const Json& value : allowed) outcomes.insert(outcome(with(config, path, &value), file));
      if (outcomes.size() == 1) hold(path);
    }
  }

  /// Holds the keys of a file that the reference met, where the outcome depends on them.
  void try_each(const Json& config, const format::TensorFile& file) {
    const std::string whole = outcome(config, file);
    EXPECT_FALSE(refused(whole)) << whole;
    for (const auto& [path, value] : flat(config)) {
      const Json changed = other(value);
      if (outcome(with(config, path, nullptr), file) != whole ||
          outcome(with(config, path, &changed), file) != whole)
        hold(path);
    }
  }

  /// Holds keys that no file of the reference has, where the outcome depends on them.
  void try_beside(const Json& config,
                  const format::TensorFile& file,
                  const std::set<std::string>& paths) {
    const Json number = 0.25;
    for (const std::string& path : paths)
      if (dialect().claims.contains(path) &&
          outcome(with(config, path, &number), file) != outcome(config, file))
        hold(path);
  }

  void check() const {
    for (const std::string& path : dialect().claims)
      EXPECT_TRUE(holds(path) || dialect().ignored_keys.contains(path))
          << family_.name << " " << dialect_name_ << " " << path
          << " is claimed, and no parity case changes it, no reject refuses it";
  }

 private:
  static constexpr std::string_view kRefused = "refused: ";
  FamilySet& set_;
  const Family& family_;
  std::string dialect_name_;
  std::set<std::string> held_;
};

// --- Hugging Face -------------------------------------------------------------------------------

class Goldens {
 public:
  explicit Goldens(const std::string& family) : folder_(kGolden / family) {
    for (const auto& entry : fs::directory_iterator(folder_))
      if (fs::exists(entry.path() / "case.json")) names_.insert(entry.path().filename());
  }
  const std::set<std::string>& names() const { return names_; }
  Json facts(const std::string& name) const { return read_facts(folder_ / name / "case.json"); }
  Json config(const std::string& name) const { return read_facts(folder_ / name / "config.json"); }
  Json file(const char* name) const { return spec::read_json_file(folder_ / name); }
  const format::TensorFile& tensors(const std::string& name) {
    const std::string weights = facts(name).at("weights");
    if (!files_.contains(weights))
      files_.emplace(weights, format::open_safetensors(folder_ / weights / "model.safetensors"));
    return files_.at(weights);
  }

 private:
  fs::path folder_;
  std::set<std::string> names_;
  std::map<std::string, format::TensorFile> files_;
};

/// A case agrees with the reference; each key that it changes is held where, changed back alone, it
/// gives something else, and each that it leaves where that decides here and not in the case that
/// it varies. Where the reference does not care, agreeing with it is all there is.
void hold_by_cases(Goldens& goldens, Held& held) {
  std::map<std::string, std::string> outcomes;  // of the cases as they are
  const auto unchanged = [&](const std::string& name) -> const std::string& {
    const auto [at, fresh] = outcomes.try_emplace(name);
    if (fresh) at->second = held.outcome(goldens.config(name), goldens.tensors(name));
    return at->second;
  };
  for (const std::string& name : goldens.names()) {
    const Json facts = goldens.facts(name), config = goldens.config(name);
    if (!facts.contains("base")) continue;
    const Flat after = flat(config), before = flat(goldens.config(facts["base"]));
    std::set<std::string> paths;
    for (const Flat* side : {&after, &before})
      for (const auto& [path, value] : *side) paths.insert(path);
    const format::TensorFile& tensors = goldens.tensors(name);
    const std::string& whole = unchanged(name);
    for (const std::string& path : paths) {
      if (held.holds(path) || !held.dialect().claims.contains(path)) continue;
      const auto now = after.find(path), then = before.find(path);
      if (now != after.end() && then != before.end() && now->second == then->second) {
        const Json changed = other(now->second);
        const std::string base = facts["base"];
        const auto decides = [&](const std::string& of) {
          return held.outcome(with(goldens.config(of), path, &changed), goldens.tensors(of)) !=
                 unchanged(of);
        };
        if (decides(name) && !decides(base)) held.hold(path);
        continue;
      }
      const Json* value = then == before.end() ? nullptr : &then->second;
      if (facts.value("neutral", false) ||
          held.outcome(with(config, path, value), tensors) != whole)
        held.hold(path);
    }
    // measured: other values change nothing
    for (const Json& unread : facts.value("unread", Json::array())) {
      const std::string path = unread;
      const Json changed = other(after.at(path));
      EXPECT_EQ(held.outcome(with(config, path, &changed), tensors), whole) << path;
      held.hold(path);
    }
  }
}

/// A reject holds the keys without which, or with which alone, the config is refused.
void hold_by_rejects(Goldens& goldens, Held& held) {
  for (const Json& reject : goldens.file("rejects.json")) {
    if (!reject.contains("set")) continue;
    const std::string base = reject.at("base");
    Json config = goldens.config(base);
    if (reject.contains("unset"))
      for (const Json& key : reject["unset"]) config.erase(key.get<std::string>());
    const bool other_culprit = Held::refused(held.outcome(config, goldens.tensors(base)));
    for (const auto& [path, value] : reject["set"].items()) {
      Json rest = config;
      for (const auto& [set, to] : reject["set"].items())
        if (set != path) rest = with(rest, set, &to);
      const bool alone =
          Held::refused(held.outcome(with(config, path, &value), goldens.tensors(base)));
      if ((alone && !other_culprit) || !Held::refused(held.outcome(rest, goldens.tensors(base))))
        held.hold(path);
    }
  }
}

/// keys.json says what the reference did with another value of each key of the base's config.
void hold_by_measurement(Goldens& goldens, Held& held) {
  const Json keys = goldens.file("keys.json"), config = goldens.config("base");
  const format::TensorFile& tensors = goldens.tensors("base");
  const std::string whole = held.outcome(config, tensors, false);
  const Flat members = flat(config);  // keys of objects within it
  const auto has = [&](const std::string& path) {
    return config.contains(path) || members.contains(path);
  };
  const auto changed = [&](const std::string& path) {
    const Json value = other(config.contains(path) ? config.at(path) : members.at(path));
    return held.outcome(with(config, path, &value), tensors, false);
  };
  // a wrong size does not fit the tensors
  for (const Json& key : keys.at("shape"))
    if (const std::string path = key; has(path)) {
      const std::string found = changed(path);
      EXPECT_TRUE(Held::refused(found) || found == whole) << path << " gives another model";
      if (Held::refused(found)) held.hold(path);
    }
  const auto expect_idle = [&](const std::string& path) {
    if (!has(path)) return;
    const std::string found = changed(path);
    EXPECT_TRUE(found == whole || Held::refused(found))
        << path << ": the reference does not care, and we do";
    held.hold(path);
  };
  for (const Json& key : keys.at("neutral")) expect_idle(key);
  for (const char* kind : {"initialisation", "precision"})
    if (keys.contains(kind))
      for (const auto& [path, tried] : keys[kind].items()) expect_idle(path);
  for (const auto& [path, error] : keys.at("refused").items())
    if (has(path) && Held::refused(changed(path))) held.hold(path);
  // what it says of the cases is what they do
  for (const auto& [path, cases] : keys.at("mathematics").items())
    for (const Json& name : cases)
      EXPECT_TRUE(goldens.facts(name).at("changed").contains(path)) << path << " " << name;
}

class FamilyKeys : public testing::TestWithParam<std::string> {};

/// What llama.cpp does not ask for, and its own converter hence does not write.
const std::set<std::string> kOfTesseraAlone = {"ssm.dt_b_c_rms_epsilon", "ssm.time_step_min"};

std::vector<std::string> family_names() {
  return FamilySet::load().names();
}

TEST_P(FamilyKeys, AreHeldToSomething) {
  FamilySet set = FamilySet::load();
  const std::string& name = GetParam();
  const Family& family = set.named(name);
  for (const auto& [kind, dialect] : family.dialects) {
    if (dialect.inherited) continue;  // held by the base
    SCOPED_TRACE(name + " " + kind);
    Held held(set, family, kind);
    if (kind == "hf") {
      Goldens goldens(name);
      held.hold("model_type");  // what chose the family
      // names alone, which families_test.cpp compares
      for (const char* path : {"id2label", "id2label.*"}) held.hold(path);
      held.try_expected(goldens.config("base"), goldens.tensors("base"));
      hold_by_cases(goldens, held);
      hold_by_rejects(goldens, held);
      hold_by_measurement(goldens, held);
    } else if (kind == "gguf") {
      for (const auto& entry : fs::directory_iterator(kGolden / name / "gguf")) {
        const format::GgufFile file = format::open_gguf(entry.path());
        const Json config = gguf_config(file.metadata, entry.path().string());
        held.try_expected(config, file.tensors);
        held.try_each(config, file.tensors);
        held.try_beside(config, file.tensors, kOfTesseraAlone);
      }
    } else if (kind == "pth") {
      const fs::path files = fs::path(TESSERA_SOURCE_DIR) / "tests/golden/rwkv_pth";
      for (const auto& entry : fs::directory_iterator(files)) {
        if (entry.path().extension() != ".pth") continue;
        const format::TensorFile tensors = format::open_tensor_file(entry.path());
        Json names = Json::array();
        for (const TensorView& tensor : tensors.tensors()) names.push_back(tensor.name);
        held.try_each({{"tensors", names}}, tensors);
      }
    } else if (const char* data = std::getenv("TESSERA_TEST_DATA"); data == nullptr) {
      continue;  // headers without names; real files, whose texts real_models_test.cpp compares
    } else if (kind == "llama2c") {
      const auto file = format::open_llama2c(fs::path(data) / "stories260k/stories260K.bin");
      held.try_each(llama2c_config(file.header), file.tensors);
      // the keys of params.json
      Goldens goldens(name);
      Json params = test_params::params_of(goldens.config("base"));
      const format::TensorFile tensors(
          "test", "params",
          test_params::meta_tensors(goldens.tensors("base").tensors(),
                                    params.at("head_dim").get<int64_t>()));
      params["use_scaled_rope"] = true;
      params["rope_scaling_factor"] = 4;
      held.try_each(params, tensors);
      held.try_expected(params, tensors);
    } else {
      for (const auto& entry : fs::directory_iterator(fs::path(data) / "rwkv4"))
        if (entry.path().filename().string().starts_with("tiny-rwkv")) {
          const auto file = format::open_ggmf(entry.path());
          held.try_each(ggmf_config(file.header), file.tensors);
        }
    }
    held.check();
  }
}

INSTANTIATE_TEST_SUITE_P(All, FamilyKeys, testing::ValuesIn(family_names()), [](const auto& info) {
  return info.param;
});

}  // namespace
}  // namespace tessera::convert
