#include "tessera/convert/quantized_folder.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <numeric>

#include <fmt/ranges.h>

#include "tessera/base/error.h"
#include "tessera/base/float8.h"
#include "tessera/base/half.h"
#include "tessera/base/threads.h"
#include "tessera/convert/tensor_ops.h"
#include "tessera/format/file_source.h"

namespace tessera::convert {
namespace {

using format::TensorView;
using spec::Json;

constexpr int64_t kRun = 32;         // numbers that share a scale in every type here
constexpr int64_t kRowsAtOnce = 64;  // lines of files packed along the outputs are read whole

// --- tensors of the file -------------------------------------------------------------------------

/// A tensor of any type; those that are not computed with have a type by name alone.
struct Raw {
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

constexpr std::string_view kE4m3 = "F8_E4M3";

class RawTensors {
 public:
  explicit RawTensors(const format::TensorFile& file) : file_(file) {
    for (const TensorView& t : file.tensors())
      by_name_[t.name] = {t.name, std::string(name_of(t.dtype)), t.dtype, t.shape, t.data, t.owner};
    for (const format::UnsupportedTensor& t : file.unsupported())
      by_name_[t.name] = {t.name, t.type, std::nullopt, t.shape, t.data, t.owner};
  }

  const std::map<std::string, Raw, std::less<>>& all() const { return by_name_; }
  const std::set<std::string, std::less<>>& used() const { return used_; }
  const std::string& file() const { return file_.file(); }

  /// Null where there is none.
  const Raw* find(const std::string& name) {
    const auto found = by_name_.find(name);
    if (found == by_name_.end()) return nullptr;
    used_.insert(name);
    return &found->second;
  }
  const Raw& at(const std::string& name, const std::string& asked_by) {
    if (const Raw* raw = find(name)) return *raw;
    fail(ErrorKind::file, file(), "tensor {} is missing; {} needs it", format::in_quotes(name),
         format::in_quotes(asked_by));
  }

  void expect_type(const Raw& raw, std::initializer_list<DType> types) const {
    std::vector<std::string_view> names;
    for (const DType type : types) {
      if (raw.dtype == type) return;
      names.push_back(name_of(type));
    }
    fail(ErrorKind::file, file(), "tensor {} has type {}; expected {}", format::in_quotes(raw.name),
         raw.type, fmt::join(names, " or "));
  }
  void expect_shape(const Raw& raw, const std::vector<int64_t>& shape, const char* why) const {
    if (raw.shape != shape)
      fail(ErrorKind::file, file(), "tensor {} has shape {}; {} says {}",
           format::in_quotes(raw.name), format::shape_text(raw.shape), why,
           format::shape_text(shape));
  }
  /// Two axes, neither of them empty.
  void expect_matrix(const Raw& raw) const {
    if (raw.shape.size() != 2 || raw.shape[0] < 1 || raw.shape[1] < 1)
      fail(ErrorKind::file, file(), "tensor {} has shape {}; expected a matrix",
           format::in_quotes(raw.name), format::shape_text(raw.shape));
  }

 private:
  const format::TensorFile& file_;
  std::map<std::string, Raw, std::less<>> by_name_;
  std::set<std::string, std::less<>> used_;
};

// --- matrices as a method describes them ---------------------------------------------------------

int64_t parts_of(int64_t n, int64_t size) {
  return n / size + (n % size == 0 ? 0 : 1);
}

/// w = scale (code - zero) with unsigned codes of `bits`, or scale times a number in e4m3.
struct Matrix {
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
    if (columns % kRun != 0) return "rows that are no multiple of 32";
    const std::vector<int32_t> order = by_groups();
    for (size_t c = 0; c < order.size(); ++c)
      if (group_of(order[c]) != group_of(order[c / kRun * kRun]))
        return "groups that are no multiple of 32";
    return "";
  }
};

bool is_half(float scale) {
  return f16_to_float(float_to_f16(scale)) == scale;
}

/// What all matrices of one number of bits have in common.
struct Common {
  bool middle = true, halves = true;
};

void note_common(const Matrix& m, const std::string& file, Common& common) {
  const int64_t groups = m.group_count();
  for (int64_t row = 0; row < m.rows; ++row)
    for (int64_t g = 0; g < groups; ++g) {
      const float scale = m.scale(row, g);
      if (!std::isfinite(scale))
        fail(ErrorKind::file, file, "{}: the scale of row {}, group {} is {}; expected a number",
             format::in_quotes(m.name), row, g, scale);
      common.halves = common.halves && is_half(scale);
      common.middle = common.middle && m.zero_of(row, g) == m.middle();
    }
}

DType type_of(const Matrix& m, const Common& common) {
  if (!m.outside_blocks().empty()) return DType::f32;
  if (m.e4m3) return DType::scaled_e4m3;
  const bool plain = common.middle && common.halves;
  if (m.bits == 4) return plain ? DType::q4_0 : DType::scaled_u4;
  return plain ? DType::q8_0 : DType::scaled_i8;
}

template <class T>
uint8_t* put(uint8_t* to, T value) {
  std::memcpy(to, &value, sizeof value);
  return to + sizeof value;
}

void put_nibbles(uint8_t* to, const uint8_t* codes) {
  for (int i = 0; i < 16; ++i) to[i] = static_cast<uint8_t>(codes[i] | codes[16 + i] << 4);
}

/// A block of 32 codes.
void put_block(DType type, const uint8_t* codes, float scale, int32_t zero, uint8_t* to) {
  constexpr int32_t kMiddle = 128;  // of eight bits: bytes are signed there
  switch (type) {
    case DType::q4_0:
      return put_nibbles(put(to, float_to_f16(scale)), codes);
    case DType::scaled_u4:
      return put_nibbles(put(put(to, scale), static_cast<uint8_t>(zero)), codes);
    case DType::scaled_e4m3:
      std::memcpy(put(to, scale), codes, kRun);
      return;
    case DType::q8_0:
      to = put(to, float_to_f16(scale));
      break;
    default:
      to = put(put(to, scale), static_cast<int16_t>(zero - kMiddle));
  }
  for (int i = 0; i < kRun; ++i) to[i] = codes[i] ^ uint8_t { kMiddle };
}

/// A row of any groups, in float32.
void put_floats(const Matrix& m, int64_t row, const uint8_t* codes, uint8_t* to) {
  for (int64_t c = 0; c < m.columns; ++c) {
    const int64_t g = m.group_of(c);
    const float code =
        m.e4m3 ? e4m3_to_float(codes[c]) : static_cast<float>(codes[c] - m.zero_of(row, g));
    to = put(to, m.scale(row, g) * code);
  }
}

/// Blocks hold columns by their groups.
TensorView packed(const Matrix& m, DType type) {
  const bool moved = type != DType::f32 && !m.groups.empty();
  const auto order = std::make_shared<const std::vector<int32_t>>(m.by_groups());
  const int64_t row_bytes = storage_bytes(type, m.columns);
  auto bytes = std::make_shared<std::vector<std::byte>>(static_cast<size_t>(
      storage_bytes(type, format::element_count(std::vector{m.rows, m.columns}))));
  auto* to = reinterpret_cast<uint8_t*>(bytes->data());
  const int64_t block = type == DType::f32 ? 0 : layout_of(type).block_bytes;
  parallel_for(parts_of(m.rows, kRowsAtOnce), 1, [&](int64_t first, int64_t last) {
    std::vector<uint8_t> codes(static_cast<size_t>(kRowsAtOnce * m.columns)),
        row_codes(static_cast<size_t>(m.columns));
    for (int64_t begin = first * kRowsAtOnce; begin < std::min(last * kRowsAtOnce, m.rows);
         begin += kRowsAtOnce) {
      const int64_t end = std::min(begin + kRowsAtOnce, m.rows);
      m.codes(begin, end, codes.data());
      for (int64_t row = begin; row < end; ++row) {
        const uint8_t* from = codes.data() + (row - begin) * m.columns;
        uint8_t* out = to + row * row_bytes;
        if (block == 0) {
          put_floats(m, row, from, out);
          continue;
        }
        if (moved) {
          for (size_t c = 0; c < row_codes.size(); ++c) row_codes[c] = from[(*order)[c]];
          from = row_codes.data();
        }
        for (int64_t c = 0; c < m.columns; c += kRun, out += block) {
          const int64_t g = m.group_of((*order)[static_cast<size_t>(c)]);
          put_block(type, from + c, m.scale(row, g), m.e4m3 ? 0 : m.zero_of(row, g), out);
        }
      }
    }
  });
  return {m.name, type, {m.rows, m.columns}, *bytes, bytes, moved ? order : nullptr};
}

// --- configs -------------------------------------------------------------------------------------

/// A member of a quantiser's config.
class Settings {
 public:
  Settings(const Json& json, std::string where) : json_(json), where_(std::move(where)) {
    if (!json.is_object())
      fail(ErrorKind::file, where_, "found {}; expected an object", spec::kind_of(json));
  }

  const std::string& where() const { return where_; }
  /// Null where it is absent or null.
  const Json* find(const char* key) const {
    const auto found = json_.find(key);
    return found == json_.end() || found->is_null() ? nullptr : &*found;
  }
  std::string text(const char* key, const char* otherwise) const {
    const Json* value = find(key);
    if (value == nullptr) return otherwise;
    if (!value->is_string()) wrong(key, *value, "a text");
    return value->get<std::string>();
  }
  /// The text under the first of these keys that is there, or the first of those that may stand
  /// there; others are refused.
  std::string expect(std::initializer_list<const char*> keys,
                     std::initializer_list<const char*> known) const {
    for (const char* key : keys) {
      const Json* value = find(key);
      if (value == nullptr) continue;
      for (const char* one : known)
        if (*value == one) return one;
      wrong(key, *value, fmt::format("\"{}\"", fmt::join(known, "\" or \"")));
    }
    return *known.begin();
  }
  bool flag(const char* key, bool otherwise) const {
    const Json* value = find(key);
    if (value == nullptr) return otherwise;
    if (!value->is_boolean()) wrong(key, *value, "true or false");
    return value->get<bool>();
  }
  int64_t whole(const char* key, int64_t otherwise) const {
    const Json* value = find(key);
    return value == nullptr ? otherwise : whole_of(key, *value);
  }
  /// Two sizes from 1 on, or nothing.
  std::optional<std::pair<int64_t, int64_t>> sizes(const char* key) const {
    const Json* value = find(key);
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
  [[noreturn]] void wrong(const char* key, const Json& value, std::string_view expected) const {
    fail(ErrorKind::file, where_, "{} = {} is not supported; expected {}", key,
         format::printable(value.dump(), 100), expected);
  }

 private:
  int64_t whole_of(const char* key, const Json& value) const {
    constexpr int64_t kMost = int64_t{1} << 40;
    if (!value.is_number_integer() || value.get<double>() > static_cast<double>(kMost) ||
        value.get<double>() < -static_cast<double>(kMost))
      wrong(key, value, "a whole number");
    return value.get<int64_t>();
  }

  const Json& json_;
  std::string where_;
};

std::string module_of(std::string_view name, std::string_view suffix) {
  return std::string(name.substr(0, name.size() - suffix.size()));
}

// --- AWQ and GPTQ: [in, out], words along one of them --------------------------------------------

/// Scales [groups, out] of a module, checked against its group size.
const Raw& scales_of(RawTensors& tensors, const std::string& module, int64_t groups, int64_t rows) {
  const Raw& scales = tensors.at(module + ".scales", module + ".qweight");
  tensors.expect_type(scales, {DType::f16, DType::bf16, DType::f32});
  tensors.expect_shape(scales, {groups, rows}, "group_size");
  return scales;
}

std::vector<Matrix> awq_matrices(const Settings& settings, RawTensors& tensors) {
  if (const int64_t bits = settings.whole("bits", 4); bits != 4)
    settings.wrong("bits", *settings.find("bits"), "4");
  settings.expect({"version", "format"}, {"gemm", "GEMM"});
  if (!settings.flag("zero_point", true))
    settings.wrong("zero_point", *settings.find("zero_point"), "true");
  // where in a word the bits of each of its eight outputs are: in the order 0 2 4 6 1 3 5 7
  static constexpr int kShift[8] = {0, 16, 4, 20, 8, 24, 12, 28};
  static_assert(kRowsAtOnce % 8 == 0);
  std::vector<Matrix> matrices;
  for (const auto& [name, raw] : tensors.all()) {
    if (!name.ends_with(".qweight")) continue;
    const std::string module = module_of(name, ".qweight");
    const Raw& words = *tensors.find(name);
    tensors.expect_type(words, {DType::i32});
    tensors.expect_matrix(words);
    Matrix m;
    m.name = module + ".weight";
    m.bits = 4;
    m.columns = words.shape[0];
    m.rows = words.shape[1] * 8;
    m.group = settings.group("group_size", m.columns);
    const Raw& scales = scales_of(tensors, module, m.group_count(), m.rows);
    const Raw& zeros = tensors.at(module + ".qzeros", name);
    tensors.expect_type(zeros, {DType::i32});
    tensors.expect_shape(zeros, {m.group_count(), words.shape[1]}, "group_size");
    const int64_t rows = m.rows, columns = m.columns;
    m.codes = [words, rows, columns](int64_t begin, int64_t end, uint8_t* to) {
      for (int64_t c = 0; c < columns; ++c)
        for (int64_t r = begin; r < end; r += 8) {
          const auto word = words.at<uint32_t>((c * rows + r) / 8);
          for (int64_t i = 0; i < 8; ++i)
            to[(r - begin + i) * columns + c] = word >> kShift[i] & 15;
        }
    };
    m.scale = [scales, rows](int64_t r, int64_t g) { return scales.number(g * rows + r); };
    m.zero = [zeros, rows](int64_t r, int64_t g) {
      return static_cast<int32_t>(zeros.at<uint32_t>((g * rows + r) / 8) >> kShift[r % 8] & 15);
    };
    matrices.push_back(std::move(m));
  }
  return matrices;
}

/// Groups of columns where they are not those that follow each other.
std::vector<int32_t> order_of(const Raw& g_idx, const Matrix& m, const std::string& file) {
  std::vector<int32_t> groups(static_cast<size_t>(m.columns));
  bool in_order = true;
  for (int64_t c = 0; c < m.columns; ++c) {
    const auto g = g_idx.at<int32_t>(c);
    if (g < 0 || g >= m.group_count())
      fail(ErrorKind::file, file, "tensor {} names group {} for column {}; there are {}",
           format::in_quotes(g_idx.name), g, c, m.group_count());
    in_order = in_order && g == c / m.group;
    groups[static_cast<size_t>(c)] = g;
  }
  return in_order ? std::vector<int32_t>{} : groups;
}

int bits_of(const Settings& settings, const char* key) {
  const int64_t bits = settings.whole(key, 0);
  if (bits != 4 && bits != 8) {
    const Json absent;
    const Json* value = settings.find(key);
    settings.wrong(key, value == nullptr ? absent : *value, "4 or 8");
  }
  return static_cast<int>(bits);
}

std::vector<Matrix> gptq_matrices(const Settings& settings, RawTensors& tensors) {
  const int bits = bits_of(settings, "bits");
  const bool second =
      settings.expect({"checkpoint_format", "format"}, {"gptq", "gptq_v2"}) == "gptq_v2";
  settings.expect({"pack_dtype"}, {"int32"});
  const int64_t in_word = 32 / bits;
  const uint32_t mask = (1u << bits) - 1;
  // in the first version zeros lie one below what they are: one is added to the whole word, as
  // those who wrote it took it away
  const uint32_t ones = second ? 0 : bits == 4 ? 0x11111111u : 0x01010101u;
  std::vector<Matrix> matrices;
  for (const auto& [name, raw] : tensors.all()) {
    if (!name.ends_with(".qweight")) continue;
    const std::string module = module_of(name, ".qweight");
    const Raw& words = *tensors.find(name);
    tensors.expect_type(words, {DType::i32});
    tensors.expect_matrix(words);
    Matrix m;
    m.name = module + ".weight";
    m.bits = bits;
    m.columns = words.shape[0] * in_word;
    m.rows = words.shape[1];
    m.group = settings.group("group_size", m.columns);
    const Raw& scales = scales_of(tensors, module, m.group_count(), m.rows);
    const Raw& zeros = tensors.at(module + ".qzeros", name);
    tensors.expect_type(zeros, {DType::i32});
    const int64_t zero_words = parts_of(m.rows, in_word);
    tensors.expect_shape(zeros, {m.group_count(), zero_words}, "group_size");
    if (const Raw* g_idx = tensors.find(module + ".g_idx")) {
      tensors.expect_type(*g_idx, {DType::i32});
      tensors.expect_shape(*g_idx, {m.columns}, "the packed weight");
      m.groups = order_of(*g_idx, m, tensors.file());
    }
    const int64_t rows = m.rows, columns = m.columns;
    m.codes = [words, rows, columns, bits, in_word, mask](int64_t begin, int64_t end, uint8_t* to) {
      for (int64_t w = 0; w < columns / in_word; ++w)
        for (int64_t r = begin; r < end; ++r) {
          uint32_t word = words.at<uint32_t>(w * rows + r);
          for (int64_t i = 0; i < in_word; ++i, word >>= bits)
            to[(r - begin) * columns + w * in_word + i] = static_cast<uint8_t>(word & mask);
        }
    };
    m.scale = [scales, rows](int64_t r, int64_t g) { return scales.number(g * rows + r); };
    m.zero = [zeros, zero_words, bits, in_word, mask, ones](int64_t r, int64_t g) {
      const uint32_t word = zeros.at<uint32_t>(g * zero_words + r / in_word) + ones;
      return static_cast<int32_t>(word >> (bits * (r % in_word)) & mask);
    };
    matrices.push_back(std::move(m));
  }
  return matrices;
}

// --- compressed-tensors and fp8: [out, in] -------------------------------------------------------

/// A kind of weights that a config declares.
struct Declared {
  int bits = 8;
  bool floats = false;
  std::optional<int64_t> group;
  std::optional<std::pair<int64_t, int64_t>> block;
};

/// How scales of this shape lie over a matrix.
struct Scales {
  int64_t per_rows = 1, group = 1;  // rows and columns of one
  int64_t groups = 1;               // in a row of the tensor

  int64_t index(int64_t row, int64_t g) const { return row / per_rows * groups + g; }
};

Scales scales_over(const Raw& scale,
                   int64_t rows,
                   int64_t columns,
                   const std::vector<Declared>& declared,
                   const std::string& file) {
  std::vector<int64_t> shape = scale.shape;
  if (shape.empty() || shape == std::vector<int64_t>{1}) return {rows, columns, 1};
  if (shape == std::vector{rows} || shape == std::vector<int64_t>{rows, 1}) return {1, columns, 1};
  for (const Declared& d : declared) {
    if (d.block &&
        shape == std::vector{parts_of(rows, d.block->first), parts_of(columns, d.block->second)})
      return {d.block->first, d.block->second, shape[1]};
    if (d.group && shape == std::vector{rows, parts_of(columns, *d.group)})
      return {1, *d.group, shape[1]};
  }
  fail(ErrorKind::file, file,
       "tensor {} has shape {}; the config says no such groups of a matrix {}",
       format::in_quotes(scale.name), format::shape_text(shape),
       format::shape_text(std::vector{rows, columns}));
}

/// Sets a matrix's scales from a tensor.
void set_scales(Matrix& m,
                const Raw& scale,
                const std::vector<Declared>& declared,
                const RawTensors& tensors) {
  tensors.expect_type(scale, {DType::f16, DType::bf16, DType::f32, DType::f64});
  const Scales over = scales_over(scale, m.rows, m.columns, declared, tensors.file());
  m.group = over.group;
  m.scale = [scale, over](int64_t r, int64_t g) { return scale.number(over.index(r, g)); };
}

/// Bytes as they are, or signed ones as codes from 0 to 255.
void set_bytes(Matrix& m, const Raw& bytes, bool is_signed) {
  const int64_t columns = m.columns;
  const uint8_t flip = is_signed ? 128 : 0;
  m.codes = [bytes, columns, flip](int64_t begin, int64_t end, uint8_t* to) {
    for (int64_t i = begin * columns; i < end * columns; ++i) *to++ = bytes.at<uint8_t>(i) ^ flip;
  };
}

/// "F8_E4M3" in module.weight, beside the scales that it is multiplied by.
Matrix e4m3_matrix(const Raw& weight,
                   const std::string& scale_name,
                   const std::vector<Declared>& declared,
                   RawTensors& tensors) {
  const Raw& scale = tensors.at(scale_name, weight.name);
  tensors.expect_matrix(weight);
  Matrix m;
  m.name = weight.name;
  m.bits = 8;
  m.e4m3 = true;
  m.rows = weight.shape[0];
  m.columns = weight.shape[1];
  set_scales(m, scale, declared, tensors);
  set_bytes(m, weight, /*is_signed=*/false);
  return m;
}

constexpr const char* kOfActivations[] = {"input_scale", "input_zero_point", "output_scale",
                                          "k_scale",     "v_scale",          "q_scale"};

/// Numbers by which programs round what weights meet: not weights.
void pass_over_activations(RawTensors& tensors) {
  std::vector<std::string> names;
  for (const auto& [name, raw] : tensors.all())
    for (const std::string suffix : kOfActivations)
      if (name.ends_with("." + suffix)) names.push_back(name);
  for (const std::string& name : names) tensors.find(name);
}

constexpr const char* kActivations =
    "the folder's program rounds activations too; here they stay as they are, and weights alone "
    "are "
    "of fewer bits";

std::vector<Matrix> fp8_matrices(const Settings& settings,
                                 RawTensors& tensors,
                                 std::vector<std::string>& remarks) {
  settings.expect({"fmt"}, {"e4m3"});
  settings.text("activation_scheme", "dynamic");
  std::vector<Declared> declared(1);
  declared[0].block = settings.sizes("weight_block_size");
  std::vector<Matrix> matrices;
  for (const auto& [name, raw] : tensors.all()) {
    if (raw.type != kE4m3 || !name.ends_with(".weight")) continue;
    const Raw& weight = *tensors.find(name);
    const bool plain = tensors.all().contains(name + "_scale");
    matrices.push_back(
        e4m3_matrix(weight, name + (plain ? "_scale" : "_scale_inv"), declared, tensors));
  }
  pass_over_activations(tensors);
  remarks.push_back(kActivations);
  return matrices;
}

/// The kinds of weights of config_groups, and whether activations are rounded.
std::vector<Declared> declared_in(const Settings& settings, bool& activations) {
  const Json* groups = settings.find("config_groups");
  if (groups == nullptr || !groups->is_object() || groups->empty())
    fail(ErrorKind::file, settings.where(), "config_groups is {}; expected groups of modules",
         groups == nullptr ? "missing" : "without any");
  std::vector<Declared> declared;
  for (const auto& [name, json] : groups->items()) {
    const Settings group(
        json, fmt::format("{}.config_groups.{}", settings.where(), format::printable(name, 40)));
    activations = activations || group.find("input_activations") != nullptr;
    const Json* weights = group.find("weights");
    if (weights == nullptr) continue;
    const Settings of(*weights, group.where() + ".weights");
    Declared d;
    d.bits = bits_of(of, "num_bits");
    const std::string type = of.text("type", "int");
    d.floats = type == "float";
    if ((type != "int" && type != "float") || (d.floats && d.bits != 8))
      of.wrong("type", *of.find("type"), "\"int\", or \"float\" of 8 bits");
    d.block = of.sizes("block_structure");
    if (const int64_t size = of.whole("group_size", -1); size >= 1)
      d.group = size;
    else if (size != -1)
      of.wrong("group_size", *of.find("group_size"), "a number of columns");
    declared.push_back(d);
  }
  if (declared.empty())
    fail(ErrorKind::file, settings.where(), "no group has weights; expected those of modules");
  return declared;
}

/// module.weight_packed, .weight_scale, .weight_shape, and what else there may be.
Matrix words_matrix(const std::string& module,
                    const std::vector<Declared>& declared,
                    RawTensors& tensors) {
  const std::string name = module + ".weight_packed";
  const Raw& words = *tensors.find(name);
  tensors.expect_type(words, {DType::i32});
  tensors.expect_matrix(words);
  const Raw& shape = tensors.at(module + ".weight_shape", name);
  tensors.expect_type(shape, {DType::i64, DType::i32});
  tensors.expect_shape(shape, {2}, "a matrix");
  const auto size = [&](int64_t axis) {
    return shape.dtype == DType::i64 ? shape.at<int64_t>(axis) : int64_t{shape.at<int32_t>(axis)};
  };
  Matrix m;
  m.name = module + ".weight";
  m.rows = size(0);
  m.columns = size(1);
  for (const Declared& d : declared)
    if (!d.floats && m.rows == words.shape[0] && m.columns >= 1 &&
        parts_of(m.columns, 32 / d.bits) == words.shape[1])
      m.bits = d.bits;
  if (m.bits == 0)
    fail(ErrorKind::file, tensors.file(),
         "tensor {} has shape {}; {} and the bits of the config say otherwise",
         format::in_quotes(name), format::shape_text(words.shape),
         format::shape_text(std::vector{m.rows, m.columns}));
  set_scales(m, tensors.at(module + ".weight_scale", name), declared, tensors);
  const int bits = m.bits;
  const int64_t in_word = 32 / bits, in_row = words.shape[1], columns = m.columns;
  const uint32_t mask = (1u << bits) - 1;
  m.codes = [=](int64_t begin, int64_t end, uint8_t* to) {
    for (int64_t r = begin; r < end; ++r)
      for (int64_t c = 0; c < columns; ++c)
        *to++ = static_cast<uint8_t>(
            words.at<uint32_t>(r * in_row + c / in_word) >> (bits * (c % in_word)) & mask);
  };
  const int64_t groups = m.group_count();
  if (const Raw* zeros = tensors.find(module + ".weight_zero_point")) {
    tensors.expect_type(*zeros, {DType::i32});
    tensors.expect_shape(*zeros, {parts_of(m.rows, in_word), groups}, "the scales' shape");
    m.zero = [zeros = *zeros, groups, bits, in_word, mask](int64_t r, int64_t g) {
      return static_cast<int32_t>(
          zeros.at<uint32_t>(r / in_word * groups + g) >> (bits * (r % in_word)) & mask);
    };
  }
  if (const Raw* g_idx = tensors.find(module + ".weight_g_idx")) {
    tensors.expect_type(*g_idx, {DType::i32, DType::i64});
    tensors.expect_shape(*g_idx, {m.columns}, "the packed weight");
    if (g_idx->dtype == DType::i64)
      fail(ErrorKind::file, tensors.file(), "tensor {} has type i64; expected i32",
           format::in_quotes(g_idx->name));
    m.groups = order_of(*g_idx, m, tensors.file());
  }
  return m;
}

/// module.weight of signed bytes.
Matrix bytes_matrix(const Raw& weight, const std::vector<Declared>& declared, RawTensors& tensors) {
  tensors.expect_matrix(weight);
  Matrix m;
  m.name = weight.name;
  m.bits = 8;
  m.rows = weight.shape[0];
  m.columns = weight.shape[1];
  const Raw& scale = tensors.at(weight.name + "_scale", weight.name);
  set_scales(m, scale, declared, tensors);
  set_bytes(m, weight, /*is_signed=*/true);
  if (const Raw* zeros = tensors.find(weight.name + "_zero_point")) {
    tensors.expect_type(*zeros, {DType::i8});
    tensors.expect_shape(*zeros, scale.shape, "the scales' shape");
    const Scales over = scales_over(scale, m.rows, m.columns, declared, tensors.file());
    m.zero = [zeros = *zeros, over](int64_t r, int64_t g) {
      return zeros.at<int8_t>(over.index(r, g)) + 128;
    };
  }
  return m;
}

std::vector<Matrix> compressed_matrices(const Settings& settings,
                                        RawTensors& tensors,
                                        std::vector<std::string>& remarks) {
  const std::string form = settings.text("format", "");
  const std::string_view known[] = {"pack-quantized", "int-quantized", "float-quantized",
                                    "naive-quantized", "mixed-precision"};
  if (std::find(std::begin(known), std::end(known), form) == std::end(known))
    fail(ErrorKind::file, settings.where(), "format = {} is not supported; expected {}",
         format::in_quotes(form), fmt::join(known, ", "));
  if (const Json* sparsity = settings.find("sparsity_config");
      sparsity != nullptr && sparsity->is_object() && !sparsity->empty() &&
      sparsity->value("format", Json("dense")) != Json("dense"))
    settings.wrong("sparsity_config", *sparsity, "weights that are dense");
  if (const Json* transform = settings.find("transform_config");
      transform != nullptr && !transform->empty())
    settings.wrong("transform_config", *transform, "none: turned weights need turned activations");
  bool activations = settings.find("kv_cache_scheme") != nullptr;
  const std::vector<Declared> declared = declared_in(settings, activations);
  if (activations) remarks.push_back(kActivations);
  const auto declares = [&](bool floats) {
    return std::any_of(declared.begin(), declared.end(),
                       [&](const Declared& d) { return d.floats == floats && d.bits == 8; });
  };
  std::vector<Matrix> matrices;
  for (const auto& [name, raw] : tensors.all()) {
    if (name.ends_with(".weight_packed")) {
      matrices.push_back(words_matrix(module_of(name, ".weight_packed"), declared, tensors));
      continue;
    }
    const bool floats = raw.type == kE4m3;
    if (!name.ends_with(".weight") || (!floats && raw.dtype != DType::i8)) continue;
    if (!declares(floats))
      fail(ErrorKind::file, tensors.file(),
           "tensor {} has type {}; the config says no weights of it", format::in_quotes(name),
           raw.type);
    const Raw& weight = *tensors.find(name);
    matrices.push_back(floats ? e4m3_matrix(weight, name + "_scale", declared, tensors)
                              : bytes_matrix(weight, declared, tensors));
  }
  pass_over_activations(tensors);
  return matrices;
}

// --- all of a folder -----------------------------------------------------------------------------

/// Matrices in their storage, and the remark about those that no blocks hold.
std::vector<TensorView> stored(const std::vector<Matrix>& matrices,
                               const std::string& file,
                               std::vector<std::string>& remarks) {
  std::map<std::pair<int, bool>, Common> common;
  const auto common_of = [&](const Matrix& m) -> Common& { return common[{m.bits, m.e4m3}]; };
  for (const Matrix& m : matrices) note_common(m, file, common_of(m));
  std::map<std::string_view, std::vector<std::string>> outside;
  std::vector<TensorView> tensors;
  for (const Matrix& m : matrices) {
    if (const std::string_view why = m.outside_blocks(); !why.empty())
      outside[why].push_back(m.name);
    tensors.push_back(packed(m, type_of(m, common_of(m))));
  }
  for (const auto& [why, names] : outside)
    remarks.push_back(fmt::format(
        "{} of {} quantised matrices are held in float32, as they have {}: {}{}", names.size(),
        matrices.size(), why, names.front(), names.size() > 1 ? ", ..." : ""));
  return tensors;
}

}  // namespace

std::optional<QuantizedFolder> read_quantized_folder(Json& config,
                                                     const std::string& where,
                                                     const format::TensorFile& file) {
  const char* key =
      config.contains("quantization_config") ? "quantization_config" : "compression_config";
  if (!config.contains(key) || config[key].is_null()) return std::nullopt;
  const Settings settings(config[key], fmt::format("{}, {}", where, key));
  const std::string method = settings.text("quant_method", "");
  if (method == "mxfp4") return std::nullopt;  // the family says where
  RawTensors raws(file);
  QuantizedFolder folder;
  std::vector<Matrix> matrices;
  if (method == "awq") {
    matrices = awq_matrices(settings, raws);
  } else if (method == "gptq") {
    matrices = gptq_matrices(settings, raws);
  } else if (method == "compressed-tensors") {
    matrices = compressed_matrices(settings, raws, folder.remarks);
  } else if (method == "fp8") {
    matrices = fp8_matrices(settings, raws, folder.remarks);
  } else {
    fail(ErrorKind::file, settings.where(),
         "quant_method = {} is not supported; expected awq, gptq, compressed-tensors or fp8",
         format::in_quotes(method));
  }
  if (matrices.empty())
    fail(ErrorKind::file, file.file(), "holds no weight as {} stores them; the config says so",
         method);
  std::vector<TensorView> tensors;
  for (const TensorView& tensor : file.tensors())
    if (!raws.used().contains(tensor.name)) tensors.push_back(tensor);
  for (TensorView& tensor : stored(matrices, file.file(), folder.remarks)) {
    folder.packed.insert(tensor.name);
    tensors.push_back(std::move(tensor));
  }
  std::vector<format::UnsupportedTensor> unsupported;
  for (const format::UnsupportedTensor& tensor : file.unsupported())
    if (!raws.used().contains(tensor.name)) unsupported.push_back(tensor);
  folder.tensors = format::TensorFile("safetensors", file.file(), std::move(tensors),
                                      file.metadata(), std::move(unsupported));
  config.erase(key);
  return folder;
}

}  // namespace tessera::convert
