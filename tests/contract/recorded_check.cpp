// Recorded decoding steps against the same calls one operation at a time, on the test device, whose
// graphs refuse copies from and to the host.
#include "device_checks.h"
#include "fake_device/tested_device.h"
#include "tessera/model/placement.h"
#include "tessera/model/recorded_steps.h"

namespace tessera::contract {
namespace {

constexpr double kTolerance = 1e-12;  // of the largest value, in double

nn::Batch next_tokens(const model::State& state,
                      const std::vector<int64_t>& rows,
                      int64_t tokens,
                      uint64_t seed) {
  nn::Batch batch;
  Ids ids = random_ids(tokens * std::ssize(rows), seed);
  for (size_t i = 0; i < rows.size(); ++i)
    batch.segments.push_back({.row = rows[i],
                              .begin = static_cast<int64_t>(i) * tokens,
                              .length = tokens,
                              .start = state.length(rows[i])});
  batch.ids_N = at::tensor(ids, at::kLong);
  batch.number();
  return batch;
}

/// One state twice: continued by recorded steps, and by others.
class Both {
 public:
  Both(const model::Model& model, Report& report)
      : model_(model),
        report_(report),
        options_(at::TensorOptions(model::device_of(model)).dtype(at::kDouble)),
        steps_(model),
        with_(model.spec(), kRows, 0, options_),
        without_(model.spec(), kRows, 0, options_) {}

  /// Calls of several tokens, by the same code for both.
  void feed(const std::vector<int64_t>& rows, int64_t tokens) {
    const nn::Batch batch = next_tokens(without_, rows, tokens, ++seed_);
    compare("a call of several tokens", hidden(with_, batch), hidden(without_, batch));
  }
  void step(const std::vector<int64_t>& rows) {
    const nn::Batch batch = next_tokens(without_, rows, 1, ++seed_);
    const int64_t recorded = steps_.recorded();
    fake_device::reset_counts();
    const Tensor got = steps_.hidden(batch, with_);
    const fake_device::Counts counts = fake_device::counts();
    if (!got.defined()) {
      report_.expect(false, "rows of {} tokens are not served{}{}", batch.longest(),
                     steps_.failure().empty() ? "" : ": ", steps_.failure());
      return;
    }
    report_.expect(counts.replays == 1 && counts.to_host == 0 && counts.scalars == 0,
                   "{} replays, {} copies to the host", counts.replays, counts.to_host);
    // ids and positions, and the order of rows
    if (steps_.recorded() == recorded)
      report_.expect(counts.to_device <= 2, "{} copies to the device", counts.to_device);
    compare(fmt::format("a step of {} rows", rows.size()), got, hidden(without_, batch));
  }
  /// What a copy computes does not depend on what is done to the row that it was made of.
  void step_of_copies(const std::vector<int64_t>& rows, const std::function<void()>& meanwhile) {
    model::State with = with_.fork(), without = without_.fork();
    meanwhile();
    const nn::Batch batch = next_tokens(without, rows, 2, ++seed_);
    compare("a call of a copy", hidden(with, batch), hidden(without, batch));
  }
  /// A row begins again.
  void restart(int64_t row) {
    const model::State empty(model_.spec(), 1, 0, options_);
    with_.put(row, empty);
    without_.put(row, empty);
  }

  static constexpr int64_t kRows = 3;

 private:
  Tensor hidden(model::State& state, const nn::Batch& batch) const {
    model::ForwardOptions forward;
    forward.state = &state;
    return model_.hidden(batch, forward);
  }
  void compare(const std::string& what, const Tensor& got, const Tensor& want) {
    const double off = (got - want).abs().max().cpu().item<double>(),
                 largest = want.abs().max().cpu().item<double>();
    report_.expect(off <= kTolerance * largest, "{} differs by {:.3g} of the largest value", what,
                   off / largest);
  }

  const model::Model& model_;
  Report& report_;
  at::TensorOptions options_;
  model::RecordedSteps steps_;
  model::State with_, without_;
  uint64_t seed_ = 0;
};

}  // namespace

void check_recorded(const Case& c, Report& report) {
  if (!test::is_test_device()) return;
  const at::NoGradGuard no_gradients;
  const Rig rig = make_rig(c.decoder, at::kDouble);
  const model::Model there = model::to_device(rig.model, test::tested_device());
  if (!model::RecordedSteps::unavailable_reason(there, spec::KvType::f32).empty()) return;
  Both both(there, report);
  both.feed({0}, 5);
  for (int i = 0; i < 4; ++i) both.step({0});
  // a second row joins, in a graph of two slots, then the first rests
  both.feed({1}, 9);
  for (int i = 0; i < 3; ++i) both.step({0, 1});
  both.step({1});
  both.step({1, 0});
  // a call of several tokens continues what a step has written, and the other way round
  both.feed({0}, 3);
  both.step_of_copies({0, 1}, [&] {
    for (int i = 0; i < 3; ++i) both.step({0, 1});
  });
  // a copy of a row whose slot another one takes
  both.step_of_copies({0}, [&] {
    both.restart(0);
    both.feed({2}, 2);
    both.step({2, 1});
    both.feed({0}, 4);
    both.step({0, 1, 2});
  });
}

}  // namespace tessera::contract
