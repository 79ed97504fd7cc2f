#include "tessera/cli/cli.h"
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

int list(const ListArgs& o) {
  if (o.what == "families") {
    Json rows = Json::array();
    for (const std::string& name : convert::FamilySet::load(o.families).names()) {
      rows.push_back(name);
      if (!o.json) fmt::print("{}\n", name);
    }
    if (o.json) print_json(rows);
    return kExitOk;
  }
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
                    {"recurrent", m.info.forms.recurrent}});
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
  app.add_option("what", o->what, "mechanisms (with techniques), families, or model-types (of transformers)")
      ->capture_default_str()
      ->check(CLI::IsMember({"mechanisms", "families", "model-types"}));
  add_families(app, o->families);
  group(app, "Output");
  app.add_flag("--json", o->json, "as JSON");
  examples(app, {"tessera list mechanisms", "tessera list families", "tessera list model-types"});
  return [o] { return list(*o); };
}

}  // namespace tessera::cli
