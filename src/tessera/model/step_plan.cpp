#include "tessera/model/step_plan.h"

#include <algorithm>
#include <deque>

#include "tessera/base/team.h"
#include "tessera/ops/form.h"

namespace tessera::model {
namespace {

// Beyond this many tokens the overhead of tensors is small compared with the products.
constexpr int64_t kMostTokens = 32;

/// Whether steps may run a call.
bool serves(const Tensor& x_ND, const nn::Context& context) {
  const nn::Batch& batch = *context.batch;
  if (!context.steps || !ops::documents_apart(x_ND) || x_ND.dim() != 2 ||
      context.call.state == nullptr || context.call.replace || context.probe || !context.causal ||
      context.training || batch.n_tokens() > kMostTokens || batch.axes_3N.defined() ||
      batch.global_N.defined() || context.groups != nullptr)
    return false;
  return std::none_of(batch.segments.begin(), batch.segments.end(),
                      [](const nn::Segment& s) { return s.places != nullptr || s.length == 0; });
}

/// `floats` numbers that begin at a cache line of `held`.
float* aligned(int64_t floats, Tensor& held) {
  held = at::empty({floats + 16}, at::kFloat);
  return reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(held.data_ptr<float>()) + 63) / 64 *
                                  64);
}

}  // namespace

/// The layers that support a call, group by group.
struct StepPlan::Call {
  struct Running {
    const nn::ResidualStep* residual;
    std::vector<std::unique_ptr<nn::StepCall>> parts;
    std::vector<nn::StepCall*> handles;  // of the same
  };
  size_t layers = 0;
  std::vector<Running> groups;
  std::deque<nn::StateRows> rows;  // which parts refer to
};

StepPlan::Call StepPlan::begun(const Tensor& x_ND,
                               nn::Context& context,
                               size_t first,
                               size_t last) const {
  Call call;
  if (first >= last || layers_[first].empty() || !serves(x_ND, context) || x_ND.size(1) != d_)
    return call;
  for (size_t i = first; i < last && !layers_[i].empty(); ++i) {
    std::vector<Call::Running> groups;
    const size_t before = call.rows.size();
    for (const Group& group : layers_[i]) {
      Call::Running running{group.residual.get(), {}, {}};
      for (const Part& part : group.parts) {
        const nn::StateRows* rows = nullptr;
        if (part.state)
          rows = &call.rows.emplace_back(context.call.state->branch(*part.state, *context.batch));
        running.parts.push_back(part.step->begin(context, rows));
        if (running.parts.back() == nullptr) {
          call.rows.resize(before);
          return call;
        }
        running.handles.push_back(running.parts.back().get());
      }
      groups.push_back(std::move(running));
    }
    std::move(groups.begin(), groups.end(), std::back_inserter(call.groups));
    ++call.layers;
  }
  return call;
}

size_t StepPlan::taken(const Tensor& x_ND, nn::Context& context, size_t first, size_t last) const {
  return begun(x_ND, context, first, last).layers;
}

size_t StepPlan::run(Tensor& x_ND, nn::Context& context, size_t first, size_t last) const {
  Call call = begun(x_ND, context, first, last);
  if (call.layers == 0) return 0;
  const nn::Batch& batch = *context.batch;
  const int64_t n = batch.n_tokens();
  // groups use the same memory one after the other: the residual's, then the part's
  nn::StepMemory memory;
  int64_t of_residuals = 0, of_parts = 0;
  for (const Call::Running& group : call.groups) {
    of_residuals = std::max(of_residuals, group.residual->floats(n));
    for (const nn::StepCall* part : group.handles) of_parts = std::max(of_parts, part->floats());
  }
  const int64_t residual_at = memory.take(of_residuals), part_at = memory.take(of_parts);
  Tensor floats;
  float* const base = aligned(memory.floats(), floats);
  x_ND = x_ND.contiguous().clone();
  auto* const x = x_ND.data_ptr<float>();

  for (const Call::Running& group : call.groups)
    for (nn::StepCall* part : group.handles) part->enter(context);
  for (const nn::StateRows& rows : call.rows)
    for (size_t i = 0; i < rows.size(); ++i) rows[i]->begin_call(batch.segments[i].pending);
  work_together([&](Team& team) {
    const at::NoGradGuard no_gradients;
    for (const Call::Running& group : call.groups)
      group.residual->run(team, n, group.handles, x, base + residual_at, base + part_at);
  });
  for (const nn::StateRows& rows : call.rows)
    for (size_t i = 0; i < rows.size(); ++i) rows[i]->end_call({}, batch.segments[i]);
  return call.layers;
}

Tensor StepPlan::run_part(const Part& part,
                          const Tensor& x_ND,
                          int64_t width,
                          nn::Context& context) {
  if (part.step == nullptr || !serves(x_ND, context)) return {};
  const nn::Batch& batch = *context.batch;
  std::optional<nn::StateRows> rows;
  if (part.state) rows.emplace(context.call.state->branch(*part.state, batch));
  const std::unique_ptr<nn::StepCall> call = part.step->begin(context, rows ? &*rows : nullptr);
  if (call == nullptr) return {};
  Tensor floats, y_ND = at::empty({batch.n_tokens(), width}, at::kFloat);
  const Tensor x = x_ND.contiguous();
  float* const memory = aligned(call->floats(), floats);
  call->enter(context);
  for (size_t i = 0; rows && i < rows->size(); ++i)
    (*rows)[i]->begin_call(batch.segments[i].pending);
  work_together([&](Team& team) {
    const at::NoGradGuard no_gradients;
    call->run(team, x.const_data_ptr<float>(), y_ND.data_ptr<float>(), memory);
  });
  for (size_t i = 0; rows && i < rows->size(); ++i) (*rows)[i]->end_call({}, batch.segments[i]);
  return y_ND;
}

}  // namespace tessera::model
