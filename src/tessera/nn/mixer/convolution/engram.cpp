#include "tessera/nn/mixer/convolution/engram.h"

#include <cmath>

#include "tessera/nn/mixer/segments.h"
#include "tessera/nn/norm/stream_norm.h"
#include "tessera/nn/parts.h"
#include "tessera/ops/basic/ordered_sum.h"
#include "tessera/ops/basic/pointwise.h"

namespace tessera::nn {
namespace {

constexpr double kLeastScore = 1e-6;

class Engram final : public Mixer {
 public:
  Engram(const EngramConfig& config, const Builder& builder)
      : config_(config),
        name_(builder.prefix()),
        streams_(EngramConfig::streams(builder.scope())),
        hash_(config.hash(builder.scope().vocab)),
        table_(builder.weight("table.weight")),
        conv_(builder.weight("conv.weight")),
        key_(builder, "key"),
        value_(builder, "value"),
        key_norm_(builder, "key_norm", config.norm_weight, config.norm_eps),
        query_norm_(builder, "query_norm", config.norm_weight, config.norm_eps),
        conv_norm_(builder, "conv_norm", config.norm_weight, config.norm_eps) {}

  Tensor forward(const Tensor& x_ND, Context& context, const StateRows* rows) const override {
    const Tensor e_NE = vectors(*context.batch).to(x_ND.scalar_type());
    const Tensor h_NSD = x_ND.unflatten(1, {streams_, -1});
    const Tensor key_NSD = key_norm_(key_(e_NE).reshape(h_NSD.sizes()));
    const Tensor gate_NS = gate(key_NSD, query_norm_(h_NSD));
    const Tensor u_NSD =
        ops::spread(gate_NS.unsqueeze(2), h_NSD) * ops::spread(value_(e_NE).unsqueeze(1), h_NSD);
    return u_NSD.flatten(1) + convolved(conv_norm_(u_NSD).flatten(1), *context.batch, rows);
  }

 private:
  /// e: the vectors of the n-grams that end with each token, [N, width].
  Tensor vectors(const Batch& batch) const {
    require(batch.ids_N.defined() && batch.before_NM.defined() &&
                batch.before_NM.size(1) >= config_.ids_before(),
            name_, "a call without the {} ids before each token", config_.ids_before());
    const Tensor ids_N = batch.ids_N.to(at::kCPU, at::kLong).contiguous(),
                 before_NM = batch.before_NM.to(at::kCPU, at::kLong).contiguous();
    const auto heads = static_cast<size_t>(config_.all_heads());
    Tensor row_NH = at::empty({ids_N.size(0), config_.all_heads()}, at::kLong);
    const auto* before = before_NM.const_data_ptr<int64_t>();
    auto* out = row_NH.data_ptr<int64_t>();
    std::vector<int64_t> ids(static_cast<size_t>(config_.ngram));
    for (int64_t i = 0; i < ids_N.size(0); ++i, before += before_NM.size(1), out += heads) {
      ids[0] = ids_N.const_data_ptr<int64_t>()[i];
      bool ended = false;
      for (size_t m = 1; m < ids.size(); ++m) {
        const int64_t id = before[m - 1];
        ended = ended || id < 0 || (config_.cut && id == config_.pad);
        ids[m] = ended ? config_.pad : id;
      }
      hash_.rows(ids, {out, heads});
    }
    return ops::rows(*table_, row_NH.flatten().to(batch.ids_N.device()))
        .reshape({ids_N.size(0), config_.width});
  }

  /// g of every stream, [N, S].
  static Tensor gate(const Tensor& key_NSD, const Tensor& query_NSD) {
    const int64_t d = key_NSD.size(2);
    // a product, whose bits do not depend on the other tokens
    const ops::Weight ones = ops::Weight::dense("ones", at::ones({1, d}, key_NSD.options()));
    const Tensor z_NS = ops::linear((key_NSD * query_NSD).reshape({-1, d}), ones)
                            .reshape({key_NSD.size(0), key_NSD.size(1)}) /
                        std::sqrt(static_cast<double>(d));
    return ops::activate(z_NS.abs().clamp_min(kLeastScore).sqrt() * z_NS.sign(),
                         ops::Activation::sigmoid);
  }

  /// silu of the convolution over the tokens of each document.
  Tensor convolved(const Tensor& x_NC, const Batch& batch, const StateRows* rows) const {
    const Tensor w_CK = conv_->tensor().to(x_NC.device(), x_NC.scalar_type());
    const BySegment part(batch);
    const Tensor y_NC = over_segments(batch, [&](size_t i, const Segment& s) {
      const Tensor x_TC = part(x_NC, i), seen = with_past(x_TC, s, rows, i);
      Tensor y;
      for (int64_t k = 0; k < config_.d_conv; ++k) {
        const Tensor term =
            seen.narrow(0, k * config_.dilation, s.length) * ops::spread(w_CK.select(1, k), x_TC);
        y = y.defined() ? y + term : term;
      }
      return y;
    });
    return ops::activate(y_NC, ops::Activation::silu);
  }

  /// The tokens of a segment after the past ones that taps see, zeros before the document.
  Tensor with_past(const Tensor& x_TC, const Segment& s, const StateRows* rows, size_t row) const {
    const int64_t past = config_.past();
    if (past == 0) return x_TC;
    if (rows == nullptr) return at::constant_pad_nd(x_TC, {0, 0, past, 0});
    TokenBuffer& kept = (*rows)[row]->tokens(0);
    require(kept.length() == s.start, name_, "the state holds {} tokens, the call starts at {}",
            kept.length(), s.start);
    const Tensor fresh = kept.stored(x_TC);
    const int64_t from = std::max<int64_t>(0, s.start - past);
    std::vector<Tensor> all{at::zeros({past - (s.start - from), x_TC.size(1)}, fresh.options())};
    for (const Tensor& span : kept.spans(from, s.start)) all.push_back(span);
    all.push_back(fresh);
    const Tensor seen = at::cat(all).to(x_TC.scalar_type());
    kept.append(fresh);
    return seen;
  }

  EngramConfig config_;
  std::string name_;
  int64_t streams_;
  NgramHash hash_;
  WeightPtr table_, conv_;
  Linear key_, value_;
  StreamNorm key_norm_, query_norm_, conv_norm_;
};

}  // namespace

std::unique_ptr<Mixer> build(const EngramConfig& config, const Builder& builder) {
  return std::make_unique<Engram>(config, builder);
}

}  // namespace tessera::nn
