#include "tessera/nn/pages.h"

#include <utility>

namespace tessera::nn {

Page::Page(std::shared_ptr<PagePool> pool, Tensor rows)
    : pool_(std::move(pool)), rows_(std::move(rows)) {}

Page::Page(std::shared_ptr<Home> home, Tensor rows)
    : home_(std::move(home)), rows_(std::move(rows)) {}

Page::~Page() {
  if (pool_) pool_->give_back(std::move(rows_));
}

void Page::leave_home(PagePool& pool) {
  const std::vector<int64_t> shape = rows_.sizes().vec();
  const PagePtr there = pool.take(shape[0], {shape.begin() + 1, shape.end()}, rows_.options());
  there->rows_.copy_(rows_);
  std::swap(pool_, there->pool_);
  std::swap(rows_, there->rows_);
  home_.reset();
}

void Home::leave(int64_t from, int64_t n) {
  std::vector<Given> stay;
  for (Given& given : given_) {
    const PagePtr page = given.page.lock();
    if (page == nullptr || !page->in(this)) continue;
    if (given.from < from + n && from < given.from + given.n)
      page->leave_home(*pool_);
    else
      stay.push_back(std::move(given));
  }
  given_ = std::move(stay);
}

PagePtr Home::page(int64_t from, int64_t n) {
  leave(from, n);
  auto page = std::make_shared<Page>(shared_from_this(), rows_.narrow(0, from, n));
  given_.push_back({from, n, page});
  return page;
}

void Home::empty() {
  leave(0, capacity());
}

std::shared_ptr<PagePool> PagePool::make(int64_t page) {
  if (page < 0)
    fail(ErrorKind::usage, "kv-page", "found {}; expected tokens per page, or 0 for no pages",
         page);
  return std::shared_ptr<PagePool>(new PagePool(page));
}

PagePtr PagePool::take(int64_t rows, const std::vector<int64_t>& entry, at::TensorOptions options) {
  std::vector<int64_t> shape{rows};
  shape.insert(shape.end(), entry.begin(), entry.end());
  const at::Device device = options.device();
  Tensor memory;
  {
    const std::lock_guard lock(mutex_);
    const Kind kind{shape, c10::typeMetaToScalarType(options.dtype()), device.type(),
                    device.index()};
    if (const auto found = free_.find(kind); found != free_.end() && !found->second.empty()) {
      memory = std::move(found->second.back());
      found->second.pop_back();
      --n_free_;
    }
    ++live_;
  }
  if (!memory.defined()) {
    try {
      memory = at::empty(shape, options);
    } catch (...) {
      const std::lock_guard lock(mutex_);
      --live_;
      throw;
    }
  }
  return std::make_shared<Page>(shared_from_this(), std::move(memory));
}

int64_t PagePool::live() const {
  const std::lock_guard lock(mutex_);
  return live_;
}

int64_t PagePool::free() const {
  const std::lock_guard lock(mutex_);
  return n_free_;
}

void PagePool::give_back(Tensor rows) {
  std::vector<Tensor> surplus;  // memory is freed without the lock
  const std::lock_guard lock(mutex_);
  --live_;
  // a graph or a view still reads it and owns it now
  const bool seen = rows.use_count() > 1 || rows.storage().use_count() > 1;
  if (!seen && n_free_ < live_) {
    const at::Device device = rows.device();
    free_[{rows.sizes().vec(), rows.scalar_type(), device.type(), device.index()}].push_back(
        std::move(rows));
    ++n_free_;
    return;
  }
  surplus.push_back(std::move(rows));
  while (n_free_ > live_)
    for (auto& [kind, pages] : free_)
      if (n_free_ > live_ && !pages.empty()) {
        surplus.push_back(std::move(pages.back()));
        pages.pop_back();
        --n_free_;
      }
}

}  // namespace tessera::nn
