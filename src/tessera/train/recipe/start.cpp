#include "tessera/train/recipe/start.h"

#include "tessera/base/mapped_file.h"
#include "tessera/convert/checkpoint.h"
#include "tessera/convert/checkpoint_place.h"
#include "tessera/convert/tokenizer.h"
#include "tessera/format/file_source.h"
#include "tessera/format/gguf.h"
#include "tessera/format/is_gguf.h"
#include "tessera/format/safetensors.h"
#include "tessera/train/recipe/recipe.h"

namespace tessera::train {

namespace fs = std::filesystem;

convert::Checkpoint load_without_keys(const std::string& from,
                                      const std::vector<std::string>& ignore_keys) {
  convert::LoadOptions options;
  options.keys.ignore = ignore_keys;
  return convert::load_checkpoint(from, options);
}

convert::Checkpoint load_start(const InitRecipe& init) {
  return load_without_keys(init.from, init.ignore_keys);
}

std::string start_of_run(const fs::path& model) {
  const fs::path recipe =
      convert::checkpoint_place(model).lexically_normal().parent_path() / "recipe.json";
  if (!fs::is_regular_file(recipe)) return "";
  const spec::Json json = spec::read_json_file(recipe);
  const spec::Json from = json.value(spec::Json::json_pointer("/init/from"), spec::Json());
  return from.is_string() ? from.get<std::string>() : "";
}

std::string tokenizer_of_start(const fs::path& from) {
  const fs::path model = convert::model_folder(from);
  const auto missing = [&](const std::string& reason) {
    fail(ErrorKind::spec, "data.tokenizer",
         "missing, and {} {}: expected \"bytes\", or the path of its tokenizer", model.string(),
         reason);
  };
  if (!fs::is_directory(model)) {
    if (!format::is_gguf(model)) missing("is a file without one");
    format::open_gguf(model);  // refuses a truncated file before the folder is created
    return model.string();
  }
  if (convert::named_tokenizer(model) == "bytes") return "bytes";
  if (!convert::holds_tokenizer(model)) missing("holds none");
  return model.string();
}

}  // namespace tessera::train
