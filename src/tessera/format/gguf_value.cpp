// Metadata values of GGUF: decoding of checked bytes, and encoding for the writer.
#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include <fmt/ranges.h>

#include "tessera/base/error.h"
#include "tessera/format/file_source.h"
#include "tessera/format/gguf.h"
#include "tessera/format/gguf_types.h"
#include "tessera/spec/json.h"

namespace tessera::format {
namespace {

constexpr size_t kArrayHeader = sizeof(uint32_t) + sizeof(uint64_t);  // element type, count

template <class T>
T load(std::span<const std::byte> bytes, size_t offset = 0) {
  require(offset + sizeof(T) <= bytes.size(), "gguf", "value of {} bytes read at {}", bytes.size(),
          offset);
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

// Calls visit(number) with the value in its own type; false when `type` is no number.
template <class Visit>
bool visit_number(GgufType type, std::span<const std::byte> bytes, Visit&& visit) {
  switch (type) {
    case GgufType::u8:
      visit(load<uint8_t>(bytes));
      return true;
    case GgufType::i8:
      visit(load<int8_t>(bytes));
      return true;
    case GgufType::u16:
      visit(load<uint16_t>(bytes));
      return true;
    case GgufType::i16:
      visit(load<int16_t>(bytes));
      return true;
    case GgufType::u32:
      visit(load<uint32_t>(bytes));
      return true;
    case GgufType::i32:
      visit(load<int32_t>(bytes));
      return true;
    case GgufType::u64:
      visit(load<uint64_t>(bytes));
      return true;
    case GgufType::i64:
      visit(load<int64_t>(bytes));
      return true;
    case GgufType::f32:
      visit(load<float>(bytes));
      return true;
    case GgufType::f64:
      visit(load<double>(bytes));
      return true;
    default:
      return false;
  }
}

// Bytes of the value of `type` at the start of `bytes`, which have been checked.
size_t encoded_size(GgufType type, std::span<const std::byte> bytes) {
  if (type == GgufType::string) return sizeof(uint64_t) + load<uint64_t>(bytes);
  if (type != GgufType::array) return gguf_number_size(type);
  const auto element = static_cast<GgufType>(load<uint32_t>(bytes));
  const auto count = load<uint64_t>(bytes, sizeof(uint32_t));
  if (gguf_number_size(element) > 0) return kArrayHeader + count * gguf_number_size(element);
  size_t size = kArrayHeader;
  for (uint64_t i = 0; i < count; ++i) size += encoded_size(element, bytes.subspan(size));
  return size;
}

[[noreturn]] void wrong_type(const GgufValue& value, std::string_view expected) {
  if (value.type() == GgufType::array)
    fail(ErrorKind::file, "gguf", "an array of {} x {}; expected {}", value.size(),
         name_of(value.element_type()), expected);
  fail(ErrorKind::file, "gguf", "{} ({}); expected {}", value.text(), name_of(value.type()),
       expected);
}

template <class T>
T integer(const GgufValue& value, std::string_view expected) {
  bool fits = false;
  T result = 0;
  visit_number(value.type(), value.encoded(), [&](auto number) {
    if constexpr (std::is_integral_v<decltype(number)>) {
      fits = std::in_range<T>(number);
      if (fits) result = static_cast<T>(number);
    }
  });
  if (!fits) wrong_type(value, expected);
  return result;
}

}  // namespace

std::string_view name_of(GgufType type) {
  static constexpr std::array<std::string_view, 13> kNames = {
      "u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
      "bool", "string", "array", "u64", "i64", "f64"};
  const auto index = static_cast<size_t>(type);
  return index < kNames.size() ? kNames[index] : "unknown";
}

// ---- encoding

GgufValue GgufValue::copy_of(GgufType type, const void* bytes, size_t size) {
  const auto* begin = static_cast<const std::byte*>(bytes);
  auto owner = std::make_shared<const std::vector<std::byte>>(begin, begin + size);
  const std::span<const std::byte> encoded = *owner;
  return {type, encoded, std::move(owner)};
}

GgufValue GgufValue::string(std::string_view text) {
  const uint64_t length = text.size();
  std::string encoded(reinterpret_cast<const char*>(&length), sizeof(length));
  encoded += text;
  return copy_of(GgufType::string, encoded.data(), encoded.size());
}

GgufValue GgufValue::array_of(GgufType element, uint64_t count, std::string_view payload) {
  std::string encoded(reinterpret_cast<const char*>(&element), sizeof(element));
  encoded.append(reinterpret_cast<const char*>(&count), sizeof(count));
  encoded += payload;
  return copy_of(GgufType::array, encoded.data(), encoded.size());
}

GgufValue GgufValue::strings(std::span<const std::string> values) {
  std::string payload;
  for (const std::string& value : values) {
    const uint64_t length = value.size();
    payload.append(reinterpret_cast<const char*>(&length), sizeof(length));
    payload += value;
  }
  return array_of(GgufType::string, values.size(), payload);
}

// ---- decoding

GgufType GgufValue::element_type() const {
  if (type_ != GgufType::array) wrong_type(*this, "an array");
  return static_cast<GgufType>(load<uint32_t>(encoded_));
}

uint64_t GgufValue::size() const {
  if (type_ != GgufType::array) wrong_type(*this, "an array");
  return load<uint64_t>(encoded_, sizeof(uint32_t));
}

uint64_t GgufValue::as_u64() const {
  return integer<uint64_t>(*this, "an integer >= 0");
}

int64_t GgufValue::as_i64() const {
  return integer<int64_t>(*this, "an integer below 2^63");
}

double GgufValue::as_f64() const {
  double result = 0;
  if (!visit_number(type_, encoded_, [&](auto number) { result = static_cast<double>(number); }))
    wrong_type(*this, "a number");
  return result;
}

bool GgufValue::as_bool() const {
  if (type_ != GgufType::boolean) wrong_type(*this, "a boolean");
  return load<uint8_t>(encoded_) != 0;
}

std::string_view GgufValue::as_string() const {
  if (type_ != GgufType::string) wrong_type(*this, "a string");
  return text_of(encoded_).substr(sizeof(uint64_t));
}

std::vector<GgufValue> GgufValue::elements() const {
  const GgufType element = element_type();
  std::vector<GgufValue> values;
  values.reserve(size());
  for (size_t at = kArrayHeader; at < encoded_.size();) {
    const size_t bytes = encoded_size(element, encoded_.subspan(at));
    values.emplace_back(element, encoded_.subspan(at, bytes), owner_);
    at += bytes;
  }
  return values;
}

std::vector<std::string_view> GgufValue::as_strings() const {
  if (type_ != GgufType::array || element_type() != GgufType::string)
    wrong_type(*this, "an array of strings");
  std::vector<std::string_view> strings;
  strings.reserve(size());
  for (size_t at = kArrayHeader; at < encoded_.size();) {
    const auto length = load<uint64_t>(encoded_, at);
    strings.push_back(text_of(encoded_.subspan(at + sizeof(length), length)));
    at += sizeof(length) + length;
  }
  return strings;
}

std::vector<int64_t> GgufValue::as_integers() const {
  if (type_ != GgufType::array) wrong_type(*this, "an array of integers");
  std::vector<int64_t> integers;
  integers.reserve(size());
  const size_t step = gguf_number_size(element_type());
  for (size_t at = kArrayHeader; at < encoded_.size(); at += step) {
    const bool is_number = visit_number(element_type(), encoded_.subspan(at), [&](auto number) {
      if constexpr (std::is_integral_v<decltype(number)>)
        if (std::in_range<int64_t>(number)) return integers.push_back(static_cast<int64_t>(number));
      wrong_type(*this, "an array of integers below 2^63");
    });
    if (!is_number) wrong_type(*this, "an array of integers");
  }
  return integers;
}

std::vector<double> GgufValue::as_numbers() const {
  if (type_ != GgufType::array) wrong_type(*this, "an array of numbers");
  std::vector<double> numbers;
  numbers.reserve(size());
  const size_t step = gguf_number_size(element_type());
  for (size_t at = kArrayHeader; at < encoded_.size(); at += step)
    if (!visit_number(element_type(), encoded_.subspan(at),
                      [&](auto number) { numbers.push_back(static_cast<double>(number)); }))
      wrong_type(*this, "an array of numbers");
  return numbers;
}

std::vector<bool> GgufValue::as_bools() const {
  if (type_ != GgufType::array || element_type() != GgufType::boolean)
    wrong_type(*this, "an array of booleans");
  std::vector<bool> bools;
  bools.reserve(size());
  for (size_t at = kArrayHeader; at < encoded_.size(); ++at)
    bools.push_back(load<uint8_t>(encoded_, at) != 0);
  return bools;
}

std::string GgufValue::text(size_t max_elements) const {
  if (type_ == GgufType::string) return in_quotes(as_string());
  if (type_ == GgufType::boolean) return as_bool() ? "true" : "false";
  if (type_ != GgufType::array) {
    std::string number;
    visit_number(type_, encoded_, [&](auto value) { number = fmt::format("{}", value); });
    return number;
  }
  // walks only what it shows
  std::vector<std::string> shown;
  size_t at = kArrayHeader;
  for (uint64_t i = 0; i < std::min<uint64_t>(size(), max_elements); ++i) {
    const size_t bytes = encoded_size(element_type(), encoded_.subspan(at));
    shown.push_back(
        GgufValue(element_type(), encoded_.subspan(at, bytes), owner_).text(max_elements));
    at += bytes;
  }
  if (size() > max_elements) shown.push_back(fmt::format("... {} in all", size()));
  return fmt::format("[{}]", fmt::join(shown, ", "));
}

// ---- metadata

GgufMetadata::GgufMetadata(std::string file, std::vector<GgufEntry> entries)
    : file_(std::move(file)), entries_(std::move(entries)), by_key_(entries_.size()) {
  std::iota(by_key_.begin(), by_key_.end(), 0u);
  std::sort(by_key_.begin(), by_key_.end(),
            [&](uint32_t a, uint32_t b) { return entries_[a].key < entries_[b].key; });
  for (size_t i = 1; i < by_key_.size(); ++i)
    if (entries_[by_key_[i]].key == entries_[by_key_[i - 1]].key)
      FileSource{"gguf", file_}.fail("metadata key {} appears twice",
                                     in_quotes(entries_[by_key_[i]].key));
}

const GgufValue* GgufMetadata::find(std::string_view key) const {
  const auto less = [&](uint32_t index, std::string_view wanted) {
    return entries_[index].key < wanted;
  };
  const auto found = std::lower_bound(by_key_.begin(), by_key_.end(), key, less);
  return found != by_key_.end() && entries_[*found].key == key ? &entries_[*found].value : nullptr;
}

const GgufValue& GgufMetadata::at(std::string_view key) const {
  if (const GgufValue* value = find(key)) return *value;
  std::vector<std::string> keys;
  for (const GgufEntry& entry : entries_) keys.push_back(entry.key);
  const std::string near = spec::nearest_name(key, keys);
  FileSource{"gguf", file_}.fail("no metadata key {}{}", in_quotes(key),
                                 near.empty() ? "" : "; nearest is " + in_quotes(near));
}

template <class T>
T GgufMetadata::get(std::string_view key, T (GgufValue::*as)() const) const {
  const GgufValue& value = at(key);
  try {
    return (value.*as)();
  } catch (const Error& error) {
    constexpr std::string_view kTag = "[gguf] ";
    FileSource{"gguf", file_}.fail("metadata key {} is {}", in_quotes(key),
                                   std::string_view(error.what()).substr(kTag.size()));
  }
}

uint64_t GgufMetadata::get_u64(std::string_view key) const {
  return get(key, &GgufValue::as_u64);
}

int64_t GgufMetadata::get_i64(std::string_view key) const {
  return get(key, &GgufValue::as_i64);
}

double GgufMetadata::get_f64(std::string_view key) const {
  return get(key, &GgufValue::as_f64);
}

bool GgufMetadata::get_bool(std::string_view key) const {
  return get(key, &GgufValue::as_bool);
}

std::string_view GgufMetadata::get_string(std::string_view key) const {
  return get(key, &GgufValue::as_string);
}

std::vector<std::string_view> GgufMetadata::get_strings(std::string_view key) const {
  return get(key, &GgufValue::as_strings);
}

std::vector<int64_t> GgufMetadata::get_integers(std::string_view key) const {
  return get(key, &GgufValue::as_integers);
}

std::vector<double> GgufMetadata::get_numbers(std::string_view key) const {
  return get(key, &GgufValue::as_numbers);
}

std::vector<bool> GgufMetadata::get_bools(std::string_view key) const {
  return get(key, &GgufValue::as_bools);
}

}  // namespace tessera::format
