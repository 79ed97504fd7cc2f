#include "tessera/infer/evaluation/ngram.h"

#include <algorithm>
#include <cmath>

#include "tessera/base/error.h"

namespace tessera::infer {

std::vector<NgramModel::Entry> NgramModel::counted(std::vector<uint64_t> grams) {
  std::sort(grams.begin(), grams.end());
  std::vector<Entry> entries;
  for (const uint64_t gram : grams) {
    if (entries.empty() || entries.back().gram != gram) entries.push_back({gram, 0});
    ++entries.back().count;
  }
  return entries;
}

bool NgramModel::holds(const std::vector<Entry>& table, uint64_t gram) {
  const auto at = find(table, gram);
  return at != table.end() && at->gram == gram;
}

std::vector<NgramModel::Entry>::const_iterator NgramModel::find(const std::vector<Entry>& table,
                                                                uint64_t gram) {
  return std::lower_bound(table.begin(), table.end(), gram,
                          [](const Entry& entry, uint64_t wanted) { return entry.gram < wanted; });
}

NgramModel::NgramModel(std::string_view text, int order) {
  if (order < 1 || order > kMaxOrder)
    fail(ErrorKind::usage, "ngram", "order {}; expected 1 to {}", order, kMaxOrder);
  const auto n = static_cast<size_t>(order);
  if (text.size() < n)
    fail(ErrorKind::input, "ngram", "the training text has {} bytes; expected at least {}",
         text.size(), n);
  const auto mask = [](size_t k) { return ~uint64_t{0} >> (64 - 8 * k); };
  std::vector<uint64_t> grams;
  grams.reserve(text.size());
  uint64_t window = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    window = window << 8 | static_cast<unsigned char>(text[i]);
    if (i + 1 >= n) grams.push_back(window & mask(n));
  }
  tables_.resize(n);
  tables_[n - 1] = counted(std::move(grams));
  // every distinct (k + 1)-gram is one distinct byte before its last k; a table below n lacks the
  // one at the beginning if it occurs nowhere else, because no byte precedes it
  uint64_t first = 0;
  for (size_t i = 0; i < n; ++i) first = first << 8 | static_cast<unsigned char>(text[i]);
  for (size_t k = n - 1; k > 0; --k) {
    grams.clear();
    for (const Entry& entry : tables_[k]) grams.push_back(entry.gram & mask(k));
    if (!holds(tables_[k], first)) grams.push_back(first & mask(k));
    tables_[k - 1] = counted(std::move(grams));
    first >>= 8;
  }
}

double NgramModel::probability(std::string_view past, unsigned char next) const {
  const size_t longest = std::min(tables_.size() - 1, past.size());
  uint64_t context = 0;
  double p = 1.0 / 256;
  for (size_t k = 0; k <= longest; ++k) {
    // one more byte of the past, above the others
    if (k > 0)
      context |= uint64_t{static_cast<unsigned char>(past[past.size() - k])} << (8 * (k - 1));
    const auto& table = tables_[k];
    uint64_t total = 0, kinds = 0, hits = 0;
    for (auto at = std::lower_bound(table.begin(), table.end(), context << 8,
                                    [](const Entry&e, uint64_t gram) { return e.gram < gram; });
         at != table.end() && at->gram >> 8 == context; ++at) {
      total += at->count;
      kinds += 1;
      if ((at->gram & 0xff) == next) hits = at->count;
    }
    if (total == 0) continue;
    const auto c = static_cast<double>(total);
    p = std::max(static_cast<double>(hits) - kDiscount, 0.0) / c +
        kDiscount * static_cast<double>(kinds) / c * p;
  }
  return p;
}

double NgramModel::nll_sum(std::string_view text, size_t begin, const CancelToken* cancel) const {
  double sum = 0;
  for (size_t i = begin; i < text.size(); ++i) {
    if (cancel != nullptr && i % 65536 == 0) cancel->check("ngram");
    sum -= std::log(probability(text.substr(0, i), static_cast<unsigned char>(text[i])));
  }
  return sum;
}

}  // namespace tessera::infer
