#include "tessera/ops/scan/cuda_scans.h"

#include <torch/csrc/autograd/custom_function.h>

#include "tessera/cuda/kernels.h"
#include "tessera/ops/cuda_stream.h"
#include "tessera/ops/recurrence_function.h"

namespace tessera::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

constexpr int64_t kLinearScanTokens = 64;

/// Addresses of dense tensors, for the arguments of a kernel.
const float* const_floats(const Tensor& x) {
  return x.const_data_ptr<float>();
}
float* floats(const Tensor& x) {
  return x.mutable_data_ptr<float>();
}

/// Documents in chunks of at most `tokens` tokens, as numbers on a device.
class ScanChunks {
 public:
  ScanChunks(const Lengths& lengths, int64_t tokens, const Tensor& like)
      : documents_(static_cast<int64_t>(lengths.size())) {
    std::vector<int64_t> numbers, first;
    int64_t token = 0;
    for (const int64_t length : lengths) {
      first.push_back(static_cast<int64_t>(numbers.size()));
      for (int64_t t = 0; t < length; t += tokens) numbers.push_back(token + t);
      token += length;
    }
    chunks_ = static_cast<int64_t>(numbers.size());
    numbers.push_back(token);
    numbers.insert(numbers.end(), first.begin(), first.end());
    numbers.push_back(chunks_);
    numbers_ = at::tensor(numbers, at::kLong).to(like.device());
  }
  int64_t documents() const { return documents_; }
  int64_t count() const { return chunks_; }
  /// The first token of each chunk, and the number of tokens.
  const int64_t* starts() const { return numbers_.const_data_ptr<int64_t>(); }
  /// The first chunk of each document, and the number of chunks.
  const int64_t* first_chunks() const { return starts() + chunks_ + 1; }
  /// Blocks for all chunks and for all documents.
  template <class Kernel>
  cuda::Grid over_chunks(int64_t channels) const {
    return {chunks_, cuda::blocks_of(channels, Kernel::kThreads)};
  }
  template <class Kernel>
  cuda::Grid over_documents(int64_t channels) const {
    return {documents_, cuda::blocks_of(channels, Kernel::kThreads)};
  }

 private:
  int64_t documents_, chunks_ = 0;
  Tensor numbers_;
};

/// `rows` as the row of the last document, [documents, ...]; zeros for the others.
Tensor of_last_document(const Tensor& rows, int64_t documents) {
  auto sizes = rows.sizes().vec();
  sizes.insert(sizes.begin(), documents);
  Tensor out = at::zeros(sizes, rows.options());
  if (documents > 0) out[-1].copy_(rows);
  return out;
}
const float* read_or_null(const Tensor& x) {
  return x.defined() ? const_floats(x) : nullptr;
}
Tensor dense_or_none(const std::optional<Tensor>& x) {
  return x ? x->contiguous() : Tensor();
}
/// The state after the last document, of [documents, ...].
Tensor last_of(const Tensor& states) {
  return states.size(0) > 0 ? states[-1].clone()
                            : at::zeros(states.sizes().slice(1), states.options());
}
void carry(const ScanChunks& chunks,
           const cuda::ScanCarry::Arguments& arguments,
           const Tensor& on) {
  cuda::launch<cuda::ScanCarry>(chunks.over_documents<cuda::ScanCarry>(arguments.width), arguments,
                                stream_of(on));
}

struct LinearScanByCuda : Function<LinearScanByCuda> {
  static variable_list forward(AutogradContext* context,
                               const Tensor& a_in,
                               const Tensor& b_in,
                               const std::optional<Tensor>& given,
                               const Lengths& lengths) {
    using Chunks = cuda::LinearScanChunks;
    using Output = cuda::LinearScanOutput;
    context->set_materialize_grads(false);
    const Tensor a = a_in.contiguous(), b = b_in.contiguous(), start = dense_or_none(given);
    const int64_t w = a.size(1);
    const ScanChunks chunks(lengths, kLinearScanTokens, a);
    const Tensor product = at::empty({chunks.count(), w}, a.options()),
                 before = at::empty_like(product), h = at::empty_like(a),
                 last = at::empty({chunks.documents(), w}, a.options());
    const cuda::Stream stream = stream_of(a);
    cuda::launch<Chunks>(
        chunks.over_chunks<Chunks>(w),
        {const_floats(a), const_floats(b), chunks.starts(), floats(product), floats(before), w},
        stream);
    carry(chunks,
          {const_floats(product), floats(before), chunks.first_chunks(), read_or_null(start),
           floats(last), w, false},
          a);
    cuda::launch<Output>(
        chunks.over_chunks<Output>(w),
        {const_floats(a), const_floats(b), chunks.starts(), const_floats(before), floats(h), w},
        stream);
    context->save_for_backward({a, h, before});
    context->saved_data["lengths"] = lengths;
    context->saved_data["fresh"] = !start.defined();
    return {h, last_of(last)};
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    using Chunks = cuda::LinearScanAdjointChunks;
    using Output = cuda::LinearScanAdjoint;
    const auto saved = context->get_saved_variables();
    const Tensor &a = saved[0], &h = saved[1], &before = saved[2],
                 dh = given_or_zeros(gradients[0], a);
    const ScanChunks chunks(context->saved_data["lengths"].toIntVector(), kLinearScanTokens, a);
    const int64_t w = a.size(1);
    Tensor dlast;
    if (gradients[1].defined()) dlast = of_last_document(gradients[1], chunks.documents());
    const Tensor product = at::empty_like(before), after = at::empty_like(before),
                 da = at::empty_like(a), db = at::empty_like(a),
                 dfirst = at::empty({chunks.documents(), w}, a.options());
    const cuda::Stream stream = stream_of(a);
    cuda::launch<Chunks>(
        chunks.over_chunks<Chunks>(w),
        {const_floats(a), const_floats(dh), chunks.starts(), floats(product), floats(after), w},
        stream);
    carry(chunks,
          {const_floats(product), floats(after), chunks.first_chunks(), read_or_null(dlast),
           floats(dfirst), w, true},
          a);
    cuda::launch<Output>(chunks.over_chunks<Output>(w),
                         {const_floats(a), const_floats(h), const_floats(dh), chunks.starts(),
                          const_floats(before), const_floats(after), floats(da), floats(db), w},
                         stream);
    const bool fresh = context->saved_data["fresh"].toBool();
    return {da, db, fresh ? Tensor() : dfirst[0], Tensor()};
  }
};

struct SelectiveScanByCuda : Function<SelectiveScanByCuda> {
  static cuda::SelectiveScanInputs inputs(const variable_list& t, const ScanChunks& chunks) {
    return {const_floats(t[0]), const_floats(t[1]), const_floats(t[2]), const_floats(t[3]),
            const_floats(t[4]), const_floats(t[5]), const_floats(t[6]), chunks.starts(),
            t[0].size(1),       t[3].size(0)};
  }

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
    using Chunks = cuda::SelectiveScanChunks;
    using Output = cuda::SelectiveScanOutput;
    context->set_materialize_grads(false);
    variable_list own;
    for (const Tensor& t : {x, dt, dt_bias, a, b, c, d}) own.push_back(t.contiguous());
    const Tensor start = dense_or_none(given);
    const ScanChunks chunks(lengths, cuda::kSelectiveScanTokens, x);
    const cuda::SelectiveScanInputs in = inputs(own, chunks);
    const auto options = own[0].options();
    const Tensor product = at::empty({chunks.count(), in.N, in.E}, options),
                 before = at::empty_like(product), y = at::empty_like(own[0]),
                 last = at::empty({chunks.documents(), in.N, in.E}, options);
    const cuda::Stream stream = stream_of(y);
    cuda::launch<Chunks>(chunks.over_chunks<Chunks>(in.E), {in, floats(product), floats(before)},
                         stream);
    carry(chunks,
          {const_floats(product), floats(before), chunks.first_chunks(), read_or_null(start),
           floats(last), in.N * in.E, false},
          y);
    cuda::launch<Output>(chunks.over_chunks<Output>(in.E), {in, const_floats(before), floats(y)},
                         stream);
    own.push_back(before);
    context->save_for_backward(own);
    context->saved_data["lengths"] = lengths;
    context->saved_data["fresh"] = !start.defined();
    return {y, last_of(last)};
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    using Chunks = cuda::SelectiveScanAdjointChunks;
    using Output = cuda::SelectiveScanAdjoint;
    const auto saved = context->get_saved_variables();
    const Tensor &x = saved[0], &before = saved[7], dy = given_or_zeros(gradients[0], x);
    const ScanChunks chunks(context->saved_data["lengths"].toIntVector(),
                            cuda::kSelectiveScanTokens, x);
    const cuda::SelectiveScanInputs in = inputs(saved, chunks);
    const int64_t tokens = x.size(0), blocks = cuda::blocks_of(in.E, Output::kThreads);
    const auto options = x.options();
    Tensor dlast;
    if (gradients[1].defined()) dlast = of_last_document(gradients[1], chunks.documents());
    const Tensor product = at::empty_like(before), after = at::empty_like(before),
                 dfirst = at::empty({chunks.documents(), in.N, in.E}, options);
    const cuda::Stream stream = stream_of(x);
    cuda::launch<Chunks>(chunks.over_chunks<Chunks>(in.E),
                         {in, const_floats(dy), floats(product), floats(after)}, stream);
    carry(chunks,
          {const_floats(product), floats(after), chunks.first_chunks(), read_or_null(dlast),
           floats(dfirst), in.N * in.E, true},
          x);
    const Tensor dx = at::empty_like(x), ddt = at::empty_like(x),
                 dbias = at::empty({chunks.count(), in.E}, options), dd = at::empty_like(dbias),
                 &da = product,  // which is not needed further
        db = at::empty({blocks, tokens, in.N}, options), dc = at::empty_like(db);
    cuda::launch<Output>(
        chunks.over_chunks<Output>(in.E),
        {in, const_floats(dy), const_floats(before), const_floats(after), floats(dx), floats(ddt),
         floats(dbias), floats(da), floats(dd), floats(db), floats(dc), tokens},
        stream);
    const bool fresh = context->saved_data["fresh"].toBool();
    return {dx,        ddt,       dbias.sum(0), da.sum(0),
            db.sum(0), dc.sum(0), dd.sum(0),    fresh ? Tensor() : dfirst[0],
            Tensor()};
  }
};

struct Wkv4ByCuda : Function<Wkv4ByCuda> {
  static cuda::Wkv4Inputs inputs(const variable_list& t, const ScanChunks& chunks) {
    return {const_floats(t[2]), const_floats(t[3]), const_floats(t[0]),
            const_floats(t[1]), chunks.starts(),    t[0].size(1)};
  }

  static variable_list forward(AutogradContext* context,
                               const Tensor& k,
                               const Tensor& v,
                               const Tensor& w,
                               const Tensor& u,
                               const std::optional<Tensor>& given,
                               const Lengths& lengths) {
    using Chunks = cuda::Wkv4Chunks;
    using Carry = cuda::Wkv4Carry;
    using Output = cuda::Wkv4Output;
    context->set_materialize_grads(false);
    variable_list own;
    for (const Tensor& t : {k, v, w, u}) own.push_back(t.contiguous());
    const Tensor start = dense_or_none(given);
    const ScanChunks chunks(lengths, cuda::kWkv4Tokens, k);
    const cuda::Wkv4Inputs in = inputs(own, chunks);
    const Tensor y = at::empty_like(own[0]),
                 before = at::empty({chunks.count(), 3, in.C}, y.options()),
                 states = at::empty({chunks.documents(), 3, in.C}, y.options());
    const cuda::Stream stream = stream_of(y);
    cuda::launch<Chunks>(chunks.over_chunks<Chunks>(in.C), {in, floats(before)}, stream);
    cuda::launch<Carry>(chunks.over_documents<Carry>(in.C),
                        {in.w, in.starts, chunks.first_chunks(), floats(before),
                         read_or_null(start), floats(states), in.C, false},
                        stream);
    cuda::launch<Output>(chunks.over_chunks<Output>(in.C), {in, const_floats(before), floats(y)},
                         stream);
    const Tensor last = last_of(states);
    for (const Tensor& t : {y, before, last, start}) own.push_back(t);
    context->save_for_backward(own);
    context->saved_data["lengths"] = lengths;
    return {y, last};
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    using Chunks = cuda::Wkv4AdjointChunks;
    using Carry = cuda::Wkv4Carry;
    using Output = cuda::Wkv4Adjoint;
    const auto saved = context->get_saved_variables();
    const Tensor &y = saved[4], &before = saved[5], &last = saved[6], &start = saved[7],
                 dy = given_or_zeros(gradients[0], y);
    const ScanChunks chunks(context->saved_data["lengths"].toIntVector(), cuda::kWkv4Tokens, y);
    const cuda::Wkv4Inputs in = inputs(saved, chunks);
    Tensor dlast;
    if (gradients[1].defined()) {
      // gradients of num and den are those of num e^top and den e^top, times e^top
      Tensor reach = gradients[1].clone();
      const Tensor none = (reach.narrow(0, 0, 2) == 0).all(0);
      reach[2].copy_(at::where(none, at::full_like(reach[2], cuda::kWkv4Nothing), -last[2]));
      dlast = of_last_document(reach, chunks.documents());
      dlast.narrow(0, 0, std::max<int64_t>(0, chunks.documents() - 1))
          .select(1, 2)
          .fill_(cuda::kWkv4Nothing);
    }
    const Tensor after = at::empty_like(before),
                 dfirst = at::empty({chunks.documents(), 3, in.C}, y.options());
    const cuda::Stream stream = stream_of(y);
    cuda::launch<Chunks>(
        chunks.over_chunks<Chunks>(in.C),
        {in, const_floats(before), const_floats(y), const_floats(dy), floats(after)}, stream);
    cuda::launch<Carry>(chunks.over_documents<Carry>(in.C),
                        {in.w, in.starts, chunks.first_chunks(), floats(after), read_or_null(dlast),
                         floats(dfirst), in.C, true},
                        stream);
    const Tensor dk = at::empty_like(y), dv = at::empty_like(y),
                 dw = at::empty({chunks.count(), in.C}, y.options()), du = at::empty_like(dw);
    cuda::launch<Output>(chunks.over_chunks<Output>(in.C),
                         {in, const_floats(before), const_floats(after), const_floats(y),
                          const_floats(dy), floats(dk), floats(dv), floats(dw), floats(du)},
                         stream);
    Tensor dstart;
    if (start.defined()) {
      const Tensor scale = (dfirst[0][2] + start[2]).clamp_max(0).exp();
      dstart = dfirst[0] * scale;
      dstart[2].zero_();
    }
    return {dk, dv, dw.sum(0), du.sum(0), dstart, Tensor()};
  }
};

struct SlstmByCuda : Function<SlstmByCuda> {
  static variable_list forward(AutogradContext* context,
                               const Tensor& pre_in,
                               const Tensor& r_in,
                               const std::optional<Tensor>& given,
                               const Lengths& lengths) {
    using Kernel = cuda::SlstmForward;
    context->set_materialize_grads(false);
    const Tensor pre = pre_in.contiguous(), r = r_in.contiguous(), start = dense_or_none(given);
    const int64_t n = pre.size(0), d = pre.size(2), p = r.size(2), heads = d / p,
                  documents = static_cast<int64_t>(lengths.size());
    const auto options = pre.options();
    const Tensor offsets = at::tensor(offsets_of(lengths), at::kLong).to(pre.device()),
                 columns = r.view({4, heads, p, p}).transpose(2, 3).contiguous(),
                 y = at::empty({n, d}, options), gates = at::empty({n, 4, d}, options),
                 cells = at::empty({n, 3, d}, options),
                 states = at::zeros({documents, 4, d}, options);
    if (start.defined()) states.copy_(start.unsqueeze(0));
    cuda::launch<Kernel>(
        {heads, documents},
        {const_floats(pre), const_floats(columns), offsets.const_data_ptr<int64_t>(),
         floats(states), floats(y), floats(gates), floats(cells), heads, p, !start.defined()},
        stream_of(pre));
    context->save_for_backward({r, y, gates, cells, start, offsets});
    context->saved_data["lengths"] = lengths;
    return {y, last_of(states)};
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    using Kernel = cuda::SlstmAdjoint;
    const auto saved = context->get_saved_variables();
    const Tensor &r = saved[0], &y = saved[1], &start = saved[4],
                 dy = given_or_zeros(gradients[0], y);
    const Lengths lengths = context->saved_data["lengths"].toIntVector();
    const int64_t n = y.size(0), d = y.size(1), p = r.size(2), heads = d / p,
                  documents = static_cast<int64_t>(lengths.size());
    const Tensor dstates = gradients[1].defined() ? of_last_document(gradients[1], documents)
                                                  : at::zeros({documents, 4, d}, y.options()),
                 dgates = at::empty({n, 4, d}, y.options());
    cuda::launch<Kernel>({heads, documents},
                         {const_floats(r), saved[5].const_data_ptr<int64_t>(),
                          const_floats(saved[2]), const_floats(saved[3]), read_or_null(start),
                          const_floats(dy), floats(dgates), floats(dstates), heads, p},
                         stream_of(y));
    // dR = sum over tokens of dgates h_{t-1}^T, where a document's first token sees the state
    // before
    Tensor before = at::zeros_like(y);
    if (n > 0) before.narrow(0, 1, n - 1).copy_(y.narrow(0, 0, n - 1));
    const auto offsets = offsets_of(lengths);
    for (size_t i = 0; i < lengths.size(); ++i)
      if (lengths[i] > 0) before[offsets[i]].zero_();
    if (start.defined() && n > 0) before[0].copy_(start[0]);
    const Tensor dgates_H = dgates.view({n, 4, heads, p}).permute({2, 1, 3, 0}),
                 before_H = before.view({n, heads, p}).permute({1, 0, 2});
    const Tensor dr = at::matmul(dgates_H.reshape({heads, 4 * p, n}), before_H)
                          .view({heads, 4, p, p})
                          .transpose(0, 1)
                          .reshape({4, d, p});
    return {dgates, dr, start.defined() ? dstates[0] : Tensor(), Tensor()};
  }
};

Tensor narrow_float(const Tensor& x) {
  return x.to(at::kFloat);
}

}  // namespace

std::pair<Tensor, Tensor> channel_scan_cuda(const Tensor& a,
                                            const Tensor& b,
                                            const Lengths& lengths,
                                            const Tensor& state) {
  const variable_list out =
      LinearScanByCuda::apply(narrow_float(a), narrow_float(b), float_or_none(state), lengths);
  return {out[0], out[1]};
}

std::pair<Tensor, Tensor> selective_scan_cuda(const SelectiveScan& in,
                                              const Lengths& lengths,
                                              const Tensor& state) {
  const variable_list out = SelectiveScanByCuda::apply(
      narrow_float(in.x_TE), narrow_float(in.dt_TE), narrow_float(in.dt_bias_E),
      narrow_float(in.a_NE), narrow_float(in.b_TN), narrow_float(in.c_TN), narrow_float(in.d_E),
      float_or_none(state), lengths);
  return {out[0], out[1]};
}

std::pair<Tensor, Tensor> wkv4_cuda(const Wkv4& in, const Lengths& lengths, const Tensor& state) {
  const variable_list out =
      Wkv4ByCuda::apply(narrow_float(in.k_TC), narrow_float(in.v_TC), narrow_float(in.w_C),
                        narrow_float(in.u_C), float_or_none(state), lengths);
  return {out[0], out[1]};
}

std::pair<Tensor, Tensor> slstm_cuda(const Slstm& in, const Lengths& lengths, const Tensor& state) {
  const variable_list out = SlstmByCuda::apply(narrow_float(in.pre_N4D), narrow_float(in.r_4DP),
                                               float_or_none(state), lengths);
  return {out[0], out[1]};
}

}  // namespace tessera::ops
