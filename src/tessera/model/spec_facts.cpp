// Properties derived from a spec: scopes and names of its parts, its maximum sequence length,
// whether it can continue from a state.
#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "tessera/model/spec_reader.h"
#include "tessera/nn/depth/depth_config.h"
#include "tessera/model/computing_parts.h"
#include "tessera/nn/head/head_config.h"
#include "tessera/nn/init/init_config.h"
#include "tessera/nn/position/position_config.h"
#include "tessera/nn/residual/residual_config.h"

namespace tessera::model {
void for_each_part(const ModelSpec& spec, const std::function<void(const AnyPart&)>& visit) {
  if (spec.embed) spec::for_each_part(spec.embed, visit);
  for (const LayerSpec& layer : spec.layers) {
    if (layer.depth) spec::for_each_part(layer.depth, visit);
    for (const GroupSpec& group : layer.groups)
      for (const BranchSpec& branch : group.branches) spec::for_each_part(branch.part, visit);
  }
}

spec::Scope ModelSpec::scope(int64_t layer, std::string path) const {
  spec::Scope scope;
  scope.d_model = d_model;
  scope.vocab = vocab;
  scope.width = d_model;
  scope.n_layers = static_cast<int64_t>(layers.size());
  scope.layer = layer;
  scope.causal = causal();
  scope.source = encoder ? encoder->width_out() : 0;
  scope.path = std::move(path);
  return scope;
}

spec::Scope ModelSpec::scope(int64_t layer, const BranchSpec& branch) const {
  spec::Scope scope = this->scope(layer);
  scope.d_in = scope.width = d_model * static_cast<int64_t>(branch.inputs.size());
  for (int64_t i = 0; i <= layer; ++i)
    for (const GroupSpec& group : layers[static_cast<size_t>(i)].groups)
      for (const BranchSpec& other : group.branches) {
        if (i == layer && other.name == branch.name) {
          scope.d_in *= group.residual_config().streams_read();
          // a norm after the part sees the stream
          if (!group.residual_config().norms_input()) scope.width = d_model;
          return scope;
        }
        if (other.part.mechanism == branch.part.mechanism) ++scope.earlier;
      }
  return scope;
}

spec::Scope ModelSpec::residual_scope(int64_t layer, const BranchSpec& branch) const {
  spec::Scope scope = this->scope(layer, branch);
  scope.d_in = 0;
  scope.width = d_model;
  scope.earlier = 0;
  for (int64_t i = 0; i <= layer; ++i)
    for (const GroupSpec& group : layers[static_cast<size_t>(i)].groups) {
      if (i == layer)
        for (const BranchSpec& own : group.branches)
          if (own.name == branch.name) return scope;
      ++scope.earlier;
    }
  return scope;
}

std::vector<std::string> GroupSpec::norm_names() const {
  return residual.as<nn::ResidualConfig>().norms();
}

const nn::DepthConfig* LayerSpec::depth_config() const {
  return dynamic_cast<const nn::DepthConfig*>(depth.config.get());
}

double LayerSpec::share_of_tokens() const {
  return depth ? depth_config()->share() : 1;
}

bool LayerSpec::reads(std::string_view name) const {
  const auto in = [&](const std::vector<std::string>& names) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  for (const GroupSpec& group : groups)
    for (const BranchSpec& branch : group.branches)
      if (in(branch.inputs) || in(branch.add)) return true;
  return false;
}

std::string ModelSpec::prefix(int64_t layer, const BranchSpec& branch) const {
  return (branch.share.empty() ? prefix(layer) : "shared." + branch.share) + "." + branch.name;
}

std::string ModelSpec::adapter_prefix(int64_t layer,
                                      const BranchSpec& branch,
                                      size_t adapter) const {
  return under(fmt::format("layers.{}.{}.adapters.{}", layer, branch.name, adapter));
}

const nn::ResidualConfig& GroupSpec::residual_config() const {
  return residual.as<nn::ResidualConfig>();
}

GroupSpec::Run ModelSpec::run_of(const GroupSpec& group) const {
  const std::string kind = group.residual_config().carries();
  if (kind.empty()) return {};
  std::string before, behind;  // stream kinds of its neighbours
  bool found = false, done = false;
  for (const LayerSpec& layer : layers)
    for (const GroupSpec& other : layer.groups) {
      if (done) continue;
      if (&other == &group) {
        found = true;
      } else if (found) {
        behind = other.residual_config().carries();
        done = true;
      } else {
        before = other.residual_config().carries();
      }
    }
  return {before != kind, behind != kind};
}

int64_t ModelSpec::width_out() const {
  return d_model * layers.back().groups.back().residual_config().streams_left();
}

spec::Scope ModelSpec::scope_out(std::string path) const {
  spec::Scope out = scope(0, std::move(path));
  out.d_model = out.width = width_out();
  return out;
}

int64_t ModelSpec::longest_target() const {
  return encoder->head.as<nn::HeadConfig>().outputs(encoder->scope_out());
}

nn::InitSite ModelSpec::init_site() const {
  nn::InitSite site{.d_model = d_model, .n_layers = std::ssize(layers)};
  if (encoder) {
    site.encoder_layers = std::ssize(encoder->layers);
    site.decoder_layers = site.n_layers;
  } else if (decoder_layers > 0) {
    site.of_encoder = true;
    site.encoder_layers = site.n_layers;
    site.decoder_layers = decoder_layers;
  }
  return site;
}

std::string ModelSpec::prefix(int64_t layer) const {
  const std::string& share = layers[static_cast<size_t>(layer)].share;
  return share.empty() ? under(fmt::format("layers.{}", layer)) : "shared." + share;
}

std::string ModelSpec::kept_as(const std::string& name) const {
  return shared_tokens && name == under(kTokenTable) ? kTokenTable : name;
}

ModelSpec::Loop ModelSpec::loop_of(int64_t layer) const {
  const auto name = [this](int64_t i) {
    const bool there = i >= 0 && i < static_cast<int64_t>(layers.size());
    const nn::DepthConfig* depth = there ? layers[static_cast<size_t>(i)].depth_config() : nullptr;
    return depth == nullptr ? std::string() : depth->loop();
  };
  const std::string own = name(layer);
  return {own.empty() || name(layer - 1) != own, own.empty() || name(layer + 1) != own};
}

std::string ModelSpec::no_exit_reason(int64_t layers) const {
  const auto all = static_cast<int64_t>(this->layers.size());
  if (layers < 1 || layers > all) return fmt::format("layer {}; expected 1 to {}", layers, all);
  if (!loop_of(layers - 1).ends)
    return fmt::format("layer {} is inside a loop (shared layers); exit at its end", layers);
  const GroupSpec& last = this->layers[static_cast<size_t>(layers) - 1].groups.back();
  if (!last.aside && !last.residual_config().carries().empty() && !run_of(last).ends)
    return fmt::format("after layer {} residual \"{}\" carries more than one stream", layers,
                       last.residual.type());
  return "";
}

int64_t ModelSpec::ids_before() const {
  int64_t n = 0;
  for_each_part(*this, [&](const AnyPart& part) { n = std::max(n, part.config->ids_before()); });
  return n;
}

int64_t ModelSpec::max_positions() const {
  int64_t max = 0;
  for_each_part(*this, [&](const AnyPart& part) {
    const int64_t limit = part.config->max_positions();
    if (limit > 0) max = max == 0 ? limit : std::min(max, limit);
  });
  return max;
}

int64_t ModelSpec::longest_sequence() const {
  const int64_t positions = max_positions();
  return context == 0 ? positions : positions == 0 ? context : std::min(context, positions);
}

void check_streams(const ModelSpec& spec, const std::string& path) {
  const GroupSpec* before = nullptr;
  for (size_t i = 0; i < spec.layers.size(); ++i)
    for (const GroupSpec& group : spec.layers[i].groups) {
      if (before != nullptr &&
          group.residual_config().carries() != before->residual_config().carries()) {
        const int64_t left = before->residual_config().streams_left();
        if (left > 1)
          fail(ErrorKind::spec,
               fmt::format("{}layers[{}].residual", path.empty() ? "" : path + ".", i),
               "\"{}\" reads x alone, and \"{}\" before it leaves {} side by side; give that "
               "\"merge\": \"mean\"",
               group.residual.type(), before->residual.type(), left);
      }
      before = &group;
    }
}

namespace {

/// The types of a decoder's selecting parts for which `chosen` is true, each once: "a, b".
std::string selecting(const ModelSpec& spec, const std::function<bool(const AnyPart&)>& chosen) {
  std::string names;
  std::set<std::string> seen;
  if (!spec.causal()) return names;
  for_each_part(spec, [&](const AnyPart& part) {
    if (part.info().causality == spec::Causality::selection && chosen(part) &&
        seen.insert(part.type()).second)
      names += (names.empty() ? "" : ", ") + part.type();
  });
  return names;
}

}  // namespace

std::string ModelSpec::selection_note() const {
  const std::string parts = selecting(*this, [](const AnyPart&) { return true; });
  if (parts.empty()) return "";
  const std::string refused = no_generation_reason();
  return fmt::format(
      "{}: what a token sees is selected from its whole document, later tokens included, so the "
      "losses of training may flatter the model{}",
      parts, refused.empty() ? "" : "; it will not generate: " + refused);
}

std::string ModelSpec::no_generation_reason() const {
  const std::string parts =
      selecting(*this, [](const AnyPart& part) { return !part.config->selects_without_future(); });
  if (parts.empty()) return "";
  return fmt::format(
      "{} selects by tokens that are not there yet; expected a causal predictor, or routing that "
      "drops nothing",
      parts);
}

std::string ModelSpec::no_state_reason() const {
  if (mask) return "its decoder sees targets whole, both ways";
  if (!causal()) return "an encoder reads its whole input at once";
  std::string reason;
  for_each_part(*this, [&](const AnyPart& part) {
    if (const std::string why = part.config->no_state_reason(); !why.empty()) reason = why;
    const Slot slot = part.mechanism->slot;
    if ((slot == Slot::mixer || slot == Slot::position || slot == Slot::pattern) &&
        !part.info().forms.recurrent)
      reason = fmt::format("{} offers no recurrent form", part.type());
  });
  return reason;
}

void for_each_computing_part(const ModelSpec& spec,
                             const std::function<void(const AnyPart&)>& visit) {
  for_each_part(spec, visit);
  const auto with = [&](const AnyPart& part) {
    if (part) spec::for_each_part(part, visit);
  };
  for (const LayerSpec& layer : spec.layers)
    for (const GroupSpec& group : layer.groups) {
      if (!group.aside) with(group.residual);
      for (const BranchSpec& branch : group.branches)
        for (const AnyPart& norm : branch.norms) with(norm);
    }
  with(spec.final_norm);
}

std::string ModelSpec::not_recorded_reason(spec::KvType type) const {
  if (const std::string reason = no_state_reason(); !reason.empty()) return reason;
  if (encoder) return "it reads the output of an encoder";
  if (ids_before() > 0) return "a part reads earlier ids";
  std::string reason;
  for_each_computing_part(*this, [&](const AnyPart& part) {
    if (!reason.empty()) return;
    const Slot slot = part.mechanism->slot;
    // the others compute nothing in a step
    const bool asked = slot != Slot::head && slot != Slot::init && slot != Slot::rope_scaling;
    if (asked && !part.info().forms.recorded)
      reason = fmt::format("{} \"{}\" has no recorded step", name_of(slot), part.type());
    else if (const std::string why = part.config->not_recorded_reason(); !why.empty())
      reason = fmt::format("{} \"{}\": {}", name_of(slot), part.type(), why);
  });
  if (!reason.empty()) return reason;
  for (const BranchState& branch : state_layout(*this, type)) {
    if (branch.selective) return fmt::format("{} sees some tokens only", branch.name);
    for (const spec::StateDecl& decl : branch.tensors) {
      if (decl.kind == spec::StateDecl::Kind::per_source)
        return fmt::format("{} reads a source", branch.name);
      if (decl.every > 1)
        return fmt::format("{}.{} has an entry per {} tokens", branch.name, decl.name, decl.every);
      if (decl.kind == spec::StateDecl::Kind::per_token && decl.dtype != DType::f32 &&
          decl.dtype != DType::f16 && decl.dtype != DType::bf16)
        return fmt::format("a KV cache of type {}", name_of(type));
    }
  }
  return "";
}

}  // namespace tessera::model
