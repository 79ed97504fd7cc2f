#include "tessera/train/loop/evaluate.h"

#include <numbers>
#include <optional>

#include "tessera/infer/evaluation/evaluate.h"
#include "tessera/train/loop/batch_tensors.h"
#include "tessera/train/loop/tbptt.h"

namespace tessera::train {
namespace {

/// Documents that go on from window to window, one in each stream (RecurrentStates).
class CarriedTexts {
 public:
  CarriedTexts(int64_t streams, int64_t limit)
      : limit_(limit), texts_(static_cast<size_t>(streams)) {}

  /// Window w of `packed` is the next of stream w: its first piece goes on, the last one is kept.
  void enter(std::vector<infer::Request>& requests, const PackedBatch& packed) {
    ends_.clear();
    for (size_t i = 0; i < requests.size(); ++i) {
      const auto window = static_cast<size_t>(packed.pieces[i].row);
      infer::Request& request = requests[i];
      Text& text = texts_[window];
      if (ends_.size() <= window) {
        ends_.push_back(i);
        if (text.kept && fits(infer::size_of(text.tokens), packed.pieces[i].length, limit_)) {
          request.targets.begin = infer::size_of(text.tokens);
          std::vector<int64_t>& tokens = request.prompt.tokens;
          tokens.insert(tokens.begin(), text.tokens.begin(), text.tokens.end());
          request.resume_from = std::move(text.kept);
        }
        text = {};
      }
      ends_[window] = i;
    }
    for (size_t window = 0; window < ends_.size(); ++window) {
      if (!packed.goes_on[window]) continue;
      requests[ends_[window]].keep = true;
      texts_[window].tokens = requests[ends_[window]].prompt.tokens;
    }
  }

  void leave(std::vector<infer::Engine::Result>& results) {
    for (size_t window = 0; window < ends_.size(); ++window)
      texts_[window].kept = std::move(results[ends_[window]].kept);
    ends_.clear();
  }

 private:
  struct Text {
    std::vector<int64_t> tokens;
    std::optional<infer::SavedState> kept;
  };
  int64_t limit_;
  std::vector<Text> texts_;
  std::vector<size_t> ends_;  // of each window of a pass, its last request
};

/// What each piece asks, as a document of its own.
std::vector<infer::Request> questions(const PackedBatch& packed) {
  std::vector<infer::Request> out;
  for (size_t i = 0; i < packed.pieces.size(); ++i) {
    const PackedDocument& piece = packed.pieces[i];
    const auto of_piece = [&](const std::vector<int64_t>& all) {
      return std::vector<int64_t>(all.begin() + piece.begin,
                                  all.begin() + piece.begin + piece.length);
    };
    infer::Sequence text{{}, of_piece(packed.ids), piece.prefix};
    if (!packed.sources.empty()) text.source = packed.sources[i];
    out.push_back(infer::scoring(std::move(text), {0, of_piece(packed.targets)}));
  }
  return out;
}

/// Of a model that reads whole texts.
infer::Score whole_score(const model::Model& model, const PackedBatch& packed) {
  const at::NoGradGuard no_gradients;
  return infer::score(model, hidden_of(model, packed, batch_of(packed), {}), targets_of(packed));
}

}  // namespace

std::vector<std::vector<int64_t>> passes_of(int64_t samples, const EvaluateOptions& options) {
  const int64_t passes = (samples + options.batch - 1) / options.batch;
  const int64_t chosen = options.batches > 0 ? std::min(options.batches, passes) : passes;
  std::vector<std::vector<int64_t>> out(static_cast<size_t>(chosen));
  for (int64_t i = 0; i < chosen; ++i)
    for (int64_t row = 0; row < options.batch; ++row) {
      // carried: row r reads its own run of `passes` windows; else neighbours are read together
      const int64_t window =
          options.carried ? row * passes + i : (passes * i / chosen) * options.batch + row;
      if (window < samples) out[static_cast<size_t>(i)].push_back(window);
    }
  return out;
}

Evaluation evaluate_tokens(const model::Model& model,
                           const Dataset& source,
                           const std::vector<std::string>& names,
                           const EvaluateOptions& options) {
  const auto passes = passes_of(source.valid_samples(), options);
  std::optional<CarriedTexts> carried;
  if (options.carried) carried.emplace(options.batch, options.carry_limit);
  size_t number = 0;
  std::vector<int64_t> kinds;  // of the pass before
  std::map<std::string, infer::Score> by_kind;
  const infer::NextPass next = [&](std::vector<infer::Engine::Result>& before) {
    if (carried) carried->leave(before);
    for (size_t i = 0; i < kinds.size(); ++i)
      by_kind[names.at(static_cast<size_t>(kinds[i]))] += before.at(i).generation.score;
    kinds.clear();
    std::vector<infer::Request> requests;
    if (number == passes.size()) return requests;
    const PackedBatch packed = source.valid(passes[number++]);
    requests = questions(packed);
    kinds = packed.kinds;
    if (carried) carried->enter(requests, packed);
    return requests;
  };
  infer::Score sum;
  if (model.spec().causal())
    sum = infer::evaluate(model, next, {}, options.cancel);
  else
    for (const std::vector<int64_t>& pass : passes) {
      if (options.cancel != nullptr) options.cancel->check("evaluate");
      sum += whole_score(model, source.valid(pass));
    }
  const auto targets = static_cast<double>(std::max<int64_t>(1, sum.targets));
  Evaluation result;
  result.tokens = sum.targets;
  result.loss = sum.nats / targets;
  result.accuracy = static_cast<double>(sum.hits) / targets;
  for (const auto& [name, score] : by_kind)
    result.losses[name] = score.nats / static_cast<double>(std::max<int64_t>(1, score.targets));
  result.bits_per_byte = result.loss * source.tokens_per_byte() / std::numbers::ln2;
  return result;
}

}  // namespace tessera::train
