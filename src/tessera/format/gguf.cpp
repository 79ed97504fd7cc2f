#include "tessera/format/gguf.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include "tessera/base/mapped_file.h"
#include "tessera/format/file_source.h"
#include "tessera/format/gguf_types.h"

namespace tessera::format {
namespace {

constexpr uint32_t kGgufMagic = 0x46554747;  // "GGUF"
constexpr uint64_t kMaxEntries = 65'536;
constexpr uint64_t kGgufMaxTensors = 262'144;
constexpr uint64_t kMaxKeyBytes = 65'535;
constexpr uint64_t kGgufMaxNameBytes = 1'024;
constexpr uint32_t kGgufMaxRank = 4;
constexpr int kMaxArrayDepth = 4;
constexpr uint32_t kMaxAlignment = 1u << 24;

std::string_view take_string(ByteReader& reader, uint64_t max_bytes, std::string_view what) {
  const size_t at = reader.position();
  const auto length = reader.read<uint64_t>(what);
  if (length > max_bytes)
    reader.source().fail("byte {}: {} of {} bytes; at most {}", at, what, length, max_bytes);
  return text_of(reader.take(length, what));
}

GgufType take_type(ByteReader& reader, std::string_view what) {
  const size_t at = reader.position();
  const auto number = reader.read<uint32_t>(what);
  if (number > static_cast<uint32_t>(GgufType::f64))
    reader.source().fail("byte {}: {} is {}; expected 0 to 12", at, what, number);
  return static_cast<GgufType>(number);
}

// Bytes of one value at least, which bounds how many can follow.
uint64_t minimum_size(GgufType type) {
  if (type == GgufType::string) return sizeof(uint64_t);                    // its length
  if (type == GgufType::array) return sizeof(uint32_t) + sizeof(uint64_t);  // element type, count
  return gguf_number_size(type);
}

// Of the bytes just taken.
void check_bools(std::span<const std::byte> bytes, const ByteReader& reader) {
  const auto bad =
      std::find_if(bytes.begin(), bytes.end(), [](std::byte b) { return b > std::byte{1}; });
  if (bad != bytes.end())
    reader.source().fail("byte {}: a boolean of value {}; expected 0 or 1",
                         reader.position() - static_cast<size_t>(bytes.end() - bad),
                         std::to_integer<int>(*bad));
}

// Moves past one value and checks it whole.
void pass_value(ByteReader& reader, GgufType type, int depth) {
  constexpr uint64_t kNoLimit = std::numeric_limits<uint64_t>::max();
  if (type == GgufType::string) {
    take_string(reader, kNoLimit, "a metadata string");
    return;
  }
  if (type != GgufType::array) {
    const auto bytes = reader.take(minimum_size(type), "a metadata value");
    if (type == GgufType::boolean) check_bools(bytes, reader);
    return;
  }

  if (depth == kMaxArrayDepth)
    reader.source().fail("byte {}: arrays nested deeper than {}", reader.position(),
                         kMaxArrayDepth);
  const GgufType element = take_type(reader, "the element type of a metadata array");
  const size_t at = reader.position();
  const auto count = reader.read<uint64_t>("the length of a metadata array");
  if (count > reader.remaining() / minimum_size(element))
    reader.source().fail("byte {}: an array of {} x {}; the file has {} bytes left", at, count,
                         name_of(element), reader.remaining());
  if (element == GgufType::string || element == GgufType::array) {
    for (uint64_t i = 0; i < count; ++i) pass_value(reader, element, depth + 1);
  } else {
    const auto bytes = reader.take(count * minimum_size(element), "a metadata array");
    if (element == GgufType::boolean) check_bools(bytes, reader);
  }
}

uint64_t take_count(ByteReader& reader,
                    uint64_t limit,
                    uint64_t minimum_bytes,
                    std::string_view what) {
  const size_t at = reader.position();
  const auto count = reader.read<uint64_t>(what);
  if (count > limit) reader.source().fail("byte {}: {} is {}; at most {}", at, what, count, limit);
  if (count > reader.remaining() / minimum_bytes)
    reader.source().fail("byte {}: {} is {}; the file has {} bytes left", at, what, count,
                         reader.remaining());
  return count;
}

uint32_t take_version(ByteReader& reader) {
  const auto& source = reader.source();
  if (reader.read<uint32_t>("the magic") != kGgufMagic) source.fail("does not begin with \"GGUF\"");
  const auto version = reader.read<uint32_t>("the version");
  if (version != 0 && (version & 0xffffu) == 0)
    source.fail("version {:#010x}: a big-endian file; expected little-endian", version);
  if (version != 2 && version != 3) source.fail("version {}; expected 2 or 3", version);
  return version;
}

std::vector<GgufEntry> take_metadata(ByteReader& reader,
                                     uint64_t count,
                                     const std::shared_ptr<const void>& owner) {
  std::vector<GgufEntry> entries;
  entries.reserve(count);
  for (uint64_t i = 0; i < count; ++i) {
    std::string key(take_string(reader, kMaxKeyBytes, "a metadata key"));
    const GgufType type = take_type(reader, "the type of a metadata value");
    const size_t begin = reader.position();
    pass_value(reader, type, 0);
    entries.push_back(
        {std::move(key),
         GgufValue(type, reader.bytes().subspan(begin, reader.position() - begin), owner)});
  }
  return entries;
}

uint32_t alignment_of(const GgufMetadata& metadata, const FileSource& source) {
  const GgufValue* value = metadata.find("general.alignment");
  if (value == nullptr) return 32;
  const bool is_u32 = value->type() == GgufType::u32;
  const uint64_t alignment = is_u32 ? value->as_u64() : 0;
  if (!std::has_single_bit(alignment) || alignment > kMaxAlignment)
    source.fail("general.alignment is {} ({}); expected a u32 power of two up to {}", value->text(),
                name_of(value->type()), kMaxAlignment);
  return static_cast<uint32_t>(alignment);
}

struct GgufTensorInfo {
  std::string name;
  const GgmlType* type = nullptr;
  std::vector<int64_t> shape;
  uint64_t offset = 0;  // after the start of the data
  int64_t bytes = 0;
};

const GgmlType& type_numbered(uint32_t number,
                              const std::string& tensor,
                              const FileSource& source) {
  for (const GgmlType& type : kGgmlTypes)
    if (type.number == number) return type;
  source.fail("tensor {} has ggml type {}, which is unknown", in_quotes(tensor), number);
}

int64_t byte_size(const GgufTensorInfo& info, const FileSource& source) {
  const int64_t row = info.shape.empty() ? 1 : info.shape.back();
  if (row % info.type->block_elements != 0)
    source.fail("tensor {}: rows of {} elements of type {}; expected a multiple of {}",
                in_quotes(info.name), row, info.type->name, info.type->block_elements);
  const auto bytes = storage_bytes_of(*info.type, info.shape);
  if (!bytes)
    source.fail("tensor {}: the size of shape {} overflows 64 bits", in_quotes(info.name),
                shape_text(info.shape));
  return *bytes;
}

GgufTensorInfo take_gguf_tensor(ByteReader& reader) {
  const FileSource& source = reader.source();
  GgufTensorInfo info;
  info.name = take_string(reader, kGgufMaxNameBytes, "a tensor name");
  const auto rank = reader.read<uint32_t>("the number of axes of a tensor");
  if (rank > kGgufMaxRank)
    source.fail("tensor {}: {} axes; at most {}", in_quotes(info.name), rank, kGgufMaxRank);
  for (uint32_t axis = 0; axis < rank; ++axis) {
    const auto size = reader.read<uint64_t>("the shape of a tensor");
    if (!std::in_range<int64_t>(size))
      source.fail("tensor {}: an axis of {} elements; expected less than 2^63",
                  in_quotes(info.name), size);
    info.shape.push_back(static_cast<int64_t>(size));
  }
  std::reverse(info.shape.begin(), info.shape.end());  // the file has the fastest axis first
  info.type = &type_numbered(reader.read<uint32_t>("the type of a tensor"), info.name, source);
  info.offset = reader.read<uint64_t>("the offset of a tensor");
  info.bytes = byte_size(info, source);
  return info;
}

void check_extents(const std::vector<GgufTensorInfo>& infos,
                   uint64_t alignment,
                   uint64_t data_size,
                   const FileSource& source) {
  for (const GgufTensorInfo& info : infos) {
    if (info.offset % alignment != 0)
      source.fail("tensor {}: offset {} is not a multiple of the alignment {}",
                  in_quotes(info.name), info.offset, alignment);
    if (info.offset > data_size || static_cast<uint64_t>(info.bytes) > data_size - info.offset)
      source.fail("tensor {}: {} bytes at offset {} of the data; the file holds {}",
                  in_quotes(info.name), info.bytes, info.offset, data_size);
  }
  // neighbours in the file; empty tensors overlap nothing
  std::vector<const GgufTensorInfo*> order;
  for (const GgufTensorInfo& info : infos)
    if (info.bytes > 0) order.push_back(&info);
  std::sort(order.begin(), order.end(),
            [](const GgufTensorInfo* a, const GgufTensorInfo* b) { return a->offset < b->offset; });
  for (size_t i = 1; i < order.size(); ++i)
    if (order[i]->offset - order[i - 1]->offset < static_cast<uint64_t>(order[i - 1]->bytes))
      source.fail("tensors {} and {} overlap", in_quotes(order[i - 1]->name),
                  in_quotes(order[i]->name));
}

}  // namespace

GgufFile read_gguf(std::span<const std::byte> bytes,
                   std::string_view file,
                   std::shared_ptr<const void> owner) {
  const FileSource source{"gguf", file};
  ByteReader reader(bytes, source);

  // header: name length, axes, type, offset of a tensor are 24 bytes; key length, type, value 13
  GgufFile result;
  result.version = take_version(reader);
  const uint64_t tensor_count = take_count(reader, kGgufMaxTensors, 24, "the number of tensors");
  const uint64_t entry_count =
      take_count(reader, kMaxEntries, 13, "the number of metadata entries");
  result.metadata = GgufMetadata(std::string(file), take_metadata(reader, entry_count, owner));
  std::vector<GgufTensorInfo> infos;
  for (uint64_t i = 0; i < tensor_count; ++i) infos.push_back(take_gguf_tensor(reader));

  // data, from the next multiple of the alignment
  const uint64_t alignment = alignment_of(result.metadata, source);
  result.alignment = static_cast<int64_t>(alignment);
  const uint64_t begin = (reader.position() + alignment - 1) / alignment * alignment;
  const auto data = bytes.subspan(std::min<uint64_t>(begin, bytes.size()));
  check_extents(infos, alignment, data.size(), source);

  std::vector<TensorView> tensors;
  std::vector<UnsupportedTensor> unsupported;
  for (GgufTensorInfo& info : infos) {
    const auto extent = data.subspan(info.offset, static_cast<size_t>(info.bytes));
    if (info.type->dtype)
      tensors.push_back(
          {std::move(info.name), *info.type->dtype, std::move(info.shape), extent, owner});
    else
      unsupported.push_back({std::move(info.name),
                             fmt::format("{} (ggml type {})", info.type->name, info.type->number),
                             std::move(info.shape), extent, owner});
  }
  result.tensors =
      TensorFile("gguf", std::string(file), std::move(tensors), {}, std::move(unsupported));
  return result;
}

namespace {

GgufFile open_part(const std::filesystem::path& path) {
  auto file = MappedFile::open(path);
  const auto bytes = file->bytes();
  return read_gguf(bytes, path.string(), std::move(file));
}

uint64_t metadata_or(const GgufMetadata& metadata, std::string_view key, uint64_t otherwise) {
  return metadata.find(key) == nullptr ? otherwise : metadata.get_u64(key);
}

/// The tensors of the other parts, added to those of the first.
void add_parts(GgufFile& first, const std::filesystem::path& path, uint64_t count) {
  const std::string file = path.string();
  const FileSource source{"gguf", file};
  if (const uint64_t part = metadata_or(first.metadata, "split.no", 0); part != 0)
    source.fail("is part {} of {}; expected the first one, whose name ends with {}", part + 1,
                count, gguf_part_suffix(0, count));
  const std::string name = path.filename().string(), suffix = gguf_part_suffix(0, count);
  if (!name.ends_with(suffix))
    source.fail("is the first of {} parts; expected a name that ends with {}", count, suffix);
  const std::string stem = name.substr(0, name.size() - suffix.size());
  std::vector<TensorView> tensors = first.tensors.tensors();
  std::vector<UnsupportedTensor> unsupported = first.tensors.unsupported();
  for (uint64_t part = 1; part < count; ++part) {
    const auto other_path = path.parent_path() / (stem + gguf_part_suffix(part, count));
    const GgufFile other = open_part(other_path);
    const std::string other_name = other_path.string();
    if (metadata_or(other.metadata, "split.no", 0) != part ||
        metadata_or(other.metadata, "split.count", 1) != count)
      FileSource{"gguf", other_name}.fail("says that it is part {} of {}; its name says {} of {}",
                                          metadata_or(other.metadata, "split.no", 0) + 1,
                                          metadata_or(other.metadata, "split.count", 1), part + 1,
                                          count);
    tensors.insert(tensors.end(), other.tensors.tensors().begin(), other.tensors.tensors().end());
    unsupported.insert(unsupported.end(), other.tensors.unsupported().begin(),
                       other.tensors.unsupported().end());
  }
  const uint64_t found = tensors.size() + unsupported.size(),
                 stated = metadata_or(first.metadata, "split.tensors.count", found);
  if (found != stated)
    source.fail("its {} parts hold {} tensors; split.tensors.count is {}", count, found, stated);
  first.tensors = TensorFile("gguf", file, std::move(tensors), {}, std::move(unsupported));
}

}  // namespace

std::string gguf_part_suffix(uint64_t part, uint64_t count) {
  return fmt::format("-{:05}-of-{:05}.gguf", part + 1, count);
}

GgufFile open_gguf(const std::filesystem::path& path) {
  GgufFile file = open_part(path);
  if (const uint64_t count = metadata_or(file.metadata, "split.count", 1); count > 1)
    add_parts(file, path, count);
  return file;
}

}  // namespace tessera::format
