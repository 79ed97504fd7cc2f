#include "tessera/infer/draft.h"

#include <algorithm>
#include <optional>

#include "tessera/model/prefix.h"

namespace tessera::infer {

Draft::Draft(const model::Model& model, size_t rows, const Options& options)
    : model_(model), options_(options) {
  const model::ModelSpec& spec = model.spec();
  if (!spec.causal() || !model.has_head())
    fail(ErrorKind::usage, "draft", "this model {}; expected a decoder with a head",
         spec.causal() ? "has no head" : "is an encoder");
  require((spec.encoder != nullptr) == (options.sources.size() == rows), "draft",
          "sources are what an encoder reads, one a row");
  if (const std::string reason = spec.no_state_reason(); !reason.empty())
    fail(ErrorKind::usage, "draft", "this model cannot continue from a state: {}; take another one",
         reason);
  for (const int64_t limit : {spec.max_positions(), spec.angles_until(1)})
    if (limit > 0) limit_ = limit_ > 0 ? std::min(limit_, limit) : limit;
  state_ = model::State(spec, static_cast<int64_t>(rows), std::max<int64_t>(0, options.most - 1));
}

Tensor Draft::feed(const std::vector<size_t>& rows,
                   const std::vector<std::vector<int64_t>>& tokens,
                   bool pending) {
  std::vector<Tensor> last(rows.size());
  std::vector<int64_t> fed(rows.size(), 0);
  const auto unread = [&](int64_t row) {
    return !options_.sources.empty() && state_.source_length(row) == 0;
  };
  const int64_t share =
      std::max<int64_t>(1, options_.prefill_chunk / static_cast<int64_t>(rows.size()));
  for (bool more = true; more;) {
    more = false;
    nn::Batch batch;
    std::vector<int64_t> ids;
    std::vector<size_t> ends;         // rows that are complete after this call
    std::vector<size_t> encode_rows;  // those that begin
    int64_t source_tokens = 0;
    for (size_t a = 0; a < rows.size(); ++a) {
      const auto row = static_cast<int64_t>(rows[a]);
      const int64_t start = state_.length(row),
                    prefix = options_.prefixes.empty() ? 0 : options_.prefixes[rows[a]];
      // a prefix is not cut
      const int64_t room = std::max(share, model::longest_prefix(model_.spec(), prefix) - start);
      const int64_t n = std::min(room, static_cast<int64_t>(tokens[a].size()) - fed[a]);
      if (n == 0) continue;
      if (unread(row)) {
        const auto source = static_cast<int64_t>(options_.sources[rows[a]].size());
        if (!encode_rows.empty() && source_tokens + source > options_.prefill_chunk) {
          more = true;
          continue;
        }
        source_tokens += source;
        encode_rows.push_back(rows[a]);
      }
      batch.segments.push_back({row, static_cast<int64_t>(ids.size()), n, start, prefix});
      ids.insert(ids.end(), tokens[a].begin() + fed[a], tokens[a].begin() + fed[a] + n);
      fed[a] += n;
      more = more || fed[a] < static_cast<int64_t>(tokens[a].size());
      ends.push_back(a);
    }
    batch.ids_N = at::tensor(ids, at::kLong);
    batch.number();
    model::ForwardOptions forward;
    forward.state = &state_;
    forward.pending = pending;
    forward.cancel = options_.cancel;
    std::optional<nn::Encoded> encoded;
    if (!encode_rows.empty()) forward.encoded = &encoded.emplace(encode(encode_rows));
    const Tensor hidden = model_.hidden(batch, forward);
    for (size_t i = 0; i < ends.size(); ++i) {
      const nn::Segment& segment = batch.segments[i];
      last[ends[i]] = hidden.select(0, segment.begin + segment.length - 1);
    }
  }
  return model_.logits(at::stack(last)).to(at::kCPU, at::kFloat).contiguous();
}

nn::Encoded Draft::encode(const std::vector<size_t>& rows) const {
  std::vector<std::vector<int64_t>> sources;
  for (const size_t r : rows) sources.push_back(options_.sources[r]);
  nn::Batch batch = nn::Batch::of(sources);
  for (size_t i = 0; i < rows.size(); ++i) batch.segments[i].row = static_cast<int64_t>(rows[i]);
  model::ForwardOptions forward;
  forward.cancel = options_.cancel;
  return model_.encode(batch, forward);
}

bool Draft::reads(size_t row) const {
  const int64_t positions = options_.sources.empty() ? 0 : model_.spec().encoder->max_positions();
  return positions == 0 || static_cast<int64_t>(options_.sources[row].size()) <= positions;
}

std::vector<std::vector<int64_t>> Draft::guess(std::vector<std::vector<int64_t>> sequences,
                                               std::vector<int64_t> counts,
                                               const Choose& choose) {
  std::vector<std::vector<int64_t>> guesses(sequences.size());
  // what the draft has not seen yet of the rows it can guess for
  std::vector<size_t> rows;
  std::vector<std::vector<int64_t>> tokens;
  for (size_t r = 0; r < sequences.size(); ++r) {
    const auto length = static_cast<int64_t>(sequences[r].size());
    if (limit_ > 0) counts[r] = std::min(counts[r], limit_ - length + 1);
    if (counts[r] <= 0 || !reads(r)) continue;
    rows.push_back(r);
    tokens.emplace_back(sequences[r].begin() + state_.length(static_cast<int64_t>(r)),
                        sequences[r].end());
  }
  for (bool pending = false; !rows.empty(); pending = true) {
    const Tensor logits = feed(rows, tokens, pending);
    std::vector<size_t> going_on;
    tokens.clear();
    for (size_t a = 0; a < rows.size(); ++a) {
      const size_t r = rows[a];
      const int64_t id =
          choose(r,
                 {logits.const_data_ptr<float>() + static_cast<int64_t>(a) * logits.size(1),
                  static_cast<size_t>(logits.size(1))},
                 sequences[r]);
      guesses[r].push_back(id);
      sequences[r].push_back(id);
      if (static_cast<int64_t>(guesses[r].size()) == counts[r]) continue;
      going_on.push_back(r);
      tokens.push_back({id});
    }
    rows = std::move(going_on);
  }
  return guesses;
}

void Draft::keep(size_t row, int64_t n) {
  const auto r = static_cast<int64_t>(row);
  // the last guess was never fed
  state_.commit(r, std::min(n, state_.pending(r)));
}

}  // namespace tessera::infer
