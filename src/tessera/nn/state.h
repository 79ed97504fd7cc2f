// What one layer invocation keeps of one row between calls, as its mechanism declares it
// (spec::StateDecl): entries per token (keys and values, whole or the last `keep`),
// entries per token of the source (cross-attention's keys and values, filled once) and tensors of
// fixed size (recurrent states). Written once for every mechanism.
//
// A branch may see only some tokens of its row (Mixture of Depths): then it keeps, in addition to
// its declarations, the positions in the row of the tokens seen; length, roll-back and cut are its
// own.
//
// Roll-back: a call may leave its tokens pending. commit(n) keeps the first n of them and drops the
// rest. Where there are only per-token entries, they are cut. Where there are fixed tensors, the
// inputs of the pending tokens are kept; the first n are replayed before the next call, from the
// last committed value, and what they append per token is appended then.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "tessera/nn/batch.h"
#include "tessera/nn/token_buffer.h"
#include "tessera/spec/mechanism.h"

namespace tessera::nn {

class RowState {
 public:
  /// `selective`: it may see some tokens of its row alone.
  RowState(const std::vector<spec::StateDecl>& decls,
           int64_t max_pending,
           at::TensorOptions options,
           const std::shared_ptr<PagePool>& pool = PagePool::make(),
           bool selective = false);

  /// A row in a recorded step (TokenBuffer::recorded), whose entries and tensors are in `homes`,
  /// one for each declaration; `place`: the position of its token. After the call store() has to
  /// follow.
  static RowState recorded(const std::vector<spec::StateDecl>& decls,
                           at::TensorOptions options,
                           const std::vector<Tensor>& homes,
                           const Tensor& place,
                           int64_t length);
  /// Copies the values of fixed tensors to their homes where `active`, bool [1], is true.
  void store(const Tensor& active) const;

  /// Tokens seen, pending ones included.
  int64_t length() const { return committed_ + pending_; }
  /// Of those, the ones that stand before `place` in the row.
  int64_t seen_before(int64_t place) const;
  /// Position in the row of each token seen; empty if it sees all of them.
  const std::vector<int64_t>& places() const { return places_; }
  int64_t pending() const { return pending_; }
  int64_t max_pending() const { return max_pending_; }

  /// The entries of a declaration per token or per token of the source.
  TokenBuffer& tokens(size_t declaration) { return tokens_[slot_[declaration]]; }
  const TokenBuffer& tokens(size_t declaration) const { return tokens_[slot_[declaration]]; }
  /// Tokens of the source that the row holds entries of, 0 = none yet.
  int64_t source_length() const;
  /// The working value of a fixed tensor; assign to change it.
  Tensor& fixed(size_t declaration) { return fixed_.working[slot_[declaration]]; }
  /// The same, safe to overwrite: copied first where a copy of this row shares it, or a roll-back
  /// of the call would need the old value.
  Tensor& fixed_in_place(size_t declaration);
  /// Initial value of a fixed tensor of a row without tokens, instead of that of its declaration.
  void begin_at(size_t declaration, const Tensor& value);
  bool has_fixed() const { return !fixed_.working.empty(); }

  /// Inputs that must pass through the mechanism before the next call, [n, D], or undefined; they
  /// continue at position replay_start(). Followed by end_replay().
  const Tensor& replay() const { return replay_; }
  int64_t replay_start() const { return committed_ - replay_.size(0); }
  void end_replay();
  /// Before a call whose tokens stay pending or not.
  void begin_call(bool pending) { pending_call_ = pending; }
  /// After a call of the segment's tokens with inputs x_TD.
  void end_call(const Tensor& x_TD, const Segment& segment);
  /// Keeps the first n pending tokens. Throws Error(input) when fewer are pending.
  void commit(int64_t n);

  /// Moves what the row holds to homes, one for each declaration (of a fixed tensor the tensor
  /// itself), so that others may compute its next tokens there (model/recorded_steps.h), which know
  /// them by `slot`. Copies of the row have none.
  void settle(const std::vector<std::shared_ptr<Home>>& homes, int64_t slot);
  /// -1 = it has no homes.
  int64_t slot() const { return fixed_.slot; }
  /// Whether others may write the state after the next token to the homes; makes their memory this
  /// row's own. False if not all is there, or if tokens are pending or to be replayed.
  bool ready();
  /// Counts the next token, which others have computed.
  void grew();

  /// Shares entries and fixed tensors with this one until either writes.
  RowState clone() const { return *this; }
  /// The same as it was after its first n tokens, nothing of which may be lost or pending: a row
  /// without fixed tensors, whose windows have evicted nothing.
  RowState truncated_copy(int64_t n) const;
  void detach();
  void to(at::Device device);
  /// Bytes of the entries and tensors held, as spec::state_bytes counts them. The pages that they
  /// lie in are whole ones: pages() has what is allocated.
  int64_t bytes() const {
    return spec::state_bytes(*decls_, length(), source_length()) +
           static_cast<int64_t>(places_.size() * sizeof(int64_t));
  }
  /// Bytes of what lies in no page: tensors of fixed size, places.
  int64_t fixed_bytes() const;
  /// TokenBuffer::compact() of all buffers.
  void compact();
  /// The pages of all entries; those shared with clones too.
  std::vector<const Page*> pages() const;
  /// The committed value as named tensors, and back. Throws Error(input) with tokens pending.
  std::vector<std::pair<std::string, Tensor>> save() const;
  /// `length` is the row's.
  void load(const std::function<Tensor(const std::string&)>& tensor, int64_t length);

 private:
  /// Whether a copy of the row may hold the same memory: copying marks both.
  struct Shared {
    mutable bool value = false;
    Shared() = default;
    Shared(const Shared& other) : value(true) { other.value = true; }
    Shared& operator=(const Shared& other) {
      value = other.value = true;
      return *this;
    }
    Shared(Shared&&) = default;
    Shared& operator=(Shared&&) = default;
    ~Shared() = default;
  };

  /// Tensors of fixed size. A copy does not have the homes, but tensors of its own instead.
  struct Fixed {
    std::vector<Tensor> working, committed;
    std::vector<Tensor> homes;  // parallel to them, or none
    int64_t slot = -1;
    Fixed() = default;
    Fixed(const Fixed& other);
    Fixed& operator=(const Fixed& other) { return *this = Fixed(other); }
    Fixed(Fixed&&) = default;
    Fixed& operator=(Fixed&&) = default;
    ~Fixed() = default;
  };

  int64_t load_places(const Tensor& places, int64_t length);

  std::shared_ptr<const std::vector<spec::StateDecl>> decls_;
  std::vector<size_t> slot_;  // declaration -> index in tokens_ or fixed_.working
  std::vector<TokenBuffer> tokens_;
  Fixed fixed_;
  std::vector<Shared> shared_;  // parallel to them
  std::vector<Tensor> pending_inputs_;
  Tensor replay_;
  bool selective_ = false;
  bool pending_call_ = true;  // of the call under way
  std::vector<int64_t> places_;
  int64_t max_pending_ = 0, committed_ = 0, pending_ = 0;
};

/// The rows of one branch in a call, parallel to the batch's segments.
using StateRows = std::vector<RowState*>;

}  // namespace tessera::nn
