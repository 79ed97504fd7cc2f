// The linear scan's kernels, emulated, against the recurrence in double.
#include <gtest/gtest.h>

#include "tessera/cuda/kernels_testing.h"

namespace tessera::cuda::linear_scan_test {
namespace {

using Lengths = std::vector<int64_t>;

struct Case {
  Lengths lengths;
  int64_t width, chunk;
};
const std::vector<Case> kCases{
    {{1}, 1, 64},          {{7}, 3, 4},       {{64, 65, 1, 200}, 129, 64},
    {{33, 0, 5}, 256, 16}, {{1000}, 130, 32}, {{3, 3, 3}, 127, 2}};

struct Result {
  std::vector<float> h, last, da, db, dfirst;
};

struct Inputs {
  std::vector<float> a, b, first, dh, dlast;
  Inputs(int64_t tokens, int64_t documents, int64_t width)
      : a(numbers(tokens * width, .7)),
        b(numbers(tokens * width, .31, 1)),
        first(numbers(documents * width, .9)),
        dh(numbers(tokens * width, .13, 2)),
        dlast(numbers(documents * width, .41)) {
    for (float& x : a) x = .5f + .5f * x;  // 0 to 1
  }
};

Result by_kernels(const Case& of, const Inputs& in, Order order) {
  const Chunks chunks(of.lengths, of.chunk);
  const int64_t w = of.width, n = chunks.tokens() * w, kept = chunks.count() * w,
                documents = static_cast<int64_t>(of.lengths.size());
  Result out{unwritten(n), unwritten(documents * w), unwritten(n), unwritten(n),
             unwritten(documents * w)};
  std::vector<float> product = unwritten(kept), before = unwritten(kept), after = unwritten(kept);
  Emulator emulator(order);
  const Grid over_chunks{chunks.count(), blocks_of(w, 128)},
      over_documents{documents, blocks_of(w, 128)};
  launch<LinearScanChunks>(
      over_chunks,
      {in.a.data(), in.b.data(), chunks.starts.data(), product.data(), before.data(), w}, {});
  launch<ScanCarry>(over_documents,
                    {product.data(), before.data(), chunks.documents.data(), in.first.data(),
                     out.last.data(), w, false},
                    {});
  launch<LinearScanOutput>(
      over_chunks, {in.a.data(), in.b.data(), chunks.starts.data(), before.data(), out.h.data(), w},
      {});
  launch<LinearScanAdjointChunks>(
      over_chunks,
      {in.a.data(), in.dh.data(), chunks.starts.data(), product.data(), after.data(), w}, {});
  launch<ScanCarry>(over_documents,
                    {product.data(), after.data(), chunks.documents.data(), in.dlast.data(),
                     out.dfirst.data(), w, true},
                    {});
  launch<LinearScanAdjoint>(over_chunks,
                            {in.a.data(), out.h.data(), in.dh.data(), chunks.starts.data(),
                             before.data(), after.data(), out.da.data(), out.db.data(), w},
                            {});
  return out;
}

TEST(LinearScan, EmulatedKernelsGiveTheRecurrenceAndItsAdjoint) {
  for (const Case& of : kCases) {
    const int64_t w = of.width, documents = static_cast<int64_t>(of.lengths.size());
    const int64_t tokens = Chunks(of.lengths, of.chunk).tokens();
    const Inputs in(tokens, documents, w);
    const auto size = static_cast<size_t>(tokens * w);
    std::vector<double> h(size), da(size), db(size), last, dfirst;
    int64_t begin = 0;
    for (int64_t d = 0; d < documents; ++d) {
      const int64_t end = begin + of.lengths[static_cast<size_t>(d)];
      const auto before = [&](int64_t t, int64_t i) {
        return t > begin ? h[static_cast<size_t>((t - 1) * w + i)]
                         : in.first[static_cast<size_t>(d * w + i)];
      };
      for (int64_t i = 0; i < w; ++i) {
        for (int64_t t = begin; t < end; ++t) {
          const auto at = static_cast<size_t>(t * w + i);
          h[at] = in.a[at] * before(t, i) + in.b[at];
        }
        last.push_back(before(end, i));
        double u = in.dlast[static_cast<size_t>(d * w + i)];
        for (int64_t t = end - 1; t >= begin; --t) {
          const auto at = static_cast<size_t>(t * w + i);
          db[at] = in.dh[at] + u;
          da[at] = db[at] * before(t, i);
          u = in.a[at] * db[at];
        }
        dfirst.push_back(u);
      }
      begin = end;
    }
    const Result got = by_kernels(of, in, Order::forwards);
    const std::string what =
        "width " + std::to_string(w) + ", " + std::to_string(tokens) + " tokens: ";
    expect_close(got.h, h, 2e-6, what + "h");
    expect_close(got.last, last, 2e-6, what + "last");
    expect_close(got.da, da, 2e-6, what + "da");
    expect_close(got.db, db, 2e-6, what + "db");
    expect_close(got.dfirst, dfirst, 2e-6, what + "dfirst");
    const Result backwards = by_kernels(of, in, Order::backwards);
    EXPECT_TRUE(got.h == backwards.h && got.last == backwards.last && got.da == backwards.da &&
                got.db == backwards.db && got.dfirst == backwards.dfirst)
        << what << "depends on the order of threads";
  }
}

}  // namespace
}  // namespace tessera::cuda::linear_scan_test
