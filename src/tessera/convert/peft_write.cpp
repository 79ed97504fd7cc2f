#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <set>

#include "tessera/base/error.h"
#include "tessera/base/mapped_file.h"
#include "tessera/base/output_file.h"
#include "tessera/convert/peft_names.h"
#include "tessera/convert/peft_parts.h"
#include "tessera/format/safetensors.h"
#include "tessera/hub/model_name.h"
#include "tessera/nn/mixer/attention/attention.h"

namespace tessera::convert::peft {
namespace {

namespace fs = std::filesystem;
/// Ends of names that are written.
constexpr std::string_view kA = ".lora_A.weight", kB = ".lora_B.weight",
                           kTableA = ".lora_embedding_A", kTableB = ".lora_embedding_B",
                           kMagnitude = ".lora_magnitude_vector", kFactors = ".ia3_l";

bool same_bytes(const TensorView& x, const TensorView& y) {
  return x.shape == y.shape && x.data.size() == y.data.size() &&
         std::memcmp(x.data.data(), y.data.data(), x.data.size()) == 0;
}

/// The product of one foreign matrix, from those of ours that it is joined of: B in the order and
/// form of our rows.
struct Joined {
  TensorView a;
  std::vector<TensorView> b;
  double scale = 1;
};

Joined join_products(const std::vector<const AdapterTensors*>& parts,
                     const std::vector<int64_t>& rows) {
  const AdapterTensors* first = nullptr;
  bool one = true, even = true;
  for (const AdapterTensors* part : parts) {
    if (part != nullptr && first == nullptr) first = part;
    even = even && (part == nullptr || part->scale == first->scale);
    one = one && part != nullptr && same_bytes(part->parts.at(kLoraA), first->parts.at(kLoraA));
  }
  Joined out{as_float32(first->parts.at(kLoraA)), {}, even ? first->scale : 1};
  one = one && even;
  if (one) {
    for (const AdapterTensors* part : parts) out.b.push_back(as_float32(part->parts.at(kLoraB)));
    return out;
  }
  int64_t rank = 0;
  std::vector<float> a;
  for (const AdapterTensors* part : parts) {
    if (part == nullptr) continue;
    const TensorView more = as_float32(part->parts.at(kLoraA));
    a.insert(a.end(), numbers_of(more).begin(), numbers_of(more).end());
    rank += more.shape[0];
  }
  out.a = owned("lora_A", {rank, out.a.shape[1]}, std::move(a));
  int64_t column = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    std::vector<float> b(static_cast<size_t>(rows[i] * rank), 0.0F);
    if (parts[i] != nullptr) {
      const TensorView own = as_float32(parts[i]->parts.at(kLoraB));
      const int64_t r = own.shape[1];
      const auto factor = static_cast<float>(even ? 1 : parts[i]->scale);
      for (int64_t o = 0; o < rows[i]; ++o)
        for (int64_t k = 0; k < r; ++k)
          b[static_cast<size_t>(o * rank + column + k)] =
              factor * numbers_of(own)[static_cast<size_t>(o * r + k)];
      column += r;
    }
    out.b.push_back(owned("lora_B", {rows[i], rank}, std::move(b)));
  }
  return out;
}

/// The shortest ends of module names that name all of `adapted` and none of `others`.
std::set<std::string> ends_of(const std::vector<std::string>& adapted,
                              const std::vector<std::string>& others) {
  std::set<std::string> out;
  for (const std::string& module : adapted) {
    std::string end = module;
    for (size_t dot = module.rfind('.'); dot != std::string::npos && dot > 0;
         dot = module.rfind('.', dot - 1)) {
      const std::string_view tail = std::string_view(module).substr(dot);  // ".q_proj"
      if (std::none_of(others.begin(), others.end(),
                       [&](const std::string& other) { return other.ends_with(tail); })) {
        end = tail.substr(1);
        break;
      }
    }
    out.insert(end);
  }
  return out;
}

Json whole_where_it_is(double x) {
  return x == std::floor(x) && std::abs(x) < 1e9 ? Json(static_cast<int64_t>(x)) : Json(x);
}

/// An adapter on its way into the files.
class PeftWriter {
 public:
  PeftWriter(const std::vector<AdapterTensors>& adapter,
             const Checkpoint& base,
             const Family& family)
      : base_(base),
        family_(family),
        names_(family, base),
        matrices_(matrices_of(base)),
        stacks_(stacks_of(base)) {
    // a table may be replaced and have a product too
    for (const AdapterTensors& one : adapter) {
      AdapterTensors& all = all_.try_emplace(one.weight, one).first->second;
      for (const auto& [name, part] : one.parts) all.parts[name] = part;
      if (one.parts.contains(kLoraA)) {
        all.scale = one.scale;
        all.rslora = one.rslora;
      }
    }
    for (const auto& [name, one] : all_) left_[name] = &one;
    const auto any = [&](const char* part) {
      return std::any_of(adapter.begin(), adapter.end(),
                         [&](const AdapterTensors& one) { return one.parts.contains(part); });
    };
    const bool product = any(kLoraA), factors = any(kOut) || any(kIn), vectors = any(kVirtual);
    if (product + factors + vectors > 1)
      fail(ErrorKind::usage, "adapter",
           "holds adapters of several kinds, and a folder of PEFT holds one; export them apart");
    kind_ = factors    ? PeftKind::ia3
            : !vectors ? PeftKind::lora
            : left_.contains(model::kTokenTable) &&
                    left_.at(model::kTokenTable)->parts.contains(kVirtual)
                ? PeftKind::prompt
                : PeftKind::prefix;
    dora_ = any(kLengths);
  }

  void write(const fs::path& folder) {
    if (kind_ == PeftKind::prompt) add_prompt();
    if (kind_ == PeftKind::prefix) add_prefix();
    for_each_rule(family_, "hf", base_, [&](const BoundRule& rule) { add(rule); });
    add_biases();
    if (!left_.empty())
      fail(ErrorKind::usage, "adapter", "{} has no name in files of family {}",
           left_.begin()->first, base_.family);
    if (tensors_.empty() || (kind_ == PeftKind::lora && sizes_.empty()))
      fail(ErrorKind::usage, "adapter", "holds no {} to write",
           tensors_.empty() ? "tensor" : "product");
    const std::string about = config().dump(2) + "\n";
    create_folder(folder);
    format::write_safetensors(folder / kPeftTensors, tensors_, {{"format", "pt"}});
    write_file_atomically(folder / kPeftConfig, about);
  }

 private:
  void push(TensorView view, const std::string& module, std::string_view end) {
    view.name = std::string(kPeftPrefix) + module + std::string(end);
    tensors_.push_back(std::move(view));
  }

  void add_prompt() {
    const AdapterTensors& one = *left_.at(model::kTokenTable);
    TensorView vectors = as_float32(one.parts.at(kVirtual));
    tokens_ = vectors.shape[0];
    width_ = vectors.shape[1];
    vectors.name = kVectors;
    tensors_.push_back(std::move(vectors));
    left_.erase(model::kTokenTable);
  }

  void add_prefix() {
    const std::vector<CacheSlot> slots = cache_slots(family_, base_);
    width_ = static_cast<int64_t>(slots.front().order.size());
    std::vector<float> all;
    for (size_t s = 0; s < slots.size(); ++s) {
      const auto found = left_.find(slots[s].weight);
      if (found == left_.end())
        fail(ErrorKind::usage, "adapter", "a prefix without {}", slots[s].weight);
      const TensorView own = as_float32(found->second->parts.at(kVirtual));
      tokens_ = own.shape[0];
      const int64_t stride = width_ * std::ssize(slots);
      all.resize(static_cast<size_t>(tokens_ * stride));
      for (int64_t m = 0; m < tokens_; ++m)
        for (int64_t i = 0; i < width_; ++i)
          all[static_cast<size_t>(m * stride + static_cast<int64_t>(s) * width_ +
                                  slots[s].order[static_cast<size_t>(i)])] =
              numbers_of(own)[static_cast<size_t>(m * width_ + i)];
      left_.erase(found);
    }
    tensors_.push_back(
        owned(std::string(kVectors), {tokens_, width_ * std::ssize(slots)}, std::move(all)));
  }

  void add(const BoundRule& rule) {
    std::vector<const AdapterTensors*> parts;
    bool any = false, whole = true;
    for (const std::string& name : rule.ours) {
      const auto found = left_.find(name);
      parts.push_back(found == left_.end() ? nullptr : found->second);
      any = any || parts.back() != nullptr;
      whole = whole && parts.back() != nullptr && parts.back()->parts.contains(kWholePart);
    }
    const std::string module = module_of(rule.foreign.front());
    if (!any) {
      others_.push_back(module);
      return;
    }
    const bool product = std::all_of(parts.begin(), parts.end(), [](const AdapterTensors* part) {
      return part != nullptr && part->parts.contains(kLoraA);
    });
    if (whole) add_whole(rule, parts, product);
    if (stacks_.contains(rule.ours.front()) && !whole) {
      add_experts(rule, parts);
    } else if (!whole || product) {
      check_rule(rule, matrices_, module, ErrorKind::usage, "adapter");
      for (const AdapterTensors* part : parts)
        if (!whole && part != nullptr && part->parts.contains(kWholePart))
          fail(ErrorKind::usage, "adapter",
               "{} is trained whole, and others that are one matrix with it in {} are not",
               part->weight, module);
      turned_ = turned_ || rule.steps.transpose();
      kind_ == PeftKind::ia3 ? add_factors(rule, parts, module) : add_product(rule, parts, module);
    }
    for (const std::string& name : rule.ours) left_.erase(name);
  }

  /// `product`: a product is trained for the new tensor too, which makes it a base layer of PEFT's.
  void add_whole(const BoundRule& rule,
                 const std::vector<const AdapterTensors*>& parts,
                 bool product) {
    std::vector<TensorView> tensors;
    for (const AdapterTensors* part : parts)
      tensors.push_back(as_float32(part->parts.at(kWholePart)));
    rule.invert(tensors);
    for (size_t i = 0; i < tensors.size(); ++i) {
      const std::string& name = rule.foreign.at(i);
      const size_t end = name.rfind('.');
      if (product) {
        push(std::move(tensors[i]), name.substr(0, end), ".base_layer" + name.substr(end));
        continue;
      }
      if (name.ends_with(kBias) && !replaced(rule, i)) {
        biases_.emplace_back(name.substr(0, end), std::move(tensors[i]));
        continue;
      }
      saved_.insert(name.substr(0, end));
      if (name == names_.table() && names_.tied()) push_tied(tensors[i]);
      push(std::move(tensors[i]), name, "");
    }
  }

  /// Whether the weight next to a bias of ours is replaced too: then PEFT saves the module.
  bool replaced(const BoundRule& rule, size_t which) const {
    const std::string& ours = rule.ours.at(std::min(which, rule.ours.size() - 1));
    const auto weight = all_.find(ours.substr(0, ours.rfind('.')) + std::string(kWeight));
    return weight != all_.end() && weight->second.parts.contains(kWholePart);
  }

  /// Biases that are trained without their weights: those of modules with a product (PEFT's
  /// "lora_only"), or of others too ("all").
  void add_biases() {
    for (auto& [module, bias] : biases_) {
      const bool adapted = std::find(adapted_.begin(), adapted_.end(), module) != adapted_.end();
      push(std::move(bias), module, std::string(adapted ? ".base_layer" : "") + std::string(kBias));
      bias_ = adapted && bias_ != "all" ? "lora_only" : "all";
    }
  }

  /// PEFT keeps a copy of a tied table for the output matrix, and ties the two again.
  void push_tied(const TensorView& table) {
    if (names_.shared())
      fail(ErrorKind::usage, "adapter",
           "{} is trained whole, and family {} ties more to it than the output matrix, which PEFT "
           "does not",
           model::kTokenTable, base_.family);
    push(table, names_.head(), "");
    ties_ = true;
  }

  /// Experts as the modules of their own that they were in transformers 4, which PEFT packs where
  /// it has to.
  void add_experts(const BoundRule& rule, const std::vector<const AdapterTensors*>& parts) {
    const std::string& weight = rule.ours.front();
    const AdapterTensors* one = parts.front();
    if (rule.ours.size() != 1 || rule.foreign.size() < 2 || one == nullptr ||
        !one->parts.contains(kLoraA) || one->parts.size() != 2)
      fail(ErrorKind::usage, "adapter",
           "{} is a stack of experts; PEFT keeps plain LoRA of them, where files have a matrix for "
           "each expert",
           weight);
    const TensorView a = as_float32(one->parts.at(kLoraA)), b = as_float32(one->parts.at(kLoraB));
    const std::vector<int64_t> single(rule.foreign.size(), 1);
    const std::vector<TensorView> down = split(a, 0, single), up = split(b, 0, single);
    for (size_t e = 0; e < rule.foreign.size(); ++e) {
      const std::string module = module_of(rule.foreign[e]);
      push(shaped(down[e], {a.shape[1], a.shape[2]}), module, kA);
      push(shaped(up[e], {b.shape[1], b.shape[2]}), module, kB);
      adapted_.push_back(module);
      sizes_.emplace_back(a.shape[1], one->scale);
    }
    by_root_ = by_root_ && one->rslora;
  }

  void add_product(const BoundRule& rule,
                   const std::vector<const AdapterTensors*>& parts,
                   const std::string& module) {
    const std::vector<int64_t> rows = rows_of(rule, matrices_);
    Joined product = join_products(parts, rows);
    const int64_t rank = product.a.shape[0];
    const bool table = rule.foreign.front() == names_.table();
    if (table) {
      if (dora_)
        fail(ErrorKind::usage, "adapter",
             "{} is a table with magnitudes, which PEFT writes otherwise", rule.ours.front());
      push(turned(product.a), module, kTableB);
      push(turned(rows_as_theirs(rule, std::move(product.b))), module, kTableA);
    } else {
      push(std::move(product.a), module, kA);
      push(rows_as_theirs(rule, std::move(product.b)), module, kB);
    }
    if (dora_) {
      std::vector<TensorView> lengths;
      for (size_t i = 0; i < parts.size(); ++i) {
        if (parts[i] == nullptr || !parts[i]->parts.contains(kLengths))
          fail(
              ErrorKind::usage, "adapter",
              "{} has no magnitudes, and others that are one matrix with it in {} have; PEFT keeps "
              "them of whole matrices",
              rule.ours[i], module);
        lengths.push_back(as_column(parts[i]->parts.at(kLengths)));
      }
      push(as_vector(rows_as_theirs(rule, std::move(lengths))), module, kMagnitude);
    }
    for (const AdapterTensors* part : parts)
      by_root_ = by_root_ && (part == nullptr || part->rslora);
    adapted_.push_back(module);
    sizes_.push_back({rank, product.scale});
  }

  void add_factors(const BoundRule& rule,
                   const std::vector<const AdapterTensors*>& parts,
                   const std::string& module) {
    const std::vector<int64_t> rows = rows_of(rule, matrices_);
    std::vector<TensorView> outs;
    const TensorView* in = nullptr;
    bool any_out = false, any_in = false, every_in = true;
    for (size_t i = 0; i < parts.size(); ++i) {
      const auto found = [&](const char* name) -> const TensorView* {
        if (parts[i] == nullptr) return nullptr;
        const auto part = parts[i]->parts.find(name);
        return part == parts[i]->parts.end() ? nullptr : &part->second;
      };
      const TensorView *out = found(kOut), *own = found(kIn);
      any_out = any_out || out != nullptr;
      any_in = any_in || own != nullptr;
      every_in = every_in && own != nullptr && (in == nullptr || same_bytes(*in, *own));
      if (own != nullptr) in = own;
      outs.push_back(out != nullptr
                         ? as_column(*out)
                         : owned("ones", {rows[i], 1},
                                 std::vector<float>(static_cast<size_t>(rows[i]), 1.0F)));
    }
    if (any_in && (any_out || !every_in))
      fail(ErrorKind::usage, "adapter",
           "module {} has {}; PEFT has one vector of factors per module", module,
           any_out ? "factors on its input and on its output"
                   : "parts with other factors on what they read");
    if (any_in) {
      const TensorView column = as_column(*in);
      push(shaped(column, {1, column.shape[0]}), module, kFactors);
      inputs_.push_back(module);
    } else {
      const TensorView column = rows_as_theirs(rule, std::move(outs));
      push(shaped(column, {column.shape[0] * column.shape[1], 1}), module, kFactors);
      adapted_.push_back(module);
    }
  }

  /// What transformers can load: the name of a model in the hub's cache, or a folder; null for files
  /// in other formats.
  Json base_name() const {
    if (base_.dialect != "hf") return nullptr;
    fs::path folder = base_.folder;
    if (!folder.has_filename()) folder = folder.parent_path();
    const fs::path snapshots = folder.parent_path();
    if (snapshots.filename() == "snapshots")
      if (auto repo = hub::repo_of_folder(snapshots.parent_path().filename().string())) return *repo;
    return folder.string();
  }

  Json config() const {
    const char* task = base_.spec.encoder    ? "SEQ_2_SEQ_LM"
                       : base_.spec.causal() ? "CAUSAL_LM"
                                             : nullptr;
    Json config = {{"task_type", task != nullptr && base_.spec.head ? Json(task) : Json()},
                   {"base_model_name_or_path", base_name()},
                   {"inference_mode", true}};
    if (!saved_.empty()) config["modules_to_save"] = saved_;
    if (ties_) config["ensure_weight_tying"] = true;
    const auto join = [](std::vector<std::string> a, const std::vector<std::string>& b) {
      a.insert(a.end(), b.begin(), b.end());
      return a;
    };
    if (kind_ == PeftKind::lora) {
      config.update(products());
      config["fan_in_fan_out"] = turned_;
      config["target_modules"] = ends_of(adapted_, others_);
    } else if (kind_ == PeftKind::ia3) {
      const std::set<std::string> in = ends_of(inputs_, join(others_, adapted_));
      std::set<std::string> all = ends_of(adapted_, join(others_, inputs_));
      all.insert(in.begin(), in.end());
      config.update(Json{{"peft_type", "IA3"},
                         {"fan_in_fan_out", turned_},
                         {"target_modules", all},
                         {"feedforward_modules", in}});
    } else {
      config.update(virtual_tokens());
    }
    return config;
  }

  Json products() const {
    const auto alpha_of = [&](const std::pair<int64_t, double>& size) {
      const auto r = static_cast<double>(size.first);
      return size.second * (by_root_ ? std::sqrt(r) : r);
    };
    const auto near = [](double a, double b) { return std::abs(a - b) <= 1e-9 * std::abs(b); };
    Json ranks = Json::object(), alphas = Json::object();
    for (size_t i = 0; i < adapted_.size(); ++i) {
      if (sizes_[i].first != sizes_[0].first) ranks[adapted_[i]] = sizes_[i].first;
      if (!near(alpha_of(sizes_[i]), alpha_of(sizes_[0])))
        alphas[adapted_[i]] = whole_where_it_is(alpha_of(sizes_[i]));
    }
    return {{"peft_type", "LORA"},
            {"r", sizes_[0].first},
            {"lora_alpha", whole_where_it_is(alpha_of(sizes_[0]))},
            {"lora_dropout", 0.0},
            {"use_rslora", by_root_},
            {"use_dora", dora_},
            {"bias", bias_},
            {"rank_pattern", std::move(ranks)},
            {"alpha_pattern", std::move(alphas)}};
  }

  Json virtual_tokens() const {
    Json config = {{"peft_type", kind_ == PeftKind::prompt ? "PROMPT_TUNING" : "PREFIX_TUNING"},
                   {"num_virtual_tokens", tokens_},
                   {"token_dim", width_},
                   {"num_layers", base_.spec.layers.size()},
                   {"num_transformer_submodules", 1}};
    const nn::AttentionConfig* attention = nullptr;
    for (const model::GroupSpec& group : base_.spec.layers.front().groups)
      for (const model::BranchSpec& branch : group.branches)
        if (attention == nullptr)
          attention = dynamic_cast<const nn::AttentionConfig*>(branch.part.config.get());
    if (kind_ == PeftKind::prompt) {
      config["num_attention_heads"] = attention != nullptr ? attention->n_heads : 1;
      config["prompt_tuning_init"] = "RANDOM";
    } else {
      config["num_attention_heads"] = attention->n_kv_heads;
      config["encoder_hidden_size"] = width_;
      config["prefix_projection"] = false;
    }
    return config;
  }

  const Checkpoint& base_;
  const Family& family_;
  PeftNames names_;
  Shapes matrices_, stacks_;
  std::map<std::string, AdapterTensors> all_;
  std::map<std::string, const AdapterTensors*> left_;
  PeftKind kind_ = PeftKind::lora;
  bool dora_ = false, by_root_ = true, turned_ = false, ties_ = false;
  std::vector<TensorView> tensors_;
  std::vector<std::pair<std::string, TensorView>> biases_;  // by module
  std::string bias_ = "none";
  std::vector<std::string> adapted_, inputs_, others_;
  std::vector<std::pair<int64_t, double>> sizes_;  // rank and scale of each product
  std::set<std::string> saved_;
  int64_t tokens_ = 0, width_ = 0;
};

}  // namespace
}  // namespace tessera::convert::peft

namespace tessera::convert {

void write_peft(const std::vector<AdapterTensors>& adapter,
                const Checkpoint& base,
                const std::filesystem::path& folder,
                const LoadOptions& options) {
  FamilySet families = FamilySet::load(options.families);
  peft::PeftWriter(adapter, base, peft::family_of(base, families)).write(folder);
}

}  // namespace tessera::convert
