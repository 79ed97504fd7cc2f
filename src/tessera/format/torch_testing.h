// For tests: files of torch.save, built opcode by opcode.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tessera/format/tensor_view.h"
#include "tessera/format/test_support.h"
#include "tessera/format/zip_archive.h"

namespace tessera::format::test {

/// A pickle of protocol 2, or a part of one.
class PickleText {
 public:
  PickleText& op(std::string_view bytes) {
    text_ += bytes;
    return *this;
  }
  PickleText& text(std::string_view value) {
    text_ += 'X';
    text_ += ByteString().number(static_cast<uint32_t>(value.size())).text();
    return op(value);
  }
  PickleText& integer(int32_t value) {
    text_ += 'J';
    return op(ByteString().number(value).text());
  }
  PickleText& global(std::string_view module, std::string_view name) {
    return op("c").op(module).op("\n").op(name).op("\n");
  }
  PickleText& tuple(const std::vector<int32_t>& values) {
    op("(");
    for (const int32_t value : values) integer(value);
    return op("t");
  }
  /// A reference to storage `key` of `count` elements.
  PickleText& storage(std::string_view key, int32_t count, std::string_view type = "FloatStorage") {
    return op("(")
        .text("storage")
        .global("torch", type)
        .text(key)
        .text("cpu")
        .integer(count)
        .op("tQ");
  }
  const std::string& str() const { return text_; }

 private:
  std::string text_;
};

/// What surrounds a tensor's arguments in a pickle.
struct TensorCase {
  std::string_view key = "0";
  int32_t count = 6;  // elements of the storage
  int32_t offset = 0;
  std::vector<int32_t> shape = {2, 3}, strides = {3, 1};
  std::string_view type = "FloatStorage";
};

inline std::string tensor_pickle(const TensorCase& c = {}) {
  return PickleText()
      .global("torch._utils", "_rebuild_tensor_v2")
      .op("(")
      .storage(c.key, c.count, c.type)
      .integer(c.offset)
      .tuple(c.shape)
      .tuple(c.strides)
      .op("\x89")
      .global("collections", "OrderedDict")
      .op(")RtR")
      .str();
}

/// {"w": value}, whole.
inline std::string dictionary(std::string_view value, std::string_view key = "w") {
  return PickleText().op("\x80\x02}(").text(key).op(value).op("u.").str();
}

struct ZipFile {
  std::string name, data;
  uint16_t method = 0, flags = 0;
  int32_t crc_error = 0;        // on the checksum of both headers
  int64_t size_error = 0;       // on the size in the local header
  std::string local_name = {};  // "" = the same
  int64_t shift = 0;            // of the offset in the directory
  uint32_t packed_error = 0;    // on the packed size in both headers
};

struct ZipText {
  std::vector<ZipFile> files;
  std::string comment = {};
  int32_t entries_error = 0, offset_error = 0, disk = 0;

  std::string str() const {
    ByteString out, directory;
    for (const ZipFile& file : files) {
      const uint32_t crc = crc32(bytes_of(file.data)) + static_cast<uint32_t>(file.crc_error);
      const auto size = static_cast<uint32_t>(file.data.size());
      const auto at = static_cast<int64_t>(out.text().size());
      const std::string& local = file.local_name.empty() ? file.name : file.local_name;
      out.number(uint32_t{0x04034b50}).number(uint16_t{0}).number(file.flags).number(file.method);
      out.number(uint32_t{0}).number(crc).number(size + file.packed_error);
      out.number(static_cast<uint32_t>(size + file.size_error));
      out.number(static_cast<uint16_t>(local.size())).number(uint16_t{0}).raw(local).raw(file.data);
      directory.number(uint32_t{0x02014b50}).number(uint32_t{0}).number(file.flags);
      directory.number(file.method)
          .number(uint32_t{0})
          .number(crc)
          .number(size + file.packed_error);
      directory.number(size).number(static_cast<uint16_t>(file.name.size())).zeros(12);
      directory.number(static_cast<uint32_t>(at + file.shift)).raw(file.name);
    }
    const auto at = static_cast<int64_t>(out.text().size());
    const auto n = static_cast<uint16_t>(static_cast<int64_t>(files.size()) + entries_error);
    out.raw(directory.text()).number(uint32_t{0x06054b50});
    out.number(static_cast<uint16_t>(disk)).number(uint16_t{0}).number(n).number(n);
    out.number(static_cast<uint32_t>(directory.text().size()));
    out.number(static_cast<uint32_t>(at + offset_error));
    out.number(static_cast<uint16_t>(comment.size())).raw(comment);
    return out.text();
  }
};

/// An archive as torch.save writes one: a pickle, and storage "0" of `data`.
inline ZipText torch_zip(std::string pickle, std::string data = std::string(24, '\1')) {
  return {{{"a/data.pkl", std::move(pickle)},
           {"a/byteorder", "little"},
           {"a/data/0", std::move(data)},
           {"a/version", "3\n"}}};
}

/// The pickle ["0"].
inline constexpr std::string_view kOneStorage(
    "\x80\x02]X\x01\0\0\0"
    "0a.",
    11);

/// The form before PyTorch 1.6: five pickles, then the storages.
inline std::string legacy_file(std::string_view pickle,
                               std::string_view keys = kOneStorage,
                               std::string_view storages = {},
                               int32_t version = 1001,
                               bool little = true) {
  const std::string own = ByteString().number(int64_t{6}).raw(std::string(24, '\1')).text();
  return PickleText()
      .op(std::string("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.", 15))
      .op("\x80\x02")
      .integer(version)
      .op(".")
      .op("\x80\x02}(")
      .text("little_endian")
      .op(little ? "\x88" : "\x89")
      .op("u.")
      .op(pickle)
      .op(keys)
      .op(storages.data() == nullptr ? std::string_view(own) : storages)
      .str();
}

/// What torch.save writes of a dictionary of these tensors, each with a storage of its own.
inline std::string torch_file_of(const std::vector<TensorView>& tensors,
                                 const std::string& prefix = "",
                                 const std::string& under = "") {
  PickleText pickle;
  ZipText zip;
  pickle.op("\x80\x02}(");
  if (!under.empty()) pickle.text("epoch").integer(3).text(under).op("}(");
  for (const TensorView& tensor : tensors) {
    std::vector<int32_t> shape(tensor.shape.begin(), tensor.shape.end()), strides(shape.size(), 1);
    for (size_t axis = shape.size(); axis-- > 1;) strides[axis - 1] = strides[axis] * shape[axis];
    const auto count = static_cast<int32_t>(element_count(tensor.shape));
    const std::string key = std::to_string(zip.files.size());
    const std::string_view type = tensor.dtype == DType::f16    ? "HalfStorage"
                                  : tensor.dtype == DType::bf16 ? "BFloat16Storage"
                                  : tensor.dtype == DType::i64  ? "LongStorage"
                                                                : "FloatStorage";
    pickle.text(prefix + tensor.name);
    pickle.op(tensor_pickle(
        {.key = key, .count = count, .shape = shape, .strides = strides, .type = type}));
    zip.files.push_back({"a/data/" + key, std::string(text_of(tensor.data))});
  }
  zip.files.push_back({"a/data.pkl", pickle.op(under.empty() ? "u." : "uu.").str()});
  return zip.str();
}

}  // namespace tessera::format::test
