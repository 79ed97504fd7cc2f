// A model: a spec with weights. One class for decoders, encoders and pairs of both; what differs is
// data.
#pragma once

#include "tessera/model/predictor.h"

namespace tessera::model {

using nn::WeightPtr;

/// Named weights, one per declared parameter.
class Weights {
 public:
  /// Throws Error(file) unless name and shape are declared by `spec`, or when one is missing at the
  /// end.
  static Weights check(const ModelSpec& spec, std::map<std::string, WeightPtr> weights);
  /// Fresh parameters as the spec declares them, trainable; the same seed gives the same bits
  /// anywhere.
  static Weights initial(const ModelSpec& spec, uint64_t seed, at::ScalarType type = at::kFloat);

  WeightPtr find(const std::string& name) const;
  /// What a part asks for: null where its spec leaves it out. Throws Error(internal) for a name
  /// that no part declares.
  WeightPtr asked(const std::string& name) const;
  /// In the order of model::parameters().
  const std::vector<std::pair<spec::ParamDecl, WeightPtr>>& all() const { return all_; }
  int64_t bytes() const;

 private:
  std::vector<std::pair<spec::ParamDecl, WeightPtr>> all_;
  std::map<std::string, size_t> index_;
  std::set<std::string> absent_;
};

struct ForwardOptions {
  State* state = nullptr;  // continue from here, and leave the new tokens in it, uncommitted where
                           // their segment says pending
  const nn::Encoded* encoded = nullptr;  // sources of the rows that have none in the state yet
  /// Of hidden(): the first layers alone, with the final norm behind them; 0 = all. A state must
  /// have been given no others. Elhoushi et al. 2024, arXiv:2404.16710, sec. 3.2.
  int64_t layers = 0;
  bool training = false;
  RandomKey key{0};
  int64_t step = 0;  // of training
  const CancelToken* cancel = nullptr;
  nn::Probe probe;
  /// Called with the input of every branch ("layers.3.mixer.in") where set; what it returns takes
  /// its place.
  std::function<Tensor(const std::string& name, const Tensor& x_ND)> replace;
  /// Takes the losses of parts that have some of their own. Where there are two stacks, names begin
  /// with the stack's, as those of parameters do ("encoder.layers.3.mixer.reconstruction").
  nn::LossSink add_loss;
  nn::StatisticSink add_statistic;  // takes what parts count
  /// What layers have left for later ones when hidden() ends (nn::LayerValues), gradients included.
  std::function<void(const nn::LayerValues& values)> take_values;
  nn::UpdateCounts* update = nullptr;  // of the update that the call is part of
  nn::Recompute recompute;             // where gradients are recorded and no state is continued
  nn::SequenceSplit sequence;          // of the attention mixers where gradients are recorded
};

class Model {
 public:
  Model(ModelSpec spec, Weights weights);
  const ModelSpec& spec() const { return *spec_; }
  const Weights& weights() const { return *weights_; }

  /// What the encoder of an encoder_decoder makes of the sources; their segments name the rows that
  /// will read them. Only the options of training and looking on apply. Throws Error(input) as
  /// hidden() does.
  nn::Encoded encode(const nn::Batch& source, const ForwardOptions& options = {}) const;

  /// Of a pair with a mask (ModelSpec::mask): logits [sources, longest_target()] of how long their
  /// targets are.
  Tensor target_lengths(const nn::Encoded& encoded) const;

  /// Tokens that stand before every document where an adapter has put some (WeightAdapter::prefix):
  /// they hold its first positions, their ids mean nothing, and nothing is asked of them.
  int64_t virtual_tokens() const { return virtual_tokens_; }

  /// Hidden states after the final norm, [N, spec().width_out()], of the tokens of the batch alone:
  /// without a state, whole documents get their virtual tokens here; with one, a row's first call
  /// brings them, and gets theirs too. Throws Error(input) on an empty
  /// batch, one longer than the positions allow, or a row without the source that it reads.
  Tensor hidden(const nn::Batch& batch, const ForwardOptions& options = {}) const;
  /// What predictor `index` makes of hidden states [N, D], from which the head gives the logits of
  /// the tokens index + 2 places behind those of `batch`: the hidden states are what it reads (its
  /// `reads`) at the batch's positions. Where it reads tokens, the batch's ids are those index + 1
  /// places behind. A state is one of the predictor's own stack. Throws Error(input) as hidden()
  /// does.
  Tensor predict(size_t index,
                 const Tensor& hidden_ND,
                 const nn::Batch& batch,
                 const ForwardOptions& options = {}) const;
  /// What hidden() with so many `layers` ends with, from what the probe saw behind the last of them
  /// ("layers.3.out"). Throws Error(usage) where a residual carries more than one stream there.
  Tensor exit(const Tensor& x_ND, int64_t layers) const;
  /// Logits [R, C] from the rows that the head reads: hidden states, or pooled() where it
  /// classifies whole documents. Throws Error(usage) when the model has no head.
  Tensor logits(const Tensor& rows_RD) const;
  /// Whether there are logits of the vocabulary at every token.
  bool has_head() const;
  /// What the pooler makes of each document, [segments, D], from the hidden states of a batch.
  /// Throws Error(usage) when the model has no pooler, Error(input) where a segment continues a
  /// document.
  Tensor pooled(const Tensor& hidden_ND, const nn::Batch& batch) const;

 private:
  Tensor run(const nn::Batch& batch, const ForwardOptions& options) const;

  // parts point into both, wherever the model moves
  std::unique_ptr<const ModelSpec> spec_;
  std::unique_ptr<const Weights> weights_;
  std::unique_ptr<Stack> encoder_, stack_;
  std::vector<std::unique_ptr<Predictor>> predictors_;
  std::unique_ptr<nn::Head> head_, pooler_;
  std::unique_ptr<nn::Head> length_head_, length_pooler_;  // of the encoder beside it
  int64_t virtual_tokens_ = 0;
};

}  // namespace tessera::model
