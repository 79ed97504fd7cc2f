#include "tessera/convert/container.h"

#include "tessera/base/mapped_file.h"
#include "tessera/convert/checkpoint_place.h"
#include "tessera/convert/no_model.h"
#include "tessera/convert/params_folder.h"
#include "tessera/convert/peft_file.h"
#include "tessera/format/file_source.h"
#include "tessera/format/ggmf.h"
#include "tessera/format/gguf.h"
#include "tessera/format/is_gguf.h"
#include "tessera/format/llama2c.h"
#include "tessera/format/safetensors.h"
#include "tessera/format/tensor_folder.h"
#include "tessera/format/torch_file.h"

namespace tessera::convert {

namespace fs = std::filesystem;

format::TensorFile open_container(const fs::path& path, std::vector<std::string>* notes) {
  const fs::path place = checkpoint_place(path);
  std::error_code ignored;
  if (fs::is_directory(place, ignored)) {
    if (format::holds_tensor_files(place)) return format::open_tensor_folder(place, notes);
    if (holds_params(place)) return read_params_folder(place).tensors;
    if (fs::exists(place / "adapter_config.json", ignored)) return open_peft_tensors(place);
    if (const fs::path own = place / "adapter.safetensors"; fs::exists(own, ignored))
      return format::open_safetensors(own);
    refuse_folder(place);
  }
  const auto file = MappedFile::open(place);
  const std::string_view text = format::text_of(file->bytes());
  if (format::is_gguf(text)) return format::open_gguf(place).tensors;
  if (text.starts_with("fmgg")) return format::open_ggmf(place).tensors;
  if (format::begins_as_torch(text) || format::begins_as_safetensors(text))
    return format::open_tensor_file(place, notes);
  if (format::begins_as_llama2c(file->bytes())) return format::open_llama2c(place).tensors;
  refuse_file(place, text);
}

}  // namespace tessera::convert
