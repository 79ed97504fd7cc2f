#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "tessera/base/error.h"
#include "tessera/format/file_source.h"
#include "tessera/base/output_file.h"
#include "tessera/format/safetensors.h"
#include "tessera/format/safetensors_types.h"
#include "tessera/spec/json.h"

namespace tessera::format {
namespace {

namespace fs = std::filesystem;
using spec::Json;
using Views = std::vector<const TensorView*>;

constexpr size_t kSafetensorsHeaderAlignment = 8;

// Position in the table, which is also the order of writing.
size_t type_index(const TensorView& tensor) {
  for (size_t i = 0; i < kSafetensorsTypes.size(); ++i)
    if (kSafetensorsTypes[i].dtype == tensor.dtype) return i;
  fail(ErrorKind::usage, "safetensors", "tensor {} is {}, which the format cannot hold",
       in_quotes(tensor.name), name_of(tensor.dtype));
}

void check_writable(std::span<const TensorView> tensors) {
  std::set<std::string_view> names;
  for (const TensorView& tensor : tensors) {
    type_index(tensor);
    const int64_t bytes = storage_bytes(tensor.dtype, element_count(tensor.shape));
    require(static_cast<size_t>(bytes) == tensor.data.size(), "safetensors",
            "tensor {} of shape {} has {} bytes; expected {}", in_quotes(tensor.name),
            shape_text(tensor.shape), tensor.data.size(), bytes);
    if (tensor.name == "__metadata__" || !names.insert(tensor.name).second)
      fail(ErrorKind::usage, "safetensors", "tensor name {} is reserved or appears twice",
           in_quotes(tensor.name));
  }
}

std::string dump(const Json& json, std::string_view what) {
  try {
    return json.dump();
  } catch (const Json::exception&) {
    fail(ErrorKind::usage, "safetensors", "{} holds text that is not UTF-8", what);
  }
}

// Wide types first, then by name: every tensor is then aligned to its element.
void sort_for_writing(Views& tensors) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorView* a, const TensorView* b) {
    return std::make_tuple(type_index(*b), std::string_view(a->name)) <
           std::make_tuple(type_index(*a), std::string_view(b->name));
  });
}

// Sorted tensors -> header, padded so that the data begins at a multiple of 8.
std::string make_header(const Views& tensors, const StringMap& metadata) {
  Json::object_t header;
  const auto append = [&](std::string key, Json value) {  // without ordered_json's linear look-up
    static_cast<Json::object_t::Container&>(header).emplace_back(std::move(key), std::move(value));
  };
  if (!metadata.empty()) append("__metadata__", Json(metadata));
  size_t offset = 0;
  for (const TensorView* tensor : tensors) {
    const size_t end = offset + tensor->data.size();
    append(tensor->name, Json{{"dtype", kSafetensorsTypes[type_index(*tensor)].name},
                              {"shape", tensor->shape},
                              {"data_offsets", {offset, end}}});
    offset = end;
  }
  std::string text = dump(Json(std::move(header)), "a tensor name or metadata");
  text.resize((text.size() + kSafetensorsHeaderAlignment - 1) / kSafetensorsHeaderAlignment *
                  kSafetensorsHeaderAlignment,
              ' ');
  return text;
}

// Everything on disk under its temporary name; the caller commits.
OutputFile write_unrenamed(const fs::path& path, Views tensors, const StringMap& metadata) {
  sort_for_writing(tensors);
  const std::string header = make_header(tensors, metadata);
  const uint64_t header_bytes = header.size();
  OutputFile file(path);
  file.write(std::as_bytes(std::span(&header_bytes, 1)));
  file.write(header);
  for (const TensorView* tensor : tensors) file.write(tensor->data);
  file.finish();
  return file;
}

// Fills shards in the given order; a tensor larger than a shard gets its own.
std::vector<Views> split(std::span<const TensorView> tensors, int64_t max_shard_bytes) {
  std::vector<Views> shards(1);
  uint64_t used = 0;
  for (const TensorView& tensor : tensors) {
    if (!shards.back().empty() &&
        used + tensor.data.size() > static_cast<uint64_t>(max_shard_bytes)) {
      shards.emplace_back();
      used = 0;
    }
    shards.back().push_back(&tensor);
    used += tensor.data.size();
  }
  return shards;
}

std::string make_index(const std::vector<Views>& shards, const std::vector<fs::path>& files) {
  uint64_t total = 0;
  std::map<std::string, std::string> weight_map;
  for (size_t i = 0; i < shards.size(); ++i)
    for (const TensorView* tensor : shards[i]) {
      total += tensor->data.size();
      weight_map[tensor->name] = files[i].filename().string();
    }
  const Json index = {{"metadata", {{"total_size", total}}}, {"weight_map", weight_map}};
  return index.dump(2) + "\n";
}

}  // namespace

void write_safetensors(const fs::path& path,
                       std::span<const TensorView> tensors,
                       const StringMap& metadata) {
  check_writable(tensors);
  Views views;
  for (const TensorView& tensor : tensors) views.push_back(&tensor);
  write_unrenamed(path, std::move(views), metadata).commit();
}

std::vector<fs::path> write_safetensors_folder(const fs::path& folder,
                                               std::span<const TensorView> tensors,
                                               const StringMap& metadata,
                                               int64_t max_shard_bytes) {
  if (max_shard_bytes < 1)
    fail(ErrorKind::usage, "safetensors", "shards of {} bytes; expected at least 1",
         max_shard_bytes);
  check_writable(tensors);
  const fs::path single = folder / "model.safetensors";
  const fs::path index = folder / "model.safetensors.index.json";
  const std::vector<Views> shards = split(tensors, max_shard_bytes);
  if (shards.size() == 1) {
    write_safetensors(single, tensors, metadata);
    fs::remove(index);
    return {single};
  }

  // all bytes to disk first, then all names
  std::vector<fs::path> files;
  std::vector<OutputFile> pending;
  for (size_t i = 0; i < shards.size(); ++i) {
    files.push_back(folder / fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size()));
    pending.push_back(write_unrenamed(files.back(), shards[i], metadata));
  }
  files.push_back(index);
  pending.emplace_back(index).write(make_index(shards, files));
  pending.back().finish();
  for (OutputFile& file : pending) file.commit();
  fs::remove(single);
  return files;
}

}  // namespace tessera::format
