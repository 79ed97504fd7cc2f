// State of a set of rows between calls (KV cache and recurrent state): a value that the caller
// owns. Rows can be selected, appended, removed (batching, beams), forked, saved and loaded. One
// entry per row and layer invocation, as the mechanisms declare (nn/state.h).
#pragma once

#include <any>
#include <filesystem>
#include <map>
#include <set>
#include <string>

#include "tessera/format/tensor_view.h"
#include "tessera/model/model_spec.h"
#include "tessera/nn/context.h"

namespace tessera::model {

class State final : public nn::BranchStates {
 public:
  State() = default;
  /// Creates `rows` empty rows. max_pending: max. uncommitted tokens of a row. Throws Error(spec)
  /// for quantized keys and values if no part supports them.
  State(const ModelSpec& spec,
        int64_t rows,
        int64_t max_pending = 0,
        at::TensorOptions options = at::TensorOptions().dtype(at::kFloat),
        const spec::KvOptions& kv = {});

  int64_t rows() const { return static_cast<int64_t>(rows_.size()); }
  /// Number of tokens in row r, pending ones included.
  int64_t length(int64_t row) const {
    return lengths_[static_cast<size_t>(row)].committed +
           lengths_[static_cast<size_t>(row)].pending;
  }
  /// Number of source tokens of row r, 0 = it has no source (yet).
  int64_t source_length(int64_t row) const;
  int64_t pending(int64_t row) const { return lengths_[static_cast<size_t>(row)].pending; }

  /// Commits the first n pending tokens of a row and drops the rest.
  void commit(int64_t row, int64_t n);
  /// A state of the given rows, in that order. Copy-on-write: rows share pages until one of them
  /// writes, page by page.
  State select(const std::vector<int64_t>& rows) const;
  /// Throws Error(input) if the other state has another spec or another max_pending.
  void append(const State& other);
  void remove(int64_t row);
  State fork() const;
  /// Row `row` becomes a copy of row `from_row` of `from`. Throws Error(input) as append() does.
  void put(int64_t row, const State& from, int64_t from_row = 0);
  /// True if the state after the row's first n tokens can be restored: always if these are all
  /// tokens; otherwise not with tensors of fixed size, nor if a ring buffer has overwritten its
  /// first entries.
  bool can_truncate(int64_t row, int64_t n) const;
  /// A state of one row after its first n tokens, source included; shares pages. Throws
  /// Error(input) unless can_truncate().
  State truncated_copy(int64_t row, int64_t n) const;
  void detach();
  void to(at::Device device);
  /// Bytes of entries and tensors, shared ones counted for every row; equals the plan's number.
  int64_t bytes() const;
  /// Pages with entries per token, shared ones counted once, and their bytes: without sharing, a
  /// row has up to one page per tensor more than its entries need, with a window two.
  int64_t pages() const;
  int64_t page_bytes() const;
  std::set<const nn::Page*> all_pages() const;
  /// Bytes outside of pages, shared ones counted for every row.
  int64_t fixed_bytes() const;
  /// For a stored state: copies partly filled last pages to pages of the required size.
  void compact();
  /// The pool of its pages, shared with forks.
  const nn::PagePool& pool() const { return *pool_; }
  const std::shared_ptr<nn::PagePool>& shared_pool() const { return pool_; }
  const std::vector<BranchState>& layout() const { return *layout_; }
  const at::TensorOptions& options() const { return options_; }

  /// Contents of one safetensors file; the views refer to `values`.
  struct Packed {
    std::vector<Tensor> values;
    std::vector<format::TensorView> views;
    format::StringMap metadata;
  };
  /// Throws Error(input) for pending tokens, or a row that a failed call has left half advanced.
  Packed pack(const std::string& fingerprint) const;
  /// The fingerprint identifies spec, weights and tokenizer; throws Error(file) if it differs.
  void unpack(const format::TensorFile& file, const std::string& fingerprint);
  /// The same, as a file.
  void save(const std::filesystem::path& path, const std::string& fingerprint) const;
  void load(const std::filesystem::path& path, const std::string& fingerprint);

  /// Throws Error(input) unless every segment continues a row of its own at its end, and pending
  /// tokens fit. Called before any computation, so a rejected call changes nothing.
  void check(const nn::Batch& batch) const;
  /// Entries of branch `index` (order of state_layout) for the segments of a batch.
  nn::StateRows branch(size_t index, const nn::Batch& batch) override;
  /// Marks the rows of a failed call, whose layers are partly advanced. Later calls with them are
  /// rejected.
  void invalidate(const nn::Batch& batch);
  /// Counts the tokens of a call.
  void advance(const nn::Batch& batch);
  /// For each segment, the ids before its first token that its row stores, oldest first.
  std::vector<std::vector<int64_t>> last_ids(const nn::Batch& batch) const;
  // --- recorded steps (recorded_steps.h)

  /// The slot of the memory in which a row is; -1 = it is in pages of its own.
  int64_t slot(int64_t row) const;
  /// RowState::settle: homes by branch and declaration.
  using Homes = std::vector<std::vector<std::shared_ptr<nn::Home>>>;
  void settle(int64_t row, const Homes& homes, int64_t slot);
  /// RowState::ready of all branches.
  bool ready(int64_t row);
  /// Counts the token of every segment, which others have computed.
  void grew(const nn::Batch& batch);

  /// Values that calls without gradients cache for later calls and that can be recomputed from the
  /// weights. Not saved, not in bytes().
  std::map<std::string, std::any>& lasting() { return lasting_; }

 private:
  struct Length {
    int64_t committed = 0, pending = 0;
    bool spoilt = false;
  };
  bool holds_ids() const;
  void check_alike(const State& other) const;
  int64_t checked(int64_t row) const;
  void unpack_row(const format::TensorFile& file, int64_t row, int64_t length);

  std::shared_ptr<const std::vector<BranchState>> layout_;
  std::shared_ptr<nn::PagePool> pool_;
  spec::KvType type_ = spec::KvType::f32;
  int64_t max_pending_ = 0;
  at::TensorOptions options_;
  std::vector<std::vector<nn::RowState>> rows_;  // [row][branch]
  std::vector<Length> lengths_;
  std::map<std::string, std::any> lasting_;
};

}  // namespace tessera::model
