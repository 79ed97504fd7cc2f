// Rules, parameters, state and cost of the mixers with a memory over segments.
#include <algorithm>
#include <cmath>

#include "tessera/nn/mixer/attention/compressive.h"
#include "tessera/nn/mixer/attention/memorizing.h"
#include "tessera/nn/mixer/attention/transformer_xl.h"

namespace tessera::nn {

void SegmentConfig::complete(const spec::Scope& scope) {
  if (head_dim != 0) return;
  if (scope.d_model % n_heads != 0)
    fail(ErrorKind::spec, scope.path,
         "n_heads = {} does not divide d_model = {}; give head_dim, or another n_heads", n_heads,
         scope.d_model);
  head_dim = scope.d_model / n_heads;
}

void SegmentConfig::check(const spec::Scope& scope) const {
  if (!scope.causal)
    fail(ErrorKind::spec, scope.path,
         "a memory of earlier segments is for decoders and cannot stand in an encoder; use "
         "attention there");
  if (!position)
    fail(ErrorKind::spec, scope.at("position").path, "found null; expected a scheme, or \"none\"");
  if (dropout >= 1)
    fail(ErrorKind::spec, scope.path, "dropout = {}; expected less than 1", dropout);
}

void SegmentConfig::declare(spec::ParamList& list, const spec::Scope& scope) const {
  for (const char* name : {"q", "k", "v"})
    list.linear(name, n_heads * head_dim, scope.d_model, false);
  list.linear("o", scope.d_model, n_heads * head_dim, false,
              spec::Init::into_stream(scope.n_layers));
  position.config->params_under(list, "position", child_scope(scope, "position"));
}

std::vector<spec::StateDecl> SegmentConfig::kept_inputs(const spec::Scope& scope,
                                                        int64_t keep) const {
  using Kind = spec::StateDecl::Kind;
  return {{"x", Kind::per_token, {scope.d_model}, keep},
          {"k", Kind::per_token, {n_heads, head_dim}, keep},
          {"v", Kind::per_token, {n_heads, head_dim}, keep}};
}

double SegmentConfig::extra_flops(const spec::Scope&, int64_t context) const {
  return 4.0 * static_cast<double>(n_heads * head_dim) *
         static_cast<double>(std::min(context, mem_len + segment));
}

void TransformerXlConfig::check(const spec::Scope& scope) const {
  SegmentConfig::check(scope);
  if (same_length && mem_len == 0)
    fail(ErrorKind::spec, scope.path,
         "same_length gives every query mem_len = 0 keys; give a longer mem_len");
  if (init_mem == MemoryStart::zeros && by_place())
    fail(ErrorKind::spec, scope.path,
         "init_mem \"zeros\" stands before position 0, which {} has no entry for; use init_mem "
         "\"empty\", or a position by distance such as xl",
         position.type());
}

// --- compressive ---------------------------------------------------------------------------------

void CompressiveConfig::check(const spec::Scope& scope) const {
  SegmentConfig::check(scope);
  if (by_place())
    fail(ErrorKind::spec, scope.path,
         "compressed slots have no place in the document, by which {} adds to the scores; use a "
         "position by distance such as xl",
         position.type());
  if (dilation > 1 && compression != Compression::dilated_conv)
    fail(ErrorKind::spec, scope.path,
         "dilation = {} without compression dilated_conv; set it, or leave dilation out", dilation);
  const CompressiveConfig usual;
  if (n_compressed == 0 && (rate != usual.rate || compression != usual.compression ||
                            distance != usual.distance || reconstruction != usual.reconstruction))
    fail(ErrorKind::spec, scope.path,
         "rate, compression, distance and reconstruction are of a compressed memory, and "
         "n_compressed = 0; give it slots, or leave them out");
  if (reconstruction != usual.reconstruction && !learns())
    fail(ErrorKind::spec, scope.path,
         "reconstruction = {} with compression {}, which has nothing to learn; leave it out",
         reconstruction, spec::enum_name(compression));
  if (distance == SlotDistance::scaled && position.as<PositionConfig>().adds_values())
    fail(ErrorKind::spec, scope.path,
         "{} adds to the values, which slots at scaled distances cannot; set its \"values\" to "
         "false, or \"distance\" to \"index\"",
         position.type());
}

void CompressiveConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  declare(list, scope);
  if (!learns()) return;
  const double bound = 1 / std::sqrt(static_cast<double>(rate * scope.d_model));
  list.linear("compress", scope.d_model, rate * scope.d_model, true,
              spec::Init::uniform(-bound, bound));
}

std::vector<spec::StateDecl> CompressiveConfig::state(const spec::Scope& scope) const {
  // a block is complete `rate` tokens after it began, and seen once it has left the memory
  std::vector<spec::StateDecl> out = kept_inputs(scope, mem_len + segment + rate + lead());
  if (n_compressed == 0) return out;
  const int64_t blocks = n_compressed + (mem_len + segment) / rate + 2;
  for (spec::StateDecl decl : kept_inputs(scope, blocks)) {
    decl.name += "_block";
    decl.every = rate;
    out.push_back(decl);
  }
  return out;
}

double CompressiveConfig::extra_flops(const spec::Scope& scope, int64_t context) const {
  const int64_t beyond = std::max<int64_t>(0, context - SegmentConfig::reach()) / rate;
  return SegmentConfig::extra_flops(scope, context) +
         4.0 * static_cast<double>(n_heads * head_dim) *
             static_cast<double>(std::min(beyond, n_compressed));
}

// --- memorizing ----------------------------------------------------------------------------------

void MemorizingConfig::check(const spec::Scope& scope) const {
  SegmentConfig::check(scope);
  if (combine == MemoryCombine::joint && dropout > 0)
    fail(ErrorKind::spec, scope.path,
         "dropout = {} acts on the weights of the segment's own softmax; expected 0 with combine "
         "\"joint\"",
         dropout);
  if (top_k > memory)
    fail(ErrorKind::spec, scope.path, "top_k = {} of memory = {} entries; expected at most as many",
         top_k, memory);
  const MemorizingConfig usual;
  if (!hashes() &&
      (n_hashes != usual.n_hashes || n_buckets != usual.n_buckets || hash_seed != usual.hash_seed))
    fail(ErrorKind::spec, scope.path,
         "n_hashes, n_buckets and hash_seed are of the approximate search; set search "
         "\"approximate\", or leave them out");
  if (n_buckets % 2 != 0 || n_buckets > kMostBuckets)
    fail(ErrorKind::spec, scope.path, "n_buckets = {}; expected an even number up to {}", n_buckets,
         kMostBuckets);
}

void MemorizingConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  declare(list, scope);
  list.add({"scale", {n_heads}, spec::Init::constant(1), spec::ParamKind::structural});
  if (combine == MemoryCombine::gate)
    list.add({"gate", {n_heads}, spec::Init::constant(0), spec::ParamKind::structural});
}

std::vector<spec::StateDecl> MemorizingConfig::state(const spec::Scope&) const {
  using Kind = spec::StateDecl::Kind;
  const int64_t keep = std::max(memory, mem_len) + segment;
  std::vector<spec::StateDecl> out = {{"k", Kind::per_token, {n_heads, head_dim}, keep},
                                      {"v", Kind::per_token, {n_heads, head_dim}, keep}};
  if (hashes()) out.push_back({"buckets", Kind::per_token, {n_heads, n_hashes}, keep});
  return out;
}

double MemorizingConfig::extra_flops(const spec::Scope& scope, int64_t context) const {
  const double width = static_cast<double>(n_heads * head_dim);
  const auto held = static_cast<double>(std::min(context, memory));
  const auto tables = static_cast<double>(n_hashes), buckets = static_cast<double>(n_buckets);
  // keys that are scored, and half a table's buckets as directions for a query and a key
  const double search = hashes() ? 2.0 * width * held * std::min(1.0, tables / buckets) +
                                       2.0 * width * tables * buckets
                                 : 2.0 * width * held;
  return SegmentConfig::extra_flops(scope, context) + search +
         4.0 * width * static_cast<double>(std::min(context, top_k));
}

}  // namespace tessera::nn
