#include "tessera/infer/evaluation/verify.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <optional>

#include "tessera/model/call_plan.h"
#include "tessera/model/placement.h"

namespace tessera::infer {
namespace {

/// One call: number of tokens, and how many of them are committed.
struct Step {
  int64_t length = 0, keep = 0;
};

struct Form {
  const char* name;
  bool pending = false;
  std::vector<Step> steps = {};  // empty: one call without a state
  bool training = false;         // with the operations that support gradients
  bool in_batch = false;         // between two other texts, in one call
};

/// The first `prefix` tokens of every form are in one call and committed.
std::vector<Form> forms_of(int64_t tokens, int64_t prefix, const VerifyOptions& options) {
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
      if (at < prefix) step.length = step.keep = prefix;
      form.steps.push_back(step);
      at += step.keep;
    }
  }
  return forms;
}

/// Without a state there is nothing to continue from: other texts of the batch must have no effect.
std::vector<Form> forms_without_state() {
  return {{"as in training", false, {}, true}, {"in a batch", false, {}, false, true}};
}

/// A text beyond a change of all rotary angles: one call from an empty state across the change, as
/// generation computes it again, then continued as far as the angles are constant.
Form form_on_same_inputs(const model::CallPlan& calls,
                         int64_t tokens,
                         int64_t prefix,
                         const VerifyOptions& options) {
  Form form{"recomputed"};
  const int64_t first = std::max(calls.until_in_cuts() + 1, prefix);
  if (calls.until(first) < tokens) {
    form.steps = {{tokens, tokens}};
    return form;
  }
  form.steps = {{first, first}};
  const RandomKey key = RandomKey(options.seed).fold("verify").fold(form.name);
  const auto longest = static_cast<uint64_t>(std::max<int64_t>(1, options.longest_chunk));
  for (int64_t at = first; at < tokens;) {
    const int64_t drawn = 1 + static_cast<int64_t>(key.bits(form.steps.size()) % longest);
    const int64_t n = std::min(drawn, tokens - at);
    form.steps.push_back({n, n});
    at += n;
  }
  return form;
}

/// Other texts for the batch, no longer than `length`.
std::array<std::vector<int64_t>, 2> neighbours(int64_t tokens,
                                               int64_t vocab,
                                               const VerifyOptions& options) {
  std::array<std::vector<int64_t>, 2> texts;
  for (size_t side = 0; side < texts.size(); ++side) {
    const RandomKey key = RandomKey(options.seed).fold("neighbour").fold(side);
    texts[side].resize(1 + key.bits(0) % static_cast<uint64_t>(tokens));
    for (size_t i = 0; i < texts[side].size(); ++i)
      texts[side][i] = static_cast<int64_t>(key.bits(i + 1) % static_cast<uint64_t>(vocab));
  }
  return texts;
}

/// Values by place, rows by token.
using Values = std::map<std::string, Tensor>;

struct Activations {
  Values inputs, outputs;  // of the branches
  Tensor logits;
};

/// Number of prefix tokens: some, if the model has a bidirectional prefix.
int64_t given_of(const model::ModelSpec& spec, int64_t tokens) {
  return model::CallPlan(spec).reads_given() ? std::max<int64_t>(1, tokens / 2) : 0;
}

/// Encoder output of each text, as much as fits.
nn::Encoded encode(const model::Model& model,
                   std::vector<std::vector<int64_t>> sources,
                   const VerifyOptions& options) {
  const model::ModelSpec& encoder = *model.spec().encoder;
  for (std::vector<int64_t>& source : sources) {
    if (const int64_t limit = encoder.longest_sequence(); limit > 0)
      source.resize(std::min(source.size(), static_cast<size_t>(limit)));
    for (int64_t& id : source) id %= encoder.vocab;
  }
  model::ForwardOptions forward;
  forward.cancel = options.cancel;
  return model.encode(nn::Batch::of(sources), forward);
}

/// Computes `ids` in the given form. With `inputs`, every branch gets those instead of its own.
Activations compute(const model::Model& model,
                    const std::vector<int64_t>& ids,
                    const Form& form,
                    const Values* inputs,
                    const VerifyOptions& options) {
  const int64_t given = given_of(model.spec(), static_cast<int64_t>(ids.size()));
  const at::AutoGradMode mode(form.training);
  const auto tokens = static_cast<int64_t>(ids.size());
  std::map<std::string, std::vector<Tensor>> in, out;
  std::vector<Tensor> logits;
  model::State state;
  int64_t at = 0, keep = 0;
  std::array<std::vector<int64_t>, 2> beside;
  if (form.in_batch) beside = neighbours(tokens, model.spec().vocab, options);
  const auto first = static_cast<int64_t>(beside[0].size());  // where `ids` begin in a call
  model::ForwardOptions forward;
  forward.cancel = options.cancel;
  if (inputs != nullptr)
    forward.replace = [&](const std::string& name, const Tensor& x) {
      if (!form.in_batch) return inputs->at(name).narrow(0, at, x.size(0));
      Tensor all = x.clone();
      all.narrow(0, first, tokens).copy_(inputs->at(name));
      return all;
    };
  const auto is_layer = [&](const std::string& name) {
    const std::string begin = model.spec().under("layers.");
    return name.find('.', begin.size()) == name.size() - std::string_view(".out").size();
  };
  forward.probe = [&](const std::string& name, const Tensor& value) {
    if (!name.starts_with(model.spec().under("layers."))) return;
    if (name.ends_with(".in") && inputs == nullptr && form.steps.empty())
      in[name].push_back(value.detach().clone());
    // of branches and of layers that choose tokens; the output of a layer has no input of its own
    if (name.ends_with(".out") && !is_layer(name))
      out[name].push_back(value.detach().narrow(0, first, keep).clone());
  };
  std::optional<nn::Encoded> encoded;
  if (model.spec().encoder)
    encoded = form.in_batch ? encode(model, {beside[0], ids, beside[1]}, options)
                            : encode(model, {ids}, options);
  const std::vector<Step> whole = {{tokens, tokens}};
  if (!form.steps.empty()) {
    int64_t longest = 0;
    for (const Step& step : form.steps) longest = std::max(longest, step.length);
    state = model::State(model.spec(), 1, form.pending ? longest : 0,
                         at::TensorOptions(model::device_of(model)).dtype(at::kFloat));
    forward.state = &state;
  }
  for (const Step& step : form.steps.empty() ? whole : form.steps) {
    keep = step.keep;
    forward.encoded =
        encoded && at == 0 ? &*encoded : nullptr;  // the state keeps the encoder output
    const std::vector<int64_t> some(ids.begin() + at, ids.begin() + at + step.length);
    auto batch = form.in_batch ? nn::Batch::of({beside[0], some, beside[1]})
                               : nn::Batch::of(std::vector<std::vector<int64_t>>{some}, {at});
    nn::Segment& own = batch.segments[form.in_batch ? 1 : 0];
    own.prefix = given;
    own.pending = form.pending;
    const Tensor hidden = model.hidden(batch, forward);
    if (inputs == nullptr && model.has_head())
      logits.push_back(model.logits(hidden.narrow(0, first, keep)).detach());
    if (form.pending) state.commit(0, keep);
    at += keep;
  }
  Activations run;
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

namespace {

/// Compares every form with the whole text in one call.
void compare_forms(Verification& result,
                   const model::Model& model,
                   const std::vector<int64_t>& ids,
                   const std::vector<Form>& forms,
                   const VerifyOptions& options) {
  const Activations whole = compute(model, ids, {"whole"}, nullptr, options);
  const auto compare = [&](std::vector<Difference>& to, const std::string& place, const Form& form,
                           const Tensor& got, const Tensor& want) {
    to.push_back(largest_difference(got, want));
    to.back().place = place;
    to.back().form = form.name;
  };
  for (const Form& form : forms) {
    const Activations forced = compute(model, ids, form, &whole.inputs, options);
    for (const auto& [place, want] : whole.outputs)
      compare(result.branches, place, form, forced.outputs.at(place), want);
    if (!model.has_head()) continue;
    const Activations free = compute(model, ids, form, nullptr, options);
    compare(result.logits, "logits", form, free.logits, whole.logits);
  }
}

}  // namespace

Verification verify(const model::Model& model,
                    const std::vector<int64_t>& ids,
                    const VerifyOptions& options) {
  const model::ModelSpec& spec = model.spec();
  if (ids.size() < 2)
    fail(ErrorKind::input, "verify", "{} tokens; expected at least 2", ids.size());
  const at::NoGradGuard no_gradients;
  Verification result;
  const model::CallPlan calls(spec);
  if (!calls.goes_on()) {
    compare_forms(result, model, ids, forms_without_state(), options);
    return result;
  }
  const auto tokens = static_cast<int64_t>(ids.size());
  // no state continues across a length where all rotary angles change
  const int64_t continued = std::min(tokens, calls.until_in_cuts());
  const auto prefix = [&](int64_t n) { return calls.first_call(given_of(spec, n)); };
  compare_forms(result, model, {ids.begin(), ids.begin() + continued},
                forms_of(continued, prefix(continued), options), options);
  if (continued < tokens)
    compare_forms(result, model, ids, {form_on_same_inputs(calls, tokens, prefix(tokens), options)},
                  options);
  return result;
}

}  // namespace tessera::infer
