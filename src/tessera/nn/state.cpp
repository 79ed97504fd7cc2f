#include "tessera/nn/state.h"

#include <algorithm>
#include <type_traits>

#include "tessera/nn/forgetful_rows.h"
#include "tessera/ops/attention/kv_rows.h"

namespace tessera::nn {
namespace {

std::vector<int64_t> with_front(int64_t n, const std::vector<int64_t>& shape) {
  std::vector<int64_t> sizes{n};
  sizes.insert(sizes.end(), shape.begin(), shape.end());
  return sizes;
}

void lose_numbers(RowState& row, const spec::StateDecl& decl, size_t i) {
  if (decl.kind == spec::StateDecl::Kind::fixed) {
    row.fixed(i) = at::full_like(row.fixed(i), decl.start);
  } else {
    TokenBuffer& buffer = row.tokens(i);
    if (buffer.length() > 0) buffer.restore(at::zeros_like(buffer.dump()), buffer.length());
  }
}

}  // namespace

// rows that move keep their homes
static_assert(std::is_nothrow_move_constructible_v<RowState>);

RowState::Fixed::Fixed(const Fixed& other) : working(other.working), committed(other.committed) {
  for (size_t i = 0; i < other.homes.size(); ++i) {
    const bool at_home = working[i].is_same(other.homes[i]),
               was_home = committed[i].is_same(other.homes[i]);
    const Tensor own = at_home || was_home ? other.homes[i].clone() : Tensor();
    if (at_home) working[i] = own;
    if (was_home) committed[i] = own;
  }
}

RowState::RowState(const std::vector<spec::StateDecl>& decls,
                   int64_t max_pending,
                   at::TensorOptions options,
                   const std::shared_ptr<PagePool>& pool,
                   bool selective)
    : decls_(std::make_shared<const std::vector<spec::StateDecl>>(decls)),
      selective_(selective),
      max_pending_(max_pending) {
  for (const spec::StateDecl& decl : decls) {
    if (decl.kind != spec::StateDecl::Kind::fixed) {
      slot_.push_back(tokens_.size());
      tokens_.emplace_back(decl, max_pending, options, pool);
    } else {
      slot_.push_back(fixed_.working.size());
      fixed_.working.push_back(
          at::full(decl.shape, decl.start, ops::stored_in(decl.dtype, options)));
    }
  }
  fixed_.committed = fixed_.working;
  shared_.resize(fixed_.working.size());
}

RowState RowState::recorded(const std::vector<spec::StateDecl>& decls,
                            at::TensorOptions options,
                            const std::vector<Tensor>& homes,
                            const Tensor& place,
                            int64_t length) {
  RowState out({}, 0, options);
  out.decls_ = std::make_shared<const std::vector<spec::StateDecl>>(decls);
  for (size_t i = 0; i < decls.size(); ++i) {
    if (decls[i].kind != spec::StateDecl::Kind::fixed) {
      out.slot_.push_back(out.tokens_.size());
      out.tokens_.push_back(TokenBuffer::recorded(decls[i], options, homes[i], place, length));
    } else {
      out.slot_.push_back(out.fixed_.working.size());
      out.fixed_.working.push_back(homes[i]);
    }
  }
  out.fixed_.committed = out.fixed_.homes = out.fixed_.working;
  out.shared_.resize(out.fixed_.working.size());
  // a row that rests keeps its home: nothing is computed in place
  for (Shared& shared : out.shared_) shared.value = true;
  out.committed_ = length;
  return out;
}

void RowState::store(const Tensor& active) const {
  for (size_t i = 0; i < fixed_.homes.size(); ++i) {
    const Tensor& home = fixed_.homes[i];
    if (!fixed_.working[i].is_same(home))
      home.copy_(at::where(active, fixed_.working[i].to(home.scalar_type()), home));
  }
}

void RowState::settle(const std::vector<std::shared_ptr<Home>>& homes, int64_t slot) {
  fixed_.slot = slot;
  fixed_.homes.assign(fixed_.working.size(), Tensor());
  for (size_t i = 0; i < decls_->size(); ++i) {
    if ((*decls_)[i].kind != spec::StateDecl::Kind::fixed)
      tokens_[slot_[i]].settle(homes[i]);
    else
      fixed_.homes[slot_[i]] = homes[i]->rows();
  }
}

bool RowState::ready() {
  if (slot() < 0 || pending_ > 0 || replay_.defined()) return false;
  if (!std::all_of(tokens_.begin(), tokens_.end(), [](TokenBuffer& t) { return t.ready(); }))
    return false;
  for (size_t i = 0; i < fixed_.homes.size(); ++i) {
    if (!fixed_.working[i].is_same(fixed_.homes[i])) fixed_.homes[i].copy_(fixed_.working[i]);
    fixed_.working[i] = fixed_.committed[i] = fixed_.homes[i];
    shared_[i].value = false;
  }
  return true;
}

void RowState::grew() {
  for (TokenBuffer& buffer : tokens_) buffer.grew();
  ++committed_;
}

int64_t RowState::seen_before(int64_t place) const {
  if (!selective_) return std::min(place, length());
  return std::lower_bound(places_.begin(), places_.end(), place) - places_.begin();
}

Tensor& RowState::fixed_in_place(size_t declaration) {
  const size_t i = slot_[declaration];
  const bool is_committed = fixed_.working[i].is_same(fixed_.committed[i]);
  if (shared_[i].value || (pending_call_ && is_committed)) {
    fixed_.working[i] = fixed_.working[i].clone();
    shared_[i].value = false;
    // nothing goes back to the old value
    if (!pending_call_ && is_committed) fixed_.committed[i] = fixed_.working[i];
  }
  return fixed_.working[i];
}

void RowState::begin_at(size_t declaration, const Tensor& value) {
  require(length() == 0, "state", "a row of {} tokens has begun already", length());
  const size_t i = slot_[declaration];
  fixed_.working[i] = fixed_.committed[i] = value;
  shared_[i].value = true;
}

void RowState::end_replay() {
  fixed_.committed = fixed_.working;
  replay_ = Tensor();
}

void RowState::end_call(const Tensor& x_TD, const Segment& segment) {
  const int64_t t = segment.length;
  if (ForgetfulRows::active())
    for (size_t i = 0; i < decls_->size(); ++i) lose_numbers(*this, (*decls_)[i], i);
  pending_call_ = true;
  require(selective_ == (segment.places != nullptr), "state", "a call names {} of the row's tokens",
          selective_ ? "none" : "some");
  if (selective_) places_.insert(places_.end(), segment.places->begin(), segment.places->end());
  if (!segment.pending) {
    require(pending_ == 0, "state", "tokens are pending; commit them first");
    committed_ += t;
    fixed_.committed = fixed_.working;
    return;
  }
  if (pending_ + t > max_pending_)
    fail(ErrorKind::input, "state", "{} pending tokens; this state was made for at most {}",
         pending_ + t, max_pending_);
  pending_ += t;
  if (!fixed_.working.empty())
    pending_inputs_.push_back(x_TD.narrow(0, x_TD.size(0) - t, t).detach().clone());
}

void RowState::commit(int64_t n) {
  if (n < 0 || n > pending_)
    fail(ErrorKind::input, "state", "commit of {} tokens; {} are pending", n, pending_);
  if (pending_ == 0) return;
  int64_t kept_tokens = committed_ + n;
  if (!fixed_.working.empty()) {
    if (n == pending_) {
      fixed_.committed = fixed_.working;
    } else {
      // back to the last committed value; the kept inputs follow it before the next call
      fixed_.working = fixed_.committed;
      kept_tokens = committed_;
      if (n > 0) replay_ = at::cat(pending_inputs_).narrow(0, 0, n);
    }
    pending_inputs_.clear();
  }
  committed_ += n;
  pending_ = 0;
  if (selective_) places_.resize(static_cast<size_t>(committed_));
  for (size_t i = 0; i < decls_->size(); ++i)
    if ((*decls_)[i].kind == spec::StateDecl::Kind::per_token)
      tokens_[slot_[i]].truncate((*decls_)[i].entries(kept_tokens));
}

RowState RowState::truncated_copy(int64_t n) const {
  require(fixed_.working.empty() && pending_ == 0 && n <= committed_, "state",
          "cut after {} of {} tokens, {} of them pending", n, length(), pending_);
  RowState out = clone();
  out.committed_ = n;
  if (selective_) out.places_.resize(static_cast<size_t>(n));
  for (size_t i = 0; i < decls_->size(); ++i)
    if ((*decls_)[i].kind == spec::StateDecl::Kind::per_token)
      out.tokens_[slot_[i]].truncate((*decls_)[i].entries(n));
  return out;
}

int64_t RowState::source_length() const {
  for (size_t i = 0; i < decls_->size(); ++i)
    if ((*decls_)[i].kind == spec::StateDecl::Kind::per_source) return tokens_[slot_[i]].length();
  return 0;
}

int64_t RowState::fixed_bytes() const {
  auto bytes = static_cast<int64_t>(places_.size() * sizeof(int64_t));
  for (const Tensor& t : fixed_.working) bytes += static_cast<int64_t>(t.nbytes());
  return bytes;
}

void RowState::compact() {
  for (TokenBuffer& buffer : tokens_) buffer.compact();
}

std::vector<const Page*> RowState::pages() const {
  std::vector<const Page*> all;
  for (const TokenBuffer& buffer : tokens_)
    for (const Page* page : buffer.pages()) all.push_back(page);
  return all;
}

void RowState::detach() {
  for (TokenBuffer& buffer : tokens_) buffer.detach();
  // a graph may hold the memory, which fixed_in_place would write into
  for (auto* list : {&fixed_.working, &fixed_.committed})
    for (Tensor& t : *list)
      if (t.requires_grad()) t = t.detach().clone();
}

void RowState::to(at::Device device) {
  fixed_.homes.clear();
  fixed_.slot = -1;
  for (TokenBuffer& buffer : tokens_) buffer.to(device);
  for (auto* list : {&fixed_.working, &fixed_.committed, &pending_inputs_})
    for (Tensor& t : *list) t = t.to(device);
  if (replay_.defined()) replay_ = replay_.to(device);
}

int64_t RowState::load_places(const Tensor& places, int64_t length) {
  if (!places.defined() || places.dim() != 1 || places.scalar_type() != at::kLong)
    fail(ErrorKind::file, "state", "\"places\" is missing or no list of integers");
  const Tensor here = places.cpu().contiguous();
  const auto* first = here.const_data_ptr<int64_t>();
  places_.assign(first, first + here.numel());
  int64_t least = 0;
  for (const int64_t place : places_) {
    if (place < least || place >= length)
      fail(ErrorKind::file, "state", "\"places\" holds {}; expected {} to {}", place, least,
           length - 1);
    least = place + 1;
  }
  return here.numel();
}

std::vector<std::pair<std::string, Tensor>> RowState::save() const {
  if (pending_ != 0)
    fail(ErrorKind::input, "state", "{} tokens are pending; commit them before saving", pending_);
  std::vector<std::pair<std::string, Tensor>> out;
  for (size_t i = 0; i < decls_->size(); ++i) {
    const spec::StateDecl& decl = (*decls_)[i];
    out.emplace_back(decl.name, decl.kind != spec::StateDecl::Kind::fixed
                                    ? tokens_[slot_[i]].dump()
                                    : fixed_.committed[slot_[i]]);
  }
  for (const Shared& shared : shared_) shared.value = true;
  if (replay_.defined()) out.emplace_back("replay", replay_);
  if (selective_) out.emplace_back("places", at::tensor(places_, at::kLong));
  return out;
}

void RowState::load(const std::function<Tensor(const std::string&)>& tensor, int64_t length) {
  if (selective_) length = load_places(tensor("places"), length);
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
    // numbers of a plain state may change their precision; codes are what they are
    const bool same_codes =
        !value.defined() ||
        (decl.dtype == DType::f32 ? value.is_floating_point()
                                  : value.scalar_type() == ops::kv_scalar_type(decl.dtype));
    if (!same_codes)
      fail(ErrorKind::file, "state", "\"{}\" holds {}; this state keeps {}", decl.name,
           c10::toString(value.scalar_type()), name_of(decl.dtype));
    if (!value.defined() || value.sizes() != at::IntArrayRef(expected))
      fail(ErrorKind::file, "state",
           "\"{}\" is missing or has another shape than this model's state", decl.name);
    if (per_token || per_source)
      tokens_[slot_[i]].restore(value, per_source ? source : decl.entries(seen));
    else
      fixed_.working[slot_[i]] = fixed_.committed[slot_[i]] =
          value.to(fixed_.working[slot_[i]].options());
  }
  replay_ = replay;
  committed_ = length;
  pending_ = 0;
}

}  // namespace tessera::nn
