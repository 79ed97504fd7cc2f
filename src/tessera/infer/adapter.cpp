#include "tessera/infer/adapter.h"

#include <algorithm>

#include "tessera/convert/peft.h"
#include "tessera/format/safetensors.h"
#include "tessera/infer/base_print.h"
#include "tessera/infer/load_model.h"
#include "tessera/spec/json_difference.h"

namespace tessera::infer {
namespace {

namespace fs = std::filesystem;
using convert::AdapterTensors;
using convert::Json;
using format::TensorView;

constexpr const char* kAbout = "tessera_adapter";

fs::path checkpoint_in(const fs::path& folder) {
  return fs::is_directory(folder / "latest") ? folder / "latest" : folder;
}

TensorView view_of(std::string name, const model::WeightPtr& weight) {
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

/// What the file of an adapter says of itself.
Json about_in(const format::TensorFile& file) {
  const auto text = file.metadata().find(kAbout);
  if (text == file.metadata().end())
    fail(ErrorKind::file, file.file(), "no \"{}\" in its metadata; expected an adapter", kAbout);
  Json about = spec::parse_json(text->second, file.file());
  for (const char* key : {"spec", "base", "products"})
    if (!about.is_object() || !about.contains(key) || !about[key].is_object())
      fail(ErrorKind::file, file.file(), "\"{}\" has no object \"{}\"", kAbout, key);
  return about;
}

/// The part that the end of a tensor's name is; null of a whole weight.
const model::OverlayPart* part_of(const std::string& name, const Json& whole) {
  if (whole.is_array() && std::find(whole.begin(), whole.end(), Json(name)) != whole.end())
    return nullptr;
  for (const model::OverlayPart& part : model::kOverlayParts)
    if (name.ends_with(std::string(".") + part.name)) return &part;
  return nullptr;
}

/// An adapter as training keeps it. `anywhere`: also beside other weights of the spec.
std::vector<AdapterTensors> read_own(const fs::path& path,
                                     const convert::Checkpoint& base,
                                     bool anywhere) {
  const format::TensorFile file = format::open_safetensors(path);
  const Json about = about_in(file);
  // losses are of training, and no part of what the adapter stands beside
  const auto of_training = [](const std::string& path) {
    return path.find("losses") != std::string::npos;
  };
  if (const auto differs = spec::first_difference(about["spec"], base.spec_json, of_training))
    fail(ErrorKind::usage, "adapter",
         "{} is of another model, whose spec differs first at \"{}\"; expected the model that it "
         "was trained beside",
         path.string(), differs->path);
  if (!anywhere) check_base(about["base"], weights_of(base), path.string());
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
    if (part == nullptr || part->part != &model::Overlay::a) continue;
    const Json product = about["products"].value(weight, Json());
    if (!product.is_object() || !product.value("scale", Json()).is_number())
      fail(ErrorKind::file, path.string(), "the product beside \"{}\" has no \"scale\"", weight);
    one.scale = product["scale"].get<double>();
    one.by_root = product.value("by_root", Json()) == Json(true);
  }
  std::vector<AdapterTensors> out;
  for (auto& [weight, one] : found) out.push_back(std::move(one));
  if (out.empty()) fail(ErrorKind::file, path.string(), "holds no tensor of an adapter");
  return out;
}

std::vector<AdapterTensors> read_tensors(const fs::path& folder,
                                         const convert::Checkpoint& base,
                                         const convert::LoadOptions& options,
                                         bool anywhere = false) {
  const fs::path at = checkpoint_in(folder);
  if (fs::exists(at / kAdapterFile)) return read_own(at / kAdapterFile, base, anywhere);
  if (fs::exists(at / convert::kPeftConfig)) return convert::read_peft(at, base, options);
  fail(ErrorKind::file, folder.string(), "is no adapter; expected a folder with {} or {}",
       convert::kPeftConfig, kAdapterFile);
}

std::vector<model::Overlay> overlays_of(const std::vector<AdapterTensors>& tensors) {
  std::vector<model::Overlay> out;
  for (const AdapterTensors& one : tensors) {
    model::Overlay overlay{.weight = one.weight, .scale = one.scale, .by_root = one.by_root};
    for (const auto& [name, view] : one.parts) {
      if (name == convert::kWholePart) overlay.whole = weight_of(view);
      for (const model::OverlayPart& part : model::kOverlayParts)
        if (name == part.name) overlay.*part.part = weight_of(view);
    }
    out.push_back(std::move(overlay));
  }
  return out;
}

/// Numbers in place of some of a checkpoint's; each keeps its float type unless `float32`.
convert::Checkpoint with_numbers(convert::Checkpoint base,
                                 const std::map<std::string, Tensor>& numbers,
                                 bool float32) {
  for (TensorView& tensor : base.tensors) {
    const auto found = numbers.find(tensor.name);
    if (found == numbers.end()) continue;
    const ops::Weight sum = ops::Weight::dense(tensor.name, found->second);
    tensor = view_of(tensor.name, std::make_shared<const ops::Weight>(
                                      sum.converted(float32 ? DType::f32 : tensor.dtype)));
  }
  return base;
}

/// What an adapter is to be merged into, or was: floats.
void check_floats(const convert::Checkpoint& base, const std::vector<model::Overlay>& overlays) {
  for (const model::Overlay& overlay : overlays) {
    const DType dtype = base.tensor(overlay.weight).dtype;
    if (is_block_type(dtype) && overlay.prefix == nullptr)
      fail(
          ErrorKind::usage, "convert",
          "{} is stored as {}, and rounding the sum to its blocks makes another model; convert the "
          "model to floats first (tessera convert MODEL --out FLOATS), and merge into those",
          overlay.weight, name_of(dtype));
  }
}

}  // namespace

void write_adapter(const fs::path& folder,
                   const std::vector<model::Overlay>& adapter,
                   const model::Model& model) {
  Json products = Json::object();
  std::vector<TensorView> views;
  std::set<std::string> whole;
  for (const model::Overlay& overlay : adapter) {
    for (const model::OverlayPart& part : model::kOverlayParts)
      if (const model::WeightPtr& weight = overlay.*part.part; weight != nullptr)
        views.push_back(view_of(overlay.weight + "." + part.name, weight));
    if (overlay.a != nullptr)
      products[overlay.weight] = {{"scale", overlay.scale}, {"by_root", overlay.by_root}};
    if (overlay.whole == nullptr) continue;
    views.push_back(view_of(overlay.weight, overlay.whole));
    whole.insert(overlay.weight);
  }
  const Json about = {{"spec", model::resolve(model.spec())},
                      {"base", base_print(model.weights(), whole)},
                      {"products", std::move(products)},
                      {"whole", whole}};
  format::write_safetensors(folder / kAdapterFile, views, {{kAbout, about.dump()}});
}

std::vector<model::Overlay> read_adapter(const fs::path& folder,
                                         const convert::Checkpoint& base,
                                         const convert::LoadOptions& options) {
  return overlays_of(read_tensors(folder, base, options));
}

convert::Checkpoint with_head_of(convert::Checkpoint base, const fs::path& adapter) {
  const fs::path path = checkpoint_in(adapter) / kAdapterFile;
  if (!fs::exists(path)) return base;
  const format::TensorFile file = format::open_safetensors(path);
  const Json about = about_in(file);
  const auto without_heads = [](Json spec) {
    for (const char* key : {"head", "heads"}) spec.erase(key);
    return spec;
  };
  const Json own = without_heads(base.spec_json), asked = without_heads(about["spec"]);
  const auto of_training = [](const std::string& at) {
    return at.find("losses") != std::string::npos;
  };
  if (about["spec"] == base.spec_json || spec::first_difference(asked, own, of_training))
    return base;
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

void check_adapter_base(const fs::path& checkpoint, const model::Weights& weights) {
  const format::TensorFile file = format::open_safetensors(checkpoint / kAdapterFile);
  check_base(about_in(file)["base"], weights, checkpoint.string());
}

Adapters::Adapters(const LoadedModel& base, convert::LoadOptions options)
    : base_(base), options_(std::move(options)) {}

void Adapters::add(const std::string& name, const fs::path& folder) {
  if (name.empty() || adapters_.contains(name))
    fail(ErrorKind::usage, "adapter", "{} as name of {}; expected a name of its own",
         name.empty() ? "nothing" : fmt::format("\"{}\" is taken", name), folder.string());
  auto overlays = read_adapter(folder, base_.source, options_);
  model::with_overlays(base_.model, overlays);  // refuses what does not fit
  adapters_[name] = std::move(overlays);
}

std::vector<std::string> Adapters::names() const {
  std::vector<std::string> out;
  for (const auto& [name, overlays] : adapters_) out.push_back(name);
  return out;
}

const model::Model& Adapters::with(const std::vector<std::string>& names) {
  if (names.empty()) return base_.model;
  if (const auto made = models_.find(names); made != models_.end()) return made->second;
  std::vector<model::Overlay> all;
  for (const std::string& name : names) {
    const auto found = adapters_.find(name);
    if (found == adapters_.end())
      fail(ErrorKind::usage, "adapter", "there is no adapter \"{}\"; expected one of: {}", name,
           adapters_.empty() ? "none" : fmt::format("{}", fmt::join(this->names(), ", ")));
    all.insert(all.end(), found->second.begin(), found->second.end());
  }
  return models_.emplace(names, model::with_overlays(base_.model, all)).first->second;
}

void export_adapter(const fs::path& adapter,
                    const convert::Checkpoint& base,
                    const fs::path& folder,
                    const convert::LoadOptions& options) {
  convert::write_peft(read_tensors(adapter, base, options), base, folder, options);
}

convert::Checkpoint with_merged_adapter(convert::Checkpoint base,
                                        const fs::path& adapter,
                                        bool float32,
                                        const convert::LoadOptions& options) {
  base = with_head_of(std::move(base), adapter);
  const std::vector<model::Overlay> overlays = read_adapter(adapter, base, options);
  const model::Weights weights(weights_of(base));
  with_overlays(model::Model(base.spec, weights), overlays);  // refuses what does not fit
  check_floats(base, overlays);
  return with_numbers(std::move(base), merged(weights, overlays), float32);
}

convert::Checkpoint without_merged_adapter(convert::Checkpoint base,
                                           const fs::path& adapter,
                                           bool float32,
                                           const convert::LoadOptions& options) {
  const auto overlays = overlays_of(read_tensors(adapter, base, options, /*anywhere=*/true));
  const model::Weights weights(weights_of(base));
  with_overlays(model::Model(base.spec, weights), overlays);
  check_floats(base, overlays);
  return with_numbers(std::move(base), unmerged(weights, overlays), float32);
}

}  // namespace tessera::infer
