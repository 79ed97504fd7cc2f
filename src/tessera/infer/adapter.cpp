#include "tessera/infer/adapter.h"

#include "tessera/convert/peft.h"
#include "tessera/format/safetensors.h"
#include "tessera/infer/load_model.h"
#include "tessera/spec/json_difference.h"

namespace tessera::infer {
namespace {

namespace fs = std::filesystem;
using convert::AdapterTensors;
using convert::Json;
using format::TensorView;

constexpr const char* kAbout = "tessera_adapter";
constexpr const char *kA = ".lora_a", *kB = ".lora_b";

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
  return std::make_shared<const ops::Weight>(
      ops::Weight::stored(view.name, view.dtype, view.shape, view.data.data(), view.owner));
}

/// An adapter as training keeps it.
std::vector<AdapterTensors> read_own(const fs::path& path, const convert::Checkpoint& base) {
  const format::TensorFile file = format::open_safetensors(path);
  const auto text = file.metadata().find(kAbout);
  if (text == file.metadata().end())
    fail(ErrorKind::file, path.string(), "no \"{}\" in its metadata; expected an adapter", kAbout);
  const Json about = spec::parse_json(text->second, path.string());
  if (!about.is_object() || !about.contains("spec") || !about.contains("scales") ||
      !about["scales"].is_object())
    fail(ErrorKind::file, path.string(), "\"{}\" is {}; expected a spec and scales", kAbout,
         spec::kind_of(about));
  // losses are of training, and no part of what the adapter stands beside
  const auto of_training = [](const std::string& path) {
    return path.find("losses") != std::string::npos;
  };
  if (const auto differs = spec::first_difference(about["spec"], base.spec_json, of_training))
    fail(ErrorKind::usage, "adapter",
         "{} is of another model, whose spec differs first at \"{}\"; expected the model that it "
         "was trained beside",
         path.string(), differs->path);
  std::vector<AdapterTensors> out;
  for (const auto& [weight, scale] : about["scales"].items()) {
    if (!scale.is_number())
      fail(ErrorKind::file, path.string(), "the scale of \"{}\" is {}; expected a number", weight,
           spec::kind_of(scale));
    out.push_back({weight, file.at(weight + kA), file.at(weight + kB), scale.get<double>()});
  }
  if (file.tensors().size() != 2 * out.size())
    fail(ErrorKind::file, path.string(), "{} tensors; expected 2 for each of {} scales",
         file.tensors().size(), out.size());
  return out;
}

std::vector<AdapterTensors> read_tensors(const fs::path& folder,
                                         const convert::Checkpoint& base,
                                         const convert::LoadOptions& options) {
  const fs::path at = fs::is_directory(folder / "latest") ? folder / "latest" : folder;
  if (fs::exists(at / kAdapterFile)) return read_own(at / kAdapterFile, base);
  if (fs::exists(at / convert::kPeftConfig)) return convert::read_peft(at, base, options);
  fail(ErrorKind::file, folder.string(), "is no adapter; expected a folder with {} or {}",
       convert::kPeftConfig, kAdapterFile);
}

}  // namespace

void write_adapter(const fs::path& folder,
                   const std::vector<model::Overlay>& adapter,
                   const model::ModelSpec& spec) {
  Json scales = Json::object();
  std::vector<TensorView> views;
  for (const model::Overlay& overlay : adapter) {
    scales[overlay.weight] = overlay.scale;
    views.push_back(view_of(overlay.weight + kA, overlay.a));
    views.push_back(view_of(overlay.weight + kB, overlay.b));
  }
  const Json about = {{"spec", model::resolve(spec)}, {"scales", std::move(scales)}};
  format::write_safetensors(folder / kAdapterFile, views, {{kAbout, about.dump()}});
}

std::vector<model::Overlay> read_adapter(const fs::path& folder,
                                         const convert::Checkpoint& base,
                                         const convert::LoadOptions& options) {
  std::vector<model::Overlay> out;
  for (const AdapterTensors& one : read_tensors(folder, base, options))
    out.push_back({one.weight, weight_of(one.a), weight_of(one.b), one.scale});
  return out;
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
  const std::vector<model::Overlay> overlays = read_adapter(adapter, base, options);
  for (const model::Overlay& overlay : overlays) {
    const DType dtype = base.tensor(overlay.weight).dtype;
    if (is_block_type(dtype))
      fail(
          ErrorKind::usage, "convert",
          "{} is stored as {}, and rounding the sum to its blocks makes another model; convert the "
          "model to floats first (tessera convert MODEL --out FLOATS), and merge into those",
          overlay.weight, name_of(dtype));
  }
  const model::Weights weights(weights_of(base));
  with_overlays(model::Model(base.spec, weights), overlays);  // refuses what does not fit
  for (const model::Overlay& overlay : overlays)
    for (TensorView& tensor : base.tensors) {
      if (tensor.name != overlay.weight) continue;
      const ops::Weight sum = ops::Weight::dense(overlay.weight, merged(weights, overlay));
      tensor = view_of(overlay.weight, std::make_shared<const ops::Weight>(
                                           sum.converted(float32 ? DType::f32 : tensor.dtype)));
    }
  return base;
}

}  // namespace tessera::infer
