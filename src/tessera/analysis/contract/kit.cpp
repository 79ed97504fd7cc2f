#include "tessera/analysis/contract/kit.h"

#include <limits>

#include <ATen/Parallel.h>

#include "tessera/nn/embed/feature_batch.h"
#include "tessera/nn/head/head_config.h"
#include "tessera/ops/random.h"

namespace tessera::contract {
namespace {

/// Initial values with enough spread that every parameter matters.
Tensor draw(const spec::ParamDecl& decl) {
  const RandomKey key = RandomKey(7).fold("contract");
  spec::ParamDecl spread = decl;
  switch (decl.kind) {
    case spec::ParamKind::matrix:
      spread.init = spec::Init::normal(0.3);
      break;
    case spec::ParamKind::embedding:
      spread.init = spec::Init::normal(0.8);
      break;
    default:
      break;
  }
  Tensor values = ops::initial_values(spread, key, at::kDouble);
  // what nothing trains may hold no numbers that could be moved a little (a table of experts)
  if (spread.init.fixed() && (decl.trainable || decl.kind == spec::ParamKind::bias)) {
    spread.init = spec::Init::normal(0.25);
    values = values + ops::initial_values(spread, key, at::kDouble);
  }
  return values;
}

model::Model build(const model::ModelSpec& spec, std::map<std::string, ops::WeightPtr> weights) {
  return model::Model(spec, model::Weights::check(spec, std::move(weights)));
}

}  // namespace

void Report::refuses(ErrorKind kind,
                     const std::string& text,
                     const std::string& what,
                     const std::function<void()>& action) {
  try {
    action();
    expect(false, "{} is accepted", what);
  } catch (const Error& e) {
    expect(e.kind() == kind && std::string(e.what()).find(text) != std::string::npos,
           "{} is refused with \"{}\" (kind {}); expected \"{}\" (kind {})", what, e.what(),
           static_cast<int>(e.kind()), text, static_cast<int>(kind));
  }
}

std::string Report::text() const {
  std::string out;
  for (const std::string& failure : failures_) out += "  " + failure + "\n";
  return out;
}

Rig make_rig(const Json& json, at::ScalarType type, at::ScalarType rounding) {
  const model::ModelSpec spec = model::read_model_spec(json);
  std::map<std::string, Tensor> values;
  std::map<std::string, ops::WeightPtr> weights;
  for (const spec::ParamDecl& decl : model::parameters(spec)) {
    const Tensor value = draw(decl).to(rounding).to(type).requires_grad_(true);
    values[decl.name] = value;
    weights[decl.name] = std::make_shared<ops::Weight>(ops::Weight::dense(decl.name, value));
  }
  return {std::move(values), build(spec, std::move(weights))};
}

Rig make_stored_rig(const Json& json, at::ScalarType storage) {
  const model::ModelSpec spec = model::read_model_spec(json);
  std::map<std::string, ops::WeightPtr> weights;
  for (const spec::ParamDecl& decl : model::parameters(spec)) {
    auto bytes = std::make_shared<Tensor>(draw(decl).to(storage).contiguous());
    weights[decl.name] = std::make_shared<ops::Weight>(ops::Weight::stored(
        decl.name, ops::dtype_of(storage), decl.shape, bytes->const_data_ptr(), bytes));
  }
  return {{}, build(spec, std::move(weights))};
}

Ids random_ids(int64_t n, uint64_t seed) {
  const RandomKey key = RandomKey(seed).fold("ids");
  Ids ids;
  for (int64_t i = 0; i < n; ++i) ids.push_back(key.bits(static_cast<uint64_t>(i)) % kVocab);
  return ids;
}

std::vector<int64_t> random_split(int64_t total, uint64_t seed) {
  const RandomKey key = RandomKey(seed).fold("split");
  std::vector<int64_t> lengths;
  for (uint64_t i = 0; total > 0; ++i) {
    lengths.push_back(std::min<int64_t>(total, 1 + key.bits(i) % 5));
    total -= lengths.back();
  }
  return lengths;
}

std::optional<nn::Encoded> encode_sources(const Rig& rig,
                                          const nn::Batch& batch,
                                          const model::State* state) {
  if (!rig.spec().encoder) return std::nullopt;
  Rows sources;
  std::vector<int64_t> readers;
  for (const nn::Segment& s : batch.segments) {
    if (state != nullptr && (s.row >= state->rows() || state->source_length(s.row) > 0)) continue;
    sources.push_back(random_ids(kSource, 60));
    readers.push_back(s.row);
  }
  if (sources.empty()) return std::nullopt;
  nn::Batch source = nn::Batch::of(sources);
  for (size_t i = 0; i < readers.size(); ++i) source.segments[i].row = readers[i];
  return rig.model.encode(source);
}

Json shallow(Json json) {
  if (!json.contains("stacks")) {
    json["n_layers"] = 1;
    return json;
  }
  for (auto& [name, stack] : json["stacks"].items()) stack["n_layers"] = 1;
  return json;
}

Tensor whole(const Rig& rig, const nn::Batch& batch) {
  const auto encoded = encode_sources(rig, batch);
  model::ForwardOptions options;
  options.encoded = encoded ? &*encoded : nullptr;
  const Tensor h = rig.model.hidden(batch, options);
  const model::ModelSpec& spec = rig.model.spec();
  const bool by_token =
      !spec.head ? !spec.pooler : spec.head.as<nn::HeadConfig>().reads() == nn::HeadInput::tokens;
  if (spec.mask) {
    // what the source says of the whole text stands at each of its tokens
    const Tensor lengths = rig.model.target_lengths(*encoded).sum(-1);
    std::vector<Tensor> rows;
    for (const nn::Segment& s : batch.segments)
      rows.push_back(lengths.narrow(0, static_cast<int64_t>(rows.size()), 1).expand({s.length}));
    return rig.model.logits(h) + at::cat(rows).unsqueeze(-1);
  }
  if (by_token) return spec.head ? rig.model.logits(h) : h;
  // what a document has once stands at each of its tokens
  const Tensor pooled = rig.model.pooled(h, batch);
  const Tensor once = spec.head ? rig.model.logits(pooled) : pooled;
  std::vector<Tensor> rows;
  for (const nn::Segment& s : batch.segments)
    rows.push_back(once.narrow(0, static_cast<int64_t>(rows.size()), 1).expand({s.length, -1}));
  return at::cat(rows);
}

nn::Batch batch_of(const Rig& rig, const Rows& rows) {
  const auto* embed = dynamic_cast<const nn::FeatureEmbedConfig*>(rig.spec().embed.config.get());
  if (embed == nullptr) return nn::Batch::of(rows);
  std::vector<Tensor> features;
  for (const Ids& ids : rows) {
    const auto n = static_cast<int64_t>(ids.size());
    const std::vector<int64_t> shape = embed->shape_of(n);
    const int64_t width = shape.back();
    const Tensor at_W = (at::arange(width, at::kLong) * n).div(width, "floor");
    const Tensor of_W = at::tensor(ids, at::kLong).index_select(0, at_W).to(at::kDouble);
    const Tensor place =
        at::arange(at::tensor(shape, at::kLong).prod().item<int64_t>(), at::kDouble).reshape(shape);
    features.push_back(at::cos(place * 0.7 + of_W).to(at::kFloat));
  }
  return nn::feature_batch(*embed, std::move(features));
}

Tensor whole(const Rig& rig, const Rows& rows) {
  const nn::Batch batch = batch_of(rig, rows);
  const Tensor y = whole(rig, batch);
  std::vector<Tensor> first;
  for (size_t i = 0; i < rows.size(); ++i)
    first.push_back(y.narrow(0, batch.segments[i].begin, static_cast<int64_t>(rows[i].size())));
  return at::cat(first);
}

Tensor feed(const Rig& rig, model::State& state, const std::vector<Feed>& feeds, bool pending) {
  nn::Batch batch;
  Ids ids;
  for (const Feed& f : feeds) {
    batch.segments.push_back({.row = f.row,
                              .begin = static_cast<int64_t>(ids.size()),
                              .length = static_cast<int64_t>(f.ids.size()),
                              .start = state.length(f.row),
                              .pending = pending});
    ids.insert(ids.end(), f.ids.begin(), f.ids.end());
  }
  batch.ids_N = at::tensor(ids, at::kLong);
  batch.number();
  model::ForwardOptions options;
  options.state = &state;
  const auto encoded = encode_sources(rig, batch, &state);
  options.encoded = encoded ? &*encoded : nullptr;
  return rig.model.logits(rig.model.hidden(batch, options));
}

Tensor feed_split(const Rig& rig,
                  model::State& state,
                  int64_t row,
                  const Ids& ids,
                  const std::vector<int64_t>& lengths) {
  std::vector<Tensor> out;
  auto at = ids.begin();
  for (const int64_t n : lengths) {
    out.push_back(feed(rig, state, {{row, Ids(at, at + n)}}));
    at += n;
  }
  return at::cat(out);
}

double difference(const Tensor& got, const Tensor& want) {
  constexpr double kBad = std::numeric_limits<double>::infinity();
  if (!got.defined() || !want.defined() || got.sizes() != want.sizes()) return kBad;
  if (want.numel() == 0) return 0;
  const Tensor a = got.detach().to(at::kDouble), b = want.detach().to(at::kDouble);
  if (!at::isfinite(a).all().item<bool>() || !at::isfinite(b).all().item<bool>()) return kBad;
  const double largest = b.abs().max().item<double>(), worst = (a - b).abs().max().item<double>();
  return worst == 0 ? 0 : largest == 0 ? kBad : worst / largest;
}

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.defined() && b.defined() && a.sizes() == b.sizes() &&
         a.scalar_type() == b.scalar_type() && at::equal(a.detach(), b.detach());
}

double normalised_mean_square(const Tensor& got, const Tensor& want) {
  const Tensor a = got.detach().to(at::kDouble), b = want.detach().to(at::kDouble);
  const double error = ((a - b).square().mean() / b.square().mean()).item<double>();
  return std::isfinite(error) ? error : std::numeric_limits<double>::infinity();
}

Tensor scalar_of(const Tensor& y) {
  spec::ParamDecl decl{"scalar", y.sizes().vec(), spec::Init::normal(1)};
  return (y * ops::initial_values(decl, RandomKey(11), at::kDouble).to(y.options())).sum();
}

std::map<std::string, Tensor> gradients(const Rig& rig, const std::function<Tensor()>& forward) {
  for (const auto& [name, value] : rig.values) value.mutable_grad() = Tensor();
  scalar_of(forward()).backward();
  std::map<std::string, Tensor> out;
  for (const auto& [name, value] : rig.values)
    out[name] = value.grad().defined() ? value.grad().clone() : Tensor();
  return out;
}

Threads::Threads(int n) : ours_(thread_count()), theirs_(at::get_num_threads()) {
  set_thread_count(n);
  at::set_num_threads(n);
}

Threads::~Threads() {
  set_thread_count(ours_);
  at::set_num_threads(theirs_);
}

UnwrittenIsNan::UnwrittenIsNan() {
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
  at::globalContext().setDeterministicFillUninitializedMemory(true);
}

UnwrittenIsNan::~UnwrittenIsNan() {
  at::globalContext().setDeterministicAlgorithms(false, false);
}

}  // namespace tessera::contract
