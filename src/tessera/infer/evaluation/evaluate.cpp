#include "tessera/infer/evaluation/evaluate.h"

#include <cmath>

#include "tessera/model/kv_quantization.h"
#include "tessera/model/call_plan.h"

namespace tessera::infer {

Score evaluate(const model::Model& model,
               const NextPass& next,
               const spec::KvOptions& kv,
               const CancelToken* cancel) {
  Engine engine(model, {.kv = kv, .cancel = cancel});
  Score sum;
  std::vector<Engine::Result> results;
  for (;;) {
    std::vector<Request> requests = next(results);
    if (requests.empty()) return sum;
    if (cancel != nullptr) cancel->check("evaluate");
    int64_t tokens = 0;
    std::vector<Engine::Id> ids;
    for (const Request& request : requests) {
      tokens += size_of(request.prompt.source) + size_of(request.prompt.tokens);
      ids.push_back(engine.submit(request));
    }
    // a memory that only its row holds is written in place
    requests.clear();
    while (engine.step(tokens)) {
    }
    results.clear();
    for (const Engine::Id id : ids) {
      results.push_back(engine.take(id));
      const Generation& answer = results.back().generation;
      if (answer.error) std::rethrow_exception(answer.error);
      if (answer.finish_reason == "cancelled" && cancel != nullptr) cancel->check("evaluate");
      sum += answer.score;
    }
  }
}

namespace {

/// One row goes on through all of the text: every limit is met before anything is computed.
void check_carried(const model::ModelSpec& spec, int64_t tokens, int64_t window) {
  const model::CallPlan calls(spec);
  if (const std::string& reason = calls.whole_reason(); !reason.empty())
    fail(ErrorKind::usage, "eval",
         "carry needs a state, but {}; leave it out for independent windows", reason);
  const auto check = [&](int64_t limit, const char* why) {
    if (limit > 0 && tokens > limit)
      fail(ErrorKind::usage, "eval",
           "carry continues through {} tokens, and {} after {}; expected a max-tokens of at most "
           "{}, "
           "or no carry",
           tokens, why, limit, limit + 1);
  };
  check(spec.max_positions(), "the positions of this model end");
  // the first window begins with the angles of its own length
  check(calls.until(window), "all angles of this model change");
}

}  // namespace

EvalResult evaluate(const model::Model& model,
                    const std::vector<int64_t>& ids,
                    const EvalOptions& options) {
  const auto total = options.max_tokens > 0
                         ? std::min<int64_t>(options.max_tokens, static_cast<int64_t>(ids.size()))
                         : static_cast<int64_t>(ids.size());
  if (model.spec().encoder)
    fail(ErrorKind::usage, "eval",
         "this model answers a source, and a text alone has none; expected a decoder");
  model::check_kv_type(model.spec(), options.kv.type);
  if (total < 2)
    fail(ErrorKind::input, "eval", "the text has {} tokens; expected at least 2", total);
  if (options.window < 2)
    fail(ErrorKind::usage, "eval", "window = {}; expected at least 2", options.window);
  if (options.carry && options.stride > 0)
    fail(ErrorKind::usage, "eval", "stride = {} with carry; carried windows do not overlap",
         options.stride);
  // the last token is never an input there, so that a window of inputs gives as many targets
  const int64_t last = options.carry ? total - 1 : total;
  if (options.carry) check_carried(model.spec(), last, options.window);
  const int64_t prefix = model::CallPlan(model.spec()).first_call(0);
  if (prefix > options.window)
    fail(ErrorKind::usage, "eval",
         "window = {}; the first {} tokens see each other: expected a longer window",
         options.window, prefix);
  const int64_t stride = options.carry        ? options.window
                         : options.stride > 0 ? std::min(options.stride, options.window - 1)
                                              : options.window - 1;
  EvalResult result;
  int64_t begin = -stride, counted = 1;
  Sequence text;  // what is carried, with the window
  const NextPass next = [&](std::vector<Engine::Result>& before) -> std::vector<Request> {
    if (result.windows > 0 && options.progress) options.progress(counted, total);
    int64_t end = 0, predicted = 0;  // one past the last input, and one past the last target
    do {
      if (counted >= total) return {};
      begin += stride;
      end = std::min(begin + options.window, last);
      predicted = options.carry ? end + 1 : end;
    } while (predicted <= counted);
    // position i predicts token i + 1
    const int64_t unseen = options.carry ? prefix : begin + prefix;
    Targets targets{options.carry ? begin : 0,
                    std::vector<int64_t>(static_cast<size_t>(end - begin), -1)};
    for (int64_t i = std::max(counted, unseen) - 1; i < predicted - 1; ++i) {
      targets.ids[static_cast<size_t>(i - begin)] = ids[static_cast<size_t>(i + 1)];
      result.target_ids.push_back(ids[static_cast<size_t>(i + 1)]);
    }
    ++result.windows;
    counted = predicted;
    if (!options.carry) text.tokens.clear();
    text.tokens.insert(text.tokens.end(), ids.begin() + begin, ids.begin() + end);
    Request request = scoring(text, std::move(targets));
    request.keep = options.carry;
    if (options.carry && !before.empty()) request.resume_from = std::move(before[0].kept);
    return {std::move(request)};
  };
  const double sum = evaluate(model, next, options.kv, options.cancel).nats;
  result.targets = static_cast<int64_t>(result.target_ids.size());
  if (result.targets == 0)
    fail(ErrorKind::input, "eval",
         "nothing to predict: the first {} tokens of a window see each other, window = {}, and the "
         "text has {} tokens",
         prefix, options.window, total);
  if (!std::isfinite(sum))
    fail(ErrorKind::input, "eval",
         "the sum of {} losses is {}: the model gives logits that are not finite", result.targets,
         sum);
  result.nll = sum / static_cast<double>(result.targets);
  return result;
}

}  // namespace tessera::infer
