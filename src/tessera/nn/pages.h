// The memory of entries per token: pages of equal size that buffers take one by one as they grow,
// share with their copies until someone writes (copy on write), and return when the last holder is
// destroyed. One pool serves all buffers of a state and of the states forked from it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <vector>

#include "tessera/ops/tensor.h"
#include "tessera/spec/kv_type.h"

namespace tessera::nn {

class PagePool;
class Home;

/// Rows [capacity, ...] of some buffers. Rows that hold no entry may hold anything.
class Page {
 public:
  /// Of a pool: goes back to it.
  Page(std::shared_ptr<PagePool> pool, Tensor rows);
  /// Rows of a home.
  Page(std::shared_ptr<Home> home, Tensor rows);
  /// Of rows that others may see: never written in place.
  explicit Page(Tensor rows) : rows_(std::move(rows)) {}
  ~Page();
  Page(const Page&) = delete;
  Page& operator=(const Page&) = delete;

  const Tensor& rows() const { return rows_; }
  int64_t capacity() const { return rows_.size(0); }
  int64_t bytes() const { return static_cast<int64_t>(rows_.nbytes()); }
  /// Whether only the holders of this object can see what is written here.
  bool own() const { return pool_ != nullptr || home_ != nullptr; }
  bool in(const Home* home) const { return home_.get() == home; }
  /// A page of a home becomes one of `pool`, for all that hold it: its rows are copied.
  void leave_home(PagePool& pool);

 private:
  std::shared_ptr<PagePool> pool_;
  std::shared_ptr<Home> home_;
  Tensor rows_;
};
using PagePtr = std::shared_ptr<Page>;

/// A place in a static KV cache: memory [C, ...] in which a buffer has its entries, that of
/// position p at p, so that others than the buffer may read and append them
/// (model/recorded_steps.h). Its pages are parts of it; copies of the buffer hold them until their
/// rows are needed again, when they become pages of the pool. So a state with homes and its copies
/// are for one thread.
class Home : public std::enable_shared_from_this<Home> {
 public:
  Home(Tensor rows, std::shared_ptr<PagePool> pool)
      : rows_(std::move(rows)), pool_(std::move(pool)) {}
  const Tensor& rows() const { return rows_; }
  int64_t capacity() const { return rows_.size(0); }
  /// The page of positions from .. from + n - 1, whose rows hold what they held. Pages that lie
  /// there leave.
  PagePtr page(int64_t from, int64_t n);
  /// All pages leave.
  void empty();

 private:
  struct Given {
    int64_t from, n;
    std::weak_ptr<Page> page;
  };
  void leave(int64_t from, int64_t n);

  Tensor rows_;
  std::shared_ptr<PagePool> pool_;
  std::vector<Given> given_;
};

class PagePool : public std::enable_shared_from_this<PagePool> {
 public:
  /// page: entries per page; 0 = each buffer keeps its entries in one piece, which is copied as it
  /// grows. Throws Error(usage) when it is negative.
  static std::shared_ptr<PagePool> make(int64_t page = spec::kDefaultKvPage);

  int64_t page() const { return page_; }
  /// A page of `rows` entries that hold anything.
  PagePtr take(int64_t rows, const std::vector<int64_t>& entry, at::TensorOptions options);
  /// Pages in use, and those that wait for the next take(): never more than are in use.
  int64_t live() const;
  int64_t free() const;

 private:
  friend class Page;
  using Kind = std::tuple<std::vector<int64_t>, at::ScalarType, at::DeviceType, int>;
  explicit PagePool(int64_t page) : page_(page) {}
  void give_back(Tensor rows);

  const int64_t page_;
  mutable std::mutex mutex_;  // forked states may be used by other threads
  std::map<Kind, std::vector<Tensor>> free_;
  int64_t live_ = 0, n_free_ = 0;
};

}  // namespace tessera::nn
