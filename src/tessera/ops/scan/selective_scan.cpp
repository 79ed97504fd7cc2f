#include "tessera/ops/scan/selective_scan.h"

#include <torch/csrc/autograd/custom_function.h>

#include "tessera/base/threads.h"
#include "tessera/kernels/scan/selective_scan.h"
#include "tessera/ops/basic/elementwise.h"
#include "tessera/ops/form.h"
#include "tessera/ops/scan/linear_scan.h"
#include "tessera/ops/recurrence_function.h"
#include "tessera/ops/scan/channel_groups.h"
#include "tessera/ops/scan/cuda_scans.h"

namespace tessera::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// sums over tokens are formed for at most this many sets of documents
constexpr int64_t kMaxShares = 16;

float* data_of(const Tensor& t) {
  return t.data_ptr<float>();
}
const float* read(const Tensor& t) {
  return t.const_data_ptr<float>();
}

/// The kernel's view of tensors that are all float32 and dense; documents are narrowed from it.
kernels::SelectiveScan selective_scan_view(const SelectiveScan& in) {
  kernels::SelectiveScan s;
  s.T = in.x_TE.size(0), s.E = in.x_TE.size(1), s.N = in.a_NE.size(0);
  s.x = read(in.x_TE);
  s.dt = read(in.dt_TE);
  s.dt_bias = read(in.dt_bias_E);
  s.A = read(in.a_NE);
  s.B = read(in.b_TN);
  s.C = read(in.c_TN);
  s.D = read(in.d_E);
  return s;
}

kernels::SelectiveScan narrowed(kernels::SelectiveScan s, int64_t from, int64_t to) {
  s.T = to - from;
  s.x += from * s.E;
  s.dt += from * s.E;
  s.B += from * s.N;
  s.C += from * s.N;
  return s;
}

/// Channels whose share of dB and dC one call sums: by the channels alone, so that bits do not
/// depend on threads; an eighth of them, for a row is walked once per call, but no more than caches
/// bear.
int64_t summed_channels(int64_t channels) {
  constexpr int64_t kMost = 256;
  return std::clamp((channels / 8 + kChannelGroup - 1) / kChannelGroup * kChannelGroup,
                    kChannelGroup, kMost);
}

/// Calls body(share, first channel, last channel) for all pairs, in parallel.
void for_groups(int64_t shares,
                int64_t channels,
                const std::function<void(int64_t, int64_t, int64_t)>& body) {
  const int64_t width = summed_channels(channels), groups = (channels + width - 1) / width;
  parallel_for(shares * groups, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = i % groups * width;
      body(i / groups, first, std::min(channels, first + width));
    }
  });
}

/// Calls body(document, first channel, last channel) in parallel, in ranges as wide as threads
/// leave them: a row is then walked once for all of its channels, and borders do not show in a
/// forward pass.
void for_ranges(int64_t documents,
                int64_t channels,
                const std::function<void(int64_t, int64_t, int64_t)>& body) {
  constexpr int64_t kBlock = 16;  // keeps vectors whole
  const int64_t blocks = (channels + kBlock - 1) / kBlock;
  parallel_for(documents * blocks, kChannelGroup / kBlock, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end;) {
      const int64_t document = i / blocks, next = std::min(end, (document + 1) * blocks);
      body(document, (i - document * blocks) * kBlock,
           std::min(channels, (next - document * blocks) * kBlock));
      i = next;
    }
  });
}

/// Sum over the first axis, slice after slice: one order whatever the number of threads.
Tensor sum_in_order(const Tensor& parts) {
  Tensor sum = parts.select(0, 0);
  for (int64_t i = 1; i < parts.size(0); ++i) sum = sum + parts.select(0, i);
  return sum;
}

/// y and the last state. A given state is that before the only document.
struct Selective : torch::autograd::Function<Selective> {
  static variable_list forward(AutogradContext* context,
                               const Tensor& x,
                               const Tensor& dt,
                               const Tensor& dt_bias,
                               const Tensor& a,
                               const Tensor& b,
                               const Tensor& c,
                               const Tensor& d,
                               const std::optional<Tensor>& given,
                               const Lengths& lengths) {
    context->set_materialize_grads(false);
    const Tensor state = given.value_or(Tensor());
    const SelectiveScan in{as_float(x), as_float(dt), as_float(dt_bias), as_float(a),
                           as_float(b), as_float(c),  as_float(d)};
    const auto whole = selective_scan_view(in);
    const auto offsets = offsets_of(lengths),
               kept_at = kept_offsets(offsets, kernels::kSelectiveScanChunk);
    const auto documents = static_cast<int64_t>(lengths.size());
    Tensor y = at::empty_like(in.x_TE);
    Tensor kept = at::empty({kept_at.back(), whole.N, whole.E}, y.options());
    Tensor states = state.defined() ? as_float(state).unsqueeze(0).clone()
                                    : at::zeros({documents, whole.N, whole.E}, y.options());
    float *y_data = data_of(y), *kept_data = data_of(kept), *state_data = data_of(states);
    for_ranges(documents, whole.E, [&](int64_t i, int64_t begin, int64_t end) {
      const auto at = static_cast<size_t>(i);
      auto s = narrowed(whole, offsets[at], offsets[at + 1]);
      s.y = y_data + offsets[at] * s.E;
      s.kept = kept_data + kept_at[at] * s.N * s.E;
      s.state = state_data + i * s.N * s.E;
      kernels::selective_scan(s, begin, end);
    });
    context->save_for_backward(
        {in.x_TE, in.dt_TE, in.dt_bias_E, in.a_NE, in.b_TN, in.c_TN, in.d_E, kept});
    context->saved_data["lengths"] = lengths;
    context->saved_data["fresh"] = !state.defined();
    return {y, states.select(0, documents - 1).clone()};
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const SelectiveScan in{saved[0], saved[1], saved[2], saved[3], saved[4], saved[5], saved[6]};
    const Tensor &kept = saved[7], dy = given_or_zeros(gradients[0], saved[0]);
    const auto whole = selective_scan_view(in);
    const auto offsets = offsets_of(context->saved_data["lengths"].toIntVector());
    const auto kept_at = kept_offsets(offsets, kernels::kSelectiveScanChunk);
    const auto documents = static_cast<int64_t>(offsets.size()) - 1;
    const int64_t shares = std::min(documents, kMaxShares), width = summed_channels(whole.E),
                  groups = (whole.E + width - 1) / width, n = whole.N, e = whole.E;
    const auto like = dy.options();
    Tensor dx = at::empty_like(in.x_TE), ddt = at::empty_like(in.dt_TE);
    Tensor dbias = at::zeros({shares, e}, like), dd = at::zeros({shares, e}, like),
           da = at::zeros({shares, n, e}, like);
    Tensor db = at::empty({groups, whole.T, n}, like), dc = at::empty_like(db);
    float *dx_data = data_of(dx), *ddt_data = data_of(ddt), *dbias_data = data_of(dbias),
          *dd_data = data_of(dd), *da_data = data_of(da), *db_data = data_of(db),
          *dc_data = data_of(dc);
    const float *kept_data = read(kept), *dy_data = read(dy);
    Tensor dstate;
    const bool fresh = context->saved_data["fresh"].toBool();
    if (!fresh || gradients[1].defined()) dstate = copy_or_zeros(gradients[1], in.a_NE);
    for_groups(shares, e, [&](int64_t share, int64_t begin, int64_t end) {
      for (int64_t i = share; i < documents; i += shares) {
        const auto at = static_cast<size_t>(i);
        const int64_t from = offsets[at];
        kernels::SelectiveScanGradient g;
        g.scan = narrowed(whole, from, offsets[at + 1]);
        g.scan.kept = const_cast<float*>(kept_data) + kept_at[at] * n * e;
        g.dy = dy_data + from * e;
        g.dx = dx_data + from * e;
        g.ddt = ddt_data + from * e;
        g.ddt_bias = dbias_data + share * e;
        g.dA = da_data + share * n * e;
        g.dD = dd_data + share * e;
        g.dB = db_data + (begin / width * whole.T + from) * n;
        g.dC = dc_data + (begin / width * whole.T + from) * n;
        if (dstate.defined() && i + 1 == documents) g.dstate = data_of(dstate);
        kernels::selective_scan_backward(g, begin, end);
      }
    });
    return {dx,
            ddt,
            sum_in_order(dbias),
            sum_in_order(da),
            sum_in_order(db),
            sum_in_order(dc),
            sum_in_order(dd),
            fresh ? Tensor() : dstate,
            Tensor()};
  }
};

/// Rows of equal length: [B, T, ...] each, in the type of the states.
struct Rows {
  Tensor x_BTE, delta_BTE, a_NE, b_BTN, c_BTN, d_E;

  /// rows_of: x [N, ...] as [B, T, ...].
  template <class F>
  Rows(const SelectiveScan& in, const F& rows_of) {
    const auto type = wide(in.x_TE);
    const auto view = [&](const Tensor& t) { return rows_of(t).to(type); };
    x_BTE = view(in.x_TE);
    delta_BTE = elementwise(Elementwise::softplus, view(in.dt_TE) + in.dt_bias_E.to(type));
    a_NE = in.a_NE.to(type);
    b_BTN = view(in.b_TN);
    c_BTN = view(in.c_TN);
    d_E = in.d_E.to(type);
  }
  /// exp(delta A) and delta x B, [B, T, N, E].
  Tensor decays() const { return (delta_BTE.unsqueeze(2) * a_NE).exp(); }
  Tensor inputs() const { return (delta_BTE * x_BTE).unsqueeze(2) * b_BTN.unsqueeze(3); }
};

std::pair<Tensor, Tensor> chunked_rows(const Rows& in, int64_t chunk, const Tensor& state_BNE) {
  const auto [h_BTNE, last] = linear_scan(in.decays(), in.inputs(), chunk, state_BNE);
  return {(h_BTNE * in.c_BTN.unsqueeze(3)).sum(2) + in.d_E * in.x_BTE, last};
}

}  // namespace

namespace {

variable_list scan(const SelectiveScan& in,
                   const Lengths& lengths,
                   const std::optional<Tensor>& state) {
  return Selective::apply(in.x_TE.to(at::kFloat), in.dt_TE.to(at::kFloat),
                          in.dt_bias_E.to(at::kFloat), in.a_NE.to(at::kFloat),
                          in.b_TN.to(at::kFloat), in.c_TN.to(at::kFloat), in.d_E.to(at::kFloat),
                          state, lengths);
}

}  // namespace

Tensor selective_scan(const SelectiveScan& in, const Lengths& lengths, int64_t chunk) {
  const auto type = in.x_TE.scalar_type();
  const Form form = form_of(Op::selective_scan, in.x_TE);
  if (on_cpu(form) && !lengths.empty()) return scan(in, lengths, std::nullopt)[0].to(type);
  if (form == Form::cuda) return selective_scan_cuda(in, lengths).first.to(type);
  return over_documents(lengths,
                        [&](const auto& rows_of) {
                          return chunked_rows(Rows(in, rows_of), chunk, {}).first.flatten(0, 1);
                        })
      .to(type);
}

std::pair<Tensor, Tensor> selective_scan_from(const SelectiveScan& in,
                                              int64_t chunk,
                                              const Tensor& state_NE) {
  const Form form = form_of(Op::selective_scan, in.x_TE);
  if (form == Form::cuda) {
    const auto [y, state] = selective_scan_cuda(in, {in.x_TE.size(0)}, state_NE);
    return {y.to(in.x_TE.scalar_type()), state};
  }
  if (!on_cpu(form)) return selective_scan_chunked(in, chunk, state_NE);
  const variable_list out = scan(in, {in.x_TE.size(0)}, float_or_none(state_NE));
  return {out[0].to(in.x_TE.scalar_type()), out[1]};
}

std::pair<Tensor, Tensor> selective_scan_chunked(const SelectiveScan& in,
                                                 int64_t chunk,
                                                 const Tensor& state_NE) {
  const auto one_row = [](const Tensor& x) { return x.unsqueeze(0); };
  const auto [y, state] =
      chunked_rows(Rows(in, one_row), chunk, state_NE.defined() ? state_NE.unsqueeze(0) : Tensor());
  return {y.squeeze(0).to(in.x_TE.scalar_type()), state.squeeze(0)};
}

std::pair<Tensor, Tensor> selective_scan_recurrent(const SelectiveScan& in,
                                                   const Tensor& state_NE) {
  const auto type = wide(in.x_TE);
  const int64_t t = in.x_TE.size(0);
  const Tensor a = in.a_NE.to(type), d = in.d_E.to(type);
  Tensor h = state_NE.defined() ? state_NE.to(type) : at::zeros_like(a);
  std::vector<Tensor> ys;
  for (int64_t i = 0; i < t; ++i) {
    const Tensor x = in.x_TE.select(0, i).to(type), b = in.b_TN.select(0, i).to(type),
                 c = in.c_TN.select(0, i).to(type);
    const Tensor delta =
        elementwise(Elementwise::softplus, in.dt_TE.select(0, i).to(type) + in.dt_bias_E.to(type));
    h = (delta * a).exp() * h + (delta * x) * b.unsqueeze(1);
    ys.push_back((h * c.unsqueeze(1)).sum(0) + d * x);
  }
  return {t == 0 ? in.x_TE : at::stack(ys).to(in.x_TE.scalar_type()), h};
}

Tensor selective_scan_kernel(const SelectiveScan& in, Tensor& state_NE) {
  const SelectiveScan dense{as_float(in.x_TE), as_float(in.dt_TE), as_float(in.dt_bias_E),
                            as_float(in.a_NE), as_float(in.b_TN),  as_float(in.c_TN),
                            as_float(in.d_E)};
  Tensor y = at::empty_like(dense.x_TE);
  auto scan = selective_scan_view(dense);
  scan.state = data_of(state_NE);
  scan.y = data_of(y);
  kernels::selective_scan(scan);
  return y;
}

}  // namespace tessera::ops
