#include "tessera/model/model.h"

#include "tessera/model/placement.h"
#include "tessera/nn/dropout.h"
#include "tessera/nn/head/head_config.h"
#include "tessera/nn/head/pooler.h"
#include "tessera/ops/basic/ordered_sum.h"
#include "tessera/ops/form.h"
#include "tessera/ops/random.h"

namespace tessera::model {

Weights Weights::check(const ModelSpec& spec, std::map<std::string, WeightPtr> weights) {
  Weights out;
  ParamTable table = parameter_table(spec);
  out.absent_ = std::move(table.absent);
  for (const spec::ParamDecl& decl : table.all) {
    const auto found = weights.find(decl.name);
    if (found == weights.end())
      fail(ErrorKind::file, "weights", "tensor \"{}\" is missing; expected shape [{}]", decl.name,
           fmt::join(decl.shape, ", "));
    if (found->second->shape() != decl.shape)
      fail(ErrorKind::file, "weights", "tensor \"{}\" has shape [{}]; the spec wants [{}]",
           decl.name, fmt::join(found->second->shape(), ", "), fmt::join(decl.shape, ", "));
    out.index_[decl.name] = out.all_.size();
    out.all_.emplace_back(decl, found->second);
    weights.erase(found);
  }
  if (!weights.empty())
    fail(ErrorKind::file, "weights", "tensor \"{}\" is not part of this spec",
         weights.begin()->first);
  return out;
}

Weights Weights::initial(const ModelSpec& spec, uint64_t seed, at::ScalarType type) {
  std::map<std::string, WeightPtr> weights;
  const RandomKey key = RandomKey(seed).fold("init");
  for (const spec::ParamDecl& decl : parameters(spec))
    weights[decl.name] = std::make_shared<ops::Weight>(
        ops::Weight::dense(decl.name, ops::initial_values(decl, key, type).requires_grad_(true)));
  return check(spec, std::move(weights));
}

WeightPtr Weights::find(const std::string& name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : all_[found->second].second;
}

WeightPtr Weights::asked(const std::string& name) const {
  WeightPtr weight = find(name);
  require(weight != nullptr || absent_.contains(name), "weights",
          "a part reads parameter \"{}\", which no part declares", name);
  return weight;
}

int64_t Weights::bytes() const {
  int64_t bytes = 0;
  for (const auto& [decl, weight] : all_) bytes += weight->bytes();
  return bytes;
}

Model::Model(ModelSpec spec, Weights weights, kernels::Arithmetic arithmetic)
    : spec_(std::make_unique<const ModelSpec>(std::move(spec))),
      weights_(std::make_unique<const Weights>(std::move(weights))),
      arithmetic_(arithmetic) {
  const auto source = [w = weights_.get()](const ModelSpec& stack) -> nn::WeightSource {
    return [w, &stack](const std::string& name) { return w->asked(stack.kept_as(name)); };
  };
  const auto products = [this](const ModelSpec& stack) { return products_of(stack, {}); };
  if (spec_->encoder)
    encoder_ = std::make_unique<Stack>(*spec_->encoder, source(*spec_->encoder),
                                       products(*spec_->encoder));
  stack_ = std::make_unique<Stack>(*spec_, source(*spec_), products(*spec_));
  for (const PredictorSpec& predictor : spec_->predictors)
    predictors_.push_back(std::make_unique<Predictor>(predictor, source(*predictor.stack),
                                                      products(*predictor.stack)));
  // a tied head uses the token embedding of its own stack
  const nn::WeightSource of_head = [all = source(*spec_), this](const std::string& name) {
    return all(name == kTokenTable ? spec_->under(name) : name);
  };
  const nn::Builder root(of_head, "", spec_->scope_out());
  if (spec_->head) head_ = nn::build_head(spec_->head, root.under("head"));
  if (spec_->pooler) pooler_ = nn::build_head(spec_->pooler, root.under("pooler"));
  if (spec_->mask) {
    const ModelSpec& encoder = *spec_->encoder;
    const nn::WeightSource of_encoder = source(encoder);
    const nn::Builder beside(of_encoder, encoder.stack, encoder.scope_out());
    length_head_ = nn::build_head(encoder.head, beside.under("head"));
    length_pooler_ = nn::build_head(encoder.pooler, beside.under("pooler"));
  }
  for (const auto& [decl, weight] : weights_->all())
    for (const auto* parts = weight->parts(); parts != nullptr; parts = parts->w->parts())
      if (parts->prefix != nullptr)
        virtual_tokens_ = std::max(virtual_tokens_, parts->prefix->size(0));
}

ops::ProductSettings Model::products_of(const ModelSpec& stack,
                                        ops::ProductSettings products) const {
  products.arithmetic = arithmetic_;
  products.whole_texts = !stack.causal();
  return products;
}

namespace {

/// Throws Error(input) for an empty batch or one longer than the positions allow.
void check_length(const ModelSpec& spec, const nn::Batch& batch) {
  const std::string who = spec.stack.empty() ? "model" : spec.stack;
  if (batch.n_tokens() == 0)
    fail(ErrorKind::input, who, "the input is empty; expected at least one token");
  if (const int64_t limit = spec.max_positions(); limit > 0 && batch.longest() > limit)
    fail(ErrorKind::input, who, "{} tokens; this model has {} positions: shorten the input",
         batch.longest(), limit);
}

/// Whole documents after m virtual tokens each, and the positions of their own tokens in the
/// result.
std::pair<nn::Batch, Tensor> behind_virtual_tokens(const nn::Batch& batch, int64_t m) {
  if (batch.types_N.defined() || batch.axes_3N.defined() || batch.global_N.defined())
    fail(ErrorKind::usage, "model",
         "token types, axes or global tokens are not supported with {} virtual tokens; leave them "
         "out",
         m);
  nn::Batch out = batch;
  const Tensor ids_N = batch.ids_N.to(at::kCPU, at::kLong).contiguous();
  const auto* ids = ids_N.const_data_ptr<int64_t>();
  std::vector<int64_t> all, own;
  for (nn::Segment& s : out.segments) {
    if (s.start > 0)
      fail(ErrorKind::usage, "model",
           "row {} starts at position {}, and this model's documents begin with {} virtual tokens: "
           "expected whole documents, or a state",
           s.row, s.start, m);
    all.insert(all.end(), static_cast<size_t>(m), 0);
    for (int64_t t = 0; t < s.length; ++t) {
      own.push_back(static_cast<int64_t>(all.size()));
      all.push_back(ids[s.begin + t]);
    }
    s.begin = own[own.size() - static_cast<size_t>(s.length)] - m;
    s.length += m;
    if (s.prefix > 0) s.prefix += m;
  }
  out.ids_N = at::tensor(all, at::kLong);
  out.number();
  return {std::move(out), at::tensor(own, at::kLong)};
}

/// `products`: Model::products_of the spec.
nn::Context context_of(const ModelSpec& spec,
                       const nn::Batch& batch,
                       const ForwardOptions& options,
                       const ops::ProductSettings& products) {
  nn::Context context;
  context.batch = &batch;
  context.causal = spec.causal();
  context.training = options.training;
  // two stacks have layers of the same names
  context.key = spec.stack.empty() ? options.key : options.key.fold(spec.stack);
  context.step = options.step;
  context.cancel = options.cancel;
  context.steps = options.steps;
  context.products = products;
  context.products.type = options.products;
  context.products.drop = nn::input_drop(context, batch);
  context.probe = options.probe;
  if (options.add_loss)
    context.add_loss = [take = options.add_loss, &spec](const std::string& name,
                                                        const Tensor& loss) {
      // shared parts do not include their stack
      take(name.starts_with(spec.under("")) ? name : spec.under(name), loss);
    };
  context.add_statistic = options.add_statistic;
  context.update = options.update;
  context.recompute = options.recompute;
  context.split = options.sequence;
  return context;
}

nn::Batch moved(nn::Batch batch, at::Device device) {
  const auto move = [device](Tensor& t) {
    if (t.defined()) t = t.to(device);
  };
  for (Tensor* t : {&batch.ids_N, &batch.before_NM, &batch.types_N, &batch.positions_N,
                    &batch.axes_3N, &batch.global_N})
    move(*t);
  for (Tensor& t : batch.features) move(t);
  return batch;
}

/// The batch of a call on the model's device, with the n ids before its tokens if parts read them
/// (n > 0).
class Read {
 public:
  Read(const nn::Batch& batch, int64_t n, const State* state, at::Device device) : batch_(&batch) {
    if (n > 0) batch_ = &own_.emplace(with_ids_before(batch, n, state));
    if (!ops::on_host(device)) batch_ = &own_.emplace(moved(*batch_, device));
  }
  Read(const Read&) = delete;
  Read& operator=(const Read&) = delete;
  const nn::Batch& batch() const { return *batch_; }

 private:
  static nn::Batch with_ids_before(const nn::Batch& batch, int64_t n, const State* state);

  std::optional<nn::Batch> own_;
  const nn::Batch* batch_;
};

nn::Batch Read::with_ids_before(const nn::Batch& batch, int64_t n, const State* state) {
  nn::Batch out = batch;
  const std::vector<std::vector<int64_t>> held =
      state == nullptr ? std::vector<std::vector<int64_t>>(batch.segments.size())
                       : state->last_ids(batch);
  const Tensor ids_N = batch.ids_N.to(at::kCPU, at::kLong).contiguous();
  out.before_NM = at::full({batch.n_tokens(), n}, -1, at::kLong);
  const auto* ids = ids_N.const_data_ptr<int64_t>();
  auto* before = out.before_NM.data_ptr<int64_t>();
  for (size_t i = 0; i < batch.segments.size(); ++i) {
    const nn::Segment& s = batch.segments[i];
    if (state == nullptr && s.start > 0)
      fail(ErrorKind::usage, "model",
           "a part reads the {} ids before a token, and row {} starts at position {}: expected "
           "whole documents, or a state",
           n, s.row, s.start);
    const auto have = static_cast<int64_t>(held[i].size());
    for (int64_t t = 0; t < s.length; ++t)
      for (int64_t m = 0; m < n; ++m) {
        const int64_t at = t - 1 - m;  // negative: in the state
        if (at + have >= 0)
          before[(s.begin + t) * n + m] =
              at >= 0 ? ids[s.begin + at] : held[i][static_cast<size_t>(at + have)];
      }
  }
  return out;
}

/// Calls `run` with a context for `stack` and the batch; counts its tokens in the state.
template <class Run>
Tensor called(const Stack& stack,
              at::Device device,
              const nn::Batch& batch,
              const ForwardOptions& options,
              const ops::ProductSettings& products,
              const Run& run) {
  const Read read(batch, stack.ids_before(), options.state, device);
  nn::Context context = context_of(stack.spec(), read.batch(), options, products);
  context.encoded = options.encoded;
  context.call = {options.state, options.replace};
  if (options.state != nullptr) context.lasting = &options.state->lasting();
  Tensor x_ND;
  try {
    x_ND = run(context);
  } catch (...) {
    if (options.state != nullptr) options.state->invalidate(batch);
    throw;
  }
  if (options.state != nullptr) options.state->advance(batch);
  if (options.take_values) options.take_values(context.values);
  return x_ND;
}

/// Checks that every row with a source has exactly one: in its state, or in the call.
void check_sources(const nn::Batch& batch, const ForwardOptions& options) {
  for (const nn::Segment& s : batch.segments) {
    const bool held = options.state != nullptr && options.state->source_length(s.row) > 0;
    const bool brought = options.encoded != nullptr && options.encoded->of_row(s.row) != nullptr;
    if (!held && !brought)
      fail(ErrorKind::input, "model",
           "row {} has no source; encode one and give it with the row's first call", s.row);
    if (held && brought)
      fail(ErrorKind::input, "model",
           "row {} has a source of {} tokens already; a source is given with the row's first call",
           s.row, options.state->source_length(s.row));
  }
}

}  // namespace

nn::Encoded Model::encode(const nn::Batch& source, const ForwardOptions& options) const {
  if (!encoder_)
    fail(ErrorKind::usage, "model", "this model is a {} and has no encoder stack",
         name_of(spec_->arch));
  check_length(*spec_->encoder, source);
  const Read read(source, encoder_->ids_before(), nullptr, device_of(*weights_));
  nn::Context context =
      context_of(*spec_->encoder, read.batch(), options, products_of(*spec_->encoder, {}));
  return {source, encoder_->forward(context)};
}

Tensor Model::exit(const Tensor& x_ND, int64_t layers, const ops::ProductSettings& products) const {
  if (const std::string reason = spec_->no_exit_reason(layers); !reason.empty())
    fail(ErrorKind::usage, "early exit", "{}", reason);
  nn::Context context;
  context.products = products_of(*spec_, products);
  return stack_->normed(x_ND, context);
}

Tensor Model::hidden(const nn::Batch& batch, const ForwardOptions& options) const {
  if (options.layers != 0)
    if (const std::string reason = spec_->no_exit_reason(options.layers); !reason.empty())
      fail(ErrorKind::usage, "early exit", "{}", reason);
  if (virtual_tokens_ > 0 && options.state == nullptr) {
    const auto [whole, own] = behind_virtual_tokens(batch, virtual_tokens_);
    const Tensor x_ND = run(whole, options);
    return x_ND.index_select(0, own.to(x_ND.device()));
  }
  return run(batch, options);
}

Tensor Model::run(const nn::Batch& batch, const ForwardOptions& options) const {
  check_length(*spec_, batch);
  if (options.state != nullptr) options.state->check(batch);
  if (encoder_)
    check_sources(batch, options);
  else if (options.encoded != nullptr)
    fail(ErrorKind::usage, "model", "a source is given to a model that has no encoder");
  return called(*stack_, device_of(*weights_), batch, options, products_of(*spec_, {}),
                [&](nn::Context& context) { return stack_->forward(context, options.layers); });
}

Tensor Model::recorded(const nn::Batch& batch,
                       nn::BranchStates& rows,
                       std::map<std::string, std::any>& constants) const {
  nn::Context context = context_of(*spec_, batch, {}, products_of(*spec_, {}));
  context.call = {&rows, nullptr};
  context.lasting = &constants;
  context.recorded = true;
  return stack_->forward(context);
}

Tensor Model::predict(size_t index,
                      const Tensor& hidden_ND,
                      const nn::Batch& batch,
                      const ForwardOptions& options) const {
  const ModelSpec& own = *spec_->predictors.at(index).stack;
  check_length(own, batch);
  require(hidden_ND.dim() == 2 && hidden_ND.size(0) == batch.n_tokens(), own.stack,
          "hidden states of {} tokens; the batch has {}", hidden_ND.size(0), batch.n_tokens());
  if (options.state != nullptr) options.state->check(batch);
  return called(predictors_[index]->stack(), device_of(*weights_), batch, options,
                products_of(own, {}), [&](nn::Context& context) {
                  return predictors_[index]->forward(hidden_ND, *stack_, context);
                });
}

bool Model::has_head() const {
  return head_ && spec_->head.as<nn::HeadConfig>().of_vocabulary();
}

namespace {

/// One vector per document; sums in double, so that the order has no effect.
Tensor vectors_of(const Tensor& hidden_ND, const nn::Batch& batch, nn::PoolOf of) {
  std::vector<int64_t> tokens;
  std::vector<Tensor> vectors;
  for (const nn::Segment& s : batch.segments) {
    const Tensor h_TD = hidden_ND.narrow(0, s.begin, s.length);
    switch (of) {
      case nn::PoolOf::first:
        tokens.push_back(s.begin);
        break;
      case nn::PoolOf::last:
        tokens.push_back(s.begin + s.length - 1);
        break;
      case nn::PoolOf::mean:
        vectors.push_back(ops::ordered_mean(h_TD.to(at::kDouble), {0}).to(h_TD.scalar_type()));
        break;
      case nn::PoolOf::max:
        vectors.push_back(h_TD.amax(0));
        break;
    }
  }
  if (!vectors.empty()) return at::stack(vectors);
  return hidden_ND.index_select(0, at::tensor(tokens, at::kLong).to(hidden_ND.device()));
}

}  // namespace

Tensor Model::pooled(const Tensor& hidden_ND,
                     const nn::Batch& batch,
                     const ops::ProductSettings& products) const {
  if (!pooler_) fail(ErrorKind::usage, "model", "this model has no pooler; use its hidden states");
  for (const nn::Segment& s : batch.segments)
    if (s.start > 0)
      fail(ErrorKind::input, "model",
           "row {} starts at position {}; a pooler reads whole documents", s.row, s.start);
  const auto& pooler = spec_->pooler.as<nn::PoolerConfig>();
  const ops::ProductSettings own = products_of(*spec_, products);
  if (pooler.late) return vectors_of(pooler_->forward(hidden_ND, own), batch, pooler.of);
  return pooler_->forward(vectors_of(hidden_ND, batch, pooler.of), own);
}

Tensor Model::target_lengths(const nn::Encoded& encoded,
                             const ops::ProductSettings& products) const {
  require(length_head_ != nullptr, "model", "this model predicts no target lengths");
  const auto& how = spec_->encoder->pooler.as<nn::PoolerConfig>();
  const ops::ProductSettings own = products_of(*spec_->encoder, products);
  return length_head_->forward(
      length_pooler_->forward(vectors_of(encoded.x_SD, encoded.source, how.of), own), own);
}

Tensor Model::logits(const Tensor& rows_RD, const ops::ProductSettings& products) const {
  if (!head_)
    fail(ErrorKind::usage, "model", "this model has no head, so no logits; use its hidden states");
  return head_->forward(rows_RD, products_of(*spec_, products));
}

}  // namespace tessera::model
