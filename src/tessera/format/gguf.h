// GGUF, versions 2 and 3: typed metadata and (block-quantised) tensors in one file.
//
// Reads never copy: tensors and metadata values point into the mapped file. All of the file's
// structure is checked on opening; errors are Error(file), one line, with the byte offset.
// Limits: 65,536 metadata entries, 262,144 tensors, 4 axes, keys of 65,535 bytes, tensor names of
// 1,024, arrays nested 4 deep; counts and lengths are checked against the bytes that are left.
// Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md; type numbers: ggml.h.
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "tessera/format/tensor_view.h"

namespace tessera::format {

/// Types of metadata values, numbered as in the file.
enum class GgufType : uint32_t {
  u8,
  i8,
  u16,
  i16,
  u32,
  i32,
  f32,
  boolean,
  string,
  array,
  u64,
  i64,
  f64,
};
std::string_view name_of(GgufType type);

template <class T>
consteval GgufType gguf_type_of() {
  if constexpr (std::is_same_v<T, bool>)
    return GgufType::boolean;
  else if constexpr (std::is_same_v<T, uint8_t>)
    return GgufType::u8;
  else if constexpr (std::is_same_v<T, int8_t>)
    return GgufType::i8;
  else if constexpr (std::is_same_v<T, uint16_t>)
    return GgufType::u16;
  else if constexpr (std::is_same_v<T, int16_t>)
    return GgufType::i16;
  else if constexpr (std::is_same_v<T, uint32_t>)
    return GgufType::u32;
  else if constexpr (std::is_same_v<T, int32_t>)
    return GgufType::i32;
  else if constexpr (std::is_same_v<T, uint64_t>)
    return GgufType::u64;
  else if constexpr (std::is_same_v<T, int64_t>)
    return GgufType::i64;
  else if constexpr (std::is_same_v<T, float>)
    return GgufType::f32;
  else {
    static_assert(std::is_same_v<T, double>, "no such type in GGUF");
    return GgufType::f64;
  }
}

/// One metadata value, kept as its checked bytes: an array of 250,000 strings costs nothing until
/// it is asked for. Accessors throw Error(file) "a string; expected ..." on another type.
class GgufValue {
 public:
  template <class T>
  static GgufValue number(T value) {
    return copy_of(gguf_type_of<T>(), &value, sizeof(T));
  }
  static GgufValue string(std::string_view text);
  template <class T>
  static GgufValue array(std::span<const T> values) {
    return array_of(gguf_type_of<T>(), values.size(),
                    {reinterpret_cast<const char*>(values.data()), values.size_bytes()});
  }
  static GgufValue strings(std::span<const std::string> values);

  GgufType type() const { return type_; }
  /// Arrays only.
  GgufType element_type() const;
  uint64_t size() const;

  /// Of any integer type, when it fits.
  uint64_t as_u64() const;
  int64_t as_i64() const;
  /// Of any number type.
  double as_f64() const;
  bool as_bool() const;
  std::string_view as_string() const;
  /// Arrays; strings point into the file.
  std::vector<std::string_view> as_strings() const;
  std::vector<int64_t> as_integers() const;
  std::vector<double> as_numbers() const;
  std::vector<bool> as_bools() const;
  /// Elements of any array, nested ones included.
  std::vector<GgufValue> elements() const;

  /// For people: one line, strings quoted and clipped, at most `max_elements` of an array.
  std::string text(size_t max_elements = 8) const;

  /// The bytes as they lie in the file, without type number and key.
  std::span<const std::byte> encoded() const { return encoded_; }
  /// For the reader: `encoded` has been checked to be one value of `type`.
  GgufValue(GgufType type, std::span<const std::byte> encoded, std::shared_ptr<const void> owner)
      : type_(type), encoded_(encoded), owner_(std::move(owner)) {}

 private:
  static GgufValue copy_of(GgufType type, const void* bytes, size_t size);
  static GgufValue array_of(GgufType element, uint64_t count, std::string_view payload);

  GgufType type_;
  std::span<const std::byte> encoded_;
  std::shared_ptr<const void> owner_;
};

struct GgufEntry {
  std::string key;
  GgufValue value;
};

/// Metadata in the order of the file. The get_* functions throw Error(file) that names the key when
/// it is missing or of another type: ask find() first where a key is optional.
class GgufMetadata {
 public:
  GgufMetadata() = default;
  /// Throws Error(file) when a key appears twice.
  GgufMetadata(std::string file, std::vector<GgufEntry> entries);

  const std::vector<GgufEntry>& entries() const { return entries_; }
  const GgufValue* find(std::string_view key) const;
  const GgufValue& at(std::string_view key) const;

  uint64_t get_u64(std::string_view key) const;
  int64_t get_i64(std::string_view key) const;
  double get_f64(std::string_view key) const;
  bool get_bool(std::string_view key) const;
  std::string_view get_string(std::string_view key) const;
  std::vector<std::string_view> get_strings(std::string_view key) const;
  std::vector<int64_t> get_integers(std::string_view key) const;
  std::vector<double> get_numbers(std::string_view key) const;
  std::vector<bool> get_bools(std::string_view key) const;

 private:
  template <class T>
  T get(std::string_view key, T (GgufValue::*as)() const) const;

  std::string file_;
  std::vector<GgufEntry> entries_;
  std::vector<uint32_t> by_key_;  // indices into entries_, sorted by key
};

struct GgufFile {
  uint32_t version = 3;
  int64_t alignment = 32;  // bytes; tensor data begin at multiples of it
  GgufMetadata metadata;
  TensorFile tensors;
};

/// A model that was split over several files (split.count) is opened by the first of them,
/// "NAME-00001-of-00003.gguf", in the same folder; metadata are the first one's.
/// Supported types: F32 F16 BF16 F64, I8 to I64, Q4_0 Q4_1 Q5_0 Q5_1 Q8_0, Q2_K to Q6_K, IQ4_NL,
/// IQ4_XS, MXFP4.
/// Tensors of ggml's other types are checked and listed by TensorFile::unsupported(), and asking
/// for one is an error with its name and type; a type number that ggml does not have is an error at
/// once.
GgufFile open_gguf(const std::filesystem::path& path);

/// The same from memory; `file` is named in messages, `owner` is kept by every view.
GgufFile read_gguf(std::span<const std::byte> bytes,
                   std::string_view file,
                   std::shared_ptr<const void> owner = {});

/// Writes version 3. Entries and tensors keep their order; an entry general.alignment (u32) sets
/// the alignment, else 32. Throws Error(resource) when the disk is full, leaving no part of the
/// file; Error(usage) for what the format cannot hold.
void write_gguf(const std::filesystem::path& path,
                std::span<const GgufEntry> entries,
                std::span<const TensorView> tensors);

/// A tensor that is yet to be made.
struct GgufTensor {
  std::string name;
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
};
/// The bytes of tensor `index`, asked for once, in order; they need to live until the next call.
using GgufBytes = std::function<std::span<const std::byte>(size_t index)>;

/// The same of tensors that come one after the other, so that no more than one is in memory.
void write_gguf(const std::filesystem::path& path,
                std::span<const GgufEntry> entries,
                std::span<const GgufTensor> tensors,
                const GgufBytes& bytes_of);

/// The same in files of at most `most` bytes of tensors, or of one tensor where that is larger:
/// "NAME-00001-of-00003.gguf" and so on next to `path`, NAME.gguf; metadata are in the first. One
/// file, at `path`, where it fits or `most` is 0. What entries say of parts ("split.") is left out.
/// Returns the paths.
std::vector<std::filesystem::path> write_gguf_parts(const std::filesystem::path& path,
                                                    std::span<const GgufEntry> entries,
                                                    std::span<const GgufTensor> tensors,
                                                    const GgufBytes& bytes_of,
                                                    int64_t most);

/// What the name of part `part` (from 0) of `count` ends with: "-00001-of-00003.gguf".
std::string gguf_part_suffix(uint64_t part, uint64_t count);

}  // namespace tessera::format
