#include "tessera/infer/evaluation/verify.h"

#include "tessera/base/text_input.h"
#include "tessera/base/threads.h"
#include "tessera/cli/cli.h"
#include "tessera/cli/load_flags.h"
#include "tessera/cli/model_source.h"
#include "tessera/infer/loading/load_model.h"
#include "tessera/model/call_plan.h"

namespace tessera::cli {
namespace {

struct VerifyArgs {
  LoadFlags loading;
  std::string model, text;
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

int verify(VerifyArgs& o) {
  if (o.threads > 0) set_thread_count(o.threads);
  const infer::LoadedModel loaded = infer::load_model(o.model, o.loading.options());
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
  }
  return ok ? kExitOk : kExitCheckNotMet;
}

}  // namespace

std::function<int()> add_verify(CLI::App& app) {
  auto o = std::make_shared<VerifyArgs>();
  group(app, "Input");
  add_model(app, o->model);
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
  add_threads(app, o->threads);
  examples(app, {"tessera verify out/shakespeare/latest --text examples/data/shakespeare.txt",
                 "tessera verify model.gguf --tokens 64 --json"});
  return [o] { return verify(*o); };
}

}  // namespace tessera::cli
