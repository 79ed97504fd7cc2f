#include "tessera/convert/propose.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "tessera/base/error.h"
#include "tessera/base/mapped_file.h"
#include "tessera/convert/expr_node.h"
#include "tessera/convert/foreign_config.h"
#include "tessera/convert/propose_choice.h"
#include "tessera/convert/propose_forms.h"
#include "tessera/convert/propose_keys.h"
#include "tessera/convert/propose_tensors.h"
#include "tessera/format/file_source.h"
#include "tessera/spec/names.h"

namespace tessera::convert {
namespace {

namespace fs = std::filesystem;

constexpr size_t kRefined = 24;   // bases whose forms and names are matched, at most
constexpr size_t kAtOnce = 8;     // of them before the next are looked at
constexpr size_t kEnough = 3;     // complete drafts after which no further base is looked at,
constexpr double kNear = 3;       // the best of which costs less
constexpr size_t kSwitched = 10;  // bases whose switches are tried
constexpr int kRounds = 4;        // names that are found lead to others

/// The bases with their drafts, best first.
std::vector<Draft> drafts_on(Trial& trial, std::vector<std::string> bases) {
  std::vector<Draft> drafts;
  for (const std::string& base : bases) drafts.push_back(first_draft(trial, base));
  const auto sort = [&] {
    std::stable_sort(drafts.begin(), drafts.end(),
                     [](const Draft& a, const Draft& b) { return a.rank() < b.rank(); });
  };
  sort();
  if (drafts.size() > kRefined) drafts.resize(kRefined);
  size_t complete = 0;
  double best = kNear;
  for (size_t i = 0; i < drafts.size(); ++i) {
    if (i % kAtOnce == 0 && complete >= kEnough && best < kNear) {
      drafts.resize(i);
      break;
    }
    adapt(trial, drafts[i]);
    for (int round = 0; round < kRounds && !drafts[i].dry.complete(); ++round)
      if (!infer_keys(trial, drafts[i]) && !map_tensors(trial, drafts[i])) break;
    claim_switches(trial, drafts[i]);
    pass_over_sizes(trial, drafts[i]);
    if (!drafts[i].dry.complete()) continue;
    ++complete;
    best = std::min(best, drafts[i].cost);
  }
  sort();
  if (!drafts.front().dry.complete()) {
    for (size_t i = 0; i < std::min(kSwitched, drafts.size()); ++i) {
      try_switches(trial, drafts[i]);
      claim_switches(trial, drafts[i]);
      pass_over_sizes(trial, drafts[i]);
    }
    sort();
  }
  prefer_typical(drafts);
  return drafts;
}

/// The layout of the rotary positions of a spec; "" = it has none.
std::string rotary_layout(const Json& spec) {
  if (spec.is_object() && spec.value("type", Json()) == "rope" && spec.contains("layout"))
    return spec["layout"].get<std::string>();
  if (spec.is_structured())
    for (const Json& member : spec)
      if (std::string layout = rotary_layout(member); !layout.empty()) return layout;
  return "";
}

/// Neither names nor shapes show which channels of a head rotate together.
void doubt_rotation(const Evidence& evidence, Draft& draft) {
  const std::string layout = rotary_layout(draft.dry.spec_json);
  bool stated = false;
  for (const auto& [key, value] : evidence.config().items())
    stated = stated || key.find("interleave") != std::string::npos;
  if (layout.empty() || stated) return;
  draft.unsure.push_back(
      layout == "half"
          ? "rotary positions turn channels i and i + d/2 of a head, as in the base; where the "
            "class turns neighbors, 2i and 2i + 1: \"let\": {\"hf_pairs\": true, "
            "\"rope_layout\": \"interleaved\"}; logits show it, shapes do not"
          : "rotary positions turn neighbors, channels 2i and 2i + 1 of a head, as in the base; "
            "most classes turn i and i + d/2; logits show it, shapes do not");
}

Proposal finished(const Evidence& evidence, Trial& trial, std::vector<Draft> drafts) {
  Draft& draft = drafts.front();
  trial.tidy(draft);
  Proposal proposal;
  for (const DryRun::Key& key : draft.dry.keys)
    if (!key.readers.empty())
      draft.unsure.push_back(fmt::format(
          "key \"{}\" = {} has no place in the base; {} read it", key.path, shown(key.value),
          fmt::join(key.readers.begin(),
                    key.readers.begin() + std::min<std::ptrdiff_t>(3, std::ssize(key.readers)),
                    ", ")));
    else
      draft.unsure.push_back(
          fmt::format("key \"{}\" = {} is read by no family; what it sets keeps the base's value",
                      key.path, shown(key.value)));
  if (draft.hf().value("read", Json::object()).value("headless", Json(false)) == Json(true))
    draft.unsure.push_back(
        "no tensor is a head and no key ties it to the embedding, so \"headless\" is true; false "
        "is a tied head");
  doubt_rotation(evidence, draft);
  if (!draft.unsure.empty()) draft.family["unsure"] = draft.unsure;
  proposal.type = evidence.type();
  proposal.base = draft.base;
  proposal.family = draft.family;
  proposal.dry = std::move(draft.dry);
  proposal.unsure = draft.unsure;
  for (const Draft& other : drafts) proposal.nearest.emplace_back(other.base, other.cost);
  proposal.keys = evidence.config().size();
  proposal.tensors = evidence.tensors().tensors().size();
  return proposal;
}

/// A line for each member down to a depth, the rest in one.
void write_json(const Json& json, int depth, int most, std::string& text) {
  const auto indent = [&](int n) { text += "\n" + std::string(static_cast<size_t>(2 * n), ' '); };
  if (!json.is_structured() || json.empty() || depth >= most) {
    text += json.dump();
    return;
  }
  text += json.is_object() ? "{" : "[";
  bool first = true;
  for (const auto& [key, value] : json.items()) {
    text += first ? "" : ",";
    first = false;
    indent(depth + 1);
    if (json.is_object()) text += Json(key).dump() + ": ";
    write_json(value, depth + 1, most, text);
  }
  indent(depth);
  text += json.is_object() ? "}" : "]";
}

}  // namespace

Proposal propose_family(const fs::path& folder, const ProposeOptions& options) {
  const Evidence evidence(folder);
  Trial trial(evidence, options);
  std::vector<std::string> bases = trial.bases();
  if (!options.base.empty()) {
    if (std::find(bases.begin(), bases.end(), options.base) == bases.end())
      fail(ErrorKind::usage, "--base", "there is no family \"{}\"{}", options.base,
           spec::did_you_mean(options.base, bases));
    bases = {options.base};
  }
  return finished(evidence, trial, drafts_on(trial, std::move(bases)));
}

std::string family_text(const Json& family) {
  std::string text = "{";
  bool first = true;
  for (const auto& [key, value] : family.items()) {
    text += first ? "\n  " : ",\n  ";
    first = false;
    text += Json(key).dump() + ": ";
    // rules of a loop, and renames, a line each
    write_json(value, 1, key == "tensors" ? 4 : key == "dialects" ? 4 : 2, text);
  }
  return text + "\n}\n";
}

namespace {

void add_config_paths(const Json& config, const std::string& prefix, std::set<std::string>& paths) {
  for (const auto& [key, value] : config.items()) {
    paths.insert(prefix + key);
    if (value.is_object()) add_config_paths(value, prefix + key + ".", paths);
  }
}

/// Entries of a family's own file that nothing in a model has, a line each.
std::vector<std::string> idle_entries(const FamilySet& families,
                                      const Family& family,
                                      const Json& config,
                                      const format::TensorFile& tensors) {
  const Dialect& dialect = family.dialect(kHf);
  const Json own =
      families.file(family.name).value("dialects", Json::object()).value(kHf, Json::object());
  std::vector<std::string> lines;
  const auto add = [&](const std::string& entry, const std::string& what) {
    const Error error(ErrorKind::spec, fmt::format("{}.{}.{}", family.name, kHf, entry), what);
    lines.emplace_back(families.located(error, family.name).what());
  };
  std::set<std::string> paths;
  add_config_paths(config, "", paths);
  if (const auto lifted = config.find(dialect.lift); lifted != config.end() && lifted->is_object())
    add_config_paths(*lifted, "", paths);
  std::vector<std::string> unread;
  for (const std::string& path : paths)
    if (!dialect.claims.contains(path)) unread.push_back(path);
  const Json keys = own.value("keys", Json::object()),
             globs = own.value("ignored_tensors", Json::object());
  for (const auto& [base, file] : keys.items())
    if (file.is_string() && !paths.contains(file.get<std::string>()))
      add("keys." + base, fmt::format("config.json has no \"{}\"{}", file.get<std::string>(),
                                      spec::did_you_mean(file.get<std::string>(), unread)));
  for (const auto& [glob, why] : globs.items()) {
    const auto fits = [&, pattern = glob](const auto& tensor) {
      return matches_glob(tensor.name, pattern);
    };
    if (std::none_of(tensors.tensors().begin(), tensors.tensors().end(), fits) &&
        std::none_of(tensors.unsupported().begin(), tensors.unsupported().end(), fits))
      add("ignored_tensors." + glob, "the file has no tensor of this name");
  }
  return lines;
}

}  // namespace

DryRun dry_run_of(FamilySet& families, const std::string& family, const fs::path& folder) {
  const fs::path path = folder / "config.json";
  const Json config = parse_hf_config(read_text_file(path, kMaxConfigBytes), path.string());
  const format::TensorFile tensors = format::open_tensor_folder(folder);
  const Foreign foreign{kHf, config, &tensors, path.string()};
  DryRun run = Importer(families.named(family), foreign, families).dry_run(/*placed=*/true);
  run.idle = idle_entries(families, families.named(family), config, tensors);
  if (!run.complete()) return run;
  Checkpoint checkpoint;
  checkpoint.family = family;
  checkpoint.dialect = kHf;
  checkpoint.foreign_config = config;
  checkpoint.foreign_dialect = kHf;
  checkpoint.spec = *run.spec;
  checkpoint.spec_json = model::resolve(*run.spec);
  run.why_not_written =
      why_not_exportable(families.named(family), kHf, checkpoint, families, &run.lacking);
  return run;
}

}  // namespace tessera::convert
