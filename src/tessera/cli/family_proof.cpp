// What `families propose --text` does with tensors.
#include <cmath>

#include "tessera/base/text_input.h"
#include "tessera/cli/cli.h"
#include "tessera/cli/families.h"
#include "tessera/infer/evaluation/evaluate.h"
#include "tessera/infer/evaluation/verify.h"
#include "tessera/infer/loading/load_model.h"

namespace tessera::cli {
namespace {

// as of `verify`: float32 branches agree to 1e-5 of their largest value, whole models to 1e-4
constexpr double kBranchBound = 1e-5, kLogitsBound = 1e-4;
constexpr size_t kVerified = 200;  // tokens in all forms

bool print_largest(const std::vector<infer::Difference>& differences,
                   const char* what,
                   double bound) {
  const infer::Difference* worst = infer::Verification::worst(differences);
  if (worst == nullptr) return true;
  fmt::print("{}: largest error {:.2e} ({}, {}, token {}); bound {:.0e}: {}\n", what, worst->error,
             worst->form, worst->place, worst->token, bound,
             worst->error <= bound ? "holds" : "DOES NOT HOLD");
  return worst->error <= bound;
}

bool prove(const FamilyProofArgs& args) {
  convert::LoadOptions options;
  options.families = args.families;
  const infer::LoadedModel loaded = infer::load_model(args.model, options);
  if (!loaded.tokenizer)
    fail(ErrorKind::usage, "families", "{} has no tokenizer, which --text needs", args.model);
  const auto all = loaded.tokenizer->encode(read_text_input(args.text, &cancel_token()), {});
  std::vector<int64_t> ids(all.begin(), all.end());
  if (std::ssize(ids) > args.tokens) ids.resize(static_cast<size_t>(args.tokens));
  const model::ModelSpec& spec = loaded.model.spec();
  size_t verified = std::min(ids.size(), kVerified);
  if (const int64_t limit = spec.longest_sequence(); limit > 0)
    verified = std::min(verified, static_cast<size_t>(limit));
  infer::VerifyOptions verify;
  verify.cancel = &cancel_token();
  const infer::Verification forms = infer::verify(
      loaded.model, {ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(verified)}, verify);
  const bool branches = print_largest(forms.branches, "branches in all forms", kBranchBound);
  const bool logits = print_largest(forms.logits, "logits in all forms", kLogitsBound);
  if (spec.arch != model::Arch::decoder || !spec.head) {
    fmt::print("no perplexity: the model predicts no next token\n");
    return branches && logits;
  }
  infer::EvalOptions eval;
  eval.cancel = &cancel_token();
  if (const int64_t limit = spec.max_positions(); limit > 0)
    eval.window = std::min(eval.window, limit);
  const infer::EvalResult result = infer::evaluate(loaded.model, ids, eval);
  const double perplexity = std::exp(result.nll);
  const auto vocab = static_cast<double>(spec.vocab);
  fmt::print("perplexity {:.4f} on {} tokens{}\n", perplexity, result.targets,
             perplexity < vocab ? ""
                                : fmt::format(", no better than chance ({} tokens of vocabulary): "
                                              "the draft or the weights are wrong",
                                              spec.vocab));
  return branches && logits && perplexity < vocab;
}

}  // namespace

std::function<int()> add_proving_families(CLI::App& app) {
  return add_model_families(app, prove);
}

}  // namespace tessera::cli
