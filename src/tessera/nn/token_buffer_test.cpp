#include "tessera/nn/token_buffer.h"

#include <gtest/gtest.h>

#include "tessera/base/testing.h"
#include "tessera/nn/state.h"
#include "tessera/ops/attention/kv_rows.h"

namespace tessera::nn::token_buffer_test {
namespace {

using Kind = spec::StateDecl::Kind;

at::TensorOptions floats() {
  return at::TensorOptions().dtype(at::kFloat);
}

/// Entry p is (p, p + 0.5) for both heads.
Tensor entries(int64_t from, int64_t to) {
  const Tensor p = at::arange(from, to, floats()).reshape({-1, 1, 1});
  return at::cat({p, p + 0.5}, -1).expand({to - from, 2, 2}).contiguous();
}

spec::StateDecl keys(int64_t keep = 0, int64_t first = 0) {
  spec::StateDecl decl{"k", Kind::per_token, {2, 2}, keep};
  decl.first = first;
  return decl;
}

void expect_holds(const TokenBuffer& buffer, int64_t from, int64_t to) {
  int64_t at = from;
  for (const Tensor& part : buffer.spans(from, to)) {
    EXPECT_TRUE(at::equal(part, entries(at, at + part.size(0)))) << at;
    at += part.size(0);
  }
  EXPECT_EQ(at, to);
  EXPECT_TRUE(at::equal(buffer.joined(from, to), entries(from, to)));
}

TEST(TokenBuffer, HoldsWhatWasAppendedWhateverThePages) {
  const at::NoGradGuard no_gradients;
  for (const int64_t page : {0, 1, 2, 16, 100})
    for (const int64_t step : {1, 3, 40}) {
      const auto pool = PagePool::make(page);
      TokenBuffer buffer(keys(), 0, floats(), pool);
      for (int64_t n = 0; n < 100; n += step)
        buffer.append(entries(n, std::min(n + step, int64_t{100})));
      ASSERT_EQ(buffer.length(), 100);
      expect_holds(buffer, 0, 100);
      expect_holds(buffer, 15, 34);
      expect_holds(buffer, 99, 100);
      EXPECT_EQ(buffer.spans(7, 7).at(0).size(0), 0);
      EXPECT_TRUE(at::equal(buffer.dump(), entries(0, 100)));
      EXPECT_EQ(pool->live(), page == 0 ? 1 : (100 + page - 1) / page);
      EXPECT_EQ(buffer.spans(0, 100).size(), static_cast<size_t>(pool->live()));
    }
}

TEST(TokenBuffer, AWindowLetsGoOfWholePages) {
  const at::NoGradGuard no_gradients;
  constexpr int64_t kKeep = 10, kPending = 3;
  for (const int64_t page : {0, 1, 4, 64})
    for (const int64_t step : {1, 5, 31})
      for (const int64_t lead : {0, 2}) {
        SCOPED_TRACE(fmt::format("page {} step {} lead {}", page, step, lead));
        const auto pool = PagePool::make(page);
        TokenBuffer buffer(keys(kKeep, lead), kPending, floats(), pool);
        for (int64_t n = 0; n < 200; n += step) {
          buffer.append(entries(n, n + step));
          const int64_t length = n + step;
          expect_holds(buffer, std::max<int64_t>(0, length - kKeep), length);
          expect_holds(buffer, 0, std::min(lead, length));
          // whole pages around the window: one more than it fills, and the lead
          const int64_t own =
              page == 0 ? 1 : (kKeep + kPending) / std::min(page, kKeep + kPending) + 2;
          EXPECT_LE(pool->live(), own + (lead > 0 ? 1 : 0));
          if (page == 0) {
            int64_t rows = 0;
            for (const Page* p : buffer.pages()) rows += p->capacity();
            EXPECT_LE(rows, std::max<int64_t>(2 * (kKeep + kPending), step) + lead);
          }
        }
        EXPECT_EQ(buffer.dump().size(0), lead + kKeep);
        // back to where the last call began
        const int64_t length = buffer.length();
        buffer.append(entries(length, length + kPending));
        buffer.truncate(length);
        expect_holds(buffer, length - kKeep, length);
        TokenBuffer loaded(keys(kKeep, lead), kPending, floats(), pool);
        loaded.restore(buffer.dump(), length);
        expect_holds(loaded, length - kKeep, length);
        if (lead > 0) expect_holds(loaded, 0, lead);
        loaded.append(entries(length, length + 7));
        expect_holds(loaded, length + 7 - kKeep, length + 7);
      }
}

TEST(TokenBuffer, CopiesShareUntilOneWrites) {
  const at::NoGradGuard no_gradients;
  for (const int64_t page : {0, 4}) {
    const auto pool = PagePool::make(page);
    TokenBuffer a(keys(), 0, floats(), pool);
    a.append(entries(0, 10));
    const int64_t before = pool->live();
    EXPECT_EQ(before, page == 0 ? 1 : 3);
    {
      TokenBuffer b = a, c = a;
      EXPECT_EQ(pool->live(), before);
      b.append(entries(100, 101));
      EXPECT_EQ(pool->live(), before + 1);  // the last page, half full
      a.append(entries(10, 13));
      expect_holds(a, 0, 13);
      expect_holds(c, 0, 10);
      EXPECT_TRUE(at::equal(b.joined(10, 11), entries(100, 101)));
      expect_holds(b, 0, 10);
      // a cut copy writes behind the cut
      TokenBuffer d = a;
      d.truncate(2);
      d.append(entries(50, 60));
      expect_holds(a, 0, 13);
      EXPECT_TRUE(at::equal(d.joined(2, 12), entries(50, 60)));
    }
    const int64_t rest = page == 0 ? 1 : 4;
    EXPECT_EQ(pool->live(), rest);
    EXPECT_LE(pool->free(), pool->live());
    a = TokenBuffer(keys(), 0, floats(), pool);
    EXPECT_EQ(pool->live(), 0);
    EXPECT_EQ(pool->free(), 0);
  }
}

TEST(TokenBuffer, CompactedTakesNoMoreThanItsEntries) {
  const at::NoGradGuard no_gradients;
  for (const int64_t page : {0, 1, 4, 64})
    for (const auto& [keep, first] : {std::pair{0, 0}, {0, 2}, {6, 0}, {6, 2}})
      for (const int64_t n : {1, 3, 4, 10}) {
        SCOPED_TRACE(fmt::format("page {} keep {} first {} n {}", page, keep, first, n));
        const auto pool = PagePool::make(page);
        TokenBuffer a(keys(keep, first), 0, floats(), pool);
        for (int64_t i = 0; i < n; ++i) a.append(entries(i, i + 1));
        TokenBuffer b = a;
        b.compact();
        int64_t rows = 0;
        for (const Page* p : b.pages()) rows += p->capacity();
        if (keep == 0 && first == 0) {
          EXPECT_EQ(rows, n);
        }
        const auto expect_same = [&](const TokenBuffer& x, const TokenBuffer& y) {
          EXPECT_TRUE(at::equal(x.dump(), y.dump()));
          EXPECT_EQ(x.length(), y.length());
        };
        expect_same(a, b);
        for (int64_t i = n; i < n + 9; ++i) {
          a.append(entries(i, i + 1));
          b.append(entries(i, i + 1));
          expect_same(a, b);
          b.compact();
          expect_same(a, b);
        }
      }
}

TEST(TokenBuffer, FreedPagesAreTakenAgain) {
  const at::NoGradGuard no_gradients;
  const auto pool = PagePool::make(4);
  TokenBuffer a(keys(), 0, floats(), pool);
  a.append(entries(0, 16));
  const void* memory = a.spans(12, 16)[0].const_data_ptr();
  a.truncate(12);
  EXPECT_EQ(pool->live(), 3);
  EXPECT_EQ(pool->free(), 1);
  a.append(entries(12, 14));
  EXPECT_EQ(a.spans(12, 14)[0].const_data_ptr(), memory);
  EXPECT_EQ(pool->free(), 0);
  // not while somebody reads it
  const Tensor view = a.spans(12, 14)[0];
  a.truncate(12);
  EXPECT_EQ(pool->free(), 0);
  a.append(entries(30, 34));
  EXPECT_TRUE(at::equal(view, entries(12, 14)));
}

TEST(TokenBuffer, GradientsReachEntriesOfEarlierCalls) {
  for (const int64_t page : {0, 1, 4})
    for (const int64_t keep : {0, 5}) {
      TokenBuffer buffer(keys(keep), 0, floats(), PagePool::make(page));
      Tensor sum;
      std::vector<Tensor> given;
      for (int64_t n = 0; n < 9; n += 3) {
        given.push_back(entries(n, n + 3).requires_grad_());
        buffer.append(given.back());
        const int64_t from = keep == 0 ? 0 : std::max<int64_t>(0, n + 3 - keep);
        const Tensor part = buffer.joined(from, n + 3).square().sum();
        sum = sum.defined() ? sum + part : part;
      }
      sum.backward();
      // entry 2 is in all three sums, or in two of them with a window of 5
      EXPECT_EQ(given[0].grad()[2][0][0].item<float>(), (keep == 0 ? 3.0f : 2.0f) * 2 * 2);
      buffer.detach();
      EXPECT_FALSE(buffer.joined(6, 9).requires_grad());
      const at::NoGradGuard no_gradients;
      TokenBuffer copy = buffer;
      buffer.append(entries(9, 10));
      copy.append(entries(70, 71));
      EXPECT_TRUE(at::equal(buffer.joined(6, 10), entries(6, 10)));
      EXPECT_TRUE(at::equal(copy.joined(9, 10), entries(70, 71)));
    }
}

TEST(TokenBuffer, StoresWhatTheDeclarationSays) {
  const at::NoGradGuard no_gradients;
  const Tensor x = entries(0, 20) / 7;
  for (const spec::KvType type :
       {spec::KvType::f16, spec::KvType::bf16, spec::KvType::int8, spec::KvType::fp8}) {
    spec::StateDecl plain = keys();
    plain.packs = true;
    const spec::StateDecl decl = stored_as(plain, type, "layers[0].mixer");
    for (const int64_t page : {0, 3}) {
      TokenBuffer buffer(decl, 0, floats(), PagePool::make(page));
      buffer.append(x.narrow(0, 0, 5));
      buffer.append(buffer.stored(x.narrow(0, 5, 15)));
      const Tensor held = buffer.joined(0, 20);
      EXPECT_EQ(held.nbytes(), 20u * static_cast<size_t>(decl.bytes_per_entry()));
      EXPECT_TRUE(at::equal(held, buffer.stored(x)));
      EXPECT_EQ(ops::row_width(held), 2);
      const Tensor back = ops::from_kv_rows(held, at::kFloat);
      const double error = (back - x).abs().max().item<double>();
      EXPECT_LT(error, type == spec::KvType::fp8 ? 0.18 : 0.012);  // of 2.8
      EXPECT_GT(error, 0);
    }
  }
  EXPECT_THROW(stored_as(keys(), spec::KvType::int8, "layers[0].mixer"), Error);
  // blocks of four bits want whole blocks
  spec::StateDecl narrow = keys();
  narrow.packs = true;
  test::expect_error(ErrorKind::spec, "rows of 2 numbers; found kv-type int4",
                     [&] { stored_as(narrow, spec::KvType::int4, "layers[0].mixer"); });
  EXPECT_THROW(spec::kv_type_named("int5"), Error);
  EXPECT_THROW(PagePool::make(-1), Error);
}

TEST(TokenBuffer, StoresBlocksOfFourBits) {
  const at::NoGradGuard no_gradients;
  constexpr int64_t kWidth = 64, kTokens = 20;
  const Tensor x =
      (at::arange(kTokens * kWidth, at::kFloat) * 0.37).sin().view({kTokens, 1, kWidth});
  spec::StateDecl plain = keys();
  plain.shape = {1, kWidth};
  plain.packs = true;
  const spec::StateDecl decl = stored_as(plain, spec::KvType::int4, "layers[0].mixer");
  EXPECT_EQ(decl.bytes_per_entry(), kWidth / 32 * 20);
  for (const int64_t page : {0, 3}) {
    TokenBuffer buffer(decl, 0, floats(), PagePool::make(page));
    buffer.append(x.narrow(0, 0, 5));
    buffer.append(buffer.stored(x.narrow(0, 5, 15)));
    const Tensor held = buffer.joined(0, kTokens);
    EXPECT_EQ(held.nbytes(), static_cast<size_t>(kTokens * decl.bytes_per_entry()));
    EXPECT_TRUE(at::equal(held, buffer.stored(x)));
    EXPECT_EQ(ops::row_width(held), kWidth);
    EXPECT_EQ(ops::row_width(ops::first_of_rows(held, 32)), 32);
    const double error = (ops::from_kv_rows(held, at::kFloat) - x).abs().max().item<double>();
    EXPECT_LT(error, 2.0 / 15 / 2 * 1.01);  // half a step of the range
    EXPECT_GT(error, 0.01);
  }
}

/// A home whose rows hold numbers of nobody.
std::shared_ptr<Home> home(int64_t tokens) {
  return std::make_shared<Home>(at::full({tokens, 2, 2}, -1, floats()), PagePool::make(4));
}
/// What a recorded step does: the next entry is written to the home.
void write_next(TokenBuffer& buffer, Home& home) {
  ASSERT_TRUE(buffer.ready());
  const int64_t n = buffer.length();
  home.rows().narrow(0, n, 1).copy_(entries(n, n + 1));
  buffer.grew();
}

TEST(TokenBuffer, OthersWriteItsEntriesInAHome) {
  const at::NoGradGuard no_gradients;
  for (const int64_t keep : {0, 5}) {
    TokenBuffer buffer(keys(keep), 0, floats(), PagePool::make(4));
    buffer.append(entries(0, 10));
    EXPECT_FALSE(buffer.ready());
    const auto memory = home(40);
    buffer.settle(memory);
    for (int i = 0; i < 9; ++i) write_next(buffer, *memory);
    buffer.append(entries(19, 22));
    write_next(buffer, *memory);
    ASSERT_EQ(buffer.length(), 23);
    expect_holds(buffer, keep == 0 ? 0 : 18, 23);
    // at the place of their positions
    EXPECT_TRUE(at::equal(memory->rows().narrow(0, 18, 5), entries(18, 23)));
    // beyond the home there is no next entry, until it has a larger one
    buffer.append(entries(23, 40));
    EXPECT_FALSE(buffer.ready());
    const auto larger = home(80);
    buffer.settle(larger);
    write_next(buffer, *larger);
    expect_holds(buffer, keep == 0 ? 0 : 36, 41);
    EXPECT_TRUE(at::equal(larger->rows().narrow(0, 41, 39), at::zeros({39, 2, 2})));
  }
}

TEST(TokenBuffer, CopiesKeepWhatTheyHeldInAHome) {
  const at::NoGradGuard no_gradients;
  const auto pool = PagePool::make(4);
  TokenBuffer buffer(keys(), 0, floats(), pool);
  buffer.append(entries(0, 6));
  const auto memory = home(40);
  buffer.settle(memory);
  write_next(buffer, *memory);
  TokenBuffer copy = buffer;
  EXPECT_FALSE(copy.ready());
  // the copied buffer is cut, and others write other entries where the copy's were
  buffer.truncate(3);
  ASSERT_TRUE(buffer.ready());
  memory->rows().narrow(0, 3, 1).fill_(99);
  buffer.grew();
  expect_holds(copy, 0, 7);
  expect_holds(buffer, 0, 3);
  EXPECT_TRUE(at::equal(buffer.joined(3, 4), at::full({1, 2, 2}, 99, floats())));
  copy.append(entries(7, 9));
  expect_holds(copy, 0, 9);
  // the home goes to another buffer
  const TokenBuffer before = buffer;
  TokenBuffer other(keys(), 0, floats(), pool);
  other.append(entries(0, 2));
  other.settle(memory);
  EXPECT_TRUE(at::equal(memory->rows().narrow(0, 2, 38), at::zeros({38, 2, 2})));
  expect_holds(before, 0, 3);
  expect_holds(copy, 0, 9);
  expect_holds(other, 0, 2);
  // and the first one has none any more
  EXPECT_FALSE(buffer.ready());
  expect_holds(buffer, 0, 3);
}

}  // namespace
}  // namespace tessera::nn::token_buffer_test
