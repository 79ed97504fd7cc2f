#include "tessera/format/npy.h"

#include <array>
#include <charconv>
#include <optional>

#include "tessera/base/error.h"
#include "tessera/base/mapped_file.h"
#include "tessera/format/file_source.h"
#include "tessera/base/output_file.h"

namespace tessera::format {
namespace {

constexpr std::string_view kNpyMagic = "\x93NUMPY";
constexpr size_t kNpyMaxHeaderBytes = 65'536;
constexpr size_t kNpyMaxRank = 64;          // NumPy's limit
constexpr size_t kNpyHeaderAlignment = 64;  // of the start of the data, when writing

struct NpyType {
  std::string_view code;  // "<f4"; '|' where byte order means nothing
  DType dtype;
};

constexpr std::array kTypes = {
    NpyType{"<f8", DType::f64}, NpyType{"<f4", DType::f32}, NpyType{"<f2", DType::f16},
    NpyType{"<i8", DType::i64}, NpyType{"<i4", DType::i32}, NpyType{"<i2", DType::i16},
    NpyType{"|i1", DType::i8},  NpyType{"|u1", DType::u8},  NpyType{"|b1", DType::boolean},
};

struct Header {
  std::optional<DType> dtype;
  std::optional<bool> fortran_order;
  std::optional<std::vector<int64_t>> shape;
};

// The header is a Python dict of three known keys: just that much of Python is read.
class HeaderParser {
 public:
  HeaderParser(std::string_view text, const FileSource& source) : text_(text), source_(source) {}

  Header parse() {
    expect('{');
    while (!accept('}')) {
      const std::string_view key = string();
      expect(':');
      if (key == "descr")
        set(header_.dtype, key, [&] { return dtype(); });
      else if (key == "fortran_order")
        set(header_.fortran_order, key, [&] { return boolean(); });
      else if (key == "shape")
        set(header_.shape, key, [&] { return shape(); });
      else
        source_.fail("header: unknown key {}", in_quotes(key));
      if (!accept(',') && peek() != '}') expect(',');
    }
    if (peek() != 0 || at_ != text_.size()) source_.fail("header: text after '}}' at byte {}", at_);
    if (!header_.dtype || !header_.fortran_order || !header_.shape)
      source_.fail("header: expected the keys descr, fortran_order and shape");
    return header_;
  }

 private:
  // The next character that is not white space, 0 at the end.
  char peek() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool accept(char wanted) {
    if (peek() != wanted) return false;
    ++at_;
    return true;
  }
  void expect(char wanted) {
    if (!accept(wanted)) unexpected(std::string("'") + wanted + "'");
  }
  [[noreturn]] void unexpected(std::string_view wanted) {
    const char found = peek();
    source_.fail("header: byte {}: found {}; expected {}", at_,
                 at_ < text_.size() ? in_quotes({&found, 1}) : "the end", wanted);
  }

  template <class T, class Parse>
  void set(std::optional<T>& field, std::string_view key, Parse parse) {
    if (field) source_.fail("header: key {} appears twice", in_quotes(key));
    field = parse();
  }

  std::string_view string() {
    const char quote = peek();
    if (quote != '\'' && quote != '"') unexpected("a string");
    const size_t begin = ++at_;
    const size_t end = text_.find(quote, begin);
    if (end == std::string_view::npos)
      source_.fail("header: the string at byte {} has no end", begin - 1);
    at_ = end + 1;
    return text_.substr(begin, end - begin);
  }

  DType dtype() {
    if (const char c = peek(); c != '\'' && c != '"')
      source_.fail("structured dtypes are not supported");
    const std::string_view code = string();
    for (const NpyType& type : kTypes)
      if (type.code == code) return type.dtype;
    source_.fail("dtype {} is not supported; expected one like \"<f4\" (little-endian, no objects)",
                 in_quotes(code));
  }

  bool boolean() {
    peek();
    for (const auto& [word, value] :
         {std::pair<std::string_view, bool>{"True", true}, {"False", false}})
      if (text_.substr(at_).starts_with(word)) {
        at_ += word.size();
        return value;
      }
    unexpected("True or False");
  }

  std::vector<int64_t> shape() {
    std::vector<int64_t> axes;
    expect('(');
    while (!accept(')')) {
      if (axes.size() == kNpyMaxRank) source_.fail("more than {} axes", kNpyMaxRank);
      axes.push_back(integer());
      // a tuple of one has a comma, (3,); without it, (3) is a number
      if (!accept(',') && (peek() != ')' || axes.size() == 1)) expect(',');
    }
    return axes;
  }

  int64_t integer() {
    if (peek() < '0' || peek() > '9') unexpected("an integer >= 0");
    int64_t value = 0;
    const auto [end, error] =
        std::from_chars(text_.data() + at_, text_.data() + text_.size(), value);
    if (error != std::errc())
      source_.fail("header: byte {}: an axis of 2^63 elements or more", at_);
    at_ = static_cast<size_t>(end - text_.data());
    return value;
  }

  std::string_view text_;
  const FileSource& source_;
  size_t at_ = 0;
  Header header_;
};

std::string_view take_npy_header(ByteReader& reader) {
  const FileSource& source = reader.source();
  if (text_of(reader.take(kNpyMagic.size(), "the magic")) != kNpyMagic)
    source.fail("does not begin with \"\\x93NUMPY\"");
  const int major = reader.read<uint8_t>("the version");
  const int minor = reader.read<uint8_t>("the version");
  if ((major != 1 && major != 2) || minor != 0)
    source.fail("version {}.{}; expected 1.0 or 2.0", major, minor);
  const size_t length = major == 1 ? reader.read<uint16_t>("the header length")
                                   : reader.read<uint32_t>("the header length");
  if (length > kNpyMaxHeaderBytes)
    source.fail("header of {} bytes; at most {}", length, kNpyMaxHeaderBytes);
  return text_of(reader.take(length, "the header"));
}

}  // namespace

TensorView read_npy(std::span<const std::byte> bytes,
                    std::string_view file,
                    std::shared_ptr<const void> owner) {
  const FileSource source{"npy", file};
  ByteReader reader(bytes, source);
  Header header = HeaderParser(take_npy_header(reader), source).parse();
  if (*header.fortran_order) source.fail("Fortran order is not supported; expected C order");

  const DType dtype = *header.dtype;
  const auto count = checked_element_count(*header.shape);
  const auto size = count ? checked_multiply(*count, layout_of(dtype).block_bytes) : std::nullopt;
  if (!size) source.fail("the size of shape {} overflows 64 bits", shape_text(*header.shape));
  if (static_cast<uint64_t>(*size) != reader.remaining())
    source.fail("{} bytes of data; shape {} of {} takes {}", reader.remaining(),
                shape_text(*header.shape), name_of(dtype), *size);
  const auto data = reader.take(static_cast<uint64_t>(*size), "the data");
  return {std::string(file), dtype, std::move(*header.shape), data, std::move(owner)};
}

TensorView open_npy(const std::filesystem::path& path) {
  auto file = MappedFile::open(path);
  const auto bytes = file->bytes();
  TensorView view = read_npy(bytes, path.string(), std::move(file));
  view.name = path.stem().string();
  return view;
}

void write_npy(const std::filesystem::path& path, const TensorView& tensor) {
  std::string_view code;
  for (const NpyType& type : kTypes)
    if (type.dtype == tensor.dtype) code = type.code;
  if (code.empty() || tensor.shape.size() > kNpyMaxRank)
    fail(ErrorKind::usage, "npy", "{} with {} axes; NumPy has no such array", name_of(tensor.dtype),
         tensor.shape.size());
  const int64_t bytes = storage_bytes(tensor.dtype, element_count(tensor.shape));
  require(static_cast<size_t>(bytes) == tensor.data.size(), "npy",
          "shape {} has {} bytes; expected {}", shape_text(tensor.shape), tensor.data.size(),
          bytes);

  // as NumPy formats it: "(2, 3)", "(2,)", "()"; spaces to the alignment; a newline
  std::string axes = shape_text(tensor.shape);
  axes = "(" + axes.substr(1, axes.size() - 2) + (tensor.shape.size() == 1 ? ",)" : ")");
  std::string dict =
      fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': {}, }}", code, axes);
  // NumPy leaves room for the first axis to grow to 21 digits in place
  if (!tensor.shape.empty()) dict.append(21 - std::to_string(tensor.shape[0]).size(), ' ');
  const size_t prefix = kNpyMagic.size() + 2 + sizeof(uint16_t);
  dict.append(kNpyHeaderAlignment - (prefix + dict.size() + 1) % kNpyHeaderAlignment, ' ');
  dict += '\n';
  const auto length = static_cast<uint16_t>(dict.size());

  OutputFile file(path);
  file.write(kNpyMagic);
  file.write(std::string_view("\x01\x00", 2));
  file.write(std::as_bytes(std::span(&length, 1)));
  file.write(dict);
  file.write(tensor.data);
  file.commit();
}

}  // namespace tessera::format
