#include "tessera/format/safetensors.h"

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

#include "tessera/base/mapped_file.h"
#include "tessera/format/file_source.h"
#include "tessera/format/safetensors_types.h"
#include "tessera/spec/json.h"

namespace tessera::format {
namespace {

using spec::Json;

constexpr uint64_t kSafetensorsMaxHeaderBytes = 100'000'000;  // the reference library's limit
constexpr size_t kMaxHeaderValues = 4'000'000;                // half a million tensors
constexpr size_t kSafetensorsMaxRank = 64;                    // libtorch's limit

struct Entry {
  const std::string* name;
  const SafetensorsType* type;
  std::vector<int64_t> shape;
  int64_t begin = 0;  // bytes after the header
  int64_t end = 0;
};

// header -> {tensor -> {key -> [numbers]}}: three levels, and no more.
Json parse_header(std::string_view text, const FileSource& source) {
  if (!text.starts_with('{'))
    source.fail("the header begins with {}; expected {{",
                text.empty() ? "nothing" : in_quotes(text.substr(0, 1)));
  // the JSON front takes a zero byte for the end of the text
  if (const size_t zero = text.find('\0'); zero != std::string_view::npos)
    source.fail("zero byte at byte {} of the header; expected JSON padded with spaces", zero);
  spec::JsonLimits limits;
  limits.max_bytes = kSafetensorsMaxHeaderBytes;
  limits.max_depth = 3;
  limits.max_values = kMaxHeaderValues;
  try {
    return spec::parse_json(text, "header", limits);
  } catch (const Error& error) {
    source.fail("{}", error.what());
  }
}

StringMap read_metadata(const Json& value, const FileSource& source) {
  if (!value.is_object())
    source.fail("__metadata__ is {}; expected an object of strings", spec::kind_of(value));
  StringMap metadata;
  for (const auto& [key, text] : value.items()) {
    if (!text.is_string())
      source.fail("__metadata__ {} is {}; expected a string", in_quotes(key), spec::kind_of(text));
    metadata.emplace(key, text.get<std::string>());
  }
  return metadata;
}

// The type, or an error that lists none: there are 22, and the name is enough.
const SafetensorsType& read_type(const Json& value,
                                 const std::string& tensor,
                                 const FileSource& source) {
  if (!value.is_string())
    source.fail("tensor {}: dtype is {}; expected a string", in_quotes(tensor),
                spec::kind_of(value));
  const auto& name = value.get_ref<const std::string&>();
  for (const SafetensorsType& type : kSafetensorsTypes)
    if (type.name == name) return type;
  source.fail("tensor {}: unknown dtype {}; expected one like \"F32\"", in_quotes(tensor),
              in_quotes(name));
}

// An array of integers >= 0 that fit 63 bits.
std::vector<int64_t> read_sizes(const Json& value,
                                std::string_view key,
                                const std::string& tensor,
                                const FileSource& source) {
  if (!value.is_array())
    source.fail("tensor {}: {} is {}; expected an array", in_quotes(tensor), key,
                spec::kind_of(value));
  std::vector<int64_t> sizes;
  sizes.reserve(value.size());
  for (const Json& number : value) {
    if (!number.is_number_unsigned() ||
        number.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()})
      source.fail("tensor {}: {} holds {}; expected integers from 0 to 2^63 - 1", in_quotes(tensor),
                  key, number.is_number() ? number.dump() : std::string(spec::kind_of(number)));
    sizes.push_back(number.get<int64_t>());
  }
  return sizes;
}

// The tensor's keys, each exactly once (the JSON front refuses duplicates).
Entry read_entry(const std::string& name, const Json& value, const FileSource& source) {
  if (!value.is_object())
    source.fail("tensor {} is {}; expected an object", in_quotes(name), spec::kind_of(value));
  for (const auto& item : value.items())
    if (item.key() != "dtype" && item.key() != "shape" && item.key() != "data_offsets")
      source.fail("tensor {}: unknown key {}; expected dtype, shape, data_offsets", in_quotes(name),
                  in_quotes(item.key()));
  for (const char* key : {"dtype", "shape", "data_offsets"})
    if (!value.contains(key)) source.fail("tensor {}: no {}", in_quotes(name), key);

  Entry entry;
  entry.name = &name;
  entry.type = &read_type(value["dtype"], name, source);
  entry.shape = read_sizes(value["shape"], "shape", name, source);
  if (entry.shape.size() > kSafetensorsMaxRank)
    source.fail("tensor {}: {} axes; at most {}", in_quotes(name), entry.shape.size(),
                kSafetensorsMaxRank);
  const auto offsets = read_sizes(value["data_offsets"], "data_offsets", name, source);
  if (offsets.size() != 2)
    source.fail("tensor {}: data_offsets has {} numbers; expected 2", in_quotes(name),
                offsets.size());
  entry.begin = offsets[0];
  entry.end = offsets[1];
  return entry;
}

void check_extent(const Entry& entry,
                  int64_t expected_begin,
                  int64_t data_size,
                  const FileSource& source) {
  if (entry.end < entry.begin)
    source.fail("tensor {}: data_offsets [{}, {}] run backwards", in_quotes(*entry.name),
                entry.begin, entry.end);
  if (entry.begin != expected_begin)
    source.fail("tensor {} begins at byte {} of the data; expected {}: no gap, no overlap",
                in_quotes(*entry.name), entry.begin, expected_begin);
  if (entry.end > data_size)
    source.fail("tensor {} ends at byte {} of the data; the file holds {}", in_quotes(*entry.name),
                entry.end, data_size);

  const auto count = checked_element_count(entry.shape);
  const auto bits = count ? checked_multiply(*count, entry.type->bits) : std::nullopt;
  if (!bits)
    source.fail("tensor {}: the size of shape {} overflows 64 bits", in_quotes(*entry.name),
                shape_text(entry.shape));
  if (*bits % 8 != 0)
    source.fail("tensor {}: shape {} of {} is not a whole number of bytes", in_quotes(*entry.name),
                shape_text(entry.shape), entry.type->name);
  if (*bits / 8 != entry.end - entry.begin)
    source.fail("tensor {}: shape {} of {} takes {} bytes, data_offsets [{}, {}] give {}",
                in_quotes(*entry.name), shape_text(entry.shape), entry.type->name, *bits / 8,
                entry.begin, entry.end, entry.end - entry.begin);
}

std::vector<Entry> read_entries(const Json& header, const FileSource& source) {
  std::vector<Entry> entries;
  entries.reserve(header.size());
  for (const auto& [name, value] : header.get_ref<const Json::object_t&>())
    if (name != "__metadata__") entries.push_back(read_entry(name, value, source));
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::tie(a.begin, a.end, *a.name) < std::tie(b.begin, b.end, *b.name);
  });
  return entries;
}

}  // namespace

TensorFile read_safetensors(std::span<const std::byte> bytes,
                            std::string_view file,
                            std::shared_ptr<const void> owner) {
  const FileSource source{"safetensors", file};
  ByteReader reader(bytes, source);

  // header
  const auto header_bytes = reader.read<uint64_t>("the header length");
  if (header_bytes > kSafetensorsMaxHeaderBytes)
    source.fail("header of {} bytes; at most {}", header_bytes, kSafetensorsMaxHeaderBytes);
  const Json header = parse_header(text_of(reader.take(header_bytes, "the header")), source);
  const auto data = bytes.subspan(reader.position());

  // tensors, in the order of their bytes
  std::vector<TensorView> tensors;
  std::vector<UnsupportedTensor> unsupported;
  int64_t end = 0;
  for (Entry& entry : read_entries(header, source)) {
    check_extent(entry, end, static_cast<int64_t>(data.size()), source);
    end = entry.end;
    const auto extent = data.subspan(static_cast<size_t>(entry.begin),
                                     static_cast<size_t>(entry.end - entry.begin));
    if (entry.type->dtype)
      tensors.push_back({*entry.name, *entry.type->dtype, std::move(entry.shape), extent, owner});
    else
      unsupported.push_back(
          {*entry.name, std::string(entry.type->name), std::move(entry.shape), extent, owner});
  }
  if (static_cast<size_t>(end) != data.size())
    source.fail("{} bytes of data, of which tensors cover {}; expected all", data.size(), end);

  StringMap metadata;
  if (const auto found = header.find("__metadata__"); found != header.end())
    metadata = read_metadata(*found, source);
  return TensorFile("safetensors", std::string(file), std::move(tensors), std::move(metadata),
                    std::move(unsupported));
}

TensorFile open_safetensors(const std::filesystem::path& path) {
  auto file = MappedFile::open(path);
  const auto bytes = file->bytes();
  const std::string name = path.string();
  if (is_lfs_pointer(text_of(bytes))) FileSource{"safetensors", name}.fail("{}", kLfsPointer);
  return read_safetensors(bytes, path.string(), std::move(file));
}

}  // namespace tessera::format
