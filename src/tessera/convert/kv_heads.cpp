#include "tessera/convert/kv_heads.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "tessera/base/error.h"
#include "tessera/base/rng.h"
#include "tessera/convert/tensor_ops.h"
#include "tessera/format/file_source.h"

namespace tessera::convert {
namespace {

constexpr const char* kWhere = "kv_heads";
constexpr std::string_view kHeadNorm = ".k_norm.";  // k_norm.<head>.weight: a norm of its own each

/// Sets the number in every mixer below `json`; notes the other types of mixers.
void set_kv_heads(Json& json,
                  const std::string& path,
                  int64_t groups,
                  int64_t& changed,
                  std::set<std::string>& others) {
  if (json.is_array())
    for (size_t i = 0; i < json.size(); ++i)
      set_kv_heads(json[i], fmt::format("{}[{}]", path, i), groups, changed, others);
  if (!json.is_object()) return;
  for (auto& [key, value] : json.items()) {
    const std::string at = path.empty() ? key : path + "." + key;
    if (!value.is_object() || !value.contains("type") || !value["type"].is_string() ||
        (key != "mixer" && key != "cross")) {
      set_kv_heads(value, at, groups, changed, others);
      continue;
    }
    const std::string type = value["type"];
    const bool pooled = type == "attention" || type == "cross_attention";
    if (!pooled && value.contains("n_kv_heads"))
      fail(ErrorKind::usage, kWhere, "{} is {}; expected attention or cross_attention", at, type);
    if (!pooled) {
      others.insert(type);
      continue;
    }
    const int64_t present = value["n_kv_heads"];
    if (groups < 1 || present % groups != 0)
      fail(ErrorKind::usage, kWhere, "found {}; expected a divisor of the {} key/value heads of {}",
           groups, present, at);
    value["n_kv_heads"] = groups;
    ++changed;
  }
}

TensorView drawn(const spec::ParamDecl& decl, DType dtype, uint64_t seed) {
  const RandomKey key = RandomKey(seed).fold(decl.name);
  const bool normal = decl.init.kind == spec::Init::Kind::normal;
  if (!normal && decl.init.kind != spec::Init::Kind::constant)
    fail(ErrorKind::internal, kWhere, "{} begins neither normal nor constant", decl.name);
  std::vector<double> values(static_cast<size_t>(decl.elements()));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = decl.init.a * (normal ? key.normal(i) : 1.0);
  return from_doubles(decl.name, dtype, decl.shape, values);
}

/// The old tensors that tensor `decl` of the new model comes from.
class HeadPooling {
 public:
  HeadPooling(const std::vector<TensorView>& tensors, const KvHeadsOptions& options)
      : options_(options) {
    for (const TensorView& tensor : tensors) by_name_.emplace(tensor.name, &tensor);
  }

  TensorView tensor(const spec::ParamDecl& decl) const {
    const std::vector<TensorView> heads = norms_of_heads(decl.name);
    const TensorView& old = at(decl.name);
    if (heads.empty() && old.shape == decl.shape) return old;
    if (static_cast<int64_t>(heads.size()) == options_.kv_heads) return old;
    if (options_.pool == PoolHeads::random) return drawn(decl, old.dtype, options_.seed);
    TensorView pooled;
    if (heads.empty()) {
      const bool rows = old.shape.size() == decl.shape.size() && !old.shape.empty() &&
                        std::equal(old.shape.begin() + 1, old.shape.end(), decl.shape.begin() + 1);
      if (!rows || decl.shape[0] % options_.kv_heads != 0 || old.shape[0] % decl.shape[0] != 0)
        fail(ErrorKind::usage, kWhere, "{} has shape {} now and {} then: no heads of rows",
             decl.name, format::shape_text(old.shape), format::shape_text(decl.shape));
      pooled = pooled_heads(old, options_.kv_heads * (old.shape[0] / decl.shape[0]),
                            options_.kv_heads, options_.pool);
    } else {
      const size_t n = heads.size() / static_cast<size_t>(options_.kv_heads);
      const std::span group = std::span(heads).subspan(n * head_of(decl.name), n);
      pooled = options_.pool == PoolHeads::first ? group[0] : mean_of(group);
    }
    pooled.name = decl.name;
    return pooled;
  }

 private:
  const TensorView& at(const std::string& name) const {
    const auto found = by_name_.find(name);
    if (found == by_name_.end())
      fail(ErrorKind::internal, kWhere, "the model has no {} to begin with", name);
    return *found->second;
  }

  static size_t head_of(const std::string& name) {
    return std::stoul(name.substr(name.find(kHeadNorm) + kHeadNorm.size()));
  }

  /// Of "....k_norm.<head>.<part>": that part of every head, in order. Of other names: nothing.
  std::vector<TensorView> norms_of_heads(const std::string& name) const {
    std::vector<TensorView> found;
    const size_t begin = name.find(kHeadNorm);
    if (begin == std::string::npos) return found;
    const size_t digits = begin + kHeadNorm.size(), dot = name.find('.', digits);
    if (dot == std::string::npos || dot == digits) return found;
    for (size_t h = 0;; ++h) {
      const auto old = by_name_.find(fmt::format("{}{}{}", name.substr(0, digits), h,  //
                                                 name.substr(dot)));
      if (old == by_name_.end()) return found;
      found.push_back(*old->second);
    }
  }

  const KvHeadsOptions& options_;
  std::map<std::string, const TensorView*, std::less<>> by_name_;
};

}  // namespace

TensorView pooled_heads(const TensorView& tensor, int64_t heads, int64_t groups, PoolHeads pool) {
  if (groups < 1 || heads % groups != 0 || tensor.shape.empty() || tensor.shape[0] % heads != 0)
    fail(ErrorKind::usage, kWhere, "{} of shape {}: {} heads to {}; expected whole groups of heads",
         format::in_quotes(tensor.name), format::shape_text(tensor.shape), heads, groups);
  if (heads == groups) return tensor;
  const std::vector<int64_t> sizes(static_cast<size_t>(heads), tensor.shape[0] / heads);
  const std::vector<TensorView> blocks = split(tensor, 0, sizes);
  const auto n = static_cast<size_t>(heads / groups);
  std::vector<TensorView> pooled;
  for (size_t begin = 0; begin < blocks.size(); begin += n)
    pooled.push_back(pool == PoolHeads::first ? blocks[begin]
                                              : mean_of(std::span(blocks).subspan(begin, n)));
  return joined(pooled, 0);
}

Checkpoint with_kv_heads(Checkpoint checkpoint, const KvHeadsOptions& options) {
  int64_t changed = 0;
  std::set<std::string> others;
  Json json = checkpoint.spec_json;
  set_kv_heads(json, "", options.kv_heads, changed, others);
  if (changed == 0)
    fail(ErrorKind::usage, kWhere,
         "no mixer of this model has key/value heads: found {}; expected attention",
         others.empty() ? "no mixer" : fmt::format("{}", fmt::join(others, ", ")));
  checkpoint.spec = model::read_model_spec(json);
  checkpoint.spec_json = model::resolve(checkpoint.spec);
  const HeadPooling pooling(checkpoint.tensors, options);
  std::vector<TensorView> tensors;
  for (const spec::ParamDecl& decl : model::parameters(checkpoint.spec))
    tensors.push_back(pooling.tensor(decl));
  checkpoint.tensors = std::move(tensors);
  return checkpoint;
}

}  // namespace tessera::convert
