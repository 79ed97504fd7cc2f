// Against what the reference libraries write and refuse: tests/golden/formats, made by
// tools/golden/formats_reference.py.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/format/gguf.h"
#include "tessera/format/npy.h"
#include "tessera/format/safetensors.h"
#include "tessera/format/test_support.h"
#include "tessera/spec/json.h"

namespace tessera::format::golden_test {
namespace {

using test::bytes_of;
using test::error_of;

std::filesystem::path golden(std::string_view name) {
  return std::filesystem::path(TESSERA_SOURCE_DIR) / "tests/golden/formats" / name;
}

std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2)
    bytes.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  return bytes;
}

template <class T>
std::vector<T> values_of(const TensorView& tensor) {
  std::vector<T> values(tensor.data.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), tensor.data.data(), tensor.data.size());
  return values;
}

using Shape = std::vector<int64_t>;

TEST(SafetensorsReference, RefusesWhateverTheReferenceRefuses) {
  const auto cases = spec::read_json_file(golden("safetensors_cases.json"))["cases"];
  int refused = 0;
  for (const auto& c : cases) {
    const std::string bytes = from_hex(c["hex"]);
    const std::string error = error_of([&] { read_safetensors(bytes_of(bytes), "x.safetensors"); });
    const bool refuses = c["reference"] != "reads" || c.contains("stricter");
    EXPECT_EQ(error != "", refuses)
        << c["case"] << "\n  reference: " << c["reference"] << "\n  tessera: " << error;
    refused += refuses;
  }
  EXPECT_EQ(cases.size(), 90u);
  EXPECT_EQ(refused, 72);
}

TEST(SafetensorsReference, ReadsAllTypes) {
  const TensorFile file = open_safetensors(golden("mixed.safetensors"));
  EXPECT_EQ(file.tensors().size(), 11u);
  EXPECT_EQ(file.metadata(), (StringMap{{"spec", "{\"tessera\": 1}\n"}}));
  EXPECT_EQ(values_of<double>(file.at("x.float64")), (std::vector<double>{0, 1, 2}));
  EXPECT_EQ(values_of<float>(file.at("x.float32")), (std::vector<float>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(file.at("x.float32").shape, (Shape{2, 3}));
  EXPECT_EQ(values_of<uint16_t>(file.at("x.float16")),
            (std::vector<uint16_t>{0, 0x3c00, 0x4000, 0x4200, 0x4400}));
  EXPECT_EQ(values_of<uint16_t>(file.at("x.bfloat16")),
            (std::vector<uint16_t>{0, 0x3f80, 0x4000, 0x4040}));
  EXPECT_EQ(file.at("x.bfloat16").shape, (Shape{1, 2, 2}));
  EXPECT_EQ(values_of<int64_t>(file.at("x.int64")), (std::vector<int64_t>{0, 1}));
  EXPECT_EQ(values_of<int32_t>(file.at("x.int32")), (std::vector<int32_t>{0}));
  EXPECT_EQ(file.at("x.int32").shape, Shape{});
  EXPECT_EQ(file.at("x.int16").shape, (Shape{0, 4}));
  EXPECT_EQ(values_of<int8_t>(file.at("x.int8")), (std::vector<int8_t>{0, 1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(file.at("x.uint8").shape, (Shape{3, 1}));
  EXPECT_EQ(file.at("x.bool").dtype, DType::boolean);
  EXPECT_EQ(values_of<float>(file.at("a second f32 \u00e9\t\"")), (std::vector<float>{0, 1, 2, 3}));
}

TEST(SafetensorsReference, WritesTheSameBytes) {
  const TensorFile file = open_safetensors(golden("mixed.safetensors"));
  std::vector<TensorView> shuffled(file.tensors().rbegin(), file.tensors().rend());
  std::swap(shuffled[0], shuffled[4]);
  const test::TemporaryFolder folder;
  write_safetensors(folder / "again.safetensors", shuffled, file.metadata());
  EXPECT_EQ(read_text_file(folder / "again.safetensors"),
            read_text_file(golden("mixed.safetensors")));
  EXPECT_EQ(folder.names(), std::vector<std::string>{"again.safetensors"});
}

TEST(GgufReference, ReadsAllMetadataTypes) {
  const GgufFile file = open_gguf(golden("mixed.gguf"));
  const GgufMetadata& m = file.metadata;
  EXPECT_EQ(file.version, 3u);
  EXPECT_EQ(file.alignment, 64);
  EXPECT_EQ(m.entries().size(), 18u);
  EXPECT_EQ(m.get_string("general.architecture"), "llama");
  EXPECT_EQ(m.get_u64("t.u8"), 200u);
  EXPECT_EQ(m.get_i64("t.i8"), -100);
  EXPECT_EQ(m.get_u64("t.u16"), 60000u);
  EXPECT_EQ(m.get_i64("t.i16"), -30000);
  EXPECT_EQ(m.get_u64("t.u32"), 4000000000u);
  EXPECT_EQ(m.get_i64("t.i32"), -2000000000);
  EXPECT_EQ(m.get_f64("t.f32"), 1.5);
  EXPECT_EQ(m.get_bool("t.bool"), true);
  EXPECT_EQ(m.get_string("t.string"), "h\u00e9llo");
  EXPECT_EQ(m.get_u64("t.u64"), std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(m.get_i64("t.i64"), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(m.get_f64("t.f64"), 0.1);
  EXPECT_EQ(m.get_strings("t.strings"), (std::vector<std::string_view>{"a", "", "\u2581b"}));
  EXPECT_EQ(m.get_integers("t.i32s"), (std::vector<int64_t>{1, -2, 3}));
  EXPECT_EQ(m.get_numbers("t.f32s"), (std::vector<double>{0.5, -1.5}));
  EXPECT_EQ(m.get_bools("t.bools"), (std::vector<bool>{true, false}));
}

TEST(GgufReference, ReadsTensors) {
  const TensorFile tensors = open_gguf(golden("mixed.gguf")).tensors;  // views outlive the GgufFile
  EXPECT_EQ(tensors.tensors().size(), 10u);
  EXPECT_EQ(values_of<float>(tensors.at("f32")), (std::vector<float>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(tensors.at("f32").shape, (Shape{2, 3}));
  EXPECT_EQ(values_of<int64_t>(tensors.at("i64")), (std::vector<int64_t>{0, 1}));
  for (const char* name : {"q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "bf16"}) {
    EXPECT_EQ(name_of(tensors.at(name).dtype), name);
    EXPECT_EQ(tensors.at(name).shape, (Shape{2, 64})) << name;
  }
}

TEST(GgufReference, WritesTheSameBytes) {
  const GgufFile file = open_gguf(golden("mixed.gguf"));
  const test::TemporaryFolder folder;
  write_gguf(folder / "again.gguf", file.metadata.entries(), file.tensors.tensors());
  EXPECT_EQ(read_text_file(folder / "again.gguf"), read_text_file(golden("mixed.gguf")));
}

TEST(GgufReference, ReadsModelsInParts) {
  const GgufFile file = open_gguf(golden("split-00001-of-00003.gguf"));
  EXPECT_EQ(file.metadata.get_string("t.string"), "of the first part");
  ASSERT_EQ(file.tensors.tensors().size(), 5u);
  for (const char* name : {"a", "b", "c", "d", "e"}) {
    std::vector<float> values;
    for (char c = 'a'; c <= name[0]; ++c) values.push_back(static_cast<float>(c - 'a'));
    EXPECT_EQ(values_of<float>(file.tensors.at(name)), values) << name;
  }
}

TEST(GgufReference, RefusesPartsThatAreNotWhole) {
  const auto error = [](const std::filesystem::path& path) {
    return test::error_of([&] { open_gguf(path); });
  };
  EXPECT_THAT(error(golden("split-00002-of-00003.gguf")),
              testing::HasSubstr("is part 2 of 3; expected the first one, whose name ends with "
                                 "-00001-of-00003.gguf"));
  const test::TemporaryFolder folder;
  const auto copy = [&](const char* from, const char* to) {
    std::filesystem::copy_file(golden(from), folder / to,
                               std::filesystem::copy_options::overwrite_existing);
  };
  copy("split-00001-of-00003.gguf", "renamed.gguf");
  EXPECT_THAT(error(folder / "renamed.gguf"), testing::HasSubstr("is the first of 3 parts"));
  copy("split-00001-of-00003.gguf", "x-00001-of-00003.gguf");
  EXPECT_THAT(error(folder / "x-00001-of-00003.gguf"), testing::HasSubstr("x-00002-of-00003.gguf"));
  copy("split-00003-of-00003.gguf", "x-00002-of-00003.gguf");
  EXPECT_THAT(error(folder / "x-00001-of-00003.gguf"),
              testing::HasSubstr("says that it is part 3 of 3; its name says 2 of 3"));
}

TEST(NpyReference, ReadsArrays) {
  EXPECT_EQ(values_of<float>(open_npy(golden("f32_2x3.npy"))),
            (std::vector<float>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(open_npy(golden("f32_2x3.npy")).shape, (Shape{2, 3}));
  EXPECT_EQ(open_npy(golden("f32_2x3.npy")).name, "f32_2x3");
  EXPECT_EQ(values_of<int64_t>(open_npy(golden("i64_scalar.npy"))), (std::vector<int64_t>{7}));
  EXPECT_EQ(open_npy(golden("i64_scalar.npy")).shape, Shape{});
  EXPECT_EQ(values_of<uint8_t>(open_npy(golden("bool_3.npy"))), (std::vector<uint8_t>{1, 0, 1}));
  EXPECT_EQ(open_npy(golden("f16_0x4.npy")).shape, (Shape{0, 4}));
  EXPECT_EQ(values_of<double>(open_npy(golden("f64_v2.npy"))), (std::vector<double>{0.1, -2.0}));
}

TEST(NpyReference, WritesTheSameBytes) {
  const test::TemporaryFolder folder;
  for (const char* name : {"f32_2x3.npy", "i64_scalar.npy", "bool_3.npy", "f16_0x4.npy"}) {
    write_npy(folder / name, open_npy(golden(name)));
    EXPECT_EQ(read_text_file(folder / name), read_text_file(golden(name))) << name;
  }
}

}  // namespace
}  // namespace tessera::format::golden_test
