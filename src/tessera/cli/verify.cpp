#include "tessera/infer/verify.h"

#include "tessera/base/text_input.h"
#include "tessera/base/threads.h"
#include "tessera/cli/cli.h"
#include "tessera/cli/model_source.h"
#include "tessera/infer/load_model.h"
#include "tessera/model/call_plan.h"

namespace tessera::cli {
namespace {

struct VerifyArgs {
  std::string model, text, families;
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
    tokens.fewer = "this model is made for no more";
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
    tokens.fewer = "the text has no more";
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
        "not compared: chunked, token by token, rolled back; no state to continue from: {}\n",
        reason);
  else if (const int64_t some = continued(spec, n); some < n)
    fmt::print(
        "{} of {} tokens in every form but \"computed anew\": all angles change after them\n", some,
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
  for (const char* form : {"as in training", "chunked", "token by token", "rolled back",
                           "in a batch", "computed anew"}) {
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
  const infer::LoadedModel loaded = infer::load_model(o.model, {o.families});
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
          "every branch holds by itself: what the logits show is most likely rounding that "
          "the branches after it enlarge; --logits-bound says how much is borne\n");
  }
  return ok ? kExitOk : kExitCheckNotMet;
}

}  // namespace

std::function<int()> add_verify(CLI::App& app) {
  auto o = std::make_shared<VerifyArgs>();
  app.add_option("model", o->model,
                 "a tessera or Hugging Face folder, or a GGUF file; one that has no state to "
                 "continue from is computed alone, as in training, and between other texts")
      ->required();
  app.add_option("--text", o->text,
                 "a text to compute; - = standard input; random tokens without it");
  app.add_option("--tokens", o->tokens,
                 "only so many tokens; fewer, and a line says why, where the text or the model "
                 "ends before")
      ->capture_default_str()
      ->check(CLI::Range(2, 1 << 20));
  app.add_option("--bound", o->bound, "of a branch's error, relative to its largest output")
      ->capture_default_str()
      ->check(not_negative());
  app.add_option("--logits-bound", o->logits_bound, "of the logits' error, relative to the largest")
      ->capture_default_str()
      ->check(not_negative());
  app.add_option("--chunk", o->verify.longest_chunk, "longest of the random cuts, in tokens")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--seed", o->verify.seed, "of the cuts, and of random tokens")
      ->capture_default_str()
      ->check(seed());
  app.add_flag("--json", o->json, "every branch and form as JSON");
  app.add_option("--threads", o->threads, "0 = all cores")->check(CLI::Range(0, 4096));
  app.add_option("--families", o->families, "a folder of further family files");
  examples(app, {"tessera verify out/shakespeare/latest --text examples/data/shakespeare.txt",
                 "tessera verify model.gguf --tokens 64 --json"});
  return [o] { return verify(*o); };
}

}  // namespace tessera::cli
