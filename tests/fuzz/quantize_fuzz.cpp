// A GGUF file of any content as a model to quantise and as importance; what is written is read.
// Scales move between its matrices.
#include "files.h"

#include "tessera/convert/input_scaling.h"

using namespace tessera;

TESSERA_FUZZ_TARGET(quantize) {
  static const fuzz::Folder folder;
  const auto file = folder.put("in.gguf", fuzz::text_of(input));
  fuzz::run([&] { convert::read_importance(file); });
  fuzz::run([&] {
    const convert::GgufModel model = convert::read_gguf_model(file);
    int64_t numbers = 0;
    for (const auto& tensor : model.tensors) numbers += format::element_count(tensor.shape);
    if (numbers > 1 << 16) return;  // of time
    fuzz::run([&] {
      convert::GgufModel scaled = model;
      scaled.architecture = "llama";  // whatever its matrices are
      convert::scale_inputs_by(scaled, [](const std::string&, int64_t k) {
        return std::vector<float>(static_cast<size_t>(k), 2.0F);
      });
    });
    for (const char* recipe : {"Q4_K_M", "Q8_0", "F16"}) {
      convert::QuantizeOptions options;
      options.recipe = recipe;
      options.requantize = true;
      options.part_bytes = 4096;
      fuzz::run([&] {
        const auto report = convert::write_quantized(model, folder.path() / "out.gguf", options);
        const format::GgufFile out = format::open_gguf(report.files.front());
        fuzz::check(out.tensors.tensors().size() == model.tensors.size(),
                    "every tensor is written");
        for (const auto& tensor : model.tensors) {
          const auto* written = out.tensors.find(tensor.name);
          fuzz::check(written != nullptr && written->shape == tensor.shape, "as it was");
        }
        for (const auto& path : report.files) std::filesystem::remove(path);
      });
    }
  });
}
