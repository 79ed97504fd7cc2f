#include "tessera/infer/loading/adapter.h"

#include <algorithm>

#include "tessera/convert/checkpoint_place.h"
#include "tessera/convert/peft.h"
#include "tessera/convert/storage_form.h"
#include "tessera/convert/text_settings.h"
#include "tessera/format/safetensors.h"
#include "tessera/infer/loading/weights_fingerprint.h"
#include "tessera/infer/loading/load_model.h"
#include "tessera/kernels/weights/quantize.h"
#include "tessera/ops/weights/to_device.h"
#include "tessera/spec/json_difference.h"

namespace tessera::infer {
namespace {

namespace fs = std::filesystem;
using convert::AdapterTensors;
using convert::Json;
using format::TensorView;

constexpr const char* kAbout = "tessera_adapter";

bool is_peft(const fs::path& folder) {
  return fs::exists(folder / convert::kPeftConfig);
}

/// In host memory: a copy of a weight on another device.
TensorView view_of(std::string name, const model::WeightPtr& given) {
  const model::WeightPtr weight = ops::to_device(given, at::kCPU);
  return {std::move(name),
          weight->dtype(),
          weight->shape(),
          {static_cast<const std::byte*>(weight->data()), static_cast<size_t>(weight->bytes())},
          weight};
}

model::WeightPtr weight_of(const TensorView& view) {
  if (!layout_of(view.dtype).is_float || is_block_type(view.dtype))
    fail(ErrorKind::file, "adapter", "tensor \"{}\" is {}; expected a floating-point type",
         view.name, name_of(view.dtype));
  return std::make_shared<const ops::Weight>(ops::Weight::stored(view));
}

/// The metadata of an adapter file; its spec with all options that this version knows.
Json about_in(const format::TensorFile& file) {
  const auto text = file.metadata().find(kAbout);
  if (text == file.metadata().end())
    fail(ErrorKind::file, file.file(), "no \"{}\" in its metadata; expected an adapter", kAbout);
  Json about = spec::parse_json(text->second, file.file());
  for (const char* key : {"spec", "base", "products"})
    if (!about.is_object() || !about.contains(key) || !about[key].is_object())
      fail(ErrorKind::file, file.file(), "\"{}\" has no object \"{}\"", kAbout, key);
  about["spec"] = model::resolve(model::read_model_spec(about["spec"]));
  return about;
}

/// The part of an adapter by the suffix of a tensor name; nullptr for a whole weight.
const model::OverlayPart* part_of(const std::string& name, const Json& whole) {
  if (whole.is_array() && std::find(whole.begin(), whole.end(), Json(name)) != whole.end())
    return nullptr;
  for (const model::OverlayPart& part : model::kOverlayParts)
    if (name.ends_with(std::string(".") + part.name)) return &part;
  return nullptr;
}

std::vector<AdapterTensors> own_tensors(const format::TensorFile& file, const Json& about) {
  const Json whole = about.value("whole", Json());
  std::map<std::string, AdapterTensors> found;
  for (const TensorView& tensor : file.tensors()) {
    const model::OverlayPart* part = part_of(tensor.name, whole);
    const std::string weight =
        part == nullptr
            ? tensor.name
            : tensor.name.substr(0, tensor.name.size() - std::string(part->name).size() - 1);
    AdapterTensors& one = found[weight];
    one.weight = weight;
    one.parts[part == nullptr ? convert::kWholePart : part->name] = tensor;
    if (part == nullptr || part->part != &model::WeightAdapter::a) continue;
    const Json product = about["products"].value(weight, Json());
    if (!product.is_object() || !product.value("scale", Json()).is_number())
      fail(ErrorKind::file, file.file(), "the adapter of \"{}\" has no \"scale\"", weight);
    one.scale = product["scale"].get<double>();
    one.rslora = product.value("by_root", Json()) == Json(true);
  }
  std::vector<AdapterTensors> out;
  for (auto& [weight, one] : found) out.push_back(std::move(one));
  if (out.empty()) fail(ErrorKind::file, file.file(), "holds no tensor of an adapter");
  return out;
}

/// An adapter as training saves it, for the storage form of `base`. `anywhere`: also for other
/// weights of the spec.
std::vector<AdapterTensors> read_own(const fs::path& path,
                                     const convert::Checkpoint& base,
                                     const convert::LoadOptions& options,
                                     bool anywhere) {
  const format::TensorFile file = format::open_safetensors(path);
  const Json about = about_in(file);
  std::vector<AdapterTensors> tensors = own_tensors(file, about);
  // losses belong to training, not to the model of the adapter
  const auto of_training = [](const std::string& path) {
    return path.find("losses") != std::string::npos;
  };
  Json print = about["base"];
  if (const auto differs =
          spec::first_difference(about["spec"], model::resolve(base.spec), of_training)) {
    auto reformed = convert::in_form_of(tensors, about["spec"], base, options);
    if (!reformed)
      fail(ErrorKind::usage, "adapter",
           "{} was trained for another architecture (differs at \"{}\"); expected its base model, "
           "or a PEFT adapter (tessera convert BASE --export-adapter RUN)",
           path.string(), differs->path);
    tensors = std::move(reformed->tensors);
    // other weights have another order of rows
    print = Json::object();
    for (const auto& [name, one] : about["base"].items())
      if (reformed->alike.contains(name)) print[name] = one;
  }
  if (!anywhere) check_base(print, weights_of(base), path.string());
  return tensors;
}

std::vector<AdapterTensors> read_tensors(const fs::path& folder,
                                         const convert::Checkpoint& base,
                                         const convert::LoadOptions& options,
                                         bool anywhere = false) {
  const fs::path at = convert::checkpoint_place(folder);
  if (fs::exists(at / kAdapterFile)) return read_own(at / kAdapterFile, base, options, anywhere);
  if (is_peft(at)) return convert::read_peft(at, base, options);
  fail(ErrorKind::file, folder.string(), "is no adapter; expected a folder with {} or {}",
       convert::kPeftConfig, kAdapterFile);
}

std::vector<model::WeightAdapter> overlays_of(const std::vector<AdapterTensors>& tensors) {
  std::vector<model::WeightAdapter> out;
  for (const AdapterTensors& one : tensors) {
    model::WeightAdapter overlay{.weight = one.weight, .scale = one.scale, .rslora = one.rslora};
    for (const auto& [name, view] : one.parts) {
      if (name == convert::kWholePart) overlay.whole = weight_of(view);
      for (const model::OverlayPart& part : model::kOverlayParts)
        if (name == part.name) overlay.*part.part = weight_of(view);
    }
    out.push_back(std::move(overlay));
  }
  return out;
}

/// The storage type of a merged weight, instead of one of `own`.
DType merged_type(DType own, const std::vector<int64_t>& shape, convert::MergedAs as) {
  if (as == convert::MergedAs::float32) return DType::f32;
  if (!is_block_type(own)) return own;
  const bool whole = !shape.empty() && shape.back() % layout_of(own).block_elements == 0;
  const bool rounds = as == convert::MergedAs::own_type && kernels::can_quantize(own) && whole;
  return rounds ? own : DType::f32;
}

/// Replaces weights of a checkpoint, with a remark for quantized ones.
convert::Checkpoint with_numbers(convert::Checkpoint base,
                                 const std::map<std::string, Tensor>& numbers,
                                 convert::MergedAs as) {
  std::map<std::pair<DType, DType>, int64_t> blocks;  // types before and after merging
  for (TensorView& tensor : base.tensors) {
    const auto found = numbers.find(tensor.name);
    if (found == numbers.end()) continue;
    const DType own = tensor.dtype, type = merged_type(own, tensor.shape, as);
    const ops::Weight sum = ops::Weight::dense(tensor.name, found->second);
    tensor = view_of(tensor.name, std::make_shared<const ops::Weight>(sum.converted(type)));
    if (is_block_type(own)) ++blocks[{own, type}];
  }
  for (const auto& [types, n] : blocks)
    base.remarks.push_back(
        types.second == types.first
            ? fmt::format("{} merged weights are rounded to {} again, as the model has them; "
                          "--float32 writes them without rounding",
                          n, name_of(types.first))
            : fmt::format(
                  "{} merged weights are {} in place of {}; --to gguf writes the types that "
                  "it can round to, and tessera quantize makes the result small",
                  n, name_of(types.second), name_of(types.first)));
  return base;
}

}  // namespace

void write_adapter(const fs::path& folder,
                   const std::vector<model::WeightAdapter>& adapter,
                   const model::Model& model) {
  Json products = Json::object();
  std::vector<TensorView> views;
  std::set<std::string> whole;
  for (const model::WeightAdapter& overlay : adapter) {
    for (const model::OverlayPart& part : model::kOverlayParts)
      if (const model::WeightPtr& weight = overlay.*part.part; weight != nullptr)
        views.push_back(view_of(overlay.weight + "." + part.name, weight));
    if (overlay.a != nullptr)
      products[overlay.weight] = {{"scale", overlay.scale}, {"by_root", overlay.rslora}};
    if (overlay.whole == nullptr) continue;
    views.push_back(view_of(overlay.weight, overlay.whole));
    whole.insert(overlay.weight);
  }
  const Json about = {{"spec", model::resolve(model.spec())},
                      {"base", weights_fingerprint(model.weights(), whole)},
                      {"products", std::move(products)},
                      {"whole", whole}};
  format::write_safetensors(folder / kAdapterFile, views, {{kAbout, about.dump()}});
}

std::vector<model::WeightAdapter> read_adapter(const fs::path& folder,
                                               const convert::Checkpoint& base,
                                               const convert::LoadOptions& options) {
  return overlays_of(read_tensors(folder, base, options));
}

namespace {

/// The model of an adapter from training, which may have another head.
convert::Checkpoint with_head_of(convert::Checkpoint base, const fs::path& path) {
  const format::TensorFile file = format::open_safetensors(path);
  const Json about = about_in(file);
  const auto without_heads = [](Json spec) {
    for (const char* key : {"head", "heads"}) spec.erase(key);
    return spec;
  };
  const Json present = model::resolve(base.spec), own = without_heads(present),
             asked = without_heads(about["spec"]);
  const auto of_training = [](const std::string& at) {
    return at.find("losses") != std::string::npos;
  };
  if (about["spec"] == present || spec::first_difference(asked, own, of_training)) return base;
  model::ModelSpec spec = model::read_model_spec(about["spec"]);
  std::vector<TensorView> tensors;
  for (const spec::ParamDecl& decl : model::parameters(spec)) {
    const auto same = [&](const TensorView& view) {
      return view.name == decl.name && view.shape == decl.shape;
    };
    const auto brought = std::find_if(file.tensors().begin(), file.tensors().end(), same);
    const auto there = std::find_if(base.tensors.begin(), base.tensors.end(), same);
    if (there == base.tensors.end() && brought == file.tensors().end()) return base;
    tensors.push_back(there != base.tensors.end() ? *there : *brought);
  }
  base.spec = std::move(spec);
  base.spec_json = about["spec"];
  base.tensors = std::move(tensors);
  return base;
}

}  // namespace

convert::Checkpoint base_for_adapter(convert::Checkpoint base,
                                     const fs::path& adapter,
                                     const convert::LoadOptions& options) {
  const fs::path at = convert::checkpoint_place(adapter);
  if (fs::exists(at / kAdapterFile)) return with_head_of(std::move(base), at / kAdapterFile);
  if (is_peft(at)) return convert::peft_base(std::move(base), at, options);
  return base;
}

void check_adapter_base(const fs::path& checkpoint, const model::Weights& weights) {
  const format::TensorFile file = format::open_safetensors(checkpoint / kAdapterFile);
  check_base(about_in(file)["base"], weights, checkpoint.string());
}

Adapters::Adapters(const LoadedModel& base, convert::LoadOptions options)
    : base_(base), options_(std::move(options)) {}

void Adapters::add(const std::string& name, const fs::path& folder) {
  if (name.empty() || adapters_.contains(name))
    fail(ErrorKind::usage, "adapter", "{} as name of {}; expected a name that is not in use",
         name.empty() ? "nothing" : fmt::format("\"{}\" is taken", name), folder.string());
  const convert::Checkpoint own = base_for_adapter(base_.source, folder, options_);
  if (own.spec.vocab != base_.source.spec.vocab)
    fail(ErrorKind::usage, "adapter",
         "{} has {} tokens and the model {}; load such an adapter with the model (--adapter)",
         folder.string(), own.spec.vocab, base_.source.spec.vocab);
  auto overlays = read_adapter(folder, own, options_);
  model::with_adapters(base_of(own), overlays);  // throws if it does not fit
  adapters_[name] = {folder, std::move(overlays)};
}

model::Model Adapters::base_of(const convert::Checkpoint& checkpoint) const {
  // by the numbers in the file: matrices that are tied no longer share those of the tied one
  std::map<const std::byte*, model::WeightPtr> own;
  for (const TensorView& tensor : base_.source.tensors)
    own[tensor.data.data()] = base_.model.weights().find(tensor.name);
  std::map<std::string, model::WeightPtr> weights;
  const model::Weights stored = weights_of(checkpoint);
  for (const auto& [decl, weight] : stored.all()) {
    const auto known = own.find(checkpoint.tensor(decl.name).data.data());
    weights[decl.name] = known == own.end() ? weight : known->second;
  }
  return {checkpoint.spec, model::Weights::check(checkpoint.spec, std::move(weights)),
          base_.model.arithmetic()};
}

std::vector<std::string> Adapters::names() const {
  std::vector<std::string> out;
  for (const auto& [name, adapter] : adapters_) out.push_back(name);
  return out;
}

const model::Model& Adapters::with(const std::vector<std::string>& names) {
  if (names.empty()) return base_.model;
  if (const auto made = models_.find(names); made != models_.end()) return made->second;
  convert::Checkpoint base = base_.source;
  std::vector<model::WeightAdapter> all;
  for (const std::string& name : names) {
    const auto found = adapters_.find(name);
    if (found == adapters_.end())
      fail(ErrorKind::usage, "adapter", "there is no adapter \"{}\"; expected one of: {}", name,
           adapters_.empty() ? "none" : fmt::format("{}", fmt::join(this->names(), ", ")));
    base = base_for_adapter(std::move(base), found->second.folder, options_);
    all.insert(all.end(), found->second.overlays.begin(), found->second.overlays.end());
  }
  return models_.emplace(names, model::with_adapters(base_of(base), all)).first->second;
}

namespace {

/// Tensors of an adapter's model that the base does not have.
std::vector<AdapterTensors> brought_by_adapter(const convert::Checkpoint& base,
                                               const convert::Checkpoint& own) {
  std::vector<AdapterTensors> out;
  for (const TensorView& tensor : own.tensors) {
    const bool known =
        std::any_of(base.tensors.begin(), base.tensors.end(), [&](const TensorView& one) {
          // including a head that shares the numbers of the token embedding
          return one.data.data() == tensor.data.data() && one.shape == tensor.shape;
        });
    if (!known) out.push_back({.weight = tensor.name, .parts = {{convert::kWholePart, tensor}}});
  }
  return out;
}

}  // namespace

void export_adapter(const fs::path& adapter,
                    const convert::Checkpoint& base,
                    const fs::path& folder,
                    const convert::LoadOptions& options) {
  const convert::Checkpoint own = base_for_adapter(base, adapter, options);
  std::vector<AdapterTensors> tensors = brought_by_adapter(base, own);
  for (AdapterTensors& one : read_tensors(adapter, own, options)) tensors.push_back(std::move(one));
  convert::write_peft(tensors, own, folder, options);
  convert::write_settings_of_adapter(adapter, own.spec.vocab, folder);
}

convert::Checkpoint with_merged_adapter(convert::Checkpoint base,
                                        const fs::path& adapter,
                                        convert::MergedAs as,
                                        const convert::LoadOptions& options) {
  base = base_for_adapter(std::move(base), adapter, options);
  const std::vector<model::WeightAdapter> overlays = read_adapter(adapter, base, options);
  const model::Weights weights(weights_of(base));
  with_adapters(model::Model(base.spec, weights), overlays);  // throws if it does not fit
  return with_numbers(std::move(base), merged(weights, overlays), as);
}

convert::Checkpoint without_merged_adapter(convert::Checkpoint base,
                                           const fs::path& adapter,
                                           convert::MergedAs as,
                                           const convert::LoadOptions& options) {
  const auto overlays = overlays_of(read_tensors(adapter, base, options, /*anywhere=*/true));
  const model::Weights weights(weights_of(base));
  with_adapters(model::Model(base.spec, weights), overlays);
  return with_numbers(std::move(base), unmerged(weights, overlays), as);
}

}  // namespace tessera::infer
