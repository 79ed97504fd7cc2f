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

constexpr const char* kIndex = "model.safetensors.index.json";
constexpr size_t kMaxIndexBytes = 100'000'000;
constexpr size_t kMaxShards = 4096;

// shard file -> the tensors that the index says it holds
using Notes = std::vector<std::string>;
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

/// The tensors of several shards as those of one file.
class Joined {
 public:
  void add(const TensorFile& shard) {
    for (const TensorView& tensor : shard.tensors())
      if (add_name(shard, tensor.name, tensor.data, tensor.shape)) tensors_.push_back(tensor);
    for (const UnsupportedTensor& tensor : shard.unsupported())
      if (add_name(shard, tensor.name, tensor.data, tensor.shape)) unsupported_.push_back(tensor);
    metadata_.insert(shard.metadata().begin(), shard.metadata().end());
  }

  bool holds(const std::string& name) const { return held_.contains(name); }

  TensorFile file(const fs::path& folder) {
    return TensorFile("safetensors", folder.string(), std::move(tensors_), std::move(metadata_),
                      std::move(unsupported_));
  }

 private:
  struct Held {
    std::string file;
    std::span<const std::byte> data;
    std::vector<int64_t> shape;
  };

  /// False where an earlier shard holds the same tensor; one of another value is refused.
  bool add_name(const TensorFile& shard,
                const std::string& name,
                std::span<const std::byte> data,
                const std::vector<int64_t>& shape) {
    const auto [at, fresh] = held_.try_emplace(name, Held{shard.file(), data, shape});
    if (fresh) return true;
    const Held& earlier = at->second;
    if (earlier.shape != shape || !std::ranges::equal(earlier.data, data))
      FileSource{"safetensors", shard.file()}.fail(
          "holds another tensor {} than {}; expected each tensor in one shard", in_quotes(name),
          earlier.file);
    return false;
  }

  std::map<std::string, Held, std::less<>> held_;
  std::vector<TensorView> tensors_;
  std::vector<UnsupportedTensor> unsupported_;
  StringMap metadata_;
};

/// "a", "b" and 3 more.
std::string some_of(const std::vector<std::string>& names) {
  constexpr size_t kShown = 3;
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kShown); ++i)
    text += (i == 0 ? "" : ", ") + in_quotes(names[i]);
  if (names.size() > kShown) text += fmt::format(" and {} more", names.size() - kShown);
  return text;
}

/// The shards that the index names, whole: it says which files there are, not what they hold.
TensorFile open_shards(const fs::path& folder, const fs::path& index, Notes* notes) {
  const Shards shards = read_index(index);
  Joined joined;
  for (const auto& [file, listed] : shards) {
    std::error_code ignored;
    if (!fs::exists(folder / file, ignored))
      FileSource{"safetensors", (folder / file).string()}.fail(
          "No such file; expected all {} shards that {} names", shards.size(),
          index.filename().string());
    joined.add(open_safetensors(folder / file));
  }
  std::vector<std::string> nowhere;
  for (const auto& [file, listed] : shards)
    for (const std::string& name : listed)
      if (!joined.holds(name)) nowhere.push_back(name);
  if (!nowhere.empty() && notes != nullptr)
    notes->push_back(fmt::format("{}: lists {} tensors that no shard holds: {}", index.string(),
                                 nowhere.size(), some_of(nowhere)));
  return joined.file(folder);
}

}  // namespace

TensorFile open_safetensors_folder(const fs::path& folder, Notes* notes) {
  const fs::path index = folder / kIndex;
  const fs::path single = folder / "model.safetensors";
  std::error_code ignored;
  const bool has_index = fs::exists(index, ignored);
  if (fs::exists(single, ignored)) {
    if (has_index && notes != nullptr)
      notes->push_back(
          fmt::format("{}: is read, as transformers reads it; ignored are {} and the "
                      "shards that it names",
                      single.string(), kIndex));
    return open_safetensors(single);
  }
  if (has_index) return open_shards(folder, index, notes);
  const std::string name = folder.string();
  FileSource{"safetensors", name}.fail("holds neither {} nor model.safetensors", kIndex);
}

}  // namespace tessera::format
