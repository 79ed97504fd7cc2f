#include "tessera/train/start.h"

#include "tessera/convert/checkpoint.h"
#include "tessera/convert/tokenizer.h"
#include "tessera/format/safetensors.h"

namespace tessera::train {

namespace fs = std::filesystem;

fs::path start_of(const fs::path& from) {
  const fs::path newest = from / "latest";
  return fs::is_directory(newest) && !fs::exists(from / "model.safetensors") ? newest : from;
}

std::string tokenizer_of_start(const fs::path& model) {
  const auto missing = [&](const std::string& reason) {
    fail(ErrorKind::spec, "data.tokenizer",
         "missing, and {} {}: expected \"bytes\", or the path of its tokenizer", model.string(),
         reason);
  };
  if (!fs::is_directory(model)) {
    if (convert::load_checkpoint(model).gguf == nullptr) missing("is a file without one");
    return model.string();
  }
  if (const fs::path weights = model / "model.safetensors"; fs::exists(weights)) {
    const format::TensorFile file = format::open_safetensors(weights);
    const auto named = file.metadata().find("tessera_tokenizer");
    if (named != file.metadata().end() && named->second == "bytes") return "bytes";
  }
  if (!convert::holds_tokenizer(model)) missing("holds none");
  return model.string();
}

}  // namespace tessera::train
