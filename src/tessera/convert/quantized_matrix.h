// What folders of quantized weights are read by: the tensors of their files, the members of their
// configs, and matrices of codes as a method describes them.
#pragma once

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/ranges.h>

#include "tessera/base/error.h"
#include "tessera/base/half.h"
#include "tessera/format/file_source.h"
#include "tessera/format/tensor_view.h"
#include "tessera/spec/json.h"

namespace tessera::convert {

inline constexpr int64_t kCodeRun = 32;  // numbers that share a scale in every type here
/// Of rows: lines of files packed along the outputs are read whole.
inline constexpr int64_t kRowsAtOnce = 64;
inline constexpr std::string_view kE4m3 = "F8_E4M3";

/// A tensor of any type; those that are not computed with have a type by name alone.
struct RawTensor {
  std::string name, type;
  std::optional<DType> dtype;
  std::vector<int64_t> shape;
  std::span<const std::byte> data;
  std::shared_ptr<const void> owner;

  template <class T>
  T at(int64_t i) const {
    T value;  // at any address
    std::memcpy(&value, data.data() + static_cast<size_t>(i) * sizeof(T), sizeof(T));
    return value;
  }
  /// Of a float type.
  float number(int64_t i) const {
    switch (*dtype) {
      case DType::f32:
        return at<float>(i);
      case DType::f64:
        return static_cast<float>(at<double>(i));
      case DType::bf16:
        return bf16_to_float(at<uint16_t>(i));
      default:
        return f16_to_float(at<uint16_t>(i));
    }
  }
};

class RawTensors {
 public:
  explicit RawTensors(const format::TensorFile& file) : file_(file) {
    for (const format::TensorView& t : file.tensors())
      by_name_[t.name] = {t.name, std::string(name_of(t.dtype)), t.dtype, t.shape, t.data, t.owner};
    for (const format::UnsupportedTensor& t : file.unsupported())
      by_name_[t.name] = {t.name, t.type, std::nullopt, t.shape, t.data, t.owner};
  }

  const std::map<std::string, RawTensor, std::less<>>& all() const { return by_name_; }
  const std::set<std::string, std::less<>>& used() const { return used_; }
  const std::string& file() const { return file_.file(); }

  /// Null where there is none.
  const RawTensor* find(const std::string& name) {
    const auto found = by_name_.find(name);
    if (found == by_name_.end()) return nullptr;
    used_.insert(name);
    return &found->second;
  }
  const RawTensor& at(const std::string& name, const std::string& asked_by) {
    if (const RawTensor* raw = find(name)) return *raw;
    fail(ErrorKind::file, file(), "tensor {} is missing; {} needs it", format::in_quotes(name),
         format::in_quotes(asked_by));
  }

  void expect_type(const RawTensor& raw, std::initializer_list<DType> types) const {
    std::vector<std::string_view> names;
    for (const DType type : types) {
      if (raw.dtype == type) return;
      names.push_back(name_of(type));
    }
    fail(ErrorKind::file, file(), "tensor {} has type {}; expected {}", format::in_quotes(raw.name),
         raw.type, fmt::join(names, " or "));
  }
  void expect_shape(const RawTensor& raw,
                    const std::vector<int64_t>& shape,
                    const char* why) const {
    if (raw.shape != shape)
      fail(ErrorKind::file, file(), "tensor {} has shape {}; {} says {}",
           format::in_quotes(raw.name), format::shape_text(raw.shape), why,
           format::shape_text(shape));
  }
  /// Two axes, neither of them empty.
  void expect_matrix(const RawTensor& raw) const {
    if (raw.shape.size() != 2 || raw.shape[0] < 1 || raw.shape[1] < 1)
      fail(ErrorKind::file, file(), "tensor {} has shape {}; expected a matrix",
           format::in_quotes(raw.name), format::shape_text(raw.shape));
  }

 private:
  const format::TensorFile& file_;
  std::map<std::string, RawTensor, std::less<>> by_name_;
  std::set<std::string, std::less<>> used_;
};

/// A member of a quantiser's config.
class QuantizerConfig {
 public:
  QuantizerConfig(const spec::Json& json, std::string where)
      : json_(json), where_(std::move(where)) {
    if (!json.is_object())
      fail(ErrorKind::file, where_, "found {}; expected an object", spec::kind_of(json));
  }

  const std::string& where() const { return where_; }
  /// Null where it is absent or null.
  const spec::Json* find(const char* key) const {
    const auto found = json_.find(key);
    return found == json_.end() || found->is_null() ? nullptr : &*found;
  }
  std::string text(const char* key, const char* otherwise) const {
    const spec::Json* value = find(key);
    if (value == nullptr) return otherwise;
    if (!value->is_string()) wrong(key, *value, "a text");
    return value->get<std::string>();
  }
  /// The text under the first of these keys that is there, or the first of those that may stand
  /// there; others are refused.
  std::string expect(std::initializer_list<const char*> keys,
                     std::initializer_list<const char*> known) const {
    for (const char* key : keys) {
      const spec::Json* value = find(key);
      if (value == nullptr) continue;
      for (const char* one : known)
        if (*value == one) return one;
      wrong(key, *value, fmt::format("\"{}\"", fmt::join(known, "\" or \"")));
    }
    return *known.begin();
  }
  bool flag(const char* key, bool otherwise) const {
    const spec::Json* value = find(key);
    if (value == nullptr) return otherwise;
    if (!value->is_boolean()) wrong(key, *value, "true or false");
    return value->get<bool>();
  }
  int64_t whole(const char* key, int64_t otherwise) const {
    const spec::Json* value = find(key);
    return value == nullptr ? otherwise : whole_of(key, *value);
  }
  /// Two sizes from 1 on, or nothing.
  std::optional<std::pair<int64_t, int64_t>> sizes(const char* key) const {
    const spec::Json* value = find(key);
    if (value == nullptr) return std::nullopt;
    if (!value->is_array() || value->size() != 2) wrong(key, *value, "two sizes");
    const std::pair<int64_t, int64_t> pair{whole_of(key, (*value)[0]), whole_of(key, (*value)[1])};
    if (pair.first < 1 || pair.second < 1) wrong(key, *value, "two sizes");
    return pair;
  }
  /// A group's columns: those of a whole row where there is one group.
  int64_t group(const char* key, int64_t columns) const {
    const int64_t size = whole(key, -1);
    if (size < 1 && size != -1) wrong(key, *find(key), "-1 or a number of columns");
    return size == -1 ? columns : size;
  }
  [[noreturn]] void wrong(const char* key,
                          const spec::Json& value,
                          std::string_view expected) const {
    fail(ErrorKind::file, where_, "{} = {} is not supported; expected {}", key,
         format::printable(value.dump(), 100), expected);
  }

 private:
  int64_t whole_of(const char* key, const spec::Json& value) const {
    constexpr int64_t kMost = int64_t{1} << 40;
    if (!value.is_number_integer() || value.get<double>() > static_cast<double>(kMost) ||
        value.get<double>() < -static_cast<double>(kMost))
      wrong(key, value, "a whole number");
    return value.get<int64_t>();
  }

  const spec::Json& json_;
  std::string where_;
};

inline int64_t parts_of(int64_t n, int64_t size) {
  return n / size + (n % size == 0 ? 0 : 1);
}

/// w = scale (code - zero) with unsigned codes of `bits`, or scale times a number in e4m3.
struct QuantizedMatrix {
  std::string name;  // as in a plain folder
  int64_t rows = 0, columns = 0;
  int bits = 0;
  bool e4m3 = false;
  int64_t group = 0;            // columns of one scale
  std::vector<int32_t> groups;  // of every column, where they do not follow each other (act-order)
  /// Rows begin .. end, one after another, a byte each.
  std::function<void(int64_t begin, int64_t end, uint8_t* codes)> codes;
  std::function<float(int64_t row, int64_t group)> scale;
  std::function<int32_t(int64_t row, int64_t group)> zero;  // null: the middle code

  int32_t middle() const { return 1 << (bits - 1); }
  int64_t group_of(int64_t column) const {
    return groups.empty() ? column / group : groups[static_cast<size_t>(column)];
  }
  /// Columns by their groups, each group's as they follow each other.
  std::vector<int32_t> by_groups() const {
    std::vector<int32_t> order(static_cast<size_t>(columns));
    std::iota(order.begin(), order.end(), 0);
    if (!groups.empty())
      std::stable_sort(order.begin(), order.end(),
                       [&](int32_t a, int32_t b) { return group_of(a) < group_of(b); });
    return order;
  }
  int64_t group_count() const { return parts_of(columns, group); }
  int32_t zero_of(int64_t row, int64_t g) const { return zero ? zero(row, g) : middle(); }
  /// Why no blocks of 32 hold it; "" where they do.
  std::string_view outside_blocks() const {
    if (columns % kCodeRun != 0) return "rows that are no multiple of 32";
    const std::vector<int32_t> order = by_groups();
    for (size_t c = 0; c < order.size(); ++c)
      if (group_of(order[c]) != group_of(order[c / kCodeRun * kCodeRun]))
        return "groups that are no multiple of 32";
    return "";
  }
};

std::string module_of(std::string_view name, std::string_view suffix);
/// 4 or 8.
int bits_of(const QuantizerConfig& settings, const char* key);
/// Groups of columns where they are not those that follow each other.
std::vector<int32_t> order_of(const RawTensor& g_idx,
                              const QuantizedMatrix& m,
                              const std::string& file);

// each method's; throw Error(file)
std::vector<QuantizedMatrix> awq_matrices(const QuantizerConfig& settings, RawTensors& tensors);
std::vector<QuantizedMatrix> gptq_matrices(const QuantizerConfig& settings, RawTensors& tensors);
std::vector<QuantizedMatrix> fp8_matrices(const QuantizerConfig& settings,
                                          RawTensors& tensors,
                                          std::vector<std::string>& remarks);
std::vector<QuantizedMatrix> compressed_matrices(const QuantizerConfig& settings,
                                                 RawTensors& tensors,
                                                 std::vector<std::string>& remarks);

/// Matrices in their storage, and the remark about those that no blocks hold.
std::vector<format::TensorView> stored(const std::vector<QuantizedMatrix>& matrices,
                                       const std::string& file,
                                       std::vector<std::string>& remarks);

}  // namespace tessera::convert
