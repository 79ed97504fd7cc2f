#include "tessera/nn/select/indexer.h"

namespace tessera::nn {

spec::AnyPart IndexerConfig::key_norm(const spec::Scope& scope) const {
  return spec::read_part(spec::Slot::norm, {{"type", "layer_norm"}, {"eps", norm_eps}}, scope);
}

void IndexerConfig::check(const spec::Scope& scope) const {
  if (!share.empty()) {
    if (n_heads != 0 || head_dim != 0 || rotary_dim != 0)
      fail(ErrorKind::spec, scope.path,
           "share \"{}\" takes another layer's choice and has no indexer; found n_heads = {}, "
           "head_dim = {}, rotary_dim = {}; leave them out",
           share, n_heads, head_dim, rotary_dim);
    if (!name.empty())
      fail(ErrorKind::spec, scope.path,
           "name \"{}\" together with share \"{}\"; later layers share \"{}\" as well: leave name "
           "out",
           name, share, share);
    return;
  }
  if (n_heads == 0 || head_dim == 0)
    fail(ErrorKind::spec, scope.path,
         "n_heads = {}, head_dim = {}; expected at least 1, or the choice of an earlier layer "
         "(share)",
         n_heads, head_dim);
  check_rotation(scope);
}

void IndexerConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  if (!share.empty()) return;
  IndexHeadsConfig::params(list, scope);
  spec::Scope of_keys = scope;
  of_keys.width = head_dim;
  key_norm(of_keys).config->params_under(list, "k_norm", of_keys);
  list.linear("weights", n_heads, scope.input_width(), false);
}

std::vector<spec::StateDecl> IndexerConfig::state(const spec::Scope& scope) const {
  if (!share.empty()) return {};
  return IndexHeadsConfig::state(scope);
}

void IndexerConfig::check_behind(const std::vector<spec::Placed>& before,
                                 const spec::Scope& scope) const {
  if (share.empty()) return;
  const IndexerConfig* source = nullptr;
  for (const spec::Placed& placed : before)
    for (const spec::AnyPart* part : placed.part.mechanism->parts(*placed.part.config))
      if (const auto* other = dynamic_cast<const IndexerConfig*>(part->config.get());
          other != nullptr && other->name == share)
        source = other;
  const std::string path = scope.path + ".select";
  if (source == nullptr)
    fail(ErrorKind::spec, path + ".share",
         "no earlier layer has an indexer of name \"{}\"; give one that name", share);
  if (source->top_k != top_k)
    fail(ErrorKind::spec, path, "top_k = {}, and that of \"{}\" is {}; expected the same", top_k,
         share, source->top_k);
}

}  // namespace tessera::nn
