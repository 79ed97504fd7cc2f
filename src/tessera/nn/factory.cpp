// From configs to parts. Every mechanism's .cpp defines build(const Config&, const Builder&);
// generated files, one for each folder of mechanisms, call it by the mechanism's name
// (CMakeLists.txt), and are found here.
#include <map>
#include <string>

#include "tessera/nn/parts.h"
#include "tessera/nn/plugin.h"

namespace tessera::nn {

#define TESSERA_BUILT(slot, name, Interface) \
  std::unique_ptr<Interface> build_##slot##_##name(const spec::AnyPart&, const Builder&);
#include "tessera/nn/built_mechanisms.def"
#undef TESSERA_BUILT

namespace {

/// Of mechanisms that plugins have added.
template <spec::Slot S>
std::map<std::string, BuildPart<S>, std::less<>>& added_builders() {
  static std::map<std::string, BuildPart<S>, std::less<>> builders;
  return builders;
}

template <spec::Slot S>
std::unique_ptr<typename InterfaceOf<S>::type> build_any(const spec::AnyPart& part,
                                                         const Builder& builder) {
#define TESSERA_BUILT(slot, name, Interface) \
  if constexpr (S == spec::Slot::slot)       \
    if (part.type() == #name) return build_##slot##_##name(part, builder);
#include "tessera/nn/built_mechanisms.def"
#undef TESSERA_BUILT
  const auto added = added_builders<S>().find(part.type());
  require(added != added_builders<S>().end(), "factory", "no code for {}", part.type());
  return added->second(part, builder);
}

}  // namespace

template <spec::Slot S>
void add_builder(std::string_view name, BuildPart<S> build) {
  added_builders<S>()[std::string(name)] = build;
}

#define TESSERA_SLOT(name, Interface)                                                          \
  template void add_builder<spec::Slot::name>(std::string_view, BuildPart<spec::Slot::name>);  \
  std::unique_ptr<Interface> build_##name(const spec::AnyPart& part, const Builder& builder) { \
    return build_any<spec::Slot::name>(part, builder);                                         \
  }
#include "tessera/spec/slots.def"

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
    Segment segment{.row = context.batch->segments[s].row,
                    .begin = begin,
                    .length = n,
                    .start = rows[s]->replay_start()};
    if (const auto& seen = rows[s]->places(); !seen.empty())
      segment.places = std::make_shared<const std::vector<int64_t>>(
          seen.begin() + segment.start, seen.begin() + segment.start + n);
    batch.segments.push_back(std::move(segment));
    affected.push_back(rows[s]);
    begin += n;
  }
  if (affected.empty()) return;
  batch.number();
  // every mixer replays the same tokens, so what mixers share is shared between their replays
  Context& common = *context.once<std::shared_ptr<Context>>(
      "replay", [&] { return std::make_shared<Context>(context.over(batch)); });
  Context inner = common;
  inner.batch = &batch;
  inner.layer = context.layer;
  inner.probe = {};
  mixer.forward(at::cat(inputs), inner, &affected);
  common.values = std::move(inner.values);
  for (RowState* row : affected) row->end_replay();
}

void book(const StateRows& rows, const Tensor& x_ND, const Batch& batch) {
  for (size_t s = 0; s < rows.size(); ++s) {
    const Segment& segment = batch.segments[s];
    rows[s]->end_call(x_ND.narrow(0, segment.begin, segment.length), segment);
  }
}

}  // namespace

Tensor run_mixer(const Mixer& mixer, const Tensor& x_ND, Context& context, const StateRows* rows) {
  if (rows == nullptr) return mixer.forward(x_ND, context, nullptr);
  for (RowState* row : *rows)
    if (row->length() == 0) mixer.begin(*row);
  replay(mixer, x_ND, context, *rows);
  for (size_t s = 0; s < rows->size(); ++s)
    (*rows)[s]->begin_call(context.batch->segments[s].pending);
  const Tensor y_ND = mixer.forward(x_ND, context, rows);
  book(*rows, x_ND, *context.batch);
  return y_ND;
}

Tensor run_embed(const Embed& embed, Context& context, const StateRows* rows) {
  if (rows == nullptr) return embed.forward(context, nullptr);
  for (const RowState* row : *rows)
    require(!row->has_fixed(), "embed", "its state holds more than entries per token");
  const Tensor x_ND = embed.forward(context, rows);
  book(*rows, x_ND, *context.batch);
  return x_ND;
}

}  // namespace tessera::nn
