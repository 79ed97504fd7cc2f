// The memory of a set of rows between calls: one value that the caller owns. Rows can be selected,
// appended, removed (batching, beams), forked, saved and loaded. One entry per row and layer
// invocation, as the mechanisms declare (nn/state.h).
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
  /// `rows` empty rows. max_pending: how many tokens a row may hold uncommitted. Throws Error(spec)
  /// for keys and values of few bits where no part keeps any that may be rounded.
  State(const ModelSpec& spec,
        int64_t rows,
        int64_t max_pending = 0,
        at::TensorOptions options = at::TensorOptions().dtype(at::kFloat),
        const spec::KvOptions& kv = {});

  int64_t rows() const { return static_cast<int64_t>(rows_.size()); }
  /// Tokens row r has seen, pending ones included.
  int64_t length(int64_t row) const {
    return lengths_[static_cast<size_t>(row)].committed +
           lengths_[static_cast<size_t>(row)].pending;
  }
  /// Tokens of the source that row r reads, 0 = it has none (yet).
  int64_t source_length(int64_t row) const;
  int64_t pending(int64_t row) const { return lengths_[static_cast<size_t>(row)].pending; }

  /// Keeps the first n pending tokens of a row, drops the rest.
  void commit(int64_t row, int64_t n);
  /// A state of the given rows, in that order. Nothing is copied: rows share their pages until one
  /// of them writes, and then a page at a time.
  State select(const std::vector<int64_t>& rows) const;
  /// Throws Error(input) when the other state is of another spec or has another max_pending.
  void append(const State& other);
  void remove(int64_t row);
  State fork() const;
  /// Row `row` becomes a copy of row `from_row` of `from`. Throws Error(input) as append() does.
  void put(int64_t row, const State& from, int64_t from_row = 0);
  /// Whether the state after the row's first n tokens is still within it: always when these are all
  /// of them; else not with tensors of fixed size, nor where a ring has let go of its first
  /// entries.
  bool can_truncate(int64_t row, int64_t n) const;
  /// One row: this one as it was after its first n tokens, its source included; it shares their
  /// pages. Throws Error(input) unless can_truncate().
  State truncated_copy(int64_t row, int64_t n) const;
  void detach();
  void to(at::Device device);
  /// Bytes of the entries and tensors held, as if no row shared any; equal to the plan's figure.
  int64_t bytes() const;
  /// Pages that entries per token lie in, those shared by several rows once, and their bytes: a row
  /// that shares nothing has up to one page more than its entries need per tensor, and in a window
  /// two.
  int64_t pages() const;
  int64_t page_bytes() const;
  std::set<const nn::Page*> all_pages() const;
  /// Bytes of what lies in no page, as if no row shared any.
  int64_t fixed_bytes() const;
  /// For a state that is stored: last pages that are not full are copied to ones of just their
  /// rows.
  void compact();
  /// The pool they come from, which forks share.
  const nn::PagePool& pool() const { return *pool_; }

  /// What one safetensors file holds of a state; `values` are what the views point into.
  struct Packed {
    std::vector<Tensor> values;
    std::vector<format::TensorView> views;
    format::StringMap metadata;
  };
  /// Throws Error(input) with pending tokens, or a row that a failed call has left half advanced.
  Packed pack(const std::string& fingerprint) const;
  /// The fingerprint names spec, weights and tokenizer; another is refused with Error(file).
  void unpack(const format::TensorFile& file, const std::string& fingerprint);
  /// The same, as a file.
  void save(const std::filesystem::path& path, const std::string& fingerprint) const;
  void load(const std::filesystem::path& path, const std::string& fingerprint);

  /// Throws Error(input) unless every segment continues a row of its own from where it ends, and
  /// what the call leaves pending fits. Called before anything is computed, so that a refused call
  /// changes nothing.
  void check(const nn::Batch& batch) const;
  /// Entries of branch `index` (order of state_layout) for the segments of a batch.
  nn::StateRows branch(size_t index, const nn::Batch& batch) override;
  /// Marks the rows of a call that failed half way: some of their layers have advanced, some have
  /// not. Every later call with them is refused.
  void invalidate(const nn::Batch& batch);
  /// Books the tokens of a call.
  void advance(const nn::Batch& batch);
  /// Of each segment, the ids before its first token that its row holds, the oldest first.
  std::vector<std::vector<int64_t>> last_ids(const nn::Batch& batch) const;
  /// What calls without gradients keep for later ones and could make again from the weights. Not
  /// saved, and not counted by bytes().
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
