// Shared by tests of states: continued calls give the same bits as one call over the whole text.
#pragma once

#include <gtest/gtest.h>

#include "tessera/base/testing.h"
#include "tessera/model/model.h"

namespace tessera::model {

/// A decoder of a dozen ids, and calls over parts of them, without gradients.
class Continued {
 public:
  explicit Continued(Model model) : model_(std::move(model)) {}
  const Model& model() const { return model_; }

  Tensor whole(const ForwardOptions& options = {}) const {
    return model_.hidden(nn::Batch::of(std::vector<std::vector<int64_t>>{ids_}), options);
  }
  Tensor feed(State& state, int64_t from, int64_t n, bool pending = false) const {
    nn::Batch batch = nn::Batch::of({{ids_.begin() + from, ids_.begin() + from + n}}, {from});
    batch.segments[0].pending = pending;
    ForwardOptions options;
    options.state = &state;
    return model_.hidden(batch, options);
  }

  void expect_any_cuts() const {
    const Tensor one_call = whole();
    for (const std::vector<int64_t>& calls :
         {std::vector<int64_t>{12}, std::vector<int64_t>(12, 1), {5, 7}, {4, 1, 5, 2}}) {
      State state(model_.spec(), 1);
      std::vector<Tensor> parts;
      int64_t at = 0;
      for (const int64_t n : calls) {
        parts.push_back(feed(state, at, n));
        at += n;
      }
      EXPECT_TRUE(at::equal(at::cat(parts), one_call)) << calls.size() << " calls";
    }
  }

  /// After draft tokens of which one was accepted: unchanged, as a fork, and from a file.
  void expect_roll_back() const {
    State state(model_.spec(), 1, 4), straight(model_.spec(), 1, 4);
    feed(straight, 0, 7);
    const Tensor expected = feed(straight, 7, 5);
    feed(state, 0, 6);
    feed(state, 6, 3, /*pending=*/true);
    state.commit(0, 1);
    State fork = state.fork();
    const test::TemporaryFolder folder;
    state.save(folder / "state.safetensors", "model");
    State loaded(model_.spec(), 1, 4);
    loaded.load(folder / "state.safetensors", "model");
    for (State* each : {&state, &fork, &loaded})
      EXPECT_TRUE(at::equal(feed(*each, 7, 5), expected));
  }

 private:
  const at::NoGradGuard no_gradients_;
  Model model_;
  std::vector<int64_t> ids_ = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8};
};

}  // namespace tessera::model
