#include <bit>
#include <set>

#include "tessera/base/error.h"
#include "tessera/format/file_source.h"
#include "tessera/format/gguf.h"
#include "tessera/format/gguf_types.h"
#include "tessera/format/is_gguf.h"
#include "tessera/base/output_file.h"

namespace tessera::format {
namespace {

template <class T>
void append(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

void append_string(std::string& out, std::string_view text) {
  append(out, uint64_t{text.size()});
  out += text;
}

const GgmlType& ggml_type(const GgufTensor& tensor) {
  if (const GgmlType* type = ggml_type_of(tensor.dtype)) return *type;
  fail(ErrorKind::usage, "gguf", "tensor {} is {}, which the format cannot hold",
       in_quotes(tensor.name), name_of(tensor.dtype));
}

uint64_t alignment_for(std::span<const GgufEntry> entries) {
  for (const GgufEntry& entry : entries)
    if (entry.key == "general.alignment") {
      const uint64_t alignment = entry.value.type() == GgufType::u32 ? entry.value.as_u64() : 0;
      if (!std::has_single_bit(alignment))
        fail(ErrorKind::usage, "gguf", "general.alignment is {}; expected a u32 power of two",
             entry.value.text());
      return alignment;
    }
  return 32;
}

int64_t bytes_in(const GgufTensor& tensor) {
  return storage_bytes(tensor.dtype, element_count(tensor.shape));
}

void check_writable(std::span<const GgufEntry> entries, std::span<const GgufTensor> tensors) {
  std::set<std::string_view> keys;
  for (const GgufEntry& entry : entries)
    if (entry.key.empty() || entry.key.size() > 65'535 || !keys.insert(entry.key).second)
      fail(ErrorKind::usage, "gguf", "metadata key {} is empty, too long, or appears twice",
           in_quotes(entry.key));
  std::set<std::string_view> names;
  for (const GgufTensor& tensor : tensors) {
    const int32_t block = ggml_type(tensor).block_elements;
    const int64_t row = tensor.shape.empty() ? 1 : tensor.shape.back();
    if (tensor.shape.size() > 4 || row % block != 0)
      fail(ErrorKind::usage, "gguf",
           "tensor {} of shape {}: expected at most 4 axes, rows of a multiple of {}",
           in_quotes(tensor.name), shape_text(tensor.shape), block);
    if (!names.insert(tensor.name).second)
      fail(ErrorKind::usage, "gguf", "tensor name {} appears twice", in_quotes(tensor.name));
  }
}

uint64_t padding(uint64_t size, uint64_t alignment) {
  return (alignment - size % alignment) % alignment;
}

}  // namespace

void write_gguf(const std::filesystem::path& path,
                std::span<const GgufEntry> entries,
                std::span<const TensorView> tensors) {
  std::vector<GgufTensor> heads;
  for (const TensorView& tensor : tensors)
    heads.push_back({tensor.name, tensor.dtype, tensor.shape});
  write_gguf(path, entries, heads, [&](size_t i) { return tensors[i].data; });
}

void write_gguf(const std::filesystem::path& path,
                std::span<const GgufEntry> entries,
                std::span<const GgufTensor> tensors,
                const GgufBytes& bytes_of) {
  check_writable(entries, tensors);
  const uint64_t alignment = alignment_for(entries);

  std::string header(kGgufBegin);
  append(header, uint32_t{3});
  append(header, uint64_t{tensors.size()});
  append(header, uint64_t{entries.size()});
  for (const GgufEntry& entry : entries) {
    append_string(header, entry.key);
    append(header, entry.value.type());
    header += text_of(entry.value.encoded());
  }
  uint64_t offset = 0;
  for (const GgufTensor& tensor : tensors) {
    append_string(header, tensor.name);
    append(header, static_cast<uint32_t>(tensor.shape.size()));
    for (size_t axis = tensor.shape.size(); axis-- > 0;) append(header, tensor.shape[axis]);
    append(header, ggml_type(tensor).number);
    append(header, offset);
    const auto bytes = static_cast<uint64_t>(bytes_in(tensor));
    offset += bytes + padding(bytes, alignment);
  }

  OutputFile file(path);
  file.write(header);
  file.write_zeros(padding(header.size(), alignment));
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto data = bytes_of(i);
    require(std::ssize(data) == bytes_in(tensors[i]), "gguf",
            "tensor {} of shape {} has {} bytes; expected {}", in_quotes(tensors[i].name),
            shape_text(tensors[i].shape), data.size(), bytes_in(tensors[i]));
    file.write(data);
    file.write_zeros(padding(data.size(), alignment));
  }
  file.commit();
}

std::vector<std::filesystem::path> write_gguf_parts(const std::filesystem::path& path,
                                                    std::span<const GgufEntry> entries,
                                                    std::span<const GgufTensor> tensors,
                                                    const GgufBytes& bytes_of,
                                                    int64_t most) {
  check_writable(entries, tensors);
  std::vector<size_t> begins = {0};
  int64_t bytes = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const int64_t more = bytes_in(tensors[i]);
    if (most > 0 && bytes > 0 && more > most - bytes) {
      begins.push_back(i);
      bytes = 0;
    }
    bytes += more;
  }
  const size_t count = begins.size();
  // what entries say of parts is of those that they were read from
  std::vector<GgufEntry> kept(entries.begin(), entries.end());
  std::erase_if(kept, [](const GgufEntry& entry) { return entry.key.starts_with("split."); });
  if (count == 1) {
    write_gguf(path, kept, tensors, bytes_of);
    return {path};
  }
  begins.push_back(tensors.size());
  const std::string name = path.filename().string(), ending = ".gguf";
  const std::string stem =
      name.ends_with(ending) ? name.substr(0, name.size() - ending.size()) : name;
  std::vector<std::filesystem::path> paths;
  for (size_t part = 0; part < count; ++part) {
    std::vector<GgufEntry> own;
    if (part == 0) own = kept;
    own.push_back({"split.no", GgufValue::number(static_cast<uint16_t>(part))});
    own.push_back({"split.count", GgufValue::number(static_cast<uint16_t>(count))});
    own.push_back({"split.tensors.count", GgufValue::number(static_cast<int32_t>(tensors.size()))});
    paths.push_back(path.parent_path() / (stem + gguf_part_suffix(part, count)));
    const size_t first = begins[part];
    write_gguf(paths.back(), own, tensors.subspan(first, begins[part + 1] - first),
               [&](size_t i) { return bytes_of(first + i); });
  }
  return paths;
}

}  // namespace tessera::format
