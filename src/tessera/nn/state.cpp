#include "tessera/nn/state.h"

#include <algorithm>

namespace tessera::nn {
namespace {

constexpr int64_t kFirstCapacity = 64;

std::vector<int64_t> with_front(int64_t n, const std::vector<int64_t>& shape) {
  std::vector<int64_t> sizes{n};
  sizes.insert(sizes.end(), shape.begin(), shape.end());
  return sizes;
}

}  // namespace

TokenBuffer::TokenBuffer(const spec::StateDecl& decl,
                         int64_t max_pending,
                         at::TensorOptions options)
    : ring_(decl.keep > 0 ? decl.keep + max_pending : 0),
      keep_(decl.keep),
      lead_(decl.keep > 0 ? decl.first : 0),
      data_(at::empty(with_front(0, decl.shape), options)) {}

int64_t TokenBuffer::first() const {
  return ring_ > 0 && length_ > lead_ + ring_ ? length_ - ring_ : 0;
}

int64_t TokenBuffer::slot(int64_t position) const {
  return ring_ == 0 || position < lead_ ? position : lead_ + (position - lead_) % ring_;
}

void TokenBuffer::reserve(int64_t length) {
  // rings grow to their size, others by half: amortised O(1) copies per token
  const int64_t most = lead_ + ring_;
  int64_t wanted = ring_ > 0 ? std::min(most, std::max(length, kFirstCapacity)) : length;
  if (data_.size(0) >= wanted) return;
  wanted = std::max(wanted, data_.size(0) + data_.size(0) / 2);
  if (ring_ > 0) wanted = std::min(wanted, most);
  auto sizes = data_.sizes().vec();
  sizes[0] = std::max(wanted, ring_ > 0 ? std::min(most, kFirstCapacity) : kFirstCapacity);
  Tensor larger = at::empty(sizes, data_.options());
  const int64_t used = std::min(length_, data_.size(0));
  if (used > 0) larger.narrow(0, 0, used).copy_(data_.narrow(0, 0, used));
  data_ = larger;
}

void TokenBuffer::append(const Tensor& entries) {
  const int64_t t = entries.size(0);
  if (t == 0) return;
  if (at::GradMode::is_enabled() && (entries.requires_grad() || data_.requires_grad())) {
    // out of place: earlier calls' graphs keep their own tensors
    const int64_t lead = this->lead();
    std::vector<Tensor> parts;
    if (first() > 0 && lead > 0) parts.push_back(data_.narrow(0, 0, lead));
    for (const Tensor& part : spans(first() > 0 ? std::max(first(), lead) : 0, length_))
      parts.push_back(part);
    parts.push_back(entries);
    data_ = at::cat(parts);
    length_ += t;
    if (ring_ > 0 && data_.size(0) > lead_ + ring_) {
      const Tensor last = data_.narrow(0, data_.size(0) - ring_, ring_);
      const Tensor ring = at::roll(last, (length_ - lead_) % ring_, 0);
      data_ = lead_ > 0 ? at::cat({data_.narrow(0, 0, lead_), ring}) : ring;
    }
    return;
  }
  reserve(length_ + t);
  // runs of neighbouring slots; of what goes to the ring only the last `ring` entries survive
  for (int64_t i = 0; i < t;) {
    const int64_t position = length_ + i;
    if (ring_ > 0 && position >= lead_ && i < t - ring_) {
      i = t - ring_;
      continue;
    }
    const int64_t at = slot(position);
    const int64_t border = ring_ == 0 ? at + t : position < lead_ ? lead_ : lead_ + ring_;
    const int64_t run = std::min(t - i, border - at);
    data_.narrow(0, at, run).copy_(entries.narrow(0, i, run));
    i += run;
  }
  length_ += t;
}

std::vector<Tensor> TokenBuffer::spans(int64_t from, int64_t to) const {
  require(from <= to && to <= length_ && (from >= first() || to <= lead()), "state",
          "positions {} to {} of 0 to {} and {} to {}", from, to, lead(), first(), length_);
  if (from == to) return {data_.narrow(0, 0, 0)};
  std::vector<Tensor> parts;
  while (from < to) {
    const int64_t begin = slot(from);
    const int64_t run = ring_ == 0 ? to - from : std::min(to - from, lead_ + ring_ - begin);
    parts.push_back(data_.narrow(0, begin, run));
    from += run;
  }
  return parts;
}

void TokenBuffer::truncate(int64_t length) {
  length_ = std::min(length_, length);
}

void TokenBuffer::detach() {
  data_ = data_.detach();
}

Tensor TokenBuffer::dump() const {
  if (keep_ == 0 || length_ <= lead_ + keep_) return at::cat(spans(0, length_));
  std::vector<Tensor> parts = spans(length_ - keep_, length_);
  if (lead_ > 0) parts.insert(parts.begin(), data_.narrow(0, 0, lead_));
  return at::cat(parts);
}

void TokenBuffer::restore(const Tensor& entries, int64_t length) {
  const int64_t held = entries.size(0);
  if (ring_ > 0) {
    auto sizes = data_.sizes().vec();
    sizes[0] = lead_ + ring_;
    data_ = at::zeros(sizes, data_.options());
  }
  const Tensor values = entries.to(data_.options());
  const int64_t lead = held < length ? lead_ : 0;
  if (lead > 0) data_.narrow(0, 0, lead).copy_(values.narrow(0, 0, lead));
  length_ = length - (held - lead);
  append(values.narrow(0, lead, held - lead));
}

TokenBuffer TokenBuffer::clone() const {
  TokenBuffer copy = *this;
  copy.data_ = data_.clone();
  return copy;
}

RowState::RowState(const std::vector<spec::StateDecl>& decls,
                   int64_t max_pending,
                   at::TensorOptions options)
    : decls_(std::make_shared<const std::vector<spec::StateDecl>>(decls)),
      max_pending_(max_pending) {
  for (const spec::StateDecl& decl : decls) {
    if (decl.kind != spec::StateDecl::Kind::fixed) {
      slot_.push_back(tokens_.size());
      tokens_.emplace_back(decl, max_pending, options);
    } else {
      slot_.push_back(working_.size());
      working_.push_back(at::zeros(decl.shape, options));
    }
  }
  committed_fixed_ = working_;
}

Tensor& RowState::fixed_in_place(size_t declaration) {
  Tensor& value = working_[slot_[declaration]];
  // shared with a clone or needed for a roll-back: leave the old value alone
  if (max_pending_ > 0 || value.use_count() > 2) value = value.clone();
  return value;
}

void RowState::end_replay() {
  committed_fixed_ = working_;
  replay_ = Tensor();
}

void RowState::end_call(const Tensor& x_TD, int64_t t, bool pending) {
  if (!pending) {
    require(pending_ == 0, "state", "tokens are pending; commit them first");
    committed_ += t;
    committed_fixed_ = working_;
    return;
  }
  if (pending_ + t > max_pending_)
    fail(ErrorKind::input, "state", "{} pending tokens; this state was made for at most {}",
         pending_ + t, max_pending_);
  pending_ += t;
  if (!working_.empty())
    pending_inputs_.push_back(x_TD.narrow(0, x_TD.size(0) - t, t).detach().clone());
}

void RowState::commit(int64_t n) {
  if (n < 0 || n > pending_)
    fail(ErrorKind::input, "state", "commit of {} tokens; {} are pending", n, pending_);
  int64_t kept_tokens = committed_ + n;
  if (!working_.empty()) {
    if (n == pending_) {
      committed_fixed_ = working_;
    } else {
      // back to the last committed value; the kept inputs follow it before the next call
      working_ = committed_fixed_;
      kept_tokens = committed_;
      if (n > 0) replay_ = at::cat(pending_inputs_).narrow(0, 0, n);
    }
    pending_inputs_.clear();
  }
  committed_ += n;
  pending_ = 0;
  for (size_t i = 0; i < decls_->size(); ++i)
    if ((*decls_)[i].kind == spec::StateDecl::Kind::per_token)
      tokens_[slot_[i]].truncate((*decls_)[i].entries(kept_tokens));
}

int64_t RowState::source_length() const {
  for (size_t i = 0; i < decls_->size(); ++i)
    if ((*decls_)[i].kind == spec::StateDecl::Kind::per_source) return tokens_[slot_[i]].length();
  return 0;
}

RowState RowState::clone() const {
  // fixed tensors are replaced and entries of the source are filled once, never written in place,
  // so they may be shared
  RowState copy = *this;
  for (size_t i = 0; i < decls_->size(); ++i)
    if ((*decls_)[i].kind == spec::StateDecl::Kind::per_token)
      copy.tokens_[slot_[i]] = tokens_[slot_[i]].clone();
  return copy;
}

void RowState::detach() {
  for (TokenBuffer& buffer : tokens_) buffer.detach();
  // a detached handle shares its memory unseen by fixed_in_place, which would then write into a
  // fork
  for (auto* list : {&working_, &committed_fixed_})
    for (Tensor& t : *list)
      if (t.requires_grad()) t = t.detach().clone();
}

void RowState::to(at::Device device) {
  for (TokenBuffer& buffer : tokens_) buffer.to(device);
  for (auto* list : {&working_, &committed_fixed_, &pending_inputs_})
    for (Tensor& t : *list) t = t.to(device);
  if (replay_.defined()) replay_ = replay_.to(device);
}

std::vector<std::pair<std::string, Tensor>> RowState::save() const {
  if (pending_ != 0)
    fail(ErrorKind::input, "state", "{} tokens are pending; commit them before saving", pending_);
  std::vector<std::pair<std::string, Tensor>> out;
  for (size_t i = 0; i < decls_->size(); ++i) {
    const spec::StateDecl& decl = (*decls_)[i];
    out.emplace_back(decl.name, decl.kind != spec::StateDecl::Kind::fixed
                                    ? tokens_[slot_[i]].dump()
                                    : committed_fixed_[slot_[i]]);
  }
  if (replay_.defined()) out.emplace_back("replay", replay_);
  return out;
}

void RowState::load(const std::function<Tensor(const std::string&)>& tensor, int64_t length) {
  const Tensor replay = tensor("replay");
  if (replay.defined() && (replay.dim() != 2 || replay.size(0) > length))
    fail(ErrorKind::file, "state", "\"replay\" has shape [{}]; expected at most {} rows",
         fmt::join(replay.sizes(), ", "), length);
  // what is still to replay is not in the entries yet
  const int64_t seen = length - (replay.defined() ? replay.size(0) : 0);
  int64_t source = -1;
  for (size_t i = 0; i < decls_->size(); ++i) {
    const spec::StateDecl& decl = (*decls_)[i];
    const Tensor value = tensor(decl.name);
    const bool per_token = decl.kind == spec::StateDecl::Kind::per_token,
               per_source = decl.kind == spec::StateDecl::Kind::per_source;
    // how long the source was, only the file knows
    if (per_source && source < 0 && value.defined() && value.dim() > 0) source = value.size(0);
    const auto expected = per_token    ? with_front(decl.kept(seen), decl.shape)
                          : per_source ? with_front(std::max<int64_t>(source, 0), decl.shape)
                                       : decl.shape;
    if (!value.defined() || value.sizes() != at::IntArrayRef(expected))
      fail(ErrorKind::file, "state",
           "\"{}\" is missing or has another shape than this model's state", decl.name);
    if (per_token || per_source)
      tokens_[slot_[i]].restore(value, per_source ? source : decl.entries(seen));
    else
      working_[slot_[i]] = committed_fixed_[slot_[i]] = value.to(working_[slot_[i]].options());
  }
  replay_ = replay;
  committed_ = length;
  pending_ = 0;
}

}  // namespace tessera::nn
