#include "tessera/infer/verify.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

namespace tessera::infer {
namespace {

/// One call: so many tokens, of which so many are kept.
struct Step {
  int64_t length = 0, keep = 0;
};

struct Form {
  const char* name;
  bool pending = false;
  std::vector<Step> steps = {};  // none: one call without a state
  bool training = false;         // by the operations that gradients pass
};

std::vector<Form> forms_of(int64_t tokens, const VerifyOptions& options) {
  const int64_t longest = std::max<int64_t>(1, options.longest_chunk);
  std::vector<Form> forms = {
      {"as in training", false, {}, true}, {"chunked"}, {"token by token"}, {"rolled back", true}};
  for (Form& form : forms) {
    if (form.training) continue;
    const RandomKey key = RandomKey(options.seed).fold("verify").fold(form.name);
    const auto draw = [&](int64_t most, uint64_t index) {
      return 1 + static_cast<int64_t>(key.bits(index) % static_cast<uint64_t>(most));
    };
    for (int64_t at = 0; at < tokens;) {
      const auto number = static_cast<uint64_t>(form.steps.size());
      Step step{1, 1};
      if (form.name != std::string_view("token by token"))
        step.length = step.keep = std::min(draw(longest, 2 * number), tokens - at);
      if (form.pending) step.keep = draw(step.length, 2 * number + 1);
      form.steps.push_back(step);
      at += step.keep;
    }
  }
  return forms;
}

/// Values by place, rows by token.
using Values = std::map<std::string, Tensor>;

struct Run {
  Values inputs, outputs;  // of the branches
  Tensor logits;
};

/// All of `ids` in the given form. With `inputs`, every branch gets those instead of its own.
Run compute(const model::Model& model,
            const std::vector<int64_t>& ids,
            const Form& form,
            const Values* inputs,
            const VerifyOptions& options) {
  const at::AutoGradMode mode(form.training);
  const auto tokens = static_cast<int64_t>(ids.size());
  std::map<std::string, std::vector<Tensor>> in, out;
  std::vector<Tensor> logits;
  model::State state;
  int64_t at = 0, keep = 0;
  model::ForwardOptions forward;
  forward.pending = form.pending;
  forward.cancel = options.cancel;
  if (inputs != nullptr)
    forward.replace = [&](const std::string& name, const Tensor& x) {
      return inputs->at(name).narrow(0, at, x.size(0));
    };
  forward.probe = [&](const std::string& name, const Tensor& value) {
    if (!name.starts_with("layers.")) return;
    if (name.ends_with(".in") && inputs == nullptr && form.steps.empty())
      in[name].push_back(value.detach().clone());
    if (name.ends_with(".out")) out[name].push_back(value.detach().narrow(0, 0, keep).clone());
  };
  const std::vector<Step> whole = {{tokens, tokens}};
  if (!form.steps.empty()) {
    state = model::State(model.spec(), 1, form.pending ? options.longest_chunk : 0);
    forward.state = &state;
  }
  for (const Step& step : form.steps.empty() ? whole : form.steps) {
    keep = step.keep;
    const std::vector<int64_t> some(ids.begin() + at, ids.begin() + at + step.length);
    const Tensor hidden =
        model.hidden(nn::Batch::of(std::vector<std::vector<int64_t>>{some}, {at}), forward);
    if (inputs == nullptr && model.has_head())
      logits.push_back(model.logits(hidden.narrow(0, 0, keep)).detach());
    if (form.pending) state.commit(0, keep);
    at += keep;
  }
  Run run;
  for (auto& [name, parts] : in) run.inputs[name] = at::cat(parts);
  for (auto& [name, parts] : out)
    run.outputs[name.substr(0, name.size() - std::string_view(".out").size())] = at::cat(parts);
  if (!logits.empty()) run.logits = at::cat(logits);
  return run;
}

}  // namespace

const Difference* Verification::worst(const std::vector<Difference>& differences) {
  const auto found =
      std::max_element(differences.begin(), differences.end(),
                       [](const Difference& a, const Difference& b) { return a.error < b.error; });
  return found == differences.end() ? nullptr : &*found;
}

Difference largest_difference(const Tensor& got_NC, const Tensor& want_NC) {
  const Tensor wanted = want_NC.to(at::kDouble).flatten(1);
  const Tensor rows = (got_NC.to(at::kDouble).flatten(1) - wanted).abs().amax(1);
  const Tensor errors = at::where(rows.isnan(), std::numeric_limits<double>::infinity(), rows);
  Difference difference;
  difference.token = errors.argmax().item<int64_t>();
  const double largest = wanted.abs().max().item<double>(), error = errors.max().item<double>();
  difference.error = error == 0 ? 0 : error / largest;
  if (std::isnan(difference.error)) difference.error = std::numeric_limits<double>::infinity();
  return difference;
}

Verification verify(const model::Model& model,
                    const std::vector<int64_t>& ids,
                    const VerifyOptions& options) {
  if (!model.spec().causal() || model.spec().encoder)
    fail(ErrorKind::usage, "verify", "this model is an {}; expected a decoder",
         model::name_of(model.spec().arch));
  if (const std::string reason = model.spec().no_state_reason(); !reason.empty())
    fail(ErrorKind::usage, "verify",
         "there is only one form to compute, since this model cannot continue from a state: {}",
         reason);
  if (ids.size() < 2)
    fail(ErrorKind::input, "verify", "{} tokens; expected at least 2", ids.size());
  const at::NoGradGuard no_gradients;
  const Run whole = compute(model, ids, {"whole"}, nullptr, options);
  Verification result;
  const auto compare = [&](std::vector<Difference>& to, const std::string& place, const Form& form,
                           const Tensor& got, const Tensor& want) {
    to.push_back(largest_difference(got, want));
    to.back().place = place;
    to.back().form = form.name;
  };
  for (const Form& form : forms_of(static_cast<int64_t>(ids.size()), options)) {
    const Run forced = compute(model, ids, form, &whole.inputs, options);
    for (const auto& [place, want] : whole.outputs)
      compare(result.branches, place, form, forced.outputs.at(place), want);
    if (!model.has_head()) continue;
    const Run free = compute(model, ids, form, nullptr, options);
    compare(result.logits, "logits", form, free.logits, whole.logits);
  }
  return result;
}

}  // namespace tessera::infer
