#include "tessera/infer/evaluation/verify.h"

#include <sstream>

#include <fmt/ranges.h>

#include "tessera/analysis/contract/suite.h"
#include "tessera/base/text_input.h"
#include "tessera/base/threads.h"
#include "tessera/cli/cli.h"
#include "tessera/cli/device_flag.h"
#include "tessera/cli/load_flags.h"
#include "tessera/cli/model_source.h"
#include "tessera/infer/loading/load_model.h"
#include "tessera/model/call_plan.h"
#include "tessera/nn/registry.h"
#include "tessera/spec/names.h"

namespace tessera::cli {
namespace {

struct VerifyArgs {
  DeviceFlag device;
  LoadFlags loading;
  std::string model, text;
  std::string mechanism, config;
  infer::VerifyOptions verify;
  // design: float32 forms agree to 1e-5 of the largest value; whole models to 1e-4
  double bound = 1e-5, logits_bound = 1e-4;
  int64_t tokens = 200;
  bool json = false;
  int threads = 0;
};

/// The tokens to compute, and why they are fewer than asked for; "" when they are not.
struct Tokens {
  std::vector<int64_t> ids;
  std::string fewer;
};

Tokens tokens_of(const VerifyArgs& o, const infer::LoadedModel& loaded) {
  const model::ModelSpec& spec = loaded.model.spec();
  Tokens tokens;
  int64_t most = o.tokens;
  if (const int64_t limit = spec.longest_sequence(); limit > 0 && limit < most) {
    most = limit;
    tokens.fewer = "this model's context length";
  }
  if (o.text.empty()) {
    const RandomKey key = RandomKey(o.verify.seed).fold("tokens");
    for (int64_t i = 0; i < most; ++i)
      tokens.ids.push_back(key.bits(static_cast<uint64_t>(i)) % static_cast<uint64_t>(spec.vocab));
    return tokens;
  }
  if (!loaded.tokenizer)
    fail(ErrorKind::usage, "verify", "{} has no tokenizer; leave --text out for random tokens",
         o.model);
  const auto all = loaded.tokenizer->encode(read_text_input(o.text, &cancel_token()), {});
  if (static_cast<int64_t>(all.size()) < most) {
    most = static_cast<int64_t>(all.size());
    tokens.fewer = "length of the text";
  }
  tokens.ids.assign(all.begin(), all.begin() + most);
  return tokens;
}

/// What of the tokens a state is continued through: not across a length where all angles change.
int64_t continued(const model::ModelSpec& spec, int64_t tokens) {
  const model::CallPlan calls(spec);
  return calls.goes_on() ? std::min(tokens, calls.until_in_cuts()) : 0;
}

void print_scope(const VerifyArgs& o, const Tokens& tokens, const model::ModelSpec& spec) {
  const auto n = static_cast<int64_t>(tokens.ids.size());
  if (!tokens.fewer.empty()) fmt::print("{} of {} tokens: {}\n", n, o.tokens, tokens.fewer);
  if (const std::string reason = model::CallPlan(spec).whole_reason(); !reason.empty())
    fmt::print(
        "not compared: chunked, recurrent, rolled back; the model has no state to continue from: "
        "{}\n",
        reason);
  else if (const int64_t some = continued(spec, n); some < n)
    fmt::print(
        "{} of {} tokens in every form except \"recomputed\": all angles change after them\n", some,
        n);
}

Json to_json(const std::vector<infer::Difference>& differences, double bound) {
  Json rows = Json::array();
  for (const infer::Difference& d : differences)
    rows.push_back({{"place", d.place},
                    {"form", d.form},
                    {"error", d.error},
                    {"token", d.token},
                    {"holds", d.error <= bound}});
  return rows;
}

void print_worst(const std::vector<infer::Difference>& differences,
                 const char* what,
                 double bound) {
  for (const char* form :
       {"as in training", "chunked", "token by token", "rolled back", "in a batch", "recomputed"}) {
    std::vector<infer::Difference> some;
    std::copy_if(differences.begin(), differences.end(), std::back_inserter(some),
                 [&](const infer::Difference& d) { return d.form == form; });
    const infer::Difference* worst = infer::Verification::worst(some);
    if (worst != nullptr)
      fmt::print("{:<9} {:<15} error {:.2e} at {}, token {}; bound {:.0e}: {}\n", what, form,
                 worst->error, worst->place, worst->token, bound,
                 worst->error <= bound ? "holds" : "DOES NOT HOLD");
  }
}

/// Whether a step of 8 bits, which the last bit of a number may decide, is part of the model.
bool rounds_activations(const model::ModelSpec& spec) {
  for (const model::LayerSpec& layer : spec.layers)
    for (const model::GroupSpec& group : layer.groups)
      for (const model::BranchSpec& branch : group.branches)
        if (branch.quantization && branch.quantization->int8) return true;
  return spec.encoder && rounds_activations(*spec.encoder);
}

/// The mechanism called NAME or SLOT/NAME.
const spec::Mechanism& mechanism_named(const std::string& name) {
  nn::register_mechanisms();
  std::vector<const spec::Mechanism*> found;
  std::vector<std::string> known, slots;
  for (const spec::Mechanism& m : spec::mechanisms()) {
    known.push_back(m.name);
    const std::string with_slot = fmt::format("{}/{}", spec::name_of(m.slot), m.name);
    if (name != m.name && name != with_slot) continue;
    found.push_back(&m);
    slots.push_back(with_slot);
  }
  if (found.empty())
    fail(ErrorKind::usage, "verify", "no mechanism is called \"{}\"{}; `tessera list` has them all",
         name, spec::did_you_mean(name, known));
  if (found.size() > 1)
    fail(ErrorKind::usage, "verify", "{} slots have a mechanism \"{}\"; expected one of: {}",
         found.size(), name, fmt::join(slots, ", "));
  return *found[0];
}

/// The failures of a check: of a configuration each, the first ones in full.
void print_failures(const contract::Case& part, const contract::Result& result) {
  constexpr int kShown = 5;
  fmt::print("  {} {}\n", part.part.dump(),
             result.holds ? fmt::format("holds; expected a failure: {}", result.exception) : "");
  std::istringstream lines(result.failures);
  int n = 0;
  for (std::string line; std::getline(lines, line); ++n)
    if (n < kShown) fmt::print("  {}\n", line);
  if (n > kShown) fmt::print("    and {} more\n", n - kShown);
}

/// The contract suite on one mechanism: a row for each check over all configurations.
int verify_mechanism(const VerifyArgs& o) {
  const spec::Mechanism& mechanism = mechanism_named(o.mechanism);
  const Json fields = o.config.empty() ? Json::object() : spec::parse_json(o.config, "--config");
  if (!fields.is_object())
    fail(ErrorKind::usage, "verify", "--config {}: found {}; expected an object of fields",
         o.config, spec::kind_of(fields));
  const std::vector<contract::Case> cases = contract::cases_of(mechanism, fields);
  Json configs = Json::array(), rows = Json::array();
  for (const contract::Case& c : cases) {
    if (!c.problem.empty()) fail(ErrorKind::spec, "verify", "{}: {}", c.name, c.problem);
    configs.push_back(c.part);
  }
  if (!o.json)
    fmt::print("{} {}, configurations: {}\n{:<13} {:<45} {}\n", spec::name_of(mechanism.slot),
               mechanism.name, cases.size(), "check", "what holds", "result");
  size_t failed = 0;
  for (const contract::Check& check : contract::checks()) {
    std::vector<std::pair<const contract::Case*, contract::Result>> unexpected;
    size_t excepted = 0;
    for (const contract::Case& c : cases) {
      if (cancel_token().requested()) fail(ErrorKind::cancelled, "verify", "cancelled");
      contract::Result result = contract::run_check(c, check);
      rows.push_back({{"check", check.name},
                      {"config", c.part},
                      {"holds", result.holds},
                      {"as_expected", result.as_expected()},
                      {"failures", result.failures}});
      excepted += result.exception != nullptr;
      if (!result.as_expected()) unexpected.emplace_back(&c, std::move(result));
    }
    failed += !unexpected.empty();
    if (o.json) continue;
    const std::string exceptions =
        excepted == 0 ? "" : fmt::format(", {} excepted by design", excepted);
    fmt::print("{:<13} {:<45} {}{}\n", check.name, check.what,
               unexpected.empty()
                   ? "holds"
                   : fmt::format("DOES NOT HOLD in {} of {}", unexpected.size(), cases.size()),
               exceptions);
    for (const auto& [c, result] : unexpected) print_failures(*c, result);
    std::fflush(stdout);
  }
  if (o.json)
    print_json({{"mechanism", mechanism.name},
                {"slot", spec::name_of(mechanism.slot)},
                {"holds", failed == 0},
                {"configs", configs},
                {"checks", rows}});
  else
    fmt::print("{} of {} checks hold\n", contract::checks().size() - failed,
               contract::checks().size());
  return failed == 0 ? kExitOk : kExitFailed;
}

int verify(VerifyArgs& o) {
  if (o.threads > 0) set_thread_count(o.threads);
  if (o.model.empty() == o.mechanism.empty())
    fail(ErrorKind::usage, "verify", "{}; expected one of them",
         o.model.empty() ? "neither a model nor --mechanism" : "a model and --mechanism");
  if (!o.mechanism.empty()) {
    o.device.check();
    return verify_mechanism(o);
  }
  const infer::LoadedModel loaded =
      o.device.loaded([&] { return infer::load_model(o.model, o.loading.options()); });
  say_differences(loaded.source);
  o.verify.cancel = &cancel_token();
  const Tokens tokens = tokens_of(o, loaded);
  const model::ModelSpec& spec = loaded.model.spec();
  const infer::Verification result = infer::verify(loaded.model, tokens.ids, o.verify);
  const auto holds = [](const std::vector<infer::Difference>& differences, double bound) {
    const infer::Difference* worst = infer::Verification::worst(differences);
    return worst == nullptr || worst->error <= bound;
  };
  const bool ok = holds(result.branches, o.bound) && holds(result.logits, o.logits_bound);
  if (o.json) {
    print_json({{"holds", ok},
                {"tokens", tokens.ids.size()},
                {"asked_tokens", o.tokens},
                {"continued_tokens", continued(spec, static_cast<int64_t>(tokens.ids.size()))},
                {"bound", o.bound},
                {"logits_bound", o.logits_bound},
                {"branches", to_json(result.branches, o.bound)},
                {"logits", to_json(result.logits, o.logits_bound)}});
  } else {
    print_scope(o, tokens, spec);
    print_worst(result.branches, "branches", o.bound);
    print_worst(result.logits, "logits", o.logits_bound);
    if (!ok && holds(result.branches, o.bound))
      fmt::print(
          "every branch holds alone: the difference of the logits is most likely rounding that "
          "later "
          "branches amplify; --logits-bound sets the limit\n");
    if (!ok && rounds_activations(spec))
      fmt::print(
          "this model rounds activations to 8 bits: where forms add in another order, a number "
          "near the middle of two steps may go to either of them, which moves logits by some "
          "hundredths. Forms with error 0 are not affected; --bound and --logits-bound set the "
          "limits\n");
  }
  return ok ? kExitOk : kExitCheckNotMet;
}

}  // namespace

std::function<int()> add_verify(CLI::App& app) {
  auto o = std::make_shared<VerifyArgs>();
  group(app, "Input");
  add_model(app, o->model)->required(false);
  app.add_option("--mechanism", o->mechanism,
                 "instead of a model: run the contract suite on this mechanism (gradient check, "
                 "causality, forms, state, determinism); NAME or SLOT/NAME");
  app.add_option("--config", o->config,
                 "with --mechanism: fields of the mechanism, JSON, in addition to those derived "
                 "from its options");
  app.add_option("--text,-f", o->text,
                 "file with the text; - = standard input; without it random tokens");
  app.add_option("--tokens", o->tokens, "maximum number of tokens")
      ->capture_default_str()
      ->check(CLI::Range(2, 1 << 20));
  app.add_option("--seed,-s", o->verify.seed, "random seed of chunks and tokens")
      ->capture_default_str()
      ->check(seed());
  o->loading.add(app);
  group(app, "Check");
  app.add_option("--bound", o->bound, "largest error of a branch, relative to its largest output")
      ->capture_default_str()
      ->check(not_negative());
  app.add_option("--logits-bound", o->logits_bound,
                 "largest error of the logits, relative to the largest")
      ->capture_default_str()
      ->check(not_negative());
  app.add_option("--chunk", o->verify.longest_chunk, "maximum length of the random chunks, tokens")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  group(app, "Output");
  app.add_flag("--json", o->json, "every branch and form as JSON");
  group(app, "Precision and performance");
  o->device.add(app);
  o->device.excludes(app.get_option("--mechanism"));
  add_threads(app, o->threads);
  examples(app, {"tessera verify out/shakespeare/latest --text examples/data/shakespeare.txt",
                 "tessera verify model.gguf --tokens 64 --json",
                 "tessera verify --mechanism my_mixer --plugin build/my_mixer.so"});
  return [o] { return verify(*o); };
}

}  // namespace tessera::cli
