#include "tessera/format/ggmf.h"

#include <algorithm>
#include <array>

#include "tessera/base/mapped_file.h"
#include "tessera/format/file_source.h"
#include "tessera/format/gguf_types.h"

namespace tessera::format {
namespace {

constexpr int32_t kBlocksChanged = 101;  // the version that came with today's block types
constexpr size_t kGgmfMaxTensors = 262'144;
constexpr int32_t kGgmfMaxNameBytes = 1'024;
constexpr int32_t kGgmfMaxRank = 3;

struct DataType {
  std::string_view name;  // ggml's, which defines the layout
  bool removed = false;
};

// In the order of their numbers.
constexpr std::array kDataTypes = {
    DataType{"F32"},          DataType{"F16"},        DataType{"Q4_0"},       DataType{"Q4_1"},
    DataType{"Q4_1_O", true}, DataType{"Q4_2", true}, DataType{"Q4_3", true}, DataType{"Q5_0"},
    DataType{"Q5_1"},         DataType{"Q8_0"},       DataType{"Q8_1"},       DataType{"Q2_K"},
    DataType{"Q3_K"},         DataType{"Q4_K"},       DataType{"Q5_K"},       DataType{"Q6_K"},
    DataType{"Q8_K"},
};

/// The layout of a data type. `what` is what has it.
const GgmlType& layout_of(int32_t number,
                          int64_t version,
                          const std::string& what,
                          const FileSource& source) {
  if (number < 0 || static_cast<size_t>(number) >= kDataTypes.size())
    source.fail("{} has data type {}; expected 0 to {}", what, number, kDataTypes.size() - 1);
  const DataType& type = kDataTypes[static_cast<size_t>(number)];
  if (type.removed)
    source.fail("{} has data type {}, which the format gave up; quantize the model again", what,
                type.name);
  const auto found =
      std::find_if(kGgmlTypes.begin(), kGgmlTypes.end(),
                   [&](const GgmlType& candidate) { return candidate.name == type.name; });
  if (found->block_elements > 1 && version < kBlocksChanged)
    source.fail(
        "{} has data type {} in a file of version {}, whose blocks have an older layout; expected "
        "version {}: quantize the model again",
        what, type.name, version, kBlocksChanged);
  return *found;
}

GgmfHeader take_ggmf_header(ByteReader& reader) {
  const FileSource& source = reader.source();
  if (reader.read<uint32_t>("the magic") != kGgmfMagic) source.fail("does not begin with \"fmgg\"");
  GgmfHeader header;
  header.version = reader.read<int32_t>("the header");
  if (header.version != 100 && header.version != kBlocksChanged)
    source.fail("version {}; expected 100 or 101", header.version);
  const auto take = [&](std::string_view name) -> int64_t {
    const auto value = reader.read<int32_t>("the header");
    if (value <= 0) source.fail("{} = {}; expected at least 1", name, value);
    return value;
  };
  header.n_vocab = take("n_vocab");
  header.n_embed = take("n_embed");
  header.n_layer = take("n_layer");
  const auto type = reader.read<int32_t>("the header");
  header.data_type = layout_of(type, header.version, "the header", source).name;
  return header;
}

struct GgmfTensorInfo {
  std::string name;
  const GgmlType* type = nullptr;
  std::vector<int64_t> shape;
  std::span<const std::byte> data;
};

GgmfTensorInfo take_ggmf_tensor(ByteReader& reader, int64_t version) {
  const FileSource& source = reader.source();
  const size_t at = reader.position();
  const auto rank = reader.read<int32_t>("the header of a tensor");
  const auto name_bytes = reader.read<int32_t>("the header of a tensor");
  const auto type = reader.read<int32_t>("the header of a tensor");
  if (rank < 1 || rank > kGgmfMaxRank)
    source.fail("byte {}: a tensor of {} axes; expected 1 to {}", at, rank, kGgmfMaxRank);
  if (name_bytes < 1 || name_bytes > kGgmfMaxNameBytes)
    source.fail("byte {}: a tensor's name of {} bytes; expected 1 to {}", at, name_bytes,
                kGgmfMaxNameBytes);

  GgmfTensorInfo info;
  for (int32_t axis = 0; axis < rank; ++axis)
    info.shape.push_back(reader.read<int32_t>("the shape of a tensor"));
  std::reverse(info.shape.begin(), info.shape.end());  // the file has the fastest axis first
  info.name = text_of(reader.take(static_cast<uint64_t>(name_bytes), "the name of a tensor"));
  const std::string what = fmt::format("byte {}: tensor {}", at, in_quotes(info.name));
  for (const int64_t size : info.shape)
    if (size < 1)
      source.fail("{} has shape {}; expected sizes from 1", what, shape_text(info.shape));

  info.type = &layout_of(type, version, what, source);
  if (info.shape.back() % info.type->block_elements != 0)
    source.fail("{} has rows of {} elements of type {}; expected a multiple of {}", what,
                info.shape.back(), info.type->name, info.type->block_elements);
  const auto bytes = storage_bytes_of(*info.type, info.shape);
  if (!bytes)
    source.fail("{}: the size of shape {} overflows 64 bits", what, shape_text(info.shape));
  info.data = reader.take(static_cast<uint64_t>(*bytes), "the data of a tensor");
  return info;
}

}  // namespace

GgmfFile read_ggmf(std::span<const std::byte> bytes,
                   std::string_view file,
                   std::shared_ptr<const void> owner) {
  ByteReader reader(bytes, FileSource{"ggmf", file});
  GgmfFile result;
  result.header = take_ggmf_header(reader);

  std::vector<TensorView> tensors;
  std::vector<UnsupportedTensor> unsupported;
  while (reader.remaining() > 0) {
    if (tensors.size() + unsupported.size() == kGgmfMaxTensors)
      reader.source().fail("byte {}: more than {} tensors", reader.position(), kGgmfMaxTensors);
    GgmfTensorInfo info = take_ggmf_tensor(reader, result.header.version);
    if (info.type->dtype)
      tensors.push_back(
          {std::move(info.name), *info.type->dtype, std::move(info.shape), info.data, owner});
    else
      unsupported.push_back({std::move(info.name), std::string(info.type->name),
                             std::move(info.shape), info.data, owner});
  }
  const size_t found = tensors.size() + unsupported.size();
  if (found == 0)
    reader.source().fail("no tensors after the header of {} bytes; expected at least one",
                         reader.position());
  // every layer has some of its own; a damaged count would give a spec of this size
  if (static_cast<size_t>(result.header.n_layer) > found)
    reader.source().fail("n_layer = {}: found {} tensors; expected at least one for every layer",
                         result.header.n_layer, found);
  // both are axes of some tensor; a damaged one would be asked for as memory
  int64_t longest = 0;
  const auto measure = [&](const auto& list) {
    for (const auto& tensor : list)
      for (const int64_t n : tensor.shape) longest = std::max(longest, n);
  };
  measure(tensors);
  measure(unsupported);
  for (const auto& [name, value] :
       {std::pair("n_vocab", result.header.n_vocab), std::pair("n_embed", result.header.n_embed)})
    if (value > longest)
      reader.source().fail("{} = {}: the longest axis of a tensor is {}; expected at most that",
                           name, value, longest);
  result.tensors =
      TensorFile("ggmf", std::string(file), std::move(tensors), {}, std::move(unsupported));
  return result;
}

GgmfFile open_ggmf(const std::filesystem::path& path) {
  auto file = MappedFile::open(path);
  const auto bytes = file->bytes();
  return read_ggmf(bytes, path.string(), std::move(file));
}

}  // namespace tessera::format
