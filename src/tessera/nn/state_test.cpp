// What a row of a state keeps: what it begins as, who sees what is written in place, and branches
// that see some tokens alone.
#include "tessera/nn/state.h"

#include "tessera/base/testing.h"
#include "tessera/nn/registry.h"
#include "tessera/nn/weights_testing.h"

namespace tessera::nn::state_test {
namespace {

using Kind = spec::StateDecl::Kind;

/// A tensor of fixed size that begins as 2.5, and an entry per token.
std::vector<spec::StateDecl> decls() {
  spec::StateDecl fixed{"sum", Kind::fixed, {3}};
  fixed.start = 2.5;
  return {fixed, {"k", Kind::per_token, {2}}};
}

RowState row(int64_t max_pending, bool selective = false) {
  return {decls(), max_pending, at::TensorOptions().dtype(at::kDouble), PagePool::make(),
          selective};
}

bool is(const Tensor& t, double value) {
  return (t == value).all().item<bool>();
}

/// A call of n tokens: one entry each, and the sum grows by n.
void feed(RowState& state, int64_t n, bool pending, const std::vector<int64_t>& places = {}) {
  Segment segment{.length = n, .pending = pending};
  if (!places.empty()) segment.places = std::make_shared<const std::vector<int64_t>>(places);
  state.begin_call(pending);
  state.tokens(1).append(at::full({n, 2}, static_cast<double>(state.length()), at::kDouble));
  state.fixed_in_place(0).add_(static_cast<double>(n));
  state.end_call(at::ones({n, 4}, at::kDouble), segment);
}

TEST(RowState, BeginsAsDeclaredOrAsItIsTold) {
  RowState state = row(0);
  EXPECT_TRUE(is(state.fixed(0), 2.5));
  const Tensor parameter = at::full({3}, 7.0, at::kDouble);
  state.begin_at(0, parameter);
  feed(state, 2, false);
  EXPECT_TRUE(is(state.fixed(0), 9));
  EXPECT_TRUE(is(parameter, 7)) << "written through to the parameter";
  EXPECT_THROW(state.begin_at(0, parameter), Error);
}

TEST(RowState, WhatIsWrittenInPlaceIsSeenByItselfAlone) {
  RowState state = row(0);
  feed(state, 1, false);
  RowState copy = state.clone();
  feed(state, 1, false);
  EXPECT_TRUE(is(copy.fixed(0), 3.5));
  feed(copy, 5, false);
  EXPECT_TRUE(is(state.fixed(0), 4.5));
  // what is being saved stays as it was
  const Tensor saved = state.save()[0].second;
  feed(state, 1, false);
  EXPECT_TRUE(is(saved, 4.5));
  // alone, it is written where it lies
  const void* place = state.fixed(0).const_data_ptr();
  feed(state, 1, false);
  EXPECT_EQ(state.fixed(0).const_data_ptr(), place);
}

TEST(RowState, ARollBackFindsTheValueBeforeTheCall) {
  RowState state = row(4);
  feed(state, 1, false);
  feed(state, 2, true);
  feed(state, 1, true);
  EXPECT_TRUE(is(state.fixed(0), 6.5));
  state.commit(0);
  EXPECT_TRUE(is(state.fixed(0), 3.5));
  EXPECT_EQ(state.length(), 1);
}

TEST(RowState, KnowsWhichTokensABranchHasSeen) {
  RowState state = row(4, /*selective=*/true);
  feed(state, 2, false, {0, 3});
  feed(state, 2, true, {5, 6});
  EXPECT_EQ(state.seen_before(3), 1);
  EXPECT_EQ(state.seen_before(6), 3);
  EXPECT_EQ(state.seen_before(100), 4);
  // the row keeps its tokens up to 5
  state.commit(state.seen_before(6) - 2);
  EXPECT_EQ(state.places(), (std::vector<int64_t>{0, 3, 5}));
  EXPECT_EQ(row(0).seen_before(6), 0);
}

TEST(RowState, RefusesPlacesOfAFileThatCannotBe) {
  RowState whole = row(0, /*selective=*/true);
  feed(whole, 2, false, {1, 4});
  std::map<std::string, Tensor> saved;
  for (const auto& [name, tensor] : whole.save()) saved[name] = tensor;
  const auto load = [&](const Tensor& places) {
    saved["places"] = places;
    RowState state = row(0, /*selective=*/true);
    state.load(
        [&](const std::string& name) {
          const auto found = saved.find(name);
          return found == saved.end() ? Tensor() : found->second;
        },
        6);
    return state.places();
  };
  const auto list = [](std::vector<int64_t> values) { return at::tensor(values, at::kLong); };
  EXPECT_EQ(load(list({1, 4})), (std::vector<int64_t>{1, 4}));
  for (const Tensor& bad : {list({4, 1}), list({1, 1}), list({1, 6}), list({-1, 4}),
                            at::ones({2, 1}, at::kLong), at::ones({2}), Tensor()})
    EXPECT_THROW(load(bad), Error) << bad;
}

/// Its state begins at a parameter, and every token adds 1 to it.
class Counter final : public Mixer {
 public:
  Tensor forward(const Tensor& x_ND, Context& context, const StateRows* rows) const override {
    for (size_t i = 0; i < rows->size(); ++i)
      (*rows)[i]->fixed_in_place(0).add_(static_cast<double>(context.batch->segments[i].length));
    return x_ND;
  }
  void begin(RowState& row) const override { row.begin_at(0, start); }
  Tensor start = at::full({3}, 10.0, at::kDouble);
};

TEST(RowState, AMixerBeginsItAtAParameterOnce) {
  const Counter counter;
  RowState state({{"sum", Kind::fixed, {3}}}, 4, at::TensorOptions().dtype(at::kDouble));
  const StateRows rows{&state};
  const auto call = [&](int64_t n, int64_t start, bool pending) {
    Batch batch;
    batch.segments = {{.length = n, .start = start, .pending = pending}};
    batch.number();
    Context context;
    context.batch = &batch;
    run_mixer(counter, at::ones({n, 4}, at::kDouble), context, &rows);
  };
  call(2, 0, /*pending=*/true);
  EXPECT_TRUE(is(state.fixed(0), 12));
  state.commit(0);
  EXPECT_TRUE(is(state.fixed(0), 10));
  call(3, 0, false);
  call(1, 3, false);
  EXPECT_TRUE(is(state.fixed(0), 14));
  EXPECT_TRUE(is(counter.start, 10));
}

}  // namespace
}  // namespace tessera::nn::state_test
