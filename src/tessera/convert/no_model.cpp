#include "tessera/convert/no_model.h"

#include <algorithm>
#include <string>
#include <vector>

#include <fmt/ranges.h>

#include "tessera/base/error.h"
#include "tessera/format/file_source.h"
#include "tessera/format/tensor_folder.h"
#include "tessera/format/torch_file.h"

namespace tessera::convert {
namespace {

namespace fs = std::filesystem;
using format::in_quotes;

constexpr const char* kTorch =
    "weights of PyTorch under another name; expected pytorch_model.bin, or the path of that file, "
    "with config.json next to it";

/// What names of files in a folder say of it, the most telling first.
struct Clue {
  std::vector<std::string_view> endings;
  const char* what;
};

const Clue kClues[] = {
    {{".partial", ".incomplete", ".part", ".crdownload", ".aria2", ".tmp"},
     "an incomplete file of a download or a conversion that did not end; expected "
     "model.safetensors, or all shards of its index: download the rest, or convert again"},
    {{".gguf"}, "a GGUF file; expected the path of that file instead of the folder's"},
    {{"adapter_model.safetensors", "adapter_model.bin"},
     "an adapter; expected the model that it was trained on, and this folder as --adapter"},
    {{".safetensors"},
     "weights under another name; expected model.safetensors, or shards with "
     "model.safetensors.index.json"},
    {{".bin", ".pt", ".pth", ".ckpt", ".pkl"}, kTorch},
    {{".h5", ".msgpack", ".onnx", ".ot", ".tflite", ".npz"},
     "weights of another library; expected safetensors: load them with transformers and write them "
     "with save_pretrained()"}};

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored))
    if (!entry.is_directory(ignored)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

bool ends_with_any(std::string_view name, const std::vector<std::string_view>& endings) {
  return std::any_of(endings.begin(), endings.end(),
                     [&](std::string_view ending) { return name.ends_with(ending); });
}

}  // namespace

void refuse_folder(const fs::path& folder) {
  const std::string where = folder.string();
  std::error_code ignored;
  for (const char* adapter : {"adapter_config.json", "adapter.safetensors"})
    if (fs::exists(folder / adapter, ignored))
      fail(ErrorKind::file, where,
           "is an adapter; expected the model that it was trained on, and this as --adapter");
  const std::vector<std::string> names = names_in(folder);
  std::vector<std::string> files;
  for (const std::string& name : names)
    if (name.ends_with(".gguf")) files.push_back(in_quotes(name));
  constexpr std::ptrdiff_t kShown = 8;
  if (files.size() > 1)
    fail(ErrorKind::file, where, "holds {} GGUF files; expected the path of one: {}{}",
         files.size(),
         fmt::join(files.begin(), files.begin() + std::min(kShown, std::ssize(files)), ", "),
         std::ssize(files) > kShown ? ", ..." : "");
  for (const Clue& clue : kClues)
    for (const std::string& name : names)
      if (ends_with_any(name, clue.endings))
        fail(ErrorKind::file, where, "is no model that tessera reads: it holds {}, {}",
             in_quotes(name), clue.what);
  if (std::find(names.begin(), names.end(), "config.json") != names.end())
    fail(ErrorKind::file, where,
         "has config.json and no weights; expected model.safetensors or pytorch_model.bin, or "
         "shards "
         "with an index (tessera plan reads config.json alone)");
  fail(ErrorKind::file, where,
       "is no model: it has no config.json, and no model.safetensors with a tessera spec");
}

void refuse_without_spec(const fs::path& folder) {
  std::error_code ignored;
  const fs::path spec = folder / "spec.json";
  fail(ErrorKind::file, folder.string(),
       "model.safetensors has no \"tessera_spec\" in its metadata, as a file rewritten by another "
       "tool, and there is no config.json; --spec {} reads it",
       fs::exists(spec, ignored) ? spec.string() : "FILE (the spec of the model)");
}

void refuse_file(const fs::path& path, std::string_view text) {
  const char* found =
      "is no model that tessera reads; expected a folder with a config.json, a GGUF "
      "file, or one of rwkv.cpp or llama2.c";
  if (format::begins_as_safetensors(text))
    found =
        "begins as a safetensors file; expected config.json in its folder, or --spec FILE for "
        "tensors under tessera's names";
  else if (format::is_lfs_pointer(text))
    found = format::kLfsPointer;
  else if (format::begins_as_torch(text))
    found = "begins as a file of torch.save; expected config.json in its folder";
  else if (text.starts_with('{'))
    found = "is JSON; expected the folder that holds the checkpoint";
  else if (text.starts_with("<!") || text.starts_with("<html"))
    found = "is a web page; expected the file that it links to";
  else if (text.empty())
    found = "is empty; expected a model";
  fail(ErrorKind::file, path.string(), "{}", found);
}

void refuse_second_spec(const fs::path& spec, const fs::path& model) {
  if (!spec.empty())
    fail(ErrorKind::usage, "--spec", "{} has a spec of its own; leave out --spec", model.string());
}

}  // namespace tessera::convert
