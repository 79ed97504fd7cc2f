// From configs to parts: every mechanism's .cpp defines build(const Config&, const Builder&); this
// table finds it by name. Expanded from mechanisms.def.
#include "tessera/nn/mechanism_headers.h"
#include "tessera/nn/parts.h"

namespace tessera::nn {

#define BUILDS_norm(Prefix) std::unique_ptr<Norm> build(const Prefix##Config&, const Builder&);
#define BUILDS_position(Prefix) \
  std::unique_ptr<Position> build(const Prefix##Config&, const Builder&);
#define BUILDS_rope_scaling(Prefix)
#define BUILDS_pattern(Prefix)
#define BUILDS_mixer(Prefix) std::unique_ptr<Mixer> build(const Prefix##Config&, const Builder&);
#define BUILDS_ffn(Prefix) std::unique_ptr<Ffn> build(const Prefix##Config&, const Builder&);
#define BUILDS_residual(Prefix) \
  std::unique_ptr<Residual> build(const Prefix##Config&, const Builder&);
#define BUILDS_embed(Prefix) std::unique_ptr<Embed> build(const Prefix##Config&, const Builder&);
#define BUILDS_head(Prefix) std::unique_ptr<Head> build(const Prefix##Config&, const Builder&);
#define TESSERA_MECHANISM(slot, name, Prefix) BUILDS_##slot(Prefix)
#include "tessera/nn/mechanisms.def"
#undef TESSERA_MECHANISM

// One dispatcher per slot: the others' lines expand to nothing.
#define NOTHING(name, Prefix)
#define CASE(name, Prefix) \
  if (part.type() == #name) return build(part.as<Prefix##Config>(), builder);
#define UNKNOWN fail(ErrorKind::internal, "factory", "no code for {}", part.type())

#define FOR_norm NOTHING
#define FOR_position NOTHING
#define FOR_rope_scaling NOTHING
#define FOR_pattern NOTHING
#define FOR_mixer NOTHING
#define FOR_ffn NOTHING
#define FOR_residual NOTHING
#define FOR_embed NOTHING
#define FOR_head NOTHING
#define TESSERA_MECHANISM(slot, name, Prefix) FOR_##slot(name, Prefix)

#undef FOR_norm
#define FOR_norm CASE
std::unique_ptr<Norm> build_norm(const spec::AnyPart& part, const Builder& builder) {
#include "tessera/nn/mechanisms.def"
  UNKNOWN;
}
#undef FOR_norm
#define FOR_norm NOTHING

#undef FOR_position
#define FOR_position CASE
std::unique_ptr<Position> build_position(const spec::AnyPart& part, const Builder& builder) {
#include "tessera/nn/mechanisms.def"
  UNKNOWN;
}
#undef FOR_position
#define FOR_position NOTHING

#undef FOR_mixer
#define FOR_mixer CASE
std::unique_ptr<Mixer> build_mixer(const spec::AnyPart& part, const Builder& builder) {
#include "tessera/nn/mechanisms.def"
  UNKNOWN;
}
#undef FOR_mixer
#define FOR_mixer NOTHING

#undef FOR_ffn
#define FOR_ffn CASE
std::unique_ptr<Ffn> build_ffn(const spec::AnyPart& part, const Builder& builder) {
#include "tessera/nn/mechanisms.def"
  UNKNOWN;
}
#undef FOR_ffn
#define FOR_ffn NOTHING

#undef FOR_residual
#define FOR_residual CASE
std::unique_ptr<Residual> build_residual(const spec::AnyPart& part, const Builder& builder) {
#include "tessera/nn/mechanisms.def"
  UNKNOWN;
}
#undef FOR_residual
#define FOR_residual NOTHING

#undef FOR_embed
#define FOR_embed CASE
std::unique_ptr<Embed> build_embed(const spec::AnyPart& part, const Builder& builder) {
#include "tessera/nn/mechanisms.def"
  UNKNOWN;
}
#undef FOR_embed
#define FOR_embed NOTHING

#undef FOR_head
#define FOR_head CASE
std::unique_ptr<Head> build_head(const spec::AnyPart& part, const Builder& builder) {
#include "tessera/nn/mechanisms.def"
  UNKNOWN;
}

WeightPtr Builder::optional(std::string_view name) const {
  return source_(prefix_.empty() ? std::string(name) : prefix_ + "." + std::string(name));
}

WeightPtr Builder::weight(std::string_view name) const {
  WeightPtr weight = optional(name);
  require(weight != nullptr, "build", "{}.{} is not declared in the parameter table", prefix_,
          name);
  return weight;
}

namespace {

/// Passes through the mixer what a roll-back left to replay, all rows in one call.
void replay(const Mixer& mixer, const Tensor& x_ND, Context& context, const StateRows& rows) {
  Batch batch;
  StateRows affected;
  std::vector<Tensor> inputs;
  int64_t begin = 0;
  for (size_t s = 0; s < rows.size(); ++s) {
    if (!rows[s]->replay().defined()) continue;
    const int64_t n = rows[s]->replay().size(0);
    inputs.push_back(rows[s]->replay().to(x_ND.options()));
    batch.segments.push_back({context.batch->segments[s].row, begin, n, rows[s]->replay_start()});
    affected.push_back(rows[s]);
    begin += n;
  }
  if (affected.empty()) return;
  batch.number();
  Context inner = context;
  inner.batch = &batch;
  inner.probe = nullptr;
  // every mixer replays the same tokens, so what mixers share is shared between their replays
  using Shared = decltype(inner.shared);
  inner.shared = context.once<Shared>("replay", [] { return Shared(); });
  mixer.forward(at::cat(inputs), inner, &affected);
  context.shared["replay"] = std::move(inner.shared);
  for (RowState* row : affected) row->end_replay();
}

void book(const StateRows& rows, const Tensor& x_ND, const Batch& batch, bool pending) {
  for (size_t s = 0; s < rows.size(); ++s) {
    const Segment& segment = batch.segments[s];
    rows[s]->end_call(x_ND.narrow(0, segment.begin, segment.length), segment.length, pending);
  }
}

}  // namespace

Tensor run_mixer(
    const Mixer& mixer, const Tensor& x_ND, Context& context, const StateRows* rows, bool pending) {
  if (rows == nullptr) return mixer.forward(x_ND, context, nullptr);
  replay(mixer, x_ND, context, *rows);
  const Tensor y_ND = mixer.forward(x_ND, context, rows);
  book(*rows, x_ND, *context.batch, pending);
  return y_ND;
}

Tensor run_embed(const Embed& embed, Context& context, const StateRows* rows, bool pending) {
  if (rows == nullptr) return embed.forward(context, nullptr);
  for (const RowState* row : *rows)
    require(!row->has_fixed(), "embed", "its state holds more than entries per token");
  const Tensor x_ND = embed.forward(context, rows);
  book(*rows, x_ND, *context.batch, pending);
  return x_ND;
}

}  // namespace tessera::nn
