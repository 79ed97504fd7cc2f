#include <algorithm>
#include <optional>

#include <fmt/ranges.h>

#include "tessera/analysis/advice.h"
#include "tessera/analysis/run_check.h"
#include "tessera/base/mapped_file.h"
#include "tessera/base/output_file.h"
#include "tessera/cli/amount.h"
#include "tessera/cli/cli.h"
#include "tessera/cli/out_place.h"
#include "tessera/cli/presets.h"
#include "tessera/nn/registry.h"
#include "tessera/spec/json.h"

namespace tessera::cli {
namespace {

using analysis::Candidate;

struct AdviseArgs {
  analysis::Question question;
  std::string parameters = "100M", memory, train_tokens, costs, choose, out;
  std::vector<std::string> check;  // folders of runs
  bool training = false, force = false, json = false;
};

template <class T>
std::string names_of(const std::vector<T>& list) {
  std::vector<std::string> names;
  for (const auto& one : list) names.push_back(one.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

std::string factor(const Candidate& c) {
  if (!c.time) return "-";
  return fmt::format("{:.3g}x{}", *c.time, c.extrapolated ? "~" : "");
}

Json to_json(const Candidate& c) {
  Json out = {{"name", c.name}, {"about", c.about}};
  if (!c.excluded.empty()) {
    out["excluded"] = c.excluded;
    return out;
  }
  const auto ids = [](const std::vector<const analysis::Rule*>& rules) {
    Json list = Json::array();
    for (const analysis::Rule* rule : rules) list.push_back(rule->id);
    return list;
  };
  out["score"] = c.score;
  out["preferred_by"] = ids(c.preferred_by);
  out["avoided_by"] = ids(c.avoided_by);
  out["pareto"] = c.pareto;
  out["mixer_time"] = c.time ? Json(*c.time) : Json();
  out["extrapolated"] = c.extrapolated;
  out["bytes"] = c.bytes;
  out["plan"] = model::to_json(c.plan);
  out["spec"] = c.spec;
  return out;
}

/// The rules that speak for or against any of the candidates, in the order of the data.
std::vector<const analysis::Rule*> rules_used(const std::vector<Candidate>& candidates) {
  std::vector<const analysis::Rule*> out;
  for (const analysis::Rule& rule : analysis::advice_data().rules)
    for (const Candidate& c : candidates)
      for (const auto* rules : {&c.preferred_by, &c.avoided_by})
        if (std::find(rules->begin(), rules->end(), &rule) != rules->end() &&
            (out.empty() || out.back() != &rule))
          out.push_back(&rule);
  return out;
}

std::string evidence_of(const analysis::Rule& rule) {
  std::vector<std::string> texts;
  for (const analysis::Evidence& one : rule.evidence) texts.push_back(one.text());
  return fmt::format("{}", fmt::join(texts, "; "));
}

void print_table(const std::vector<Candidate>& candidates, bool training) {
  fmt::print("  {:<24} {:>10} {:>10} {:>10} {:>11} {:>6}\n", "architecture", "parameters", "state",
             "memory", training ? "train time" : "mixer time", "rules");
  for (const Candidate& c : candidates) {
    if (!c.excluded.empty()) continue;
    fmt::print("{} {:<24} {:>10} {:>10} {:>10} {:>11} {:>+6}  {}\n", c.pareto ? '*' : ' ', c.name,
               short_count(c.plan.parameters), short_count(c.plan.state_bytes),
               short_count(static_cast<int64_t>(c.bytes)), factor(c), c.score, c.about);
  }
  fmt::print(
      "state: bytes of a sequence; memory: bytes of weights (bf16) and of all states; {}: time of\n"
      "the mixers at this length, full attention = 1 (~ extrapolated); rules: for minus against;\n"
      "* = no other one is better in one of these and as good in the rest\n",
      training ? "train time" : "mixer time");
}

/// The sources of a check: pages and papers.
std::string sources_of(const analysis::CheckRule& rule) {
  std::vector<std::string> texts;
  for (const analysis::Evidence& one : rule.evidence)
    texts.push_back(one.page.empty() ? one.text() : "docs/" + one.page);
  return fmt::format("{}", fmt::join(texts, "; "));
}

int check_runs(const AdviseArgs& o) {
  const std::vector<train::RunRecord> runs = train::read_runs({o.check.begin(), o.check.end()});
  for (const train::RunRecord& run : runs) {
    if (run.lines.empty())
      fmt::print(stderr, "tessera: {}: no step in its log; checks of the log are left out\n",
                 run.name);
    if (train::costs_of(run).parameters <= 0)
      fmt::print(stderr,
                 "tessera: {}: its spec cannot be read; checks of the number of parameters are "
                 "left out (--plugin FILE, if a plugin has its mechanisms)\n",
                 run.name);
  }
  const std::vector<analysis::Finding> findings = analysis::check_runs(runs);
  if (o.json) {
    Json list = Json::array(), names = Json::array();
    for (const train::RunRecord& run : runs) names.push_back(run.folder.string());
    for (const analysis::Finding& one : findings)
      list.push_back({{"id", one.rule->id},
                      {"run", one.run},
                      {"problem", one.rule->problem},
                      {"found", one.found},
                      {"remedy", one.rule->remedy},
                      {"source", sources_of(*one.rule)}});
    print_json({{"runs", names}, {"findings", list}});
    return kExitOk;
  }
  for (const analysis::Finding& one : findings)
    fmt::print("{}{} [{}]\n  found:  {}\n  remedy: {}\n  source: {}\n",
               runs.size() > 1 ? one.run + ": " : "", one.rule->problem, one.rule->id, one.found,
               one.rule->remedy, sources_of(*one.rule));
  fmt::print("{}{} of {} checks found something in {} run{}\n", findings.empty() ? "" : "\n",
             findings.size(), analysis::check_rules().size() * runs.size(), runs.size(),
             runs.size() == 1 ? "" : "s");
  return kExitOk;
}

int advise(AdviseArgs o) {
  if (!o.check.empty()) return check_runs(o);
  check_out_place("advise", o.out, o.force);
  o.question.parameters = amount_of("--parameters", o.parameters);
  if (!o.memory.empty()) o.question.memory = amount_of("--memory", o.memory);
  if (!o.train_tokens.empty())
    o.question.train_tokens = amount_of("--train-tokens", o.train_tokens);
  if (o.training) o.question.pass = analysis::Pass::backward;
  nn::register_mechanisms();
  std::optional<analysis::CostRun> own;
  if (!o.costs.empty())
    own = analysis::cost_run_from_json(spec::parse_json(read_text_file(o.costs), o.costs), o.costs);
  const analysis::CostRun& costs = own ? *own : analysis::shipped_costs();
  const auto candidates = analysis::advise(o.question, analysis::advice_data(), costs);
  const auto first = std::find_if(candidates.begin(), candidates.end(), [&](const Candidate& c) {
    return o.choose.empty() ? c.excluded.empty() : c.name == o.choose;
  });
  if (first == candidates.end() || !first->excluded.empty()) {
    if (!o.choose.empty() && first == candidates.end())
      fail(ErrorKind::usage, "advise", "--choose {}; expected one of {}", o.choose,
           names_of(candidates));
    const Candidate& c = first == candidates.end() ? candidates.front() : *first;
    fail(ErrorKind::usage, "advise", "no architecture fits; {}: {}", c.name, c.excluded);
  }
  if (!o.out.empty()) write_file_atomically(o.out, first->spec.dump(2) + "\n");
  if (o.json) {
    Json out = {
        {"task", o.question.task},
        {"length", o.question.length},
        {"costs", {{"cpu", costs.cpu}, {"threads", costs.threads}, {"width", costs.width}}}};
    for (const Candidate& c : candidates) out["candidates"].push_back(to_json(c));
    for (const analysis::Rule* rule : rules_used(candidates))
      out["rules"].push_back({{"id", rule->id},
                              {"problem", rule->problem},
                              {"remedy", rule->remedy},
                              {"evidence", evidence_of(*rule)}});
    print_json(out);
    return kExitOk;
  }
  print_table(candidates, o.training);
  fmt::print("\nRules that apply\n");
  for (const analysis::Rule* rule : rules_used(candidates)) {
    const auto with = [&](auto member) {
      std::vector<std::string> names;
      for (const Candidate& c : candidates)
        if (const auto& rules = c.*member;
            std::find(rules.begin(), rules.end(), rule) != rules.end())
          names.push_back(c.name);
      return fmt::format("{}", fmt::join(names, ", "));
    };
    fmt::print("- {}\n  {}\n", rule->problem, rule->remedy);
    if (const auto names = with(&Candidate::preferred_by); !names.empty())
      fmt::print("  for: {}\n", names);
    if (const auto names = with(&Candidate::avoided_by); !names.empty())
      fmt::print("  against: {}\n", names);
    fmt::print("  evidence: {}\n", evidence_of(*rule));
  }
  fmt::print("\nExcluded\n");
  for (const Candidate& c : candidates)
    if (!c.excluded.empty()) fmt::print("- {}: {}\n", c.name, c.excluded);
  fmt::print("\nFirst choice: {} ({})\n", first->name, first->about);
  if (o.out.empty())
    fmt::print("its spec: the same command with --out spec.json\n");
  else
    fmt::print("its spec: {}\n", o.out);
  return kExitOk;
}

}  // namespace

std::function<int()> add_advise(CLI::App& app) {
  auto o = std::make_shared<AdviseArgs>();
  const analysis::AdviceData& data = analysis::advice_data();
  group(app, "Task");
  app.add_option("--task", o->question.task, "task: " + names_of(data.tasks))
      ->capture_default_str();
  app.add_option("--length,-c,--ctx-size,--max-model-len", o->question.length,
                 "tokens of a text (context length)")
      ->capture_default_str()
      ->check(positive());
  app.add_option("--trained-length", o->question.trained_length,
                 "tokens of a training text, if shorter: rules of length extrapolation apply")
      ->check(positive());
  app.add_option("--need", o->question.needs, "demand: " + names_of(data.needs) + "; repeatable");
  group(app, "Size");
  app.add_option("--parameters", o->parameters, "parameters, such as 10M")->capture_default_str();
  app.add_option("--memory", o->memory,
                 "bytes for weights (bf16) and states, such as 8G; what needs more is excluded");
  app.add_option("--sequences", o->question.sequences, "sequences at once, of --length tokens each")
      ->capture_default_str()
      ->check(positive());
  app.add_option("--vocab", o->question.vocab, "vocabulary size; 256 = bytes")
      ->capture_default_str()
      ->check(positive());
  group(app, "Training");
  app.add_option("--train-tokens", o->train_tokens, "training tokens, such as 5M");
  app.add_flag("--training", o->training, "compare times of training (with backward)");
  group(app, "Runs");
  auto* check = app.add_option(
      "--check", o->check,
      "check training runs instead: folders of runs, or folders above them (a sweep); each finding "
      "with a remedy and its source");
  group(app, "Output");
  app.add_option("--costs", o->costs,
                 "cost.json of `tessera bench mixers` on this machine; default: that of the guide");
  app.add_option("--choose", o->choose, "with --out: architecture; default: the first");
  add_out(app, o->out, "write the spec of the first choice, or of --choose, to this file");
  add_force(app, o->force);
  app.add_flag("--json", o->json, "as JSON, with all specs");
  examples(
      app,
      {"tessera advise --task chat --length 2048",
       "tessera advise --task chat --length 32768 --need exact_recall --memory 2G",
       "tessera advise --task embeddings --length 512 --parameters 30M",
       "tessera advise --parameters 3M --vocab 256 --train-tokens 2M --training --out spec.json",
       "tessera advise --check out/run"});
  for (CLI::Option* option : app.get_options())
    if (option != check && option->get_name() != "--json" && option->get_name() != "--help")
      check->excludes(option);
  return [o] { return advise(*o); };
}

}  // namespace tessera::cli
