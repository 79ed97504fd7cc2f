#include "tessera/nn/mixer/convolution/engram.h"

#include <algorithm>
#include <cmath>

#include "tessera/kernels/basic/rowwise.h"
#include "tessera/kernels/weights/matmul.h"
#include "tessera/nn/decode_step.h"
#include "tessera/nn/mixer/segments.h"
#include "tessera/nn/norm/stream_norm.h"
#include "tessera/nn/parts.h"
#include "tessera/nn/step_products.h"
#include "tessera/ops/basic/ordered_sum.h"
#include "tessera/ops/basic/pointwise.h"

namespace tessera::nn {
namespace {

constexpr double kLeastScore = 1e-6;

/// e: the vectors of the n-grams that end with each token, [N, width].
class NgramVectors {
 public:
  NgramVectors(const EngramConfig& config, const Builder& builder)
      : config_(config),
        name_(builder.prefix()),
        hash_(config.hash(builder.scope().vocab)),
        table_(builder.weight("table.weight")) {}

  Tensor operator()(const Batch& batch, const ops::ProductSettings& products) const {
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
    return ops::rows(*table_, row_NH.flatten().to(batch.ids_N.device()), products)
        .reshape({ids_N.size(0), config_.width});
  }

 private:
  EngramConfig config_;
  std::string name_;
  NgramHash hash_;
  WeightPtr table_;
};

/// The weights and parts of a memory.
struct EngramParts {
  const EngramConfig& config;
  int64_t streams;
  const NgramVectors& vectors;
  const Linear &key, &value;
  const StreamNorm &key_norm, &query_norm, &conv_norm;
  WeightPtr conv;
};

/// The decoding step (decode_step.h): one token of every row. `parts` outlive it.
class EngramStep final : public PartStep {
 public:
  EngramStep(const EngramParts& parts, StepWeights& weights)
      : config(parts.config),
        streams(parts.streams),
        vectors(parts.vectors),
        key(weights.product(parts.key)),
        value(weights.product(parts.value)),
        conv(weights.numbers(parts.conv)),
        key_norm(parts.key_norm.step(weights)),
        query_norm(parts.query_norm.step(weights)),
        conv_norm(parts.conv_norm.step(weights)) {
    weights.alike({&key, &value});
  }
  std::unique_ptr<StepCall> begin(Context& context, const StateRows* rows) const override;

  const EngramConfig& config;
  int64_t streams;
  const NgramVectors& vectors;
  StepProduct key, value;
  StepNumbers conv;  // [S * D, d_conv]
  StreamNormStep key_norm, query_norm, conv_norm;
};

class EngramCall final : public StepCall {
 public:
  EngramCall(const EngramStep& step, const Batch& batch, const StateRows* rows)
      : s_(step),
        batch_(batch),
        rows_(rows),
        n_(batch.n_tokens()),
        d_(step.value.rows()),
        ones_(static_cast<size_t>(d_), 1.0F),
        input_(memory_.take(StepInput::floats(n_, step.key.width()))),
        key_(memory_.take(n_ * channels())),
        value_(memory_.take(n_ * d_)),
        query_(memory_.take(n_ * channels())),
        gate_(memory_.take(n_ * step.streams)) {}

  void enter(Context& context) override {
    e_NE_ = s_.vectors(batch_, context.products).to(at::kFloat).contiguous();
  }

  void run(Team& team, const float* x_ND, float* y_ND, float* memory) override {
    StepInput in(e_NE_.const_data_ptr<float>(), n_, s_.key.width(), memory + input_);
    in.prepare(team, {&s_.key, &s_.value});
    team.wait();
    multiply(team, in, {{&s_.key, memory + key_}, {&s_.value, memory + value_}});
    team.wait();
    const Team::Share mine = team.share(n_);
    for (int64_t i = mine.begin; i < mine.end; ++i)
      token(i, x_ND + i * channels(), y_ND + i * channels(), memory);
  }

 private:
  int64_t channels() const { return s_.streams * d_; }

  /// Everything after the products, of one token.
  void token(int64_t i, const float* x, float* y, float* memory) const {
    float *key = memory + key_ + i * channels(), *query = memory + query_ + i * channels(),
          *gate = memory + gate_ + i * s_.streams;
    s_.key_norm(key, s_.streams, d_, key);
    s_.query_norm(x, s_.streams, d_, query);
    for (int64_t j = 0; j < channels(); ++j) key[j] *= query[j];
    kernels::matmul(key, s_.streams, d_, d_, DType::f32, ones_.data(), 1, nullptr, gate, 1);
    const auto root = static_cast<float>(std::sqrt(static_cast<double>(d_)));
    for (int64_t s = 0; s < s_.streams; ++s) {
      const float z = gate[s] / root;
      const float size = std::sqrt(std::max(std::abs(z), static_cast<float>(kLeastScore)));
      gate[s] = z > 0 ? size : z < 0 ? -size : z * size;
    }
    kernels::act(kernels::Activation::sigmoid, gate, s_.streams, gate);
    const float* value = memory + value_ + i * d_;
    for (int64_t s = 0; s < s_.streams; ++s)
      for (int64_t c = 0; c < d_; ++c) key[s * d_ + c] = gate[s] * value[c];
    s_.conv_norm(key, s_.streams, d_, query);
    convolve(i, query, y);
    kernels::act(kernels::Activation::silu, y, channels(), y);
    for (int64_t j = 0; j < channels(); ++j) y[j] = key[j] + y[j];
  }

  /// x and the tokens before it under the taps -> y; keeps x.
  void convolve(int64_t i, const float* x, float* y) const {
    const EngramConfig& c = s_.config;
    const int64_t start = batch_.segments[static_cast<size_t>(i)].start;
    TokenBuffer* kept = c.past() > 0 ? &(*rows_)[static_cast<size_t>(i)]->tokens(0) : nullptr;
    if (kept != nullptr)
      require(kept->length() == start, "engram", "the state holds {} tokens, the call starts at {}",
              kept->length(), start);
    const std::vector<float> nothing(static_cast<size_t>(channels()), 0.0F);
    std::vector<TokenBuffer::Run> run;
    for (int64_t k = 0; k < c.d_conv; ++k) {
      const int64_t position = start - (c.d_conv - 1 - k) * c.dilation;
      const float* seen = nothing.data();
      if (position == start) {
        seen = x;
      } else if (position >= 0) {
        run.clear();
        kept->runs(position, position + 1, run);
        seen = static_cast<const float*>(run.front().data);
      }
      for (int64_t j = 0; j < channels(); ++j) {
        const float term = seen[j] * s_.conv.data()[j * c.d_conv + k];
        y[j] = k == 0 ? term : y[j] + term;
      }
    }
    if (kept != nullptr) kept->append(x, 1, channels());
  }

  const EngramStep& s_;
  const Batch& batch_;
  const StateRows* rows_;
  int64_t n_, d_;
  std::vector<float> ones_;
  Tensor e_NE_;
  int64_t input_, key_, value_, query_, gate_;
};

std::unique_ptr<StepCall> EngramStep::begin(Context& context, const StateRows* rows) const {
  if (config.past() > 0 && rows == nullptr) return nullptr;
  for (size_t i = 0; i < context.batch->segments.size(); ++i) {
    if (context.batch->segments[i].length != 1) return nullptr;
    if (config.past() == 0) continue;
    const TokenBuffer& kept = (*rows)[i]->tokens(0);
    if (kept.stored_type() != at::kFloat || !kept.on_cpu()) return nullptr;
  }
  return std::make_unique<EngramCall>(*this, *context.batch, rows);
}

class Engram final : public Mixer {
 public:
  Engram(const EngramConfig& config, const Builder& builder)
      : config_(config),
        name_(builder.prefix()),
        streams_(EngramConfig::streams(builder.scope())),
        vectors_(config, builder),
        conv_(builder.weight("conv.weight")),
        key_(builder, "key"),
        value_(builder, "value"),
        key_norm_(builder, "key_norm", config.norm_weight, config.norm_eps),
        query_norm_(builder, "query_norm", config.norm_weight, config.norm_eps),
        conv_norm_(builder, "conv_norm", config.norm_weight, config.norm_eps) {}

  Tensor forward(const Tensor& x_ND, Context& context, const StateRows* rows) const override {
    const Tensor e_NE = vectors_(*context.batch, context.products).to(x_ND.scalar_type());
    const Tensor h_NSD = x_ND.unflatten(1, {streams_, -1});
    const Tensor key_NSD = key_norm_(key_(e_NE, context).reshape(h_NSD.sizes()));
    const Tensor gate_NS = gate(key_NSD, query_norm_(h_NSD), context.products);
    const Tensor u_NSD =
        ops::spread(gate_NS.unsqueeze(2), h_NSD) * ops::spread(value_(e_NE, context).unsqueeze(1), h_NSD);
    return u_NSD.flatten(1) + convolved(conv_norm_(u_NSD).flatten(1), *context.batch, rows);
  }
  std::shared_ptr<const PartStep> step(const ops::ProductSettings& products) const override {
    if (!others_at_default(config_,
                           {"width", "ngram", "heads", "rows", "table_rows", "seed", "index", "pad",
                            "cut", "d_conv", "dilation", "bias", "norm_eps", "norm_weight"}))
      return nullptr;
    StepWeights weights(products);
    auto step = std::make_shared<EngramStep>(EngramParts{config_, streams_, vectors_, key_, value_,
                                                         key_norm_, query_norm_, conv_norm_, conv_},
                                             weights);
    return weights.serve() ? step : nullptr;
  }

 private:
  /// g of every stream, [N, S].
  static Tensor gate(const Tensor& key_NSD,
                     const Tensor& query_NSD,
                     const ops::ProductSettings& products) {
    const int64_t d = key_NSD.size(2);
    // a product, whose bits do not depend on the other tokens
    const ops::Weight ones = ops::Weight::dense("ones", at::ones({1, d}, key_NSD.options()));
    const Tensor z_NS = ops::linear((key_NSD * query_NSD).reshape({-1, d}), ones, nullptr, products)
                            .reshape({key_NSD.size(0), key_NSD.size(1)}) /
                        std::sqrt(static_cast<double>(d));
    // libtorch's root of float32 is not the nearest number, as the step's is
    const Tensor root_NS =
        z_NS.abs().clamp_min(kLeastScore).to(at::kDouble).sqrt().to(z_NS.scalar_type());
    return ops::activate(root_NS * z_NS.sign(), ops::Activation::sigmoid);
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
  NgramVectors vectors_;
  WeightPtr conv_;
  Linear key_, value_;
  StreamNorm key_norm_, query_norm_, conv_norm_;
};

}  // namespace

std::unique_ptr<Mixer> build(const EngramConfig& config, const Builder& builder) {
  return std::make_unique<Engram>(config, builder);
}

}  // namespace tessera::nn
