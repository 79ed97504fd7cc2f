#include "tessera/format/tensor_folder.h"

#include <algorithm>
#include <map>
#include <set>

#include "tessera/base/error.h"
#include "tessera/base/mapped_file.h"
#include "tessera/format/file_source.h"
#include "tessera/format/safetensors.h"
#include "tessera/format/torch_file.h"
#include "tessera/spec/json.h"

namespace tessera::format {
namespace {

namespace fs = std::filesystem;
using spec::Json;

constexpr size_t kMaxIndexBytes = 100'000'000;
constexpr size_t kMaxShards = 4096;

// shard file -> its tensors by the index
using Notes = std::vector<std::string>;
using Shards = std::map<std::string, std::set<std::string, std::less<>>, std::less<>>;

/// How one format is laid out in a folder.
struct FolderForm {
  std::string_view format;  // in messages
  const char *single, *index;
  std::string_view ending;  // of shards
  TensorFile (*open)(const fs::path& path, Notes* notes);
};
constexpr FolderForm kSafetensorsForm = {
    "safetensors", "model.safetensors", "model.safetensors.index.json", ".safetensors",
    [](const fs::path& path, Notes* /*notes*/) { return open_safetensors(path); }};
constexpr FolderForm kTorchForm = {"torch", "pytorch_model.bin", "pytorch_model.bin.index.json",
                                   ".bin", open_torch_file};

// A plain file name: nothing that could lead out of the folder.
void check_shard_name(std::string_view name, const FolderForm& form, const FileSource& source) {
  const bool plain = name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos &&
                     name.find("..") == std::string_view::npos && printable(name, 4096) == name &&
                     name.size() <= 255;
  if (!plain || !name.ends_with(form.ending))
    source.fail("weight_map names {}; expected a plain file name that ends with {}",
                in_quotes(name), form.ending);
}

Shards read_index(const fs::path& path, const FolderForm& form) {
  const std::string file = path.string();
  const FileSource source{form.format, file};
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
    check_shard_name(name, form, source);
    shards[name].insert(tensor);
  }
  if (shards.size() > kMaxShards) source.fail("{} shards; at most {}", shards.size(), kMaxShards);
  return shards;
}

/// The tensors of several shards as those of one file.
class Joined {
 public:
  explicit Joined(std::string_view format) : format_(format) {}

  void add(const TensorFile& shard) {
    for (const TensorView& tensor : shard.tensors())
      if (add_name(shard, tensor.name, tensor.data, tensor.shape)) tensors_.push_back(tensor);
    for (const UnsupportedTensor& tensor : shard.unsupported())
      if (add_name(shard, tensor.name, tensor.data, tensor.shape)) unsupported_.push_back(tensor);
    metadata_.insert(shard.metadata().begin(), shard.metadata().end());
  }

  bool holds(const std::string& name) const { return held_.contains(name); }

  TensorFile file(const fs::path& folder) {
    return TensorFile(std::string(format_), folder.string(), std::move(tensors_),
                      std::move(metadata_), std::move(unsupported_));
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
      FileSource{format_, shard.file()}.fail(
          "holds another tensor {} than {}; expected each tensor in one shard", in_quotes(name),
          earlier.file);
    return false;
  }

  std::string_view format_;
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

/// The shards that the index names, whole: it lists the files, not their contents.
TensorFile open_shards(const fs::path& folder, const FolderForm& form, Notes* notes) {
  const fs::path index = folder / form.index;
  const Shards shards = read_index(index, form);
  Joined joined(form.format);
  for (const auto& [file, listed] : shards) {
    std::error_code ignored;
    if (!fs::exists(folder / file, ignored))
      FileSource{form.format, (folder / file).string()}.fail(
          "No such file; expected all {} shards that {} names", shards.size(),
          index.filename().string());
    joined.add(form.open(folder / file, notes));
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

bool holds_form(const fs::path& folder, const FolderForm& form) {
  std::error_code ignored;
  return fs::exists(folder / form.single, ignored) || fs::exists(folder / form.index, ignored);
}

TensorFile open_form(const fs::path& folder, const FolderForm& form, Notes* notes) {
  const fs::path single = folder / form.single;
  std::error_code ignored;
  const bool has_index = fs::exists(folder / form.index, ignored);
  if (fs::exists(single, ignored)) {
    if (has_index && notes != nullptr)
      notes->push_back(
          fmt::format("{}: is read, as transformers reads it; ignored are {} and the "
                      "shards that it names",
                      single.string(), form.index));
    return form.open(single, notes);
  }
  if (has_index) return open_shards(folder, form, notes);
  const std::string name = folder.string();
  FileSource{form.format, name}.fail("holds neither {} nor {}", form.index, form.single);
}

}  // namespace

TensorFile open_safetensors_folder(const fs::path& folder, Notes* notes) {
  return open_form(folder, kSafetensorsForm, notes);
}

bool holds_tensor_files(const fs::path& folder) {
  return holds_form(folder, kSafetensorsForm) || holds_form(folder, kTorchForm);
}

TensorFile open_tensor_folder(const fs::path& folder, Notes* notes) {
  const bool torch = !holds_form(folder, kSafetensorsForm) && holds_form(folder, kTorchForm);
  return open_form(folder, torch ? kTorchForm : kSafetensorsForm, notes);
}

bool begins_as_safetensors(std::string_view text) {
  constexpr size_t kLength = 8;  // of what precedes the JSON header
  return text.size() > kLength && text[kLength] == '{';
}

TensorFile open_tensor_file(const fs::path& path, Notes* notes) {
  const auto file = MappedFile::open(path);
  if (begins_as_torch(text_of(file->bytes()))) return open_torch_file(path, notes);
  return open_safetensors(path);
}

}  // namespace tessera::format
