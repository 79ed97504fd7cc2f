#include <algorithm>

#include "tessera/cli/cli.h"
#include "tessera/cli/presets.h"
#include "tessera/convert/family.h"
#include "tessera/convert/model_types.h"
#include "tessera/model/techniques.h"
#include "tessera/nn/registry.h"
#include "tessera/spec/mechanism.h"

namespace tessera::cli {
namespace {

struct ListArgs {
  std::string what = "mechanisms", families;
  bool json = false;
};

/// The names in quotes of an expression of a family file such as "='encoder' if bidirectional else
/// 'decoder'", the usual one first: it is the last.
std::vector<std::string> names_in(const std::string& text) {
  if (!text.starts_with('=')) return {text};
  std::vector<std::string> out;
  for (size_t begin = 0; (begin = text.find('\'', begin)) != std::string::npos;) {
    const size_t end = text.find('\'', begin + 1);
    if (end == std::string::npos) break;
    out.insert(out.begin(), text.substr(begin + 1, end - begin - 1));
    begin = end + 1;
  }
  return out;
}

/// Name, what it is, classes of its specs (the usual one first), its GGUF architectures, released
/// models of it with a spec in zoo/.
Json family_row(const std::string& name, const Json& file) {
  Json classes = Json::array(), gguf = Json::array(), models = Json::array();
  if (const auto spec = file.find("spec"); spec != file.end())
    for (std::string& arch : names_in(spec->value("arch", ""))) {
      std::replace(arch.begin(), arch.end(), '_', '-');
      classes.push_back(arch);
    }
  const Json& dialects = file.at("dialects");
  if (const auto at = dialects.find("gguf"); at != dialects.end())
    gguf = at->value("types", Json::array());
  for (const Preset& preset : presets())
    if (preset.family == name)
      models.push_back(
          {{"name", preset.name()}, {"parameters", preset.parameters}, {"active", preset.active}});
  return {{"family", name},
          {"about", file.value("about", "")},
          {"class", classes},
          {"gguf", gguf},
          {"models", models}};
}

std::string joined(const Json& names) {
  std::string out;
  for (const Json& name : names) out += (out.empty() ? "" : ", ") + name.get<std::string>();
  return out;
}

int list_families(const ListArgs& o) {
  const convert::FamilySet families = convert::FamilySet::load(o.families);
  Json rows = Json::array();
  for (const std::string& name : families.names()) {
    const Json row = family_row(name, families.merged(name));
    rows.push_back(row);
    if (o.json) continue;
    std::string sizes;
    for (const Json& preset : row["models"])
      sizes += (sizes.empty() ? "" : ", ") + preset["name"].get<std::string>() + " (" +
               short_count(preset["parameters"].get<int64_t>()) + ")";
    const std::string gguf = joined(row["gguf"]);
    fmt::print("{:<20} {}{}\n", name, joined(row["class"]), gguf.empty() ? "" : "; GGUF: " + gguf);
    fmt::print("    {}\n", row["about"].get<std::string>());
    if (!sizes.empty()) fmt::print("    sizes: {}\n", sizes);
  }
  if (o.json) print_json(rows);
  return kExitOk;
}

int list(const ListArgs& o) {
  if (o.what == "families") return list_families(o);
  if (o.what == "model-types") {
    Json rows = Json::array();
    for (const convert::ModelType& type : convert::model_types()) {
      rows.push_back(
          {{"model_type", type.name}, {"classes", type.classes}, {"refused", type.refused}});
      if (!o.json)
        fmt::print("{:<26} {}\n", type.name,
                   type.refused.empty() ? "runs" : "refused: " + type.refused);
    }
    if (o.json) print_json(rows);
    return kExitOk;
  }
  nn::register_mechanisms();
  Json rows = Json::array();
  for (const spec::Mechanism& m : spec::mechanisms()) {
    rows.push_back({{"slot", spec::name_of(m.slot)},
                    {"type", m.name},
                    {"summary", m.info.summary},
                    {"paper", m.info.paper},
                    {"year", m.info.year},
                    {"causality", spec::name_of(m.info.causality)},
                    {"parallel", m.info.forms.parallel},
                    {"chunked", m.info.forms.chunked},
                    {"recurrent", m.info.forms.recurrent},
                    {"recorded", m.info.forms.recorded}});
    if (!o.json)
      fmt::print("{:<13} {:<12} {}  [{}]\n", spec::name_of(m.slot), m.name, m.info.summary,
                 m.info.paper);
  }
  for (const model::Technique& t : model::techniques()) {
    rows.push_back({{"slot", nullptr},
                    {"group", t.group},
                    {"type", t.name},
                    {"summary", t.summary},
                    {"paper", t.paper},
                    {"year", t.year},
                    {"use", t.use}});
    if (!o.json)
      fmt::print("{:<13} {:<12} {} Use: {}  [{}]\n", t.group, t.name, t.summary, t.use, t.paper);
  }
  if (o.json) print_json(rows);
  return kExitOk;
}

}  // namespace

std::function<int()> add_list(CLI::App& app) {
  auto o = std::make_shared<ListArgs>();
  group(app, "Input");
  app.add_option("what", o->what,
                 "mechanisms (with techniques), families (of checkpoints: class, GGUF name, "
                 "sizes), or model-types (of transformers)")
      ->capture_default_str()
      ->check(CLI::IsMember({"mechanisms", "families", "model-types"}));
  add_families(app, o->families);
  group(app, "Output");
  app.add_flag("--json", o->json, "as JSON");
  examples(app, {"tessera list mechanisms", "tessera list families", "tessera list model-types"});
  return [o] { return list(*o); };
}

}  // namespace tessera::cli
