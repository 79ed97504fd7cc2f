#include "tessera/nn/token_buffer.h"

#include "tessera/kernels/attention/kv_rows.h"
#include "tessera/ops/attention/kv_rows.h"
#include "tessera/ops/light_tensor.h"

namespace tessera::nn {
namespace {

constexpr int64_t kFirstCapacity = 64;

Tensor rows_of(const Page& page, int64_t from, int64_t n) {
  return from == 0 && n == page.capacity() ? page.rows() : page.rows().narrow(0, from, n);
}

}  // namespace

TokenBuffer::TokenBuffer(const spec::StateDecl& decl,
                         int64_t max_pending,
                         at::TensorOptions options,
                         std::shared_ptr<PagePool> pool)
    : pool_(std::move(pool)),
      entry_(decl.shape),
      options_(ops::stored_in(decl.dtype, options)),
      page_(pool_->page()),
      window_(decl.keep > 0 ? decl.keep + max_pending : 0),
      keep_(decl.keep),
      lead_(decl.keep > 0 ? decl.first : 0),
      base_(lead_) {
  // a page larger than the window would only hold unread entries
  if (window_ > 0 && page_ > 0) page_ = std::min(page_, window_);
}

size_t TokenBuffer::page_of(int64_t position) const {
  return page_ == 0 ? 0 : static_cast<size_t>((position - base_) / page_);
}

int64_t TokenBuffer::row_of(int64_t position) const {
  return page_ == 0 ? position - base_ : (position - base_) % page_;
}

int64_t TokenBuffer::capacity() const {
  if (page_ > 0) return page_;
  return pages_.empty() || !pages_[0] ? 0 : pages_[0]->capacity();
}

/// One piece grows by half, or slides over a window: amortised O(1) copies per entry.
void TokenBuffer::make_room(int64_t length) {
  if (page_ > 0 || length - base_ <= capacity()) return;
  const int64_t from = window_ > 0 ? std::min(length_, std::max(base_, length - window_)) : base_;
  int64_t wanted = std::max(kFirstCapacity, capacity() + capacity() / 2);
  if (window_ > 0) wanted = std::min(wanted, 2 * window_);
  PagePtr larger = take(from, std::max(wanted, length - from));
  if (const int64_t held = std::max<int64_t>(0, length_ - from); held > 0)
    larger->rows().narrow(0, 0, held).copy_(pages_[0]->rows().narrow(0, from - base_, held));
  if (from > base_) first_ = from;
  base_ = from;
  pages_.assign(1, std::move(larger));
}

/// Of more entries than a window holds only the last ones matter: those before `position` never
/// come.
void TokenBuffer::skip_to(int64_t position) {
  pages_.clear();
  base_ = first_ = position;
}

void TokenBuffer::drop_old() {
  if (window_ == 0) return;
  if (page_ == 0) {
    // a piece that belongs to a graph has no room to slide in
    const int64_t old = length_ - window_ - base_;
    if (old <= 0 || pages_[0]->own()) return;
    pages_[0] = std::make_shared<Page>(pages_[0]->rows().narrow(0, old, window_));
    first_ = base_ += old;
    return;
  }
  size_t gone = 0;
  while (gone + 1 < pages_.size() && base_ + page_ <= length_ - window_) {
    base_ += page_;
    ++gone;
  }
  if (gone == 0) return;
  pages_.erase(pages_.begin(), pages_.begin() + static_cast<std::ptrdiff_t>(gone));
  first_ = std::max(first_, base_);
}

bool TokenBuffer::in_graph(const PagePtr& page, const Tensor& entries) const {
  return at::GradMode::is_enabled() &&
         (entries.requires_grad() || (page && page->rows().requires_grad()));
}

PagePtr TokenBuffer::take(int64_t begin, int64_t rows) const {
  if (home_.home != nullptr && begin + rows <= home_.home->capacity())
    return home_.home->page(begin, rows);
  return pool_->take(rows, entry_, options_);
}

/// Rows `row` .. of a page become `entries`; the rows before them stay.
void TokenBuffer::write(
    PagePtr& page, int64_t begin, int64_t row, const Tensor& entries, int64_t capacity) const {
  if (in_graph(page, entries)) {
    // out of place: earlier calls' graphs keep their own tensors
    const Tensor fresh = entries.to(options_);
    page =
        std::make_shared<Page>(row == 0 ? fresh : at::cat({page->rows().narrow(0, 0, row), fresh}));
    return;
  }
  if (!page || !page->own() || page.use_count() > 1 || page->capacity() < capacity) {
    PagePtr fresh = take(begin, capacity);
    if (row > 0) fresh->rows().narrow(0, 0, row).copy_(page->rows().narrow(0, 0, row));
    page = std::move(fresh);
  }
  page->rows().narrow(0, row, entries.size(0)).copy_(entries);
}

void TokenBuffer::append(const Tensor& given) {
  const int64_t t = given.size(0);
  if (t == 0) return;
  const Tensor entries = stored(given);
  if (place_.defined()) {
    require(t == 1, "state", "{} entries are appended in a recorded step", t);
    home_.home->rows().index_copy_(0, place_, entries.to(options_));
    ++length_;
    return;
  }
  for (int64_t i = 0; i < t;) {
    const int64_t position = length_;
    if (position < lead_) {
      const int64_t run = std::min(t - i, lead_ - position);
      write(lead_page_, 0, position, entries.narrow(0, i, run), lead_);
      length_ += run, i += run;
      continue;
    }
    if (window_ > 0 && t - i > window_) {
      const int64_t skipped = t - i - window_;
      length_ += skipped, i += skipped;
      skip_to(length_);
      continue;
    }
    const size_t number = page_of(position);
    if (number == pages_.size()) pages_.emplace_back();
    if (!in_graph(pages_[number], entries)) make_room(position + t - i);
    const int64_t row = row_of(position);
    const int64_t rows = page_ > 0 ? page_ : std::max(capacity(), row + t - i);
    const int64_t run = std::min(t - i, rows - row);
    write(pages_[number], position - row, row, entries.narrow(0, i, run), rows);
    length_ += run, i += run;
    drop_old();
  }
}

void TokenBuffer::append(const float* numbers, int64_t rows, int64_t width) {
  const bool in_place = length_ >= lead_ && page_of(length_) < pages_.size();
  if (in_place) {
    const PagePtr& page = pages_[page_of(length_)];
    const int64_t row = row_of(length_);
    if (page && page->own() && page.use_count() == 1 && row < page->capacity() &&
        !page->rows().requires_grad()) {
      auto* memory = static_cast<uint8_t*>(page->rows().data_ptr());
      kernels::write_kv_rows(ops::kv_dtype(stored_type()), numbers, rows, width,
                             memory + row * page->rows().stride(0) * page->rows().element_size());
      ++length_;
      drop_old();
      return;
    }
  }
  const at::NoGradGuard no_gradients;
  const std::vector<int64_t> shape =
      entry_.size() == 1 ? std::vector<int64_t>{1, width} : std::vector<int64_t>{1, rows, width};
  append(ops::tensor_over(numbers, shape, at::kFloat));
}

Tensor TokenBuffer::stored(const Tensor& entries) const {
  const auto type = stored_type();
  if (entries.scalar_type() == type || options_.dtype() == at::kFloat ||
      options_.dtype() == at::kDouble)
    return entries;
  return ops::to_kv_rows(entries, type);
}

TokenBuffer TokenBuffer::recorded(const spec::StateDecl& decl,
                                  at::TensorOptions options,
                                  const Tensor& home_C,
                                  const Tensor& place,
                                  int64_t length) {
  TokenBuffer out(decl, 0, options);
  out.home_.home = std::make_shared<Home>(home_C, nullptr);
  out.place_ = place;
  out.length_ = length;
  return out;
}

std::vector<Tensor> TokenBuffer::spans(int64_t from, int64_t to) const {
  if (place_.defined()) {
    require(from == 0 && to == length_, "state",
            "positions {} to {} of a recorded step; expected all, 0 to {}", from, to, length_);
    return {home_.home->rows().narrow(0, 0, length_)};
  }
  require(from <= to && to <= length_ && (from >= first_ || to <= lead()), "state",
          "positions {} to {} of 0 to {} and {} to {}", from, to, lead(), first_, length_);
  std::vector<Tensor> parts;
  if (from < to && from < lead_) {
    const int64_t end = std::min(to, lead_);
    parts.push_back(rows_of(*lead_page_, from, end - from));
    from = end;
  }
  while (from < to) {
    const size_t number = page_of(from);
    const int64_t row = row_of(from),
                  run = page_ > 0 ? std::min(to - from, page_ - row) : to - from;
    parts.push_back(rows_of(*pages_[number], row, run));
    from += run;
  }
  if (parts.empty()) {
    std::vector<int64_t> shape{0};
    shape.insert(shape.end(), entry_.begin(), entry_.end());
    parts.push_back(at::empty(shape, options_));
  }
  return parts;
}

void TokenBuffer::runs(int64_t from, int64_t to, std::vector<Run>& out) const {
  require(from <= to && to <= length_ && (from >= first_ || to <= lead()), "state",
          "positions {} to {} of 0 to {} and {} to {}", from, to, lead(), first_, length_);
  const auto add = [&](const Page& page, int64_t row, int64_t count) {
    const Tensor& rows = page.rows();
    out.push_back({static_cast<const uint8_t*>(rows.const_data_ptr()) +
                       row * rows.stride(0) * rows.element_size(),
                   from, count});
    from += count;
  };
  if (from < std::min(to, lead_)) add(*lead_page_, from, std::min(to, lead_) - from);
  while (from < to) {
    const int64_t row = row_of(from),
                  count = page_ > 0 ? std::min(to - from, page_ - row) : to - from;
    add(*pages_[page_of(from)], row, count);
  }
}

Tensor TokenBuffer::joined(int64_t from, int64_t to) const {
  const std::vector<Tensor> parts = spans(from, to);
  return parts.size() == 1 ? parts[0] : at::cat(parts);
}

void TokenBuffer::truncate(int64_t length) {
  length_ = std::min(length_, length);
  if (length_ < base_ && base_ > lead_) return skip_to(length_);  // all that a window held is cut
  // pages that hold nothing any more go back
  const size_t used = length_ <= base_ ? 0 : page_of(length_ - 1) + 1;
  if (used < pages_.size()) pages_.resize(used);
}

void TokenBuffer::detach() {
  const auto detached = [](PagePtr& page) {
    if (page && page->rows().requires_grad()) page = std::make_shared<Page>(page->rows().detach());
  };
  detached(lead_page_);
  for (PagePtr& page : pages_) detached(page);
}

void TokenBuffer::to(at::Device device) {
  if (options_.device() == device) return;
  home_ = {};
  options_ = options_.device(device);
  const auto moved = [&](PagePtr& page) {
    if (!page) return;
    PagePtr there = pool_->take(page->capacity(), entry_, options_);
    there->rows().copy_(page->rows());
    page = std::move(there);
  };
  moved(lead_page_);
  for (PagePtr& page : pages_) moved(page);
}

Tensor TokenBuffer::dump() const {
  if (keep_ == 0 || length_ <= lead_ + keep_) return at::cat(spans(0, length_));
  std::vector<Tensor> parts = spans(length_ - keep_, length_);
  if (lead_ > 0) parts.insert(parts.begin(), rows_of(*lead_page_, 0, lead_));
  return at::cat(parts);
}

void TokenBuffer::restore(const Tensor& entries, int64_t length) {
  const int64_t held = entries.size(0), start = length - held;
  pages_.clear();
  lead_page_.reset();
  length_ = 0, first_ = 0, base_ = lead_;
  const Tensor values = entries.to(options_);
  if (start == 0) return append(values);
  append(values.narrow(0, 0, lead_));
  length_ = start + lead_;
  skip_to(length_);
  append(values.narrow(0, lead_, held - lead_));
}

void TokenBuffer::compact() {
  if (pages_.empty() || length_ <= base_) return;
  const auto last = static_cast<int64_t>(pages_.size()) - 1;
  const int64_t rows = length_ - base_ - last * page_;
  PagePtr& page = pages_.back();
  if (!page || rows <= 0 || rows >= page->capacity()) return;
  page = std::make_shared<Page>(page->rows().narrow(0, 0, rows).clone());
}

std::vector<const Page*> TokenBuffer::pages() const {
  std::vector<const Page*> out;
  if (lead_page_) out.push_back(lead_page_.get());
  for (const PagePtr& page : pages_)
    if (page) out.push_back(page.get());
  return out;
}

void TokenBuffer::settle(std::shared_ptr<Home> home) {
  require(page_ > 0, "state", "a buffer in one piece does not move to a home");
  home->empty();
  // of what lay there before, a NaN would reach the sums of a query that does not see it
  home->rows().zero_();
  home_.home = std::move(home);
  const auto move = [&](PagePtr& page, int64_t begin, int64_t rows) {
    if (!page) return;
    const PagePtr old = std::exchange(page, take(begin, rows));
    const int64_t held = std::clamp<int64_t>(length_ - begin, 0, old->capacity());
    page->rows().narrow(0, 0, held).copy_(old->rows().narrow(0, 0, held));
  };
  move(lead_page_, 0, lead_);
  for (size_t i = 0; i < pages_.size(); ++i)
    move(pages_[i], base_ + static_cast<int64_t>(i) * page_, page_);
}

bool TokenBuffer::ready() {
  const Home* const home = home_.home.get();
  if (home == nullptr || place_.defined()) return false;
  const auto at_home = [&](const PagePtr& page) { return page == nullptr || page->in(home); };
  if (!at_home(lead_page_) || !std::all_of(pages_.begin(), pages_.end(), at_home)) return false;
  const bool leads = length_ < lead_;
  const size_t number = leads ? 0 : page_of(length_);
  if (!leads && number >= pages_.size()) pages_.resize(number + 1);
  PagePtr& page = leads ? lead_page_ : pages_[number];
  if (page != nullptr && page.use_count() == 1) return true;
  const int64_t begin = leads ? 0 : length_ - row_of(length_), rows = leads ? lead_ : page_;
  if (begin + rows > home->capacity()) {
    if (page == nullptr && !leads) pages_.resize(number);
    return false;
  }
  page = take(begin, rows);
  return true;
}

void TokenBuffer::grew() {
  ++length_;
  drop_old();
}

}  // namespace tessera::nn
