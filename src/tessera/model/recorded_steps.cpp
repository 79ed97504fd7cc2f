#include "tessera/model/recorded_steps.h"

#include <algorithm>
#include <bit>
#include <set>

#include "tessera/model/placement.h"
#include "tessera/nn/state.h"
#include "tessera/ops/attention/kv_rows.h"
#include "tessera/ops/device_memory.h"

namespace tessera::model {
namespace {

constexpr int64_t kLeastTokens = 256;
/// Entries after those of a row's tokens: a slot without a row in the call writes to the last one.
/// 16, so that rows of scores begin at multiples of 16 bytes.
constexpr int64_t kSpare = 16;

int64_t power_of_two(int64_t n) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(n)));
}

bool per_token(const spec::StateDecl& decl) {
  return decl.kind == spec::StateDecl::Kind::per_token;
}

/// The rows of a step, by branch and slot.
class Rows final : public nn::BranchStates {
 public:
  std::vector<std::vector<nn::RowState>> branches;
  nn::StateRows branch(size_t index, const nn::Batch& batch) override {
    nn::StateRows out;
    for (const nn::Segment& s : batch.segments)
      out.push_back(&branches[index][static_cast<size_t>(s.row)]);
    return out;
  }
};

}  // namespace

struct RecordedSteps::Memory {
  int64_t slots = 0, tokens = 0;
  std::vector<std::vector<Tensor>> tensors;  // by branch and declaration, [slots, ...]
  std::vector<State::Homes> homes;           // of each slot, without the spare entries
  int64_t last() const { return tokens + kSpare - 1; }
  ~Memory() {
    // what copies of rows still hold would keep all of it
    for (const State::Homes& slot : homes)
      for (const auto& branch : slot)
        for (const std::shared_ptr<nn::Home>& home : branch) home->empty();
  }
};

struct RecordedSteps::Step {
  explicit Step(at::Device device) : graph(device) {}
  Tensor input_3R;  // int64: ids, positions, places of their entries
  Tensor hidden_RD;
  ops::Graph graph;
};

RecordedSteps::RecordedSteps(const Model& model) : model_(model) {}
RecordedSteps::~RecordedSteps() = default;

std::string RecordedSteps::unavailable_reason(const Model& model, spec::KvType type) {
  if (const std::string reason = ops::Graph::unavailable_reason(device_of(model)); !reason.empty())
    return reason;
  if (model.virtual_tokens() > 0) return "an adapter puts virtual tokens before the text";
  return model.spec().not_recorded_reason(type);
}

bool RecordedSteps::serves(const nn::Batch& batch, const State& state) const {
  if (state.pool().page() == 0 || batch.segments.empty() ||
      std::ssize(batch.segments) > kMostRows || batch.types_N.defined() ||
      batch.axes_3N.defined() || batch.global_N.defined() || !batch.features.empty())
    return false;
  const int64_t limit = model_.spec().max_positions();
  return std::all_of(batch.segments.begin(), batch.segments.end(), [&](const nn::Segment& s) {
    return s.length == 1 && (limit == 0 || s.start < limit) && s.start > 0 &&
           s.start == state.length(s.row) && !s.pending && s.places == nullptr &&
           s.order == nullptr && state.pending(s.row) == 0;
  });
}

bool RecordedSteps::make_room(int64_t slots, int64_t tokens, State& state) {
  if (memory_ != nullptr && memory_->slots >= slots && memory_->tokens >= tokens) return true;
  auto larger = std::make_unique<Memory>();
  larger->slots = power_of_two(std::max(slots, memory_ ? memory_->slots : 1));
  larger->tokens = power_of_two(std::max({tokens, kLeastTokens, memory_ ? memory_->tokens : 0}));
  int64_t bytes = 0;
  for (const BranchState& branch : state.layout())
    for (const spec::StateDecl& decl : branch.tensors)
      bytes +=
          larger->slots * decl.bytes_per_entry() * (per_token(decl) ? larger->tokens + kSpare : 1);
  if (const auto memory = ops::memory_of(device_of(model_)); memory && bytes > memory->free / 2)
    return false;
  try {
    for (const BranchState& branch : state.layout()) {
      std::vector<Tensor>& tensors = larger->tensors.emplace_back();
      for (const spec::StateDecl& decl : branch.tensors) {
        std::vector<int64_t> shape{larger->slots};
        if (per_token(decl)) shape.push_back(larger->tokens + kSpare);
        shape.insert(shape.end(), decl.shape.begin(), decl.shape.end());
        tensors.push_back(at::zeros(shape, ops::stored_in(decl.dtype, state.options())));
      }
    }
  } catch (const c10::OutOfMemoryError&) {
    // free memory in pieces, or taken by others meanwhile
    return false;
  }
  larger->homes.resize(static_cast<size_t>(larger->slots));
  for (int64_t slot = 0; slot < larger->slots; ++slot)
    for (size_t b = 0; b < larger->tensors.size(); ++b) {
      auto& own = larger->homes[static_cast<size_t>(slot)].emplace_back();
      for (size_t d = 0; d < larger->tensors[b].size(); ++d) {
        const Tensor t = larger->tensors[b][d].select(0, slot);
        const bool entries = per_token(state.layout()[b].tensors[d]);
        own.push_back(std::make_shared<nn::Home>(entries ? t.narrow(0, 0, larger->tokens) : t,
                                                 state.shared_pool()));
      }
    }
  steps_.clear();
  for (int64_t row = 0; row < state.rows(); ++row)
    if (const int64_t slot = state.slot(row); slot >= 0)
      state.settle(row, larger->homes[static_cast<size_t>(slot)], slot);
  memory_ = std::move(larger);
  return true;
}

void RecordedSteps::record(Step& step, int64_t slots, const State& state) {
  const at::NoGradGuard no_gradients;
  nn::Batch batch;
  for (int64_t r = 0; r < slots; ++r)
    batch.segments.push_back({.row = r, .begin = r, .length = 1, .start = memory_->last()});
  batch.ids_N = step.input_3R[0];
  batch.positions_N = step.input_3R[1];
  const Tensor places_R = step.input_3R[2];
  const auto compute = [&] {
    Rows rows;
    for (size_t b = 0; b < state.layout().size(); ++b) {
      std::vector<nn::RowState>& branch = rows.branches.emplace_back();
      for (int64_t r = 0; r < slots; ++r) {
        std::vector<Tensor> own;
        for (const Tensor& t : memory_->tensors[b]) own.push_back(t.select(0, r));
        branch.push_back(nn::RowState::recorded(state.layout()[b].tensors, state.options(), own,
                                                places_R.narrow(0, r, 1), memory_->last()));
      }
    }
    step.hidden_RD = model_.recorded(batch, rows, constants_);
    const Tensor active_R = places_R != memory_->last();
    for (const std::vector<nn::RowState>& branch : rows.branches)
      for (int64_t r = 0; r < slots; ++r)
        branch[static_cast<size_t>(r)].store(active_R.narrow(0, r, 1));
  };
  // no slot is active, so that the first run changes no state
  step.graph.record(compute);
  ++n_recorded_;
}

RecordedSteps::Step* RecordedSteps::step_of(int64_t slots, const State& state) {
  std::unique_ptr<Step>& step = steps_[slots];
  if (step == nullptr) {
    const at::Device device = device_of(model_);
    auto fresh = std::make_unique<Step>(device);
    fresh->input_3R = at::zeros({3, slots}, at::TensorOptions(device).dtype(at::kLong));
    fresh->input_3R[2].fill_(memory_->last());
    try {
      record(*fresh, slots, state);
    } catch (const c10::Error& error) {
      failure_ = error.what_without_backtrace();
      failure_ = failure_.substr(0, failure_.find('\n'));
      steps_.clear();
      return nullptr;
    }
    step = std::move(fresh);
  }
  return step.get();
}

Tensor RecordedSteps::hidden(const nn::Batch& batch, State& state) {
  if (!failure_.empty() || !serves(batch, state)) return {};
  const at::NoGradGuard no_gradients;
  state.check(batch);
  // a slot for every row: its own, or the first that is free
  std::set<int64_t> taken;
  for (int64_t row = 0; row < state.rows(); ++row) taken.insert(state.slot(row));
  std::vector<int64_t> slots;
  int64_t longest = 0, last = 0;
  for (const nn::Segment& s : batch.segments) {
    int64_t slot = state.slot(s.row);
    for (int64_t free = 0; slot < 0; ++free)
      if (taken.insert(free).second) slot = free;
    slots.push_back(slot);
    last = std::max(last, slot);
    longest = std::max(longest, s.start + 1);
  }
  if (last >= kMostRows || !make_room(last + 1, longest + state.pool().page(), state)) return {};
  for (size_t i = 0; i < slots.size(); ++i) {
    const int64_t row = batch.segments[i].row;
    if (state.slot(row) == slots[i] && state.ready(row)) continue;
    state.settle(row, memory_->homes[static_cast<size_t>(slots[i])], slots[i]);
    // tokens that a roll-back left to replay
    if (!state.ready(row)) return {};
  }

  const int64_t n = power_of_two(last + 1);
  Step* const found = step_of(n, state);
  if (found == nullptr) return {};
  Step& step = *found;
  Tensor input = at::zeros({3, n}, at::kLong);
  input[2].fill_(memory_->last());
  const Tensor ids_N = batch.ids_N.to(at::kCPU, at::kLong).contiguous(),
               positions_N = batch.positions_N.to(at::kCPU, at::kLong).contiguous();
  for (size_t i = 0; i < slots.size(); ++i) {
    auto* const numbers = input.data_ptr<int64_t>();
    const int64_t token = batch.segments[i].begin;
    numbers[slots[i]] = ids_N.const_data_ptr<int64_t>()[token];
    numbers[n + slots[i]] = positions_N.const_data_ptr<int64_t>()[token];
    numbers[2 * n + slots[i]] = batch.segments[i].start;
  }
  try {
    step.input_3R.copy_(input);
    step.graph.replay();
  } catch (...) {
    state.invalidate(batch);
    throw;
  }
  ++n_replayed_;
  state.grew(batch);
  // the next replay writes to the same memory
  if (std::ssize(slots) == n && std::is_sorted(slots.begin(), slots.end()))
    return step.hidden_RD.clone();
  return step.hidden_RD.index_select(0, at::tensor(slots, at::kLong).to(step.hidden_RD.device()));
}

}  // namespace tessera::model
