#include "tessera/infer/guesser.h"

#include "tessera/infer/lookup.h"

namespace tessera::infer {

Guesser::Guesser(const model::Model& model,
                 const std::vector<const Sequence*>& rows,
                 const GenerateOptions& options)
    : how_(options.speculation) {
  if (const std::string reason = model.spec().no_state_reason(); !reason.empty())
    fail(ErrorKind::usage, "generate",
         "guesses need a state to roll back, which this model cannot continue from: {}", reason);
  if (how_.guesses < 1)
    fail(ErrorKind::usage, "generate", "{} guesses; expected at least 1", how_.guesses);
  if (how_.draft == nullptr) return;
  if (how_.lookup > 0)
    fail(ErrorKind::usage, "generate", "both a draft and a look-up; expected one of them");
  const model::ModelSpec &own = model.spec(), &drafts = how_.draft->spec();
  if (own.encoder && !drafts.encoder)
    fail(ErrorKind::usage, "generate",
         "the draft has no encoder and cannot read the source that is answered; expected an "
         "encoder_decoder with the same tokens, or a look-up");
  if (!own.encoder && drafts.encoder)
    fail(ErrorKind::usage, "generate",
         "the draft answers a source, and here is a text to continue; expected a decoder with the "
         "same tokens, or a look-up");
  if (drafts.vocab != own.vocab)
    fail(ErrorKind::usage, "generate",
         "the draft has {} tokens, the model {}; expected the same tokens", drafts.vocab,
         own.vocab);
  if (own.encoder && drafts.encoder->vocab != own.encoder->vocab)
    fail(ErrorKind::usage, "generate",
         "the draft's encoder has {} tokens, the model's {}; expected the same tokens",
         drafts.encoder->vocab, own.encoder->vocab);
  std::vector<int64_t> prefixes;
  std::vector<std::vector<int64_t>> sources;
  for (const Sequence* row : rows) {
    prefixes.push_back(row->prefix);
    if (own.encoder) sources.push_back(row->source);
  }
  draft_.emplace(*how_.draft, rows.size(),
                 Draft::Options{how_.guesses, options.prefill_chunk, options.cancel,
                                std::move(prefixes), std::move(sources)});
}

std::vector<std::vector<int64_t>> Guesser::guess(std::vector<std::vector<int64_t>> sequences,
                                                 std::vector<int64_t> counts,
                                                 const Draft::Choose& choose) {
  if (draft_) return draft_->guess(std::move(sequences), std::move(counts), choose);
  std::vector<std::vector<int64_t>> guesses(sequences.size());
  for (size_t r = 0; r < sequences.size(); ++r)
    if (counts[r] > 0) guesses[r] = look_up(sequences[r], how_.lookup, counts[r]);
  return guesses;
}

void Guesser::keep(size_t row, int64_t right) {
  if (draft_) draft_->keep(row, right);
}

}  // namespace tessera::infer
