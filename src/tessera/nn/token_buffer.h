// Entries per token (keys, values, latents, inputs) of one row: pages that copies share until one
// of them writes. A window keeps the pages that its last entries lie in and frees whole ones
// that fell out of it.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "tessera/nn/pages.h"
#include "tessera/ops/form.h"
#include "tessera/spec/mechanism.h"

namespace tessera::nn {

/// Entries at consecutive positions (of tokens, or of blocks of StateDecl::every tokens); all of
/// them, or the first few and the last ones. Stored in the declaration's type
/// (ops/attention/kv_rows.h); a copy of a buffer shares its pages.
class TokenBuffer {
 public:
  TokenBuffer(const spec::StateDecl& decl,
              int64_t max_pending,
              at::TensorOptions options,
              std::shared_ptr<PagePool> pool = PagePool::make());

  /// The buffer of a row in a recorded step (model/recorded_steps.h), whose length is known on the
  /// device alone: entries are in home_C, and `place`, int64 [1], is their number. One entry may be
  /// appended; spans() and joined() from position 0 on are the whole home, entries of later tokens
  /// included (ops::KeyValues::place). length() is `length`, an upper bound.
  static TokenBuffer recorded(const spec::StateDecl& decl,
                              at::TensorOptions options,
                              const Tensor& home_C,
                              const Tensor& place,
                              int64_t length);
  /// Of a recorded step; else undefined.
  const Tensor& place() const { return place_; }

  int64_t length() const { return length_; }
  /// First position from which on all is held; the lead() first ones are held in addition.
  int64_t first() const { return first_; }
  int64_t lead() const { return std::min(lead_, length_); }
  /// Adds entries [T, ...], plain or as stored() gives them, at positions length .. length + T - 1.
  /// In place without gradients, else out of place.
  void append(const Tensor& entries);
  /// One entry of `rows` rows of `width` numbers, float32 in this machine's memory, without
  /// gradients: append() of a tensor with these numbers, mostly without making one.
  void append(const float* numbers, int64_t rows, int64_t width);
  /// Entries as they are stored: what append() keeps of them. A call that reads fresh entries
  /// before it appends them reads these, so that no number depends on how an input was cut into
  /// calls.
  Tensor stored(const Tensor& entries) const;
  /// Entries of positions [from, to) as stored: a view for each part that lies together, ascending.
  std::vector<Tensor> spans(int64_t from, int64_t to) const;
  /// The same as memory: where the entry of position `first` lies, and how many follow it there.
  struct Run {
    const void* data;
    int64_t first, count;
  };
  /// Adds them to `out`.
  void runs(int64_t from, int64_t to, std::vector<Run>& out) const;
  bool on_cpu() const { return ops::on_host(options_.device()); }
  at::ScalarType stored_type() const { return c10::typeMetaToScalarType(options_.dtype()); }
  /// The same as one tensor: a view where they lie together, else a copy.
  Tensor joined(int64_t from, int64_t to) const;
  void truncate(int64_t length);
  void detach();
  void to(at::Device device);
  /// Held entries, oldest first, and back.
  Tensor dump() const;
  void restore(const Tensor& entries, int64_t length);

  /// Copies a last page that is not full to one of just its rows, so that a buffer that is stored
  /// and not written to any more takes no more memory than its entries. append() still works.
  void compact();

  /// What the entries lie in; pages shared with other buffers too.
  std::vector<const Page*> pages() const;

  /// Moves the entries to a home. Copies of this buffer have none. Not for a buffer in one piece.
  void settle(std::shared_ptr<Home> home);
  /// Makes the next entry's row in the home this buffer's own, so that others may write there.
  /// False if not all entries, or not the next one, are in a home.
  bool ready();
  /// Counts the next entry, which others have written.
  void grew();

 private:
  /// A home that copies do not have.
  struct OwnHome {
    std::shared_ptr<Home> home;
    OwnHome() = default;
    OwnHome(const OwnHome&) {}
    OwnHome& operator=(const OwnHome&) {
      home = nullptr;
      return *this;
    }
    OwnHome(OwnHome&&) = default;
    OwnHome& operator=(OwnHome&&) = default;
    ~OwnHome() = default;
  };

  /// A page for the entries from position `begin` on.
  PagePtr take(int64_t begin, int64_t rows) const;
  /// The page of a position at or after lead_, and the row in it.
  size_t page_of(int64_t position) const;
  int64_t row_of(int64_t position) const;
  int64_t capacity() const;
  void make_room(int64_t length);
  void skip_to(int64_t position);
  void drop_old();
  /// `begin`: the position of the page's first row.
  void write(
      PagePtr& page, int64_t begin, int64_t row, const Tensor& entries, int64_t capacity) const;
  bool in_graph(const PagePtr& page, const Tensor& entries) const;

  std::shared_ptr<PagePool> pool_;
  std::vector<int64_t> entry_;  // shape
  at::TensorOptions options_;
  int64_t page_ = 0;    // entries per page, 0 = all in one that grows
  int64_t window_ = 0;  // entries that must stay, those that may be rolled back included; 0 = all
  int64_t keep_ = 0;
  int64_t lead_ = 0;  // positions below it are kept for ever
  int64_t length_ = 0, first_ = 0;
  int64_t base_ = 0;            // position of the first row of pages_[0]
  OwnHome home_;
  Tensor place_;                // of a recorded step
  PagePtr lead_page_;           // positions 0 .. lead_ - 1
  std::vector<PagePtr> pages_;  // positions from base_ on
};

}  // namespace tessera::nn
