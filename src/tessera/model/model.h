// A model: a spec with weights. One class for decoders, encoders and encoder-decoders; they differ
// in data.
#pragma once

#include "tessera/model/predictor.h"

namespace tessera::model {

using nn::WeightPtr;

/// Named weights, one per declared parameter.
class Weights {
 public:
  /// Throws Error(file) for an undeclared name or another shape than in `spec`, and for a missing
  /// weight.
  static Weights check(const ModelSpec& spec, std::map<std::string, WeightPtr> weights);
  /// Newly initialized, trainable parameters; the same seed gives the same bits on every machine.
  static Weights initial(const ModelSpec& spec, uint64_t seed, at::ScalarType type = at::kFloat);

  WeightPtr find(const std::string& name) const;
  /// The weight of a declared name: null if the spec leaves it out. Throws Error(internal) for a
  /// name that no part declares.
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
  State* state = nullptr;  // continue from this state and store the new tokens in it, uncommitted
                           // where their segment is pending
  const nn::Encoded* encoded = nullptr;  // encoder output for rows without a source in the state
  /// For hidden(): run only the first layers, followed by the final norm; 0 = all. The state must
  /// only be used with the same number. Elhoushi et al. 2024, arXiv:2404.16710, sec. 3.2.
  int64_t layers = 0;
  bool training = false;
  RandomKey key{0};
  int64_t step = 0;  // training step
  const CancelToken* cancel = nullptr;
  nn::Probe probe;
  /// Called with the input of every branch ("layers.3.mixer.in") if set; the result replaces the
  /// input.
  std::function<Tensor(const std::string& name, const Tensor& x_ND)> replace;
  /// Receives losses of parts. With two stacks, names have the stack as prefix, as parameters do
  /// ("encoder.layers.3.mixer.reconstruction").
  nn::LossSink add_loss;
  nn::StatisticSink add_statistic;  // receives statistics of parts
  /// Receives the values that layers pass to later ones at the end of hidden() (nn::LayerValues),
  /// with gradients.
  std::function<void(const nn::LayerValues& values)> take_values;
  nn::UpdateCounts* update = nullptr;  // of the update that the call belongs to
  ops::ProductType products = ops::ProductType::float32;  // type of products, with gradients
  bool steps = true;  // take decoding steps (step_plan.h), which have the bits of the tensor path
  nn::Recompute recompute;     // activation checkpointing, with gradients and without a state
  nn::SequenceSplit sequence;  // split of attention mixers over ranks, with gradients
};

class Model {
 public:
  /// `arithmetic`: how products with weights in blocks or BF16 read their inputs where no gradient
  /// is recorded.
  Model(ModelSpec spec,
        Weights weights,
        kernels::Arithmetic arithmetic = kernels::Arithmetic::float32);
  const ModelSpec& spec() const { return *spec_; }
  const Weights& weights() const { return *weights_; }
  kernels::Arithmetic arithmetic() const { return arithmetic_; }

  /// Encoder output of an encoder-decoder; segments of `source` name the rows that will read them.
  /// Only options of training and probing apply. Throws Error(input) as hidden() does.
  nn::Encoded encode(const nn::Batch& source, const ForwardOptions& options = {}) const;

  /// For a pair with a mask (ModelSpec::mask): logits [sources, longest_target()] of the target
  /// lengths.
  Tensor target_lengths(const nn::Encoded& encoded,
                        const ops::ProductSettings& products = {}) const;

  /// Number of virtual tokens before every document, from an adapter (WeightAdapter::prefix): they
  /// take its first positions, their ids have no meaning, and they have no outputs.
  int64_t virtual_tokens() const { return virtual_tokens_; }

  /// Hidden states after the final norm, [N, spec().width_out()], for the tokens of the batch.
  /// Virtual tokens: without a state they are added here to whole documents; with a state a row's
  /// first call includes them, and the result does too. Throws Error(input) for an empty batch, one
  /// beyond the model's positions, or a row without the source that it needs.
  Tensor hidden(const nn::Batch& batch, const ForwardOptions& options = {}) const;
  /// hidden() of a batch on the model's device, whose rows `rows` has; its lengths are bounds, and
  /// only positions_N counts (recorded_steps.h). `constants`: values to keep between such calls.
  Tensor recorded(const nn::Batch& batch,
                  nn::BranchStates& rows,
                  std::map<std::string, std::any>& constants) const;
  /// Output of predictor `index` for hidden states [N, D]; the head computes from it the logits of
  /// the tokens index + 2 positions after those of `batch`. The hidden states are its input (its
  /// `reads`) at the batch's positions. If it reads tokens, the batch's ids are those index + 1
  /// positions later. A state is one of the predictor's own stack. Throws Error(input) as hidden()
  /// does.
  Tensor predict(size_t index,
                 const Tensor& hidden_ND,
                 const nn::Batch& batch,
                 const ForwardOptions& options = {}) const;
  /// The result of hidden() with `layers` layers, from the probed output of the last of them
  /// ("layers.3.out"). Throws Error(usage) if a residual has more than one stream there.
  Tensor exit(const Tensor& x_ND, int64_t layers, const ops::ProductSettings& products = {}) const;
  /// Logits [R, C] from rows of hidden states, or of pooled() for a head on whole documents. Throws
  /// Error(usage) for a model without a head.
  Tensor logits(const Tensor& rows_RD, const ops::ProductSettings& products = {}) const;
  /// True if every token has logits over the vocabulary.
  bool has_head() const;
  /// Pooler output of each document, [segments, D], from the hidden states of a batch. Throws
  /// Error(usage) for a model without a pooler, Error(input) for a segment that continues a
  /// document.
  Tensor pooled(const Tensor& hidden_ND,
                const nn::Batch& batch,
                const ops::ProductSettings& products = {}) const;

 private:
  Tensor run(const nn::Batch& batch, const ForwardOptions& options) const;
  /// Those of the parts of a stack: in this model's arithmetic, and where a stack is not causal
  /// with those of parts that read whole texts. A decoder's text continues token by token,
  /// bit-identical to the whole.
  ops::ProductSettings products_of(const ModelSpec& stack, ops::ProductSettings products) const;

  // parts refer to both, also after the model is moved
  std::unique_ptr<const ModelSpec> spec_;
  std::unique_ptr<const Weights> weights_;
  kernels::Arithmetic arithmetic_;
  std::unique_ptr<Stack> encoder_, stack_;
  std::vector<std::unique_ptr<Predictor>> predictors_;
  std::unique_ptr<nn::Head> head_, pooler_;
  std::unique_ptr<nn::Head> length_head_, length_pooler_;  // of the encoder
  int64_t virtual_tokens_ = 0;
};

}  // namespace tessera::model
