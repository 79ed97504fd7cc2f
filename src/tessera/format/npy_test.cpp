#include "tessera/format/npy.h"

#include <gtest/gtest.h>

#include "tessera/format/test_support.h"

namespace tessera::format::npy_test {
namespace {

using test::bytes_of;
using test::ByteString;

std::string file_of(std::string_view header, size_t data) {
  return ByteString()
      .raw("\x93NUMPY")
      .raw({"\1\0", 2})
      .number(static_cast<uint16_t>(header.size()))
      .raw(header)
      .zeros(data)
      .text();
}

TensorView read(std::string_view text) {
  return read_npy(bytes_of(text), "x.npy");
}

constexpr std::string_view kHeader =
    "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }   \n";

TEST(Npy, ReadsAndNamesNothingElse) {
  const std::string bytes = file_of(kHeader, 24);
  const TensorView view = read(bytes);
  EXPECT_EQ(view.dtype, DType::f32);
  EXPECT_EQ(view.shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(view.data.data(), bytes_of(bytes).data() + bytes.size() - 24);
}

TEST(Npy, RefusesEveryPrefix) {
  test::expect_prefixes_refused(file_of(kHeader, 24), read);
}

TEST(Npy, SaysWhichRuleIsBroken) {
  const auto with = [](std::string_view descr, std::string_view order, std::string_view shape,
                       size_t data = 24) {
    return file_of(
        fmt::format("{{'descr': {}, 'fortran_order': {}, 'shape': {}, }}\n", descr, order, shape),
        data);
  };
  const auto version = [](char major, char minor) {
    std::string bytes = file_of(kHeader, 24);
    bytes[6] = major;
    bytes[7] = minor;
    return bytes;
  };
  std::string rank = "(";
  for (int i = 0; i < 65; ++i) rank += "1,";
  rank += ")";
  test::expect_refused(
      {
          {"empty", "",
           "[npy] x.npy: byte 0: the file ends inside the magic: 0 bytes left; expected 6"},
          {"magic", "\x93NUMPX" + std::string(100, '\0'), "does not begin with \"\\x93NUMPY\""},
          {"version 3", version(3, 0), "version 3.0; expected 1.0 or 2.0"},
          {"version 1.1", version(1, 1), "version 1.1; expected 1.0 or 2.0"},
          {"length", ByteString().raw("\x93NUMPY").raw({"\2\0", 2}).number(65'537u).text(),
           "header of 65537 bytes; at most 65536"},
          {"no dict", file_of("[1]", 0), "header: byte 0: found \"[\"; expected '{'"},
          {"no keys", file_of("{}", 0), "expected the keys descr, fortran_order and shape"},
          {"one missing", file_of("{'descr': '<f4', 'shape': (1,)}", 4), "expected the keys"},
          {"unknown key", file_of("{'x': 1}", 0), "unknown key \"x\""},
          {"key twice", file_of("{'descr': '<f4', 'descr': '<f4'}", 0),
           "key \"descr\" appears twice"},
          {"key not a string", file_of("{1: 1}", 0), "expected a string"},
          {"string without end", file_of("{'descr", 0), "the string at byte 1 has no end"},
          {"no colon", file_of("{'descr' '<f4'}", 0), "expected ':'"},
          {"no comma", file_of("{'descr': '<f4' 'shape': ()}", 0), "expected ','"},
          {"cut off", file_of("{'descr': '<f4',", 0), "found the end; expected a string"},
          {"text after", file_of("{'descr': '<f4', 'fortran_order': False, 'shape': ()} x", 4),
           "text after '}'"},
          {"zero byte after",
           file_of(std::string_view("{'descr': '<f4', 'fortran_order': False, 'shape': ()}\0", 54),
                   4),
           "text after '}'"},
          {"big-endian", with("'>f4'", "False", "(2, 3)"), "dtype \">f4\" is not supported"},
          {"object", with("'|O'", "False", "(3,)"), "dtype \"|O\" is not supported"},
          {"structured", with("[('a', '<f4')]", "False", "(6,)"),
           "structured dtypes are not supported"},
          {"order", with("'<f4'", "True", "(2, 3)"), "Fortran order is not supported"},
          {"order unknown", with("'<f4'", "0", "(2, 3)"), "expected True or False"},
          {"shape no tuple", with("'<f4'", "False", "6"), "expected '('"},
          {"shape of a number", with("'<f4'", "False", "(6)"), "expected ','"},
          {"shape negative", with("'<f4'", "False", "(-6,)"), "expected an integer >= 0"},
          {"axis too large", with("'<f4'", "False", "(9223372036854775808,)"),
           "an axis of 2^63 elements or more"},
          {"axes", with("'<f4'", "False", rank), "more than 64 axes"},
          {"overflow", with("'<f4'", "False", "(4294967296, 4294967296)"), "overflows 64 bits"},
          {"bytes overflow", with("'<f4'", "False", "(4611686018427387904,)"), "overflows 64 bits"},
          {"too short", with("'<f4'", "False", "(7,)"),
           "24 bytes of data; shape [7] of f32 takes 28"},
          {"too long", with("'<f4'", "False", "(5,)"),
           "24 bytes of data; shape [5] of f32 takes 20"},
      },
      read);
}

TEST(Npy, WriterRefusesBf16) {
  const test::TemporaryFolder folder;
  test::expect_error(ErrorKind::usage, "bf16", [&] {
    write_npy(folder / "x.npy", {"x", DType::bf16, {1}, bytes_of("12")});
  });
  EXPECT_TRUE(folder.names().empty());
}

}  // namespace
}  // namespace tessera::format::npy_test
