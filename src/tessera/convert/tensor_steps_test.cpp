// Steps against arrays written out by hand, each with its inverse.
#include "tessera/convert/tensor_steps.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>

#include "tessera/base/error.h"

namespace tessera::convert::tensor_steps_test {
namespace {

TensorView floats(Shape shape, std::vector<float> values) {
  auto owner = std::make_shared<std::vector<float>>(std::move(values));
  return {"t", DType::f32, std::move(shape), std::as_bytes(std::span(*owner)), owner};
}

TensorView counted(Shape shape) {
  std::vector<float> values(static_cast<size_t>(format::element_count(shape)));
  std::iota(values.begin(), values.end(), 0.0f);
  return floats(std::move(shape), std::move(values));
}

std::vector<float> values_of(const TensorView& tensor) {
  const TensorView plain = as_float32(tensor);
  std::vector<float> values(plain.data.size() / sizeof(float));
  std::memcpy(values.data(), plain.data.data(), plain.data.size());
  return values;
}

std::vector<TensorView> apply(const char* json, std::vector<TensorView> tensors) {
  Environment env;
  TensorSteps::compile(Json::parse(json), "test").apply(tensors, env, nullptr);
  return tensors;
}

/// Applies, inverts, and checks that the inverse restores the tensor.
std::vector<TensorView> both_ways(const char* json, const TensorView& tensor) {
  Environment env;
  const TensorSteps steps = TensorSteps::compile(Json::parse(json), "test");
  std::vector<TensorView> tensors{tensor};
  steps.apply(tensors, env, nullptr);
  std::vector<TensorView> back = tensors;
  steps.invert(back, env, nullptr);
  EXPECT_EQ(back.size(), 1u);
  EXPECT_EQ(back[0].shape, tensor.shape);
  EXPECT_EQ(values_of(back[0]), values_of(tensor));
  return tensors;
}

TEST(TensorSteps, TransposedRowsKeepTheirBlocks) {
  // rows of one block each; the last axis stays
  const size_t bytes = static_cast<size_t>(storage_bytes(DType::q8_0, 2 * 3 * 32));
  auto owner = std::make_shared<std::vector<std::byte>>(bytes);
  for (size_t i = 0; i < bytes; ++i) (*owner)[i] = static_cast<std::byte>(i * 7 % 50);
  const TensorView blocks{"t", DType::q8_0, {2, 3, 32}, *owner, owner};
  const auto out = both_ways(R"([{"transpose": [1, 0, 2]}])", blocks);
  EXPECT_EQ(out[0].dtype, DType::q8_0);
  const std::vector<float> from = values_of(blocks), to = values_of(out[0]);
  for (size_t a = 0; a < 2; ++a)
    for (size_t b = 0; b < 3; ++b)
      for (size_t i = 0; i < 32; ++i)
        EXPECT_EQ(to[(b * 2 + a) * 32 + i], from[(a * 3 + b) * 32 + i]);
  EXPECT_EQ(both_ways(R"([{"transpose": [0, 2, 1]}])", blocks)[0].dtype, DType::f32);
}

/// Blocks of q8_0 under other columns, in an order for each matrix that follows from `seed`.
TensorView ordered(Shape shape, int seed) {
  const int64_t n = format::element_count(shape), width = shape.back();
  const auto bytes =
      std::make_shared<std::vector<std::byte>>(static_cast<size_t>(storage_bytes(DType::q8_0, n)));
  for (size_t i = 0; i < bytes->size(); ++i)
    (*bytes)[i] = static_cast<std::byte>((i * 7 + static_cast<size_t>(seed)) % 50);
  std::vector<int32_t> columns;
  for (int64_t m = 0; m < n / (width * shape[shape.size() - 2]); ++m)
    for (int64_t c = 0; c < width; ++c)
      columns.push_back(static_cast<int32_t>((5 * c + m + seed) % width));
  return {"t",    DType::q8_0, std::move(shape),
          *bytes, bytes,       std::make_shared<const std::vector<int32_t>>(std::move(columns))};
}

TEST(TensorSteps, ColumnsInAnotherOrderAreWhatTheyStandFor) {
  const TensorView matrix = ordered({2, 32}, 1), wide = ordered({2, 64}, 1);
  const std::vector<float> stored = values_of({"t", DType::q8_0, {2, 32}, matrix.data}),
                           numbers = values_of(matrix);
  for (size_t r = 0; r < 2; ++r)
    for (size_t c = 0; c < 32; ++c)
      EXPECT_EQ(numbers[r * 32 + (5 * c + 1) % 32], stored[r * 32 + c]);
  EXPECT_FALSE(equal_values(matrix, {"t", DType::q8_0, {2, 32}, matrix.data}));
  EXPECT_TRUE(equal_values(matrix, as_float32(matrix)));

  // every move of them is that of their numbers, both ways, and keeps blocks where it can
  struct Case {
    const char* steps;
    std::vector<TensorView> tensors;
    DType type;
  };
  const Case cases[] = {
      {R"([{"interleave": {"heads": 1, "rotary": 2}}])", {matrix}, DType::q8_0},
      {R"([{"interleave": {"heads": 1, "rotary": 2}}])", {ordered({2, 2, 32}, 3)}, DType::f32},
      {R"([{"swap_halves": {"heads": 1, "rotary": 2}}])", {matrix}, DType::q8_0},
      {R"([{"transpose": [1, 0]}])", {matrix}, DType::f32},
      {R"([{"transpose": [1, 0, 2]}])", {ordered({2, 2, 32}, 3)}, DType::f32},
      {R"([{"split": {"axis": 0, "sizes": [1, 1]}}])", {matrix}, DType::q8_0},
      {R"([{"split": {"axis": 1, "sizes": [32, 32]}}])", {wide}, DType::f32},
      {R"([{"split": {"axis": 0, "sizes": [1, 2]}}])", {ordered({3, 2, 32}, 3)}, DType::q8_0},
      {R"([{"split": {"axis": 1, "sizes": [1, 1]}}])", {ordered({3, 2, 32}, 3)}, DType::q8_0},
      {R"([{"unstack": {"axis": 0, "count": 3}}])", {ordered({3, 2, 32}, 3)}, DType::q8_0},
      {R"([{"stack": {"axis": 0, "count": 2}}])", {matrix, ordered({2, 32}, 4)}, DType::q8_0},
      {R"([{"stack": {"axis": 1, "count": 2}}])", {matrix, ordered({2, 32}, 4)}, DType::f32},
      {R"([{"join": {"axis": 0, "sizes": [2, 3]}}])", {matrix, ordered({3, 32}, 1)}, DType::q8_0},
      {R"([{"join": {"axis": 0, "sizes": [2, 2]}}])", {matrix, ordered({2, 32}, 4)}, DType::f32},
      {R"([{"join": {"axis": 1, "sizes": [32, 32]}}])", {matrix, matrix}, DType::f32},
      {R"([{"join": {"axis": 1, "sizes": [2, 3]}}])",
       {ordered({2, 2, 32}, 3), ordered({2, 3, 32}, 3)},
       DType::q8_0},
      {R"([{"reshape": {"from": [4, 32], "to": [2, 2, 32]}}])", {ordered({4, 32}, 1)}, DType::f32},
      {R"([{"reshape": {"from": [2, 32], "to": [1, 2, 32]}}])", {matrix}, DType::q8_0},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.steps);
    Environment env;
    const TensorSteps steps = TensorSteps::compile(Json::parse(one.steps), "test");
    std::vector<TensorView> got = one.tensors, want;
    for (const TensorView& tensor : one.tensors) want.push_back(as_float32(tensor));
    for (const bool forward : {true, false}) {
      forward ? steps.apply(got, env, nullptr) : steps.invert(got, env, nullptr);
      forward ? steps.apply(want, env, nullptr) : steps.invert(want, env, nullptr);
      ASSERT_EQ(got.size(), want.size());
      for (size_t i = 0; i < got.size(); ++i) {
        EXPECT_EQ(got[i].shape, want[i].shape);
        EXPECT_EQ(values_of(got[i]), values_of(want[i]));
        EXPECT_EQ(got[i].dtype, one.type);
      }
    }
  }
  // beside one whose columns are in their order
  TensorView plain = matrix;
  plain.columns = nullptr;
  const std::vector<TensorView> both = {plain, matrix};
  EXPECT_EQ(joined(both, 0).dtype, DType::f32);
  EXPECT_EQ(values_of(joined(both, 0)),
            values_of(joined(std::vector{as_float32(plain), as_float32(matrix)}, 0)));
  const TensorView stack = apply(R"([{"stack": {"axis": 0, "count": 2}}])", both)[0];
  EXPECT_EQ(stack.dtype, DType::q8_0);
  EXPECT_EQ(values_of(stack), values_of(joined(both, 0)));
}

TEST(TensorSteps, Mxfp4JoinsCodesAndScales) {
  const auto bytes = [](Shape shape, std::vector<uint8_t> values) {
    auto owner = std::make_shared<std::vector<uint8_t>>(std::move(values));
    return TensorView{"t", DType::u8, std::move(shape), std::as_bytes(std::span(*owner)), owner};
  };
  // two rows of a block each; byte j holds codes 2 j and 2 j + 1, the first one in its low bits
  std::vector<uint8_t> codes(32);
  for (uint8_t j = 0; j < 32; ++j)
    codes[j] = static_cast<uint8_t>(2 * j % 16 | (2 * j + 1) % 16 << 4);
  const std::vector<TensorView> parts = {bytes({2, 1, 16}, codes), bytes({2, 1}, {128, 126})};
  const auto out = apply(R"([{"mxfp4": true}])", parts);
  ASSERT_EQ(out.size(), 1U);
  EXPECT_EQ(out[0].dtype, DType::mxfp4);
  EXPECT_EQ(out[0].shape, (Shape{2, 32}));
  const float kCodes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  const std::vector<float> values = values_of(out[0]);
  for (size_t i = 0; i < values.size(); ++i)
    EXPECT_EQ(values[i], kCodes[i % 8] * (i % 16 < 8 ? 1 : -1) * (i < 32 ? 2.0f : 0.5f)) << i;
  Environment env;
  std::vector<TensorView> back = out;
  TensorSteps::compile(Json::parse(R"([{"mxfp4": true}])"), "test").invert(back, env, nullptr);
  ASSERT_EQ(back.size(), 2U);
  for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(equal_values(back[i], parts[i])) << i;
  EXPECT_THROW(apply(R"([{"mxfp4": true}])", {parts[0]}), Error);
  EXPECT_THROW(apply(R"([{"mxfp4": true}])", {parts[1], parts[0]}), Error);
  EXPECT_THROW(apply(R"([{"mxfp4": true}])", {parts[0], parts[0]}), Error);
}

TEST(TensorSteps, IntegersBecomeFloatsAndComeBack) {
  const auto tensor = [](DType dtype, auto values) {
    auto owner = std::make_shared<decltype(values)>(std::move(values));
    const Shape shape{static_cast<int64_t>(owner->size())};
    return TensorView{"t", dtype, shape, std::as_bytes(std::span(*owner)), owner};
  };
  const char* step = R"([{"integers": true}])";
  const TensorView given = tensor(DType::i64, std::vector<int64_t>{0, 255, -3, 1 << 24});
  const auto out = apply(step, {given});
  EXPECT_EQ(out[0].dtype, DType::f32);
  EXPECT_EQ(values_of(out[0]), (std::vector<float>{0, 255, -3, 1 << 24}));
  Environment env;
  std::vector<TensorView> back = out;
  TensorSteps::compile(Json::parse(step), "test").invert(back, env, nullptr);
  EXPECT_EQ(back[0].dtype, DType::i64);
  EXPECT_TRUE(
      std::equal(back[0].data.begin(), back[0].data.end(), given.data.begin(), given.data.end()));
  EXPECT_EQ(values_of(apply(step, {tensor(DType::i32, std::vector<int32_t>{7})})[0]),
            (std::vector<float>{7}));
  EXPECT_THROW(apply(step, {tensor(DType::i64, std::vector<int64_t>{(1 << 24) + 1})}), Error);
  back = {tensor(DType::f32, std::vector<float>{0.5f})};
  EXPECT_THROW(TensorSteps::compile(Json::parse(step), "test").invert(back, env, nullptr), Error);
}

TEST(TensorSteps, RepeatMakesEqualParts) {
  const auto out = both_ways(R"([{"repeat": {"axis": 1, "count": 3}}])", counted({2, 1, 2}));
  EXPECT_EQ(out[0].shape, (Shape{2, 3, 2}));
  EXPECT_EQ(values_of(out[0]), (std::vector<float>{0, 1, 0, 1, 0, 1, 2, 3, 2, 3, 2, 3}));
  EXPECT_THROW(apply(R"([{"repeat": {"axis": 0, "count": 3}}])", {counted({2, 2})}), Error);
  EXPECT_THROW(apply(R"([{"repeat": {"axis": 2, "count": 3}}])", {counted({2, 1})}), Error);
  EXPECT_THROW(apply(R"([{"repeat": {"axis": 1, "count": 0}}])", {counted({2, 1})}), Error);
  // parts that differ have no inverse
  Environment env;
  std::vector<TensorView> unequal{counted({2, 3})};
  EXPECT_THROW(TensorSteps::compile(Json::parse(R"([{"repeat": {"axis": 1, "count": 3}}])"), "test")
                   .invert(unequal, env, nullptr),
               Error);
}

TEST(TensorSteps, NoLogarithmOfWhatHasNone) {
  const auto message = [](const char* steps, std::vector<float> values) -> std::string {
    try {
      apply(steps, {floats({2}, std::move(values))});
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::file);
      return error.what();
    }
    return "";
  };
  const char* log = R"([{"apply": "log"}])";
  EXPECT_EQ(message(log, {1, -2}),
            "[convert] tensor \"t\": its logarithm is taken, and element 1 is -2 there; expected a "
            "number from 0");
  EXPECT_NE(message(log, {NAN, 1}), "");
  EXPECT_EQ(message(log, {0, INFINITY}), "");  // the ends of the range are numbers
  // above 1 the first logarithm is there, the second is not
  EXPECT_NE(message(R"([{"apply": "log"}, {"apply": "neg"}, {"apply": "log"}])", {0.5f, 1.5f}), "");
  // backwards, exp is a logarithm
  Environment env;
  std::vector<TensorView> negative{floats({1}, {-1})};
  EXPECT_THROW(TensorSteps::compile(Json::parse(R"([{"apply": "exp"}])"), "test")
                   .invert(negative, env, nullptr),
               Error);
}

TEST(TensorSteps, TransposeMovesAxes) {
  const auto out = both_ways(R"([{"transpose": [1, 0]}])", counted({2, 3}));
  EXPECT_EQ(out[0].shape, (Shape{3, 2}));
  EXPECT_EQ(values_of(out[0]), (std::vector<float>{0, 3, 1, 4, 2, 5}));
  const auto three = both_ways(R"([{"transpose": [2, 0, 1]}])", counted({2, 3, 4}));
  EXPECT_EQ(three[0].shape, (Shape{4, 2, 3}));
  EXPECT_EQ(values_of(three[0])[1], 4);   // [0,0,1] is [0,1,0] of the source
  EXPECT_EQ(values_of(three[0])[3], 12);  // [0,1,0] is [1,0,0]
}

TEST(TensorSteps, SplitOfRowsIsAView) {
  const TensorView tensor = counted({5, 2});
  const auto out = both_ways(R"([{"split": {"axis": 0, "sizes": [1, 4]}}])", tensor);
  EXPECT_EQ(values_of(out[1]), (std::vector<float>{2, 3, 4, 5, 6, 7, 8, 9}));
  EXPECT_EQ(out[1].data.data(), tensor.data.data() + 8);
  const auto columns = both_ways(R"([{"split": {"axis": 1, "sizes": [1, 1]}}])", tensor);
  EXPECT_EQ(values_of(columns[1]), (std::vector<float>{1, 3, 5, 7, 9}));
}

TEST(TensorSteps, BlockRowsStayViews) {
  std::vector<std::byte> bytes(6 * 34);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i);
  const TensorView tensor{"q", DType::q8_0, {3, 64}, bytes, nullptr};
  const auto out = apply(R"([{"split": {"axis": 0, "sizes": [2, 1]}}])", {tensor});
  EXPECT_EQ(out[1].data.data(), bytes.data() + 4 * 34);
  EXPECT_EQ(out[1].data.size(), 2u * 34);
  const auto halves = apply(R"([{"split": {"axis": 1, "sizes": [32, 32]}}])", {tensor});
  EXPECT_EQ(halves[1].data[34], bytes[3 * 34]);
  EXPECT_THROW(apply(R"([{"split": {"axis": 1, "sizes": [16, 48]}}])", {tensor}), Error);
  EXPECT_THROW(apply(R"([{"reshape": {"from": [3, 64], "to": [12, 16]}}])", {tensor}), Error);
}

TEST(TensorSteps, HeadsThatHoldQkvTogether) {
  // rows (head, q|k|v, channel) of 2 heads of width 2: q is rows 0 1 6 7
  const auto out =
      both_ways(R"([{"reshape": {"from": [12, 1], "to": [2, 3, 2, 1]}}, {"transpose": [1, 0, 2, 3]},
                                 {"reshape": {"from": [3, 2, 2, 1], "to": [12, 1]}}, {"split": {"axis": 0, "sizes": [4, 4, 4]}}])",
                counted({12, 1}));
  EXPECT_EQ(values_of(out[0]), (std::vector<float>{0, 1, 6, 7}));
  EXPECT_EQ(values_of(out[1]), (std::vector<float>{2, 3, 8, 9}));
  EXPECT_EQ(values_of(out[2]), (std::vector<float>{4, 5, 10, 11}));
}

TEST(TensorSteps, RotaryRowsBetweenHalvesAndPairs) {
  // positions.md 9.2: halves to pairs for a head of 8 is the row order 0,4,1,5,2,6,3,7
  const auto out = both_ways(R"([{"interleave": {"heads": 1, "rotary": 8}}])", counted({8}));
  EXPECT_EQ(values_of(out[0]), (std::vector<float>{0, 4, 1, 5, 2, 6, 3, 7}));
  const auto back = both_ways(R"([{"deinterleave": {"heads": 1, "rotary": 8}}])", counted({8}));
  EXPECT_EQ(values_of(back[0]), (std::vector<float>{0, 2, 4, 6, 1, 3, 5, 7}));
  // two heads of 6 rows, of which 4 rotate
  const auto partial = both_ways(R"([{"interleave": {"heads": 2, "rotary": 4}}])", counted({12}));
  EXPECT_EQ(values_of(partial[0]), (std::vector<float>{0, 2, 1, 3, 4, 5, 6, 8, 7, 9, 10, 11}));
  EXPECT_THROW(apply(R"([{"interleave": {"heads": 3, "rotary": 2}}])", {counted({8})}), Error);
  EXPECT_THROW(apply(R"([{"interleave": {"heads": 2, "rotary": 6}}])", {counted({8})}), Error);
}

TEST(TensorSteps, HalvesOfRotaryRowsChangePlaces) {
  const auto out = both_ways(R"([{"swap_halves": {"heads": 2, "rotary": 4}}])", counted({12}));
  EXPECT_EQ(values_of(out[0]), (std::vector<float>{2, 3, 0, 1, 4, 5, 8, 9, 6, 7, 10, 11}));
  EXPECT_THROW(apply(R"([{"swap_halves": {"heads": 2, "rotary": 6}}])", {counted({8})}), Error);
}

TEST(TensorSteps, TensorsChangePlaces) {
  const auto out = both_ways(
      R"([{"split": {"axis": 0, "sizes": [1, 2, 1]}}, {"order": [1, 2, 0]}, {"join": {"axis": 0, "sizes": [2, 1, 1]}}])",
      counted({4}));
  EXPECT_EQ(values_of(out[0]), (std::vector<float>{1, 2, 3, 0}));
  for (const char* json : {R"([{"order": [0, 1]}])", R"([{"order": [1]}])", R"([{"order": [-1]}])"})
    EXPECT_THROW(apply(json, {counted({4})}), Error) << json;
}

TEST(TensorSteps, AxesOfOneAndStacks) {
  EXPECT_EQ(both_ways(R"([{"squeeze": 1}])", counted({4, 1, 3}))[0].shape, (Shape{4, 3}));
  EXPECT_EQ(both_ways(R"([{"unsqueeze": 0}])", counted({4}))[0].shape, (Shape{1, 4}));
  const auto experts = both_ways(R"([{"unstack": {"axis": 0, "count": 3}}])", counted({3, 2, 2}));
  ASSERT_EQ(experts.size(), 3u);
  EXPECT_EQ(experts[2].shape, (Shape{2, 2}));
  EXPECT_EQ(values_of(experts[2]), (std::vector<float>{8, 9, 10, 11}));
  EXPECT_THROW(apply(R"([{"squeeze": 0}])", {counted({4, 1})}), Error);
}

TEST(TensorSteps, Arithmetic) {
  EXPECT_EQ(values_of(both_ways(R"([{"add": 1}, {"scale": 0.5}])", floats({2}, {1, 3}))[0]),
            (std::vector<float>{1, 2}));
  const auto decay = apply(R"([{"apply": "exp"}, {"apply": "neg"}])", {floats({2}, {0, 1})});
  EXPECT_FLOAT_EQ(values_of(decay[0])[1], -2.7182817f);
  EXPECT_THROW(apply(R"([{"scale": 0}])", {counted({2})}), Error);
}

TEST(TensorSteps, FirstRowsArePaddedBack) {
  Environment env;
  const TensorSteps steps = TensorSteps::compile(
      Json::parse(R"([{"first_rows": {"count": 2, "of": 3, "padding": 7}}])"), "test");
  std::vector<TensorView> tensors{counted({3, 2})};
  steps.apply(tensors, env, nullptr);
  EXPECT_EQ(tensors[0].shape, (Shape{2, 2}));
  steps.invert(tensors, env, nullptr);
  EXPECT_EQ(values_of(tensors[0]), (std::vector<float>{0, 1, 2, 3, 7, 7}));
}

TEST(TensorSteps, RowsBeforeAreLeftOut) {
  Environment env;
  const auto steps = [](const char* json) {
    return TensorSteps::compile(Json::parse(json), "test");
  };
  const TensorSteps two = steps(R"([{"rows_before": {"count": 2, "padding": 7}}])");
  std::vector<TensorView> tensors{counted({2, 2})};
  two.apply(tensors, env, nullptr);
  EXPECT_EQ(values_of(tensors[0]), (std::vector<float>{7, 7, 7, 7, 0, 1, 2, 3}));
  two.invert(tensors, env, nullptr);
  EXPECT_EQ(values_of(tensors[0]), (std::vector<float>{0, 1, 2, 3}));
  two.invert(tensors, env, nullptr);
  EXPECT_EQ(tensors[0].shape, (Shape{0, 2}));
  EXPECT_THROW(two.invert(tensors, env, nullptr), Error);
  const TensorSteps bare = steps(R"([{"rows_before": {"count": 1}}])");
  EXPECT_THROW(bare.apply(tensors, env, nullptr), Error);
  EXPECT_THROW(steps(R"([{"rows_before": {"count": -1}}])").apply(tensors, env, nullptr), Error);
}

TEST(TensorSteps, MalformedStepsAreRefused) {
  for (const char* json :
       {R"({"transpose": [1, 0]})", R"([{"frobnicate": 1}])", R"([{}])", R"([3])",
        R"([{"squeeze": 1, "unsqueeze": 1}])", R"([{"$if": 3, "then": []}])", R"([{"only": [0]}])"})
    EXPECT_THROW(TensorSteps::compile(Json::parse(json), "test"), Error) << json;
  for (const char* json :
       {R"([{"transpose": [0, 0]}])", R"([{"transpose": [0]}])",
        R"([{"split": {"axis": 2, "sizes": [1]}}])", R"([{"split": {"axis": 0, "sizes": [3]}}])",
        R"([{"split": {"axis": 0, "sizes": [-1, 3]}}])", R"([{"split": {"sizes": [2]}}])",
        R"([{"unstack": {"axis": 0, "count": 1000000000}}])",
        R"([{"reshape": {"from": [2, 2], "to": [4611686018427387904, 4]}}])",
        R"([{"apply": "frobnicate"}])"})
    EXPECT_THROW(apply(json, {counted({2, 2})}), Error) << json;
}

}  // namespace
}  // namespace tessera::convert::tensor_steps_test
