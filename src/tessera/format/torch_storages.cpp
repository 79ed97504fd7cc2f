#include "tessera/format/torch_storages.h"

#include <algorithm>

#include "tessera/format/torch_file.h"
#include "tessera/format/zip_archive.h"

namespace tessera::format {
namespace {

using Kind = PickleNode::Kind;

constexpr TorchType kTorchTypes[] = {{"DoubleStorage", "float64", "F64", 8, DType::f64},
                                     {"FloatStorage", "float32", "F32", 4, DType::f32},
                                     {"HalfStorage", "float16", "F16", 2, DType::f16},
                                     {"BFloat16Storage", "bfloat16", "BF16", 2, DType::bf16},
                                     {"LongStorage", "int64", "I64", 8, DType::i64},
                                     {"IntStorage", "int32", "I32", 4, DType::i32},
                                     {"ShortStorage", "int16", "I16", 2, DType::i16},
                                     {"CharStorage", "int8", "I8", 1, DType::i8},
                                     {"ByteStorage", "uint8", "U8", 1, DType::u8},
                                     {"BoolStorage", "bool", "BOOL", 1, DType::boolean},
                                     {"ComplexFloatStorage", "complex64", "C64", 8},
                                     {"ComplexDoubleStorage", "complex128", "C128", 16},
                                     {"", "uint16", "U16", 2},
                                     {"", "uint32", "U32", 4},
                                     {"", "uint64", "U64", 8},
                                     {"", "float8_e4m3fn", "F8_E4M3", 1},
                                     {"", "float8_e5m2", "F8_E5M2", 1},
                                     {"", "float8_e4m3fnuz", "F8_E4M3FNUZ", 1},
                                     {"", "float8_e5m2fnuz", "F8_E5M2FNUZ", 1},
                                     {"", "float8_e8m0fnu", "F8_E8M0", 1}};
constexpr std::string_view kUntyped = "torch.storage.UntypedStorage";

// what precedes the pickle of a file of the older form
constexpr std::string_view kLegacyMagic("\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19", 10);
constexpr int64_t kLegacyProtocol = 1001;

/// The type of a storage class; null where `global` is none, or where it is untyped.
const TorchType* type_of_storage(std::string_view global) {
  for (const std::string_view module : {"torch.cuda.", "torch."})
    if (global.starts_with(module))
      for (const TorchType& type : kTorchTypes)
        if (!type.storage.empty() && type.storage == global.substr(module.size())) return &type;
  return nullptr;
}

int64_t storage_size(const TorchStorage& storage) {
  return storage.count * (storage.type == nullptr ? 1 : storage.type->bytes);
}

/// ("storage", class, key, device, elements[, view]), as torch.save refers to one.
void add_storage(PickleIndex index, bool legacy, TorchContent& content, const FileSource& source) {
  const Pickle& pickle = content.pickle;
  const PickleNode& tuple = pickle.at(pickle.at(index).items[0]);
  const auto item = [&](size_t i) -> const PickleNode& { return pickle.at(tuple.items[i]); };
  const bool has_view = legacy && tuple.items.size() == 6;
  if (tuple.kind != Kind::tuple || (tuple.items.size() != 5 && !has_view) ||
      item(0).kind != Kind::text || item(0).text != "storage" || item(1).kind != Kind::global ||
      item(2).kind != Kind::text || item(3).kind != Kind::text || item(4).kind != Kind::integer)
    source.fail(
        "a reference of the pickle is malformed; expected (\"storage\", class, key, device, "
        "elements)");
  if (!is_torch_storage(item(1).text))
    source.fail("a storage is of class {}; expected one of PyTorch's storages",
                in_quotes(item(1).text));
  if (has_view && item(5).kind != Kind::none)
    source.fail("storage {} is a view of another, as PyTorch 0.3 and before wrote; save it again",
                in_quotes(item(2).text));
  TorchStorage storage{type_of_storage(item(1).text), item(4).integer};
  if (storage.count < 0 || !checked_multiply(storage.count, 16))
    source.fail("storage {} has {} elements", in_quotes(item(2).text), storage.count);
  const auto [at, fresh] = content.by_key.try_emplace(std::string(item(2).text), storage);
  if (!fresh && (at->second.type != storage.type || at->second.count != storage.count))
    source.fail("storage {} has two types or sizes", in_quotes(at->first));
  content.storages[index] = &at->second;
}

void add_storages(bool legacy, TorchContent& content, const FileSource& source) {
  for (size_t i = 0; i < content.pickle.nodes.size(); ++i)
    if (content.pickle.nodes[i].kind == Kind::persistent)
      add_storage(static_cast<PickleIndex>(i), legacy, content, source);
}

void read_storages_of_zip(const std::vector<ZipEntry>& entries,
                          const std::string& prefix,
                          TorchContent& content,
                          const FileSource& source) {
  std::map<std::string_view, const ZipEntry*> by_name;
  for (const ZipEntry& entry : entries) by_name[entry.name] = &entry;
  for (auto& [key, storage] : content.by_key) {
    const auto found = by_name.find(prefix + "data/" + key);
    if (found == by_name.end())
      source.fail("storage {} is not in the archive; expected entry {}", in_quotes(key),
                  in_quotes(prefix + "data/" + key));
    storage.data = found->second->data;
    if (static_cast<int64_t>(storage.data.size()) != storage_size(storage))
      source.fail("storage {} has {} bytes; its {} elements take {}", in_quotes(key),
                  storage.data.size(), storage.count, storage_size(storage));
    check_crc(*found->second, source);
  }
}

TorchContent read_zip_form(std::span<const std::byte> bytes, const FileSource& source) {
  constexpr std::string_view kPickleName = "data.pkl";
  const std::vector<ZipEntry> entries = read_zip(bytes, source);
  const ZipEntry* pickle = nullptr;
  for (const ZipEntry& entry : entries) {
    const std::string_view name = entry.name;
    if (name != kPickleName && !name.ends_with("/data.pkl")) continue;
    if (pickle != nullptr)
      source.fail("holds two pickles, {} and {}", in_quotes(pickle->name), in_quotes(name));
    pickle = &entry;
  }
  if (pickle == nullptr)
    source.fail("is a zip archive without data.pkl; expected one of torch.save");
  const std::string prefix = pickle->name.substr(0, pickle->name.size() - kPickleName.size());
  for (const ZipEntry& entry : entries) {
    if (entry.name == prefix + "constants.pkl")
      source.fail(
          "is a TorchScript program; expected the weights alone, as "
          "torch.save(model.state_dict(), ...) writes");
    if (entry.name == prefix + "byteorder" && text_of(entry.data) != "little")
      source.fail("has byte order {}; expected \"little\"", in_quotes(text_of(entry.data)));
  }
  check_crc(*pickle, source);
  TorchContent content;
  const auto from = static_cast<size_t>(pickle->data.data() - bytes.data());
  content.pickle = read_pickle(pickle->data, from, is_torch_name, source);
  add_storages(false, content, source);
  read_storages_of_zip(entries, prefix, content, source);
  return content;
}

/// A pickle at the place of the reader, which is moved past it.
Pickle next_pickle(ByteReader& reader) {
  Pickle pickle = read_pickle(reader.bytes().subspan(reader.position()), reader.position(),
                              is_torch_name, reader.source());
  reader.take(pickle.bytes, "a pickle");
  return pickle;
}

/// (magic number, version, machine, dictionary, list of storages): five pickles, then the bytes of
/// each storage after the number of its elements.
TorchContent read_legacy_form(std::span<const std::byte> bytes, const FileSource& source) {
  ByteReader reader(bytes, source);
  const Pickle magic = next_pickle(reader);
  if (magic.at(magic.root).kind != Kind::wide || magic.at(magic.root).text != kLegacyMagic)
    source.fail("is a pickle of {}, not a file of torch.save", name_of(magic.at(magic.root).kind));
  const Pickle version = next_pickle(reader);
  if (version.at(version.root).kind != Kind::integer ||
      version.at(version.root).integer != kLegacyProtocol)
    source.fail("has another version of torch.save than {}", kLegacyProtocol);
  const Pickle machine = next_pickle(reader);
  const auto& about = machine.at(machine.root).items;
  for (size_t i = 0; i + 1 < about.size(); i += 2)
    if (machine.at(about[i]).text == "little_endian" && machine.at(about[i + 1]).integer != 1)
      source.fail("was written on a big-endian machine; expected little-endian numbers");
  TorchContent content;
  content.pickle = next_pickle(reader);
  add_storages(true, content, source);
  const Pickle keys = next_pickle(reader);
  if (keys.at(keys.root).kind != Kind::list)
    source.fail("lists its storages as {}; expected a list", name_of(keys.at(keys.root).kind));
  size_t filled = 0;
  for (const PickleIndex index : keys.at(keys.root).items) {
    const std::string_view key = keys.at(index).text;
    const auto storage = content.by_key.find(key);
    if (storage == content.by_key.end())
      source.fail("storage {} is listed, and no tensor has it", in_quotes(key));
    const auto count = reader.read<int64_t>("the size of a storage");
    if (count != storage->second.count)
      source.fail("storage {} has {} elements; its tensors say {}", in_quotes(key), count,
                  storage->second.count);
    const auto data =
        reader.take(static_cast<uint64_t>(storage_size(storage->second)), "the bytes of a storage");
    // an empty one has no bytes by which to know it
    if (storage->second.data.data() != nullptr)
      source.fail("storage {} is listed twice", in_quotes(key));
    storage->second.data = data;
    ++filled;
  }
  if (filled != content.by_key.size())
    source.fail("{} storages are listed; its tensors have {}", filled, content.by_key.size());
  if (reader.remaining() != 0)
    source.fail("{} bytes follow the last storage; expected none", reader.remaining());
  return content;
}

}  // namespace

const TorchType* torch_type_of_dtype(std::string_view global) {
  constexpr std::string_view kModule = "torch.";
  if (global.starts_with(kModule))
    for (const TorchType& type : kTorchTypes)
      if (type.dtype == global.substr(kModule.size())) return &type;
  return nullptr;
}

bool is_torch_storage(std::string_view global) {
  return global == kUntyped || type_of_storage(global) != nullptr;
}

bool begins_as_torch(std::string_view text) {
  return text.starts_with("PK\x03\x04") ||
         (text.size() > 2 && text[0] == '\x80' && text[1] >= 2 && text[1] <= 5);
}

TorchContent read_torch_content(std::span<const std::byte> bytes, const FileSource& source) {
  return text_of(bytes).starts_with("PK") ? read_zip_form(bytes, source)
                                          : read_legacy_form(bytes, source);
}

}  // namespace tessera::format
