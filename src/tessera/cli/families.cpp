#include "tessera/cli/families.h"

#include <algorithm>
#include <map>

#include <fmt/ranges.h>

#include "tessera/base/mapped_file.h"
#include "tessera/base/output_file.h"
#include "tessera/base/temporary_folder.h"
#include "tessera/cli/cli.h"
#include "tessera/cli/out_place.h"
#include "tessera/convert/family_show.h"
#include "tessera/convert/propose.h"
#include "tessera/convert/tensor_roles.h"
#include "tessera/format/file_source.h"
#include "tessera/format/tensor_folder.h"
#include "tessera/model/model_spec.h"
#include "tessera/spec/names.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;

struct ProposeArgs {
  std::string folder, out, base, families, text;
  int64_t tokens = 2000;
  bool force = false;
};

struct CheckArgs {
  std::string file, model, families;
  bool spec = false;
};

struct ShowFamilyArgs {
  std::string name, families, dialect;
  bool json = false;
};

/// Some of a long list, and how many more.
template <class List, class Print>
void print_some(std::FILE* out, const List& list, const Print& print) {
  constexpr size_t kShown = 20;
  for (size_t i = 0; i < std::min(list.size(), kShown); ++i)
    fmt::print(out, "  {}\n", print(list[i]));
  if (list.size() > kShown) fmt::print(out, "  and {} more\n", list.size() - kShown);
}

/// The name of a list that a tensor is most like; "" = none.
std::string most_like(const std::string& name, const std::vector<std::string>& others) {
  std::string best;
  double most = 0.3;
  for (const std::string& other : others) {
    const double like =
        convert::likeness(convert::numbered(name).pattern, convert::numbered(other).pattern);
    if (like > most) {
      most = like;
      best = other;
    }
  }
  return best;
}

std::string nearest_text(const std::string& nearest, const char* what) {
  return nearest.empty() ? "" : fmt::format(" (nearest {}: {})", what, format::in_quotes(nearest));
}

/// Tensors of one pattern: all layers' as one line of a report.
struct SameTensors {
  std::string name;  // "layers.*.q.weight", or of one alone its name
  size_t count = 0;
  size_t first = 0;  // in the list
};

template <class List, class Name>
std::vector<SameTensors> by_pattern(const List& list, const Name& name_of) {
  std::vector<SameTensors> groups;
  std::map<std::string, size_t> places;
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string name = name_of(list[i]);
    const std::string pattern = convert::numbered(name).pattern;
    const auto [at, added] = places.try_emplace(pattern, groups.size());
    if (added)
      groups.push_back({name, 0, i});
    else
      groups[at->second].name = pattern;
    ++groups[at->second].count;
  }
  return groups;
}

std::string tensors_text(const SameTensors& same) {
  return same.count == 1 ? same.name : fmt::format("{} ({} tensors)", same.name, same.count);
}

/// What a dry run met, and what is nearest to each.
void print_dry_run(std::FILE* out, const convert::DryRun& dry, const convert::Dialect* dialect) {
  std::vector<std::string> claims;
  if (dialect != nullptr) claims = {dialect->claims.begin(), dialect->claims.end()};
  std::vector<std::string> wanted;
  for (const convert::DryRun::Missing& missing : dry.missing) wanted.push_back(missing.name);
  fmt::print(out, "parameters with a tensor of their shape: {}\n", dry.mapped);
  const auto section = [&](const char* title, const auto& list, const auto& print) {
    if (list.empty()) return;
    fmt::print(out, "{}: {}\n", title, list.size());
    print_some(out, list, print);
  };
  section("errors", dry.errors, [](const std::string& error) { return error; });
  section("unclaimed keys of config.json", dry.keys, [&](const convert::DryRun::Key& key) {
    return fmt::format(
        "{} = {}: {}{}", dialect == nullptr ? key.path : dialect->file_key(key.path),
        key.value.dump(),
        key.readers.empty()
            ? "known to no family, ignored on loading"
            : fmt::format("changes what {} compute, refused on loading",
                          fmt::join(key.readers.begin(),
                                    key.readers.begin() +
                                        std::min<std::ptrdiff_t>(3, std::ssize(key.readers)),
                                    ", ")),
        nearest_text(spec::nearest_name(key.path, claims), "key"));
  });
  const auto tensors = [&](const char* title, const auto& list, const auto& name_of,
                           const auto& print) {
    if (list.empty()) return;
    fmt::print(out, "{}: {}\n", title, list.size());
    print_some(out, by_pattern(list, name_of), print);
  };
  const auto itself = [](const std::string& name) { return name; };
  tensors("unmapped tensors of the file", dry.unmapped, itself, [&](const SameTensors& same) {
    return tensors_text(same) + nearest_text(most_like(same.name, wanted), "rule");
  });
  tensors(
      "tensors that rules need and the file lacks", dry.missing,
      [](const convert::DryRun::Missing& missing) { return missing.name; },
      [&](const SameTensors& same) {
        return fmt::format("{} for {}{}", tensors_text(same),
                           fmt::join(dry.missing[same.first].ours, ", "),
                           nearest_text(most_like(same.name, dry.unmapped), "tensor"));
      });
  tensors(
      "misshapen tensors", dry.misshapen,
      [](const convert::DryRun::Misshapen& one) { return one.source; },
      [&](const SameTensors& same) {
        const convert::DryRun::Misshapen& one = dry.misshapen[same.first];
        return fmt::format("{} gives {} the shape {}; the config says {}", tensors_text(same),
                           one.ours, format::shape_text(one.found),
                           format::shape_text(one.expected));
      });
  tensors("parameters that no rule gives", dry.ungiven, itself, tensors_text);
  section("entries of the family file that nothing in the model has", dry.idle, itself);
}

const convert::Dialect* hf_dialect(const convert::Family& family) {
  const auto found = family.dialects.find("hf");
  return found == family.dialects.end() ? nullptr : &found->second;
}

/// The last line of a dry run that is complete.
std::string fitting(const convert::DryRun& dry) {
  std::string text = "dry run (names and shapes only): every tensor is mapped and every shape fits";
  if (!dry.keys.empty())
    text += fmt::format("; keys of config.json that are not read: {}", dry.keys.size());
  return text;
}

int propose(const ProposeArgs& o, const FamilyProver& prover) {
  if (!o.out.empty()) check_out_place("propose", o.out, o.force);
  const convert::Proposal proposal =
      convert::propose_family(o.folder, {.families = o.families, .base = o.base});
  const std::string text = convert::family_text(proposal.family);
  // the file alone goes to stdout
  std::FILE* report = o.out.empty() ? stderr : stdout;
  if (o.out.empty())
    fmt::print("{}", text);
  else
    write_file_atomically(o.out, text);
  fmt::print(report, "base: {}\n", proposal.base);
  std::string others;
  for (size_t i = 1; i < std::min<size_t>(4, proposal.nearest.size()); ++i)
    others += fmt::format("{}{} ({:.1f})", i == 1 ? "" : ", ", proposal.nearest[i].first,
                          proposal.nearest[i].second);
  if (!others.empty())
    fmt::print(report,
               "cost of the draft (keys and tensors left over, changes of the base): {:.1f}; of "
               "drafts on other bases: {}\n",
               proposal.nearest[0].second, others);
  const convert::Json& hf = proposal.family.at("dialects").at("hf");
  for (const auto& [key, what] : {std::pair("keys", "renamed keys"), {"names", "renamed tensors"}})
    if (hf.contains(key)) fmt::print(report, "{}: {}\n", what, hf.at(key).size());
  if (hf.contains("read")) {
    std::string set;
    for (const auto& [name, value] : hf.at("read").items())
      set += fmt::format("{}{} = {}", set.empty() ? "" : ", ", name,
                         value.is_string() ? value.get<std::string>() : value.dump());
    fmt::print(report, "values set: {}\n", set);
  }
  print_dry_run(report, proposal.dry, nullptr);
  if (!proposal.unsure.empty()) {
    fmt::print(report, "unsure: {}\n", proposal.unsure.size());
    print_some(report, proposal.unsure, [](const std::string& what) { return what; });
  }
  if (!proposal.dry.complete()) {
    fmt::print(report,
               "incomplete: the file needs entries (names, keys, tensors) for the above; then "
               "`tessera families check FILE FOLDER`\n");
    return kExitCheckNotMet;
  }
  fmt::print(report, "{}\n", fitting(proposal.dry));
  // shapes do not show a rotation, an epsilon, an activation
  fmt::print(report,
             "compare its logits with the reference: `tessera forward {} --families DIR --input "
             "ids.safetensors --out logits.safetensors`, DIR being the folder of the file "
             "(docs/guide/families.md, \"Compare logits\")\n",
             o.folder);
  if (o.text.empty()) return kExitOk;
  const TemporaryFolder scratch;
  if (!o.families.empty())
    fs::copy(o.families, scratch.path(),
             fs::copy_options::recursive | fs::copy_options::overwrite_existing);
  write_file_atomically(
      scratch.path() / (proposal.family.at("family").get<std::string>() + ".json"), text);
  return prover({o.folder, scratch.path().string(), o.text, o.tokens}) ? kExitOk : kExitCheckNotMet;
}

/// Whether the file is asked for the model's type; if not, prints what is missing.
bool claims_type(const convert::Dialect* hf, const fs::path& model, std::FILE* report) {
  const fs::path config = model / "config.json";
  if (hf == nullptr || !fs::exists(config)) return true;
  const spec::Json type = spec::read_json_file(config).value("model_type", spec::Json());
  if (!type.is_string() ||
      std::find(hf->types.begin(), hf->types.end(), type.get<std::string>()) != hf->types.end())
    return true;
  fmt::print(report, "the file is not for the model's type: \"types\" lacks \"{}\"; it has {}\n",
             format::printable(type.get<std::string>(), 64), fmt::join(hf->types, ", "));
  return false;
}

int check(const CheckArgs& o) {
  convert::FamilySet families = convert::FamilySet::load(o.families);
  const std::string text = read_text_file(o.file);
  spec::JsonLimits limits;
  limits.comments = true;
  families.add_user(text, o.file);
  const std::string name =
      spec::parse_json(text, o.file, limits).value("family", Json("")).get<std::string>();
  if (name.empty()) fail(ErrorKind::spec, o.file, "a fragment; expected a family file");
  const convert::Family& family = families.named(name);
  const convert::Dialect* hf = hf_dialect(family);
  // the spec alone goes to stdout
  std::FILE* report = o.spec ? stderr : stdout;
  fmt::print(report, "family {}{}: {} rules and groups of rules, {} keys of config.json\n", name,
             family.base.empty() ? "" : fmt::format(" on the base {}", family.base),
             family.rules.size(), hf == nullptr ? 0 : hf->claims.size());
  for (const std::string& what : family.unsure) fmt::print(report, "unsure: {}\n", what);
  if (o.model.empty()) return kExitOk;
  const convert::DryRun dry = convert::dry_run_of(families, name, o.model);
  print_dry_run(report, dry, hf);
  const bool claimed = claims_type(hf, o.model, report);
  if (!dry.why_not_written.empty()) {
    fmt::print(report, "reads only: it cannot be written because {}\n", dry.why_not_written);
    print_some(report, dry.lacking, [](const std::string& line) { return line; });
  }
  fmt::print(report, "{}\n",
             dry.complete() ? fitting(dry) : "dry run: the model does not load with this file");
  if (o.spec && dry.spec)
    print_json(model::resolve(*dry.spec));
  else if (o.spec && !dry.spec_json.is_null())
    print_json(dry.spec_json);
  return dry.complete() && claimed ? kExitOk : kExitCheckNotMet;
}

int show_family(const ShowFamilyArgs& o) {
  convert::FamilySet families = convert::FamilySet::load(o.families);
  const convert::Json& file = families.file(o.name);
  if (file.contains("fragment"))
    print_json(file);
  else if (o.json)
    print_json(convert::shown_family_json(families, o.name));
  else
    fmt::print("{}", convert::shown_family(families, o.name, o.dialect));
  return kExitOk;
}

}  // namespace

std::function<int()> add_model_families(CLI::App& app, FamilyProver prover) {
  app.require_subcommand(1);
  examples(app, {"tessera families propose FOLDER --out families/quill.json --text wiki.txt",
                 "tessera families check families/quill.json FOLDER", "tessera families show llama",
                 "tessera families schema > family.schema.json"});
  auto of_propose = std::make_shared<ProposeArgs>();
  CLI::App* propose_verb = app.add_subcommand(
      "propose", "Drafts the family file of a checkpoint of an unknown model type");
  group(*propose_verb, "Input");
  names_model(propose_verb
                  ->add_option("folder", of_propose->folder,
                               "Hugging Face folder with config.json and weights")
                  ->required(),
              of_propose->folder);
  propose_verb->add_option("--base", of_propose->base,
                           "family to build on; without it the nearest one");
  add_families(*propose_verb, of_propose->families);
  group(*propose_verb, "Check");
  propose_verb->add_option(kProofText, of_propose->text,
                           "text for a check of the draft: agreement of all forms (`verify`) and "
                           "perplexity; - = standard input");
  propose_verb->add_option("--tokens", of_propose->tokens, "maximum number of tokens of the text")
      ->capture_default_str()
      ->check(CLI::Range(2, 1 << 20));
  group(*propose_verb, "Output");
  add_out(*propose_verb, of_propose->out, "family file; without it standard output");
  add_force(*propose_verb, of_propose->force);
  auto of_check = std::make_shared<CheckArgs>();
  CLI::App* check_verb = app.add_subcommand(
      "check", "Checks a family file, and by a dry run whether it fits a checkpoint");
  group(*check_verb, "Input");
  check_verb->add_option("file", of_check->file, "family file (JSON)")->required();
  CLI::Option* model_option =
      check_verb->add_option("model", of_check->model,
                             "Hugging Face folder for a dry run: keys, tensors, shapes, writing");
  names_model(model_option, of_check->model);
  add_families(*check_verb, of_check->families);
  group(*check_verb, "Output");
  check_verb
      ->add_flag(
          "--spec", of_check->spec,
          "print the spec that the file gives for the model, also of an incomplete file; the "
          "report goes to standard error")
      ->needs(model_option);
  auto of_show = std::make_shared<ShowFamilyArgs>();
  CLI::App* show_verb = app.add_subcommand(
      "show", "Shows what a model family consists of: base, values, tensor rules, spec template");
  group(*show_verb, "Input");
  show_verb->add_option("name", of_show->name, "family, or fragment that families include")
      ->required();
  add_families(*show_verb, of_show->families);
  group(*show_verb, "Output");
  show_verb
      ->add_option(
          "--dialect", of_show->dialect,
          "file format whose keys and tensors are shown; without it hf, or the family's first")
      ->check(CLI::IsMember({"hf", "gguf", "llama2c", "ggmf", "pth"}));
  show_verb->add_flag("--json", of_show->json,
                      "the family file with all that it builds on, as JSON");
  CLI::App* schema_verb =
      app.add_subcommand("schema", "Prints the JSON schema of family files, for editors");
  for (CLI::App* below : {propose_verb, show_verb, check_verb, schema_verb})
    below->group("Commands");
  return [of_propose, of_check, of_show, propose_verb, check_verb, show_verb, prover] {
    if (propose_verb->parsed()) return propose(*of_propose, prover);
    if (check_verb->parsed()) return check(*of_check);
    if (show_verb->parsed()) return show_family(*of_show);
    fmt::print("{}", convert::family_schema());
    return kExitOk;
  };
}

std::function<int()> add_model_families(CLI::App& app) {
  // main() has handed what needs a prover to the other program
  return add_model_families(app, FamilyProver{});
}

}  // namespace tessera::cli
