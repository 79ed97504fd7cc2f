// Memory that kernels ask for ahead of its use.
#if defined(TESSERA_KERNELS_EXPECTED_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_KERNELS_EXPECTED_INL_H_
#undef TESSERA_KERNELS_EXPECTED_INL_H_
#else
#define TESSERA_KERNELS_EXPECTED_INL_H_
#endif

#include <hwy/cache_control.h>

#include "tessera/kernels/simd_inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels {
namespace HWY_NAMESPACE {

/// `count` rows of `width` floats, `stride` floats apart.
struct StridedRows {
  const float* first;
  int64_t stride, count, width;
};

/// Rows that are read or written soon. They lie too far apart for the processor to see them coming,
/// and asked for all at once they would only be waited for earlier: a few lines at a time, between
/// the tiles of products.
class Expected {
 public:
  void read(const StridedRows& rows) { add(rows, false); }
  void write(const StridedRows& rows) { add(rows, true); }
  void clear() { count_ = at_ = 0; }
  /// Prefetches `lines` more cache lines, and the rest of the row that it is in.
  HWY_INLINE void more(int lines) {
    if (at_ < count_) some(lines);
  }

 private:
  HWY_NOINLINE void some(int lines) {
    while (lines > 0 && at_ < count_) {
      auto& [rows, writes] = parts_[at_];
      for (; lines > 0 && rows.count > 0; --rows.count, rows.first += rows.stride)
        for (int64_t c = 0; c < rows.width; c += kLine, --lines)
          writes ? prefetch_to_write(rows.first + c) : hwy::Prefetch(rows.first + c);
      if (rows.count == 0) ++at_;
    }
  }

  struct Part {
    StridedRows rows;
    bool writes;
  };
  // what finds no room is met unexpected
  void add(const StridedRows& rows, bool writes) {
    if (at_ == count_) clear();
    if (rows.count > 0 && count_ < kParts) parts_[count_++] = {rows, writes};
  }
  static constexpr int64_t kLine = 16;  // floats
  static constexpr int kParts = 32;
  Part parts_[kParts];
  int count_ = 0, at_ = 0;
};

}  // namespace HWY_NAMESPACE
}  // namespace tessera::kernels
HWY_AFTER_NAMESPACE();

#endif  // toggling guard
