#include "tessera/model/model.h"

#include "tessera/nn/dropout.h"
#include "tessera/nn/head/head_config.h"
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
          "a part asks for \"{}\", which none declares", name);
  return weight;
}

int64_t Weights::bytes() const {
  int64_t bytes = 0;
  for (const auto& [decl, weight] : all_) bytes += weight->bytes();
  return bytes;
}

Model::Model(ModelSpec spec, Weights weights)
    : spec_(std::make_unique<const ModelSpec>(std::move(spec))),
      weights_(std::make_unique<const Weights>(std::move(weights))) {
  const auto source = [w = weights_.get()](const ModelSpec& stack) -> nn::WeightSource {
    return [w, &stack](const std::string& name) { return w->asked(stack.kept_as(name)); };
  };
  if (spec_->encoder) encoder_ = std::make_unique<Stack>(*spec_->encoder, source(*spec_->encoder));
  stack_ = std::make_unique<Stack>(*spec_, source(*spec_));
  // a tied head means the token vectors of its own stack
  const nn::WeightSource of_head = [all = source(*spec_), this](const std::string& name) {
    return all(name == kTokenTable ? spec_->under(name) : name);
  };
  const nn::Builder root(of_head, "", spec_->scope_out());
  if (spec_->head) head_ = nn::build_head(spec_->head, root.under("head"));
  if (spec_->pooler) pooler_ = nn::build_head(spec_->pooler, root.under("pooler"));
}

namespace {

/// Throws Error(input) on an empty batch or one longer than the positions allow.
void check_length(const ModelSpec& spec, const nn::Batch& batch) {
  const std::string who = spec.stack.empty() ? "model" : spec.stack;
  if (batch.n_tokens() == 0)
    fail(ErrorKind::input, who, "the input is empty; expected at least one token");
  if (const int64_t limit = spec.max_positions(); limit > 0 && batch.longest() > limit)
    fail(ErrorKind::input, who, "{} tokens; this model has {} positions: shorten the input",
         batch.longest(), limit);
}

nn::Context context_of(const ModelSpec& spec,
                       const nn::Batch& batch,
                       const ForwardOptions& options) {
  nn::Context context;
  context.batch = &batch;
  context.causal = spec.causal();
  context.training = options.training;
  // two stacks have layers of the same names
  context.key = spec.stack.empty() ? options.key : options.key.fold(spec.stack);
  context.step = options.step;
  context.cancel = options.cancel;
  context.probe = options.probe;
  if (options.add_loss)
    context.add_loss = [take = options.add_loss, &spec](const std::string& name,
                                                        const Tensor& loss) {
      // shared parts do not say so themselves
      take(name.starts_with(spec.under("")) ? name : spec.under(name), loss);
    };
  context.add_statistic = options.add_statistic;
  context.split = options.sequence;
  return context;
}

/// Every row that reads a source has exactly one: its state's, or one that the call brings.
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
    fail(ErrorKind::usage, "model", "this model is a {} and has no encoder beside it",
         name_of(spec_->arch));
  check_length(*spec_->encoder, source);
  nn::Context context = context_of(*spec_->encoder, source, options);
  const ops::InputDrops drops(nn::input_drops(context, source));
  return {source, encoder_->forward(context)};
}

Tensor Model::hidden(const nn::Batch& batch, const ForwardOptions& options) const {
  check_length(*spec_, batch);
  if (options.state != nullptr) options.state->check(batch);
  if (encoder_)
    check_sources(batch, options);
  else if (options.encoded != nullptr)
    fail(ErrorKind::usage, "model", "a source is given to a model that has no encoder");
  nn::Context context = context_of(*spec_, batch, options);
  context.encoded = options.encoded;
  context.call = {options.state, options.replace};
  if (options.state != nullptr) context.lasting = &options.state->lasting();
  const ops::InputDrops drops(nn::input_drops(context, batch));

  Tensor x_ND;
  try {
    x_ND = stack_->forward(context);
  } catch (...) {
    if (options.state != nullptr) options.state->spoil(batch);
    throw;
  }
  if (options.state != nullptr)
    for (const nn::Segment& s : batch.segments) options.state->advance(s);
  return x_ND;
}

bool Model::has_head() const {
  return head_ && spec_->head.as<nn::HeadConfig>().of_vocabulary();
}

Tensor Model::pooled(const Tensor& hidden_ND, const nn::Batch& batch) const {
  if (!pooler_) fail(ErrorKind::usage, "model", "this model has no pooler; use its hidden states");
  std::vector<int64_t> first;
  for (const nn::Segment& s : batch.segments) {
    if (s.start > 0)
      fail(ErrorKind::input, "model",
           "row {} starts at position {}; a pooler reads the first token of whole documents", s.row,
           s.start);
    first.push_back(s.begin);
  }
  return pooler_->forward(
      hidden_ND.index_select(0, at::tensor(first, at::kLong).to(hidden_ND.device())));
}

Tensor Model::logits(const Tensor& rows_RD) const {
  if (!head_)
    fail(ErrorKind::usage, "model", "this model has no head, so no logits; use its hidden states");
  return head_->forward(rows_RD);
}

}  // namespace tessera::model
