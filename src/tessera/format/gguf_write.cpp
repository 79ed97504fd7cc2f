#include <bit>
#include <set>

#include "tessera/base/error.h"
#include "tessera/format/file_source.h"
#include "tessera/format/gguf.h"
#include "tessera/format/gguf_types.h"
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

const GgmlType& ggml_type(const TensorView& tensor) {
  for (const GgmlType& type : kGgmlTypes)
    if (type.dtype == tensor.dtype) return type;
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

void check_writable(std::span<const GgufEntry> entries, std::span<const TensorView> tensors) {
  std::set<std::string_view> keys;
  for (const GgufEntry& entry : entries)
    if (entry.key.empty() || entry.key.size() > 65'535 || !keys.insert(entry.key).second)
      fail(ErrorKind::usage, "gguf", "metadata key {} is empty, too long, or appears twice",
           in_quotes(entry.key));
  std::set<std::string_view> names;
  for (const TensorView& tensor : tensors) {
    const int32_t block = ggml_type(tensor).block_elements;
    const int64_t row = tensor.shape.empty() ? 1 : tensor.shape.back();
    if (tensor.shape.size() > 4 || row % block != 0)
      fail(ErrorKind::usage, "gguf",
           "tensor {} of shape {}: expected at most 4 axes, rows of a multiple of {}",
           in_quotes(tensor.name), shape_text(tensor.shape), block);
    const int64_t bytes = storage_bytes(tensor.dtype, element_count(tensor.shape));
    require(static_cast<size_t>(bytes) == tensor.data.size(), "gguf",
            "tensor {} of shape {} has {} bytes; expected {}", in_quotes(tensor.name),
            shape_text(tensor.shape), tensor.data.size(), bytes);
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
  check_writable(entries, tensors);
  const uint64_t alignment = alignment_for(entries);

  std::string header = "GGUF";
  append(header, uint32_t{3});
  append(header, uint64_t{tensors.size()});
  append(header, uint64_t{entries.size()});
  for (const GgufEntry& entry : entries) {
    append_string(header, entry.key);
    append(header, entry.value.type());
    header += text_of(entry.value.encoded());
  }
  uint64_t offset = 0;
  for (const TensorView& tensor : tensors) {
    append_string(header, tensor.name);
    append(header, static_cast<uint32_t>(tensor.shape.size()));
    for (size_t axis = tensor.shape.size(); axis-- > 0;) append(header, tensor.shape[axis]);
    append(header, ggml_type(tensor).number);
    append(header, offset);
    offset += tensor.data.size() + padding(tensor.data.size(), alignment);
  }

  OutputFile file(path);
  file.write(header);
  file.write_zeros(padding(header.size(), alignment));
  for (const TensorView& tensor : tensors) {
    file.write(tensor.data);
    file.write_zeros(padding(tensor.data.size(), alignment));
  }
  file.commit();
}

}  // namespace tessera::format
