// Model folders: one file, or shards with an index.
#include <algorithm>
#include <map>
#include <set>

#include "tessera/base/error.h"
#include "tessera/base/mapped_file.h"
#include "tessera/format/file_source.h"
#include "tessera/format/safetensors.h"
#include "tessera/spec/json.h"

namespace tessera::format {
namespace {

namespace fs = std::filesystem;
using spec::Json;

constexpr size_t kMaxIndexBytes = 100'000'000;
constexpr size_t kMaxShards = 4096;

// shard file -> the tensors that the index says it holds
using Shards = std::map<std::string, std::set<std::string, std::less<>>, std::less<>>;

// A plain file name: nothing that could lead out of the folder.
void check_shard_name(std::string_view name, const FileSource& source) {
  const bool plain = name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos &&
                     name.find("..") == std::string_view::npos && printable(name, 4096) == name &&
                     name.size() <= 255;
  if (!plain || !name.ends_with(".safetensors"))
    source.fail("weight_map names {}; expected a plain file name that ends with .safetensors",
                in_quotes(name));
}

Shards read_index(const fs::path& path) {
  const std::string file = path.string();
  const FileSource source{"safetensors", file};
  const std::string text = read_text_file(path, kMaxIndexBytes);
  if (text.find('\0') != std::string::npos) source.fail("zero byte; expected JSON");
  Json index;
  try {
    index = spec::parse_json(text, "index");
  } catch (const Error& error) {
    source.fail("{}", error.what());
  }
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object())
    source.fail("no weight_map; expected an object of tensor names and file names");

  Shards shards;
  for (const auto& [tensor, shard] : index["weight_map"].get_ref<const Json::object_t&>()) {
    if (!shard.is_string())
      source.fail("weight_map: {} is {}; expected a file name", in_quotes(tensor),
                  spec::kind_of(shard));
    const auto& name = shard.get_ref<const std::string&>();
    check_shard_name(name, source);
    shards[name].insert(tensor);
  }
  if (shards.size() > kMaxShards) source.fail("{} shards; at most {}", shards.size(), kMaxShards);
  return shards;
}

void check_shard(const TensorFile& shard, const std::set<std::string, std::less<>>& listed) {
  const FileSource source{"safetensors", shard.file()};
  std::set<std::string_view> held;
  for (const TensorView& tensor : shard.tensors()) held.insert(tensor.name);
  for (const UnsupportedTensor& tensor : shard.unsupported()) held.insert(tensor.name);
  for (const std::string_view name : held)
    if (!listed.contains(name))
      source.fail("holds tensor {}, which the index does not list for this file", in_quotes(name));
  for (const std::string& name : listed)
    if (!held.contains(name))
      source.fail("no tensor {}, which the index lists for this file", in_quotes(name));
}

}  // namespace

TensorFile open_safetensors_folder(const fs::path& folder) {
  const fs::path index = folder / "model.safetensors.index.json";
  const fs::path single = folder / "model.safetensors";
  std::error_code ignored;
  if (!fs::exists(index, ignored)) {
    if (fs::exists(single, ignored)) return open_safetensors(single);
    const std::string name = folder.string();
    FileSource{"safetensors", name}.fail(
        "holds neither model.safetensors.index.json nor model.safetensors");
  }

  std::vector<TensorView> tensors;
  std::vector<UnsupportedTensor> unsupported;
  StringMap metadata;
  for (const auto& [file, listed] : read_index(index)) {
    const TensorFile shard = open_safetensors(folder / file);
    check_shard(shard, listed);
    tensors.insert(tensors.end(), shard.tensors().begin(), shard.tensors().end());
    unsupported.insert(unsupported.end(), shard.unsupported().begin(), shard.unsupported().end());
    metadata.insert(shard.metadata().begin(), shard.metadata().end());
  }
  return TensorFile("safetensors", folder.string(), std::move(tensors), std::move(metadata),
                    std::move(unsupported));
}

}  // namespace tessera::format
