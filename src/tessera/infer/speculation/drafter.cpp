#include "tessera/infer/speculation/drafter.h"

#include "tessera/infer/speculation/prompt_lookup.h"
#include "tessera/nn/mixer/attention/attention.h"
#include "tessera/infer/engine/request.h"

namespace tessera::infer {

std::string no_branches_reason(const model::ModelSpec& spec) {
  if (spec.ids_before() > 0) return "a part reads the ids before a token, which branches share";
  const auto one_past = [](const std::string& where, const std::string& what) {
    return fmt::format("{} ({}) has one past", where, what);
  };
  const auto layers = static_cast<int64_t>(spec.layers.size());
  if (!spec.embed.config->state(spec.scope(0)).empty()) return one_past("embed", spec.embed.type());
  for (int64_t i = 0; i < layers; ++i) {
    const model::LayerSpec& layer = spec.layers[static_cast<size_t>(i)];
    const std::string where = spec.under(fmt::format("layers.{}", i));
    if (layer.depth) return one_past(where, layer.depth.type());
    for (const model::GroupSpec& group : layer.groups)
      for (const model::BranchSpec& branch : group.branches) {
        if (branch.part.config->state(spec.scope(i)).empty()) continue;
        const auto* attention = dynamic_cast<const nn::AttentionConfig*>(branch.part.config.get());
        const bool plain = attention != nullptr && !attention->shares() && !attention->heavy &&
                           attention->pattern_config().farthest() == 0 &&
                           !attention->pattern_config().global_projections();
        if (!plain && branch.part.type() != "cross_attention")
          return one_past(where, branch.part.type());
      }
  }
  return "";
}

Drafter::Drafter(const model::Model& model, const Speculation& how, const CancelToken* cancel)
    : how_(how),
      most_(how.predictors && !model.spec().predictors.empty()
                ? std::min(how.draft_tokens, std::ssize(model.spec().predictors))
                : how.draft_tokens) {
  if (const std::string reason = model.spec().no_state_reason(); !reason.empty())
    fail(ErrorKind::usage, "generate",
         "speculative decoding needs a model whose state can be rolled back: {}", reason);
  if (how_.draft_tokens < 1)
    fail(ErrorKind::usage, "generate", "{} draft tokens; expected at least 1", how_.draft_tokens);
  if ((how_.draft != nullptr) + (how_.lookup > 0) + how_.predictors + (how_.exit_layer > 0) > 1)
    fail(ErrorKind::usage, "generate",
         "several sources of draft tokens; expected one of --draft, --lookup, --predictors, "
         "--exit-layer");
  if (how_.tree_width < 1)
    fail(ErrorKind::usage, "generate", "--branches {}; expected at least 1", how_.tree_width);
  if (how_.tree_width > 1)
    if (const std::string reason = no_branches_reason(model.spec()); !reason.empty())
      fail(ErrorKind::usage, "generate", "--branches {}: {}; expected 1, a chain", how_.tree_width,
           reason);
  if (how_.predictors) self_.emplace(model, cancel);
  if (how_.exit_layer > 0) draft_.emplace(model, how_.draft_tokens, cancel, how_.exit_layer);
  if (how_.draft == nullptr) return;
  const model::ModelSpec &own = model.spec(), &drafts = how_.draft->spec();
  if (own.encoder && !drafts.encoder)
    fail(ErrorKind::usage, "generate",
         "the draft model has no encoder; expected an encoder-decoder with the same vocabulary, "
         "or --lookup");
  if (!own.encoder && drafts.encoder)
    fail(ErrorKind::usage, "generate",
         "the draft model is an encoder-decoder; expected a decoder with the same vocabulary, or "
         "--lookup");
  if (drafts.vocab != own.vocab)
    fail(ErrorKind::usage, "generate",
         "vocabulary of the draft model: {} tokens, of the model: {}; they must be the same",
         drafts.vocab, own.vocab);
  if (own.encoder && drafts.encoder->vocab != own.encoder->vocab)
    fail(ErrorKind::usage, "generate",
         "vocabulary of the draft model's encoder: {} tokens, of the model's: {}; they must be the "
         "same",
         drafts.encoder->vocab, own.encoder->vocab);
  const auto read_by = [](const model::ModelSpec& spec) {
    const nn::FeatureEmbedConfig* features = feature_source(spec);
    return features == nullptr ? std::string("ids") : features->input();
  };
  if (read_by(own) != read_by(drafts))
    fail(ErrorKind::usage, "generate",
         "input of the draft model's encoder: {}, of the model's: {}; they must be the same",
         read_by(drafts), read_by(own));
  draft_.emplace(*how_.draft, how_.draft_tokens, cancel);
}

std::vector<DraftTree> Drafter::draft(const std::vector<DraftModel::Ask>& asks, int64_t budget) {
  if (draft_) return draft_->draft(asks, budget);
  if (self_) return self_->draft(asks, budget);
  std::vector<DraftTree> drafts;
  for (const DraftModel::Ask& ask : asks)
    drafts.push_back(ask.width > 1 ? prompt_lookup_tree(ask.sequence->tokens, how_.lookup,
                                                        ask.count, ask.width, ask.predicted)
                                   : DraftTree{prompt_lookup(ask.sequence->tokens, how_.lookup,
                                                             ask.count, ask.predicted)});
  return drafts;
}

void Drafter::on_hidden(size_t row, int64_t begin, const Tensor& hidden_ND) {
  if (self_) self_->on_hidden(row, begin, hidden_ND);
}

void Drafter::keep(size_t row, const std::vector<int64_t>& ids) {
  if (draft_) draft_->keep(row, ids);
}

void Drafter::drop(size_t row) {
  if (draft_) draft_->drop(row);
  if (self_) self_->drop(row);
}

}  // namespace tessera::infer
