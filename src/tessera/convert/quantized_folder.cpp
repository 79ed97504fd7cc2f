#include "tessera/convert/quantized_folder.h"

#include "tessera/convert/quantized_matrix.h"

namespace tessera::convert {

using format::TensorView;
using spec::Json;

std::optional<QuantizedFolder> read_quantized_folder(Json& config,
                                                     const std::string& where,
                                                     const format::TensorFile& file) {
  const char* key =
      config.contains("quantization_config") ? "quantization_config" : "compression_config";
  if (!config.contains(key) || config[key].is_null()) return std::nullopt;
  const QuantizerConfig settings(config[key], fmt::format("{}, {}", where, key));
  const std::string method = settings.text("quant_method", "");
  if (method == "mxfp4" || method == "bitnet") return std::nullopt;  // the family has the place
  RawTensors raws(file);
  QuantizedFolder folder;
  std::vector<QuantizedMatrix> matrices;
  if (method == "awq") {
    matrices = awq_matrices(settings, raws);
  } else if (method == "gptq") {
    matrices = gptq_matrices(settings, raws);
  } else if (method == "compressed-tensors") {
    matrices = compressed_matrices(settings, raws, folder.remarks);
  } else if (method == "fp8") {
    matrices = fp8_matrices(settings, raws, folder.remarks);
  } else {
    fail(
        ErrorKind::file, settings.where(),
        "quant_method = {} is not supported; expected awq, bitnet, gptq, compressed-tensors or fp8",
        format::in_quotes(method));
  }
  if (matrices.empty())
    fail(ErrorKind::file, file.file(), "has no weight in the format {} that its config names",
         method);
  std::vector<TensorView> tensors;
  for (const TensorView& tensor : file.tensors())
    if (!raws.used().contains(tensor.name)) tensors.push_back(tensor);
  for (TensorView& tensor : stored(matrices, file.file(), folder.remarks)) {
    folder.packed.insert(tensor.name);
    tensors.push_back(std::move(tensor));
  }
  std::vector<format::UnsupportedTensor> unsupported;
  for (const format::UnsupportedTensor& tensor : file.unsupported())
    if (!raws.used().contains(tensor.name)) unsupported.push_back(tensor);
  folder.tensors = format::TensorFile("safetensors", file.file(), std::move(tensors),
                                      file.metadata(), std::move(unsupported));
  config.erase(key);
  return folder;
}

}  // namespace tessera::convert
