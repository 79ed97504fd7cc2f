// AWQ and GPTQ: matrices [in, out], in words along one of them.
#include "tessera/convert/quantized_matrix.h"

namespace tessera::convert {
namespace {

/// Scales [groups, out] of a module, checked against its group size.
const RawTensor& scales_of(RawTensors& tensors,
                           const std::string& module,
                           int64_t groups,
                           int64_t rows) {
  const RawTensor& scales = tensors.at(module + ".scales", module + ".qweight");
  tensors.expect_type(scales, {DType::f16, DType::bf16, DType::f32});
  tensors.expect_shape(scales, {groups, rows}, "group_size");
  return scales;
}

/// A matrix of every module.qweight, as `read` makes it of its words.
std::vector<QuantizedMatrix> of_modules(
    RawTensors& tensors,
    const std::function<void(const std::string& module, const RawTensor& words, QuantizedMatrix&)>&
        read) {
  std::vector<QuantizedMatrix> matrices;
  for (const auto& [name, raw] : tensors.all()) {
    if (!name.ends_with(".qweight")) continue;
    const RawTensor& words = *tensors.find(name);
    tensors.expect_type(words, {DType::i32});
    tensors.expect_matrix(words);
    const std::string module = module_of(name, ".qweight");
    QuantizedMatrix& m = matrices.emplace_back();
    m.name = module + ".weight";
    read(module, words, m);
  }
  return matrices;
}

/// Zero points [groups, words] of a module.
const RawTensor& zeros_of(RawTensors& tensors,
                          const std::string& module,
                          int64_t groups,
                          int64_t words) {
  const RawTensor& zeros = tensors.at(module + ".qzeros", module + ".qweight");
  tensors.expect_type(zeros, {DType::i32});
  tensors.expect_shape(zeros, {groups, words}, "group_size");
  return zeros;
}

}  // namespace

std::vector<QuantizedMatrix> awq_matrices(const QuantizerConfig& settings, RawTensors& tensors) {
  if (const int64_t bits = settings.whole("bits", 4); bits != 4)
    settings.wrong("bits", *settings.find("bits"), "4");
  settings.expect({"version", "format"}, {"gemm", "GEMM"});
  if (!settings.flag("zero_point", true))
    settings.wrong("zero_point", *settings.find("zero_point"), "true");
  // where in a word the bits of each of its eight outputs are: in the order 0 2 4 6 1 3 5 7
  static constexpr int kShift[8] = {0, 16, 4, 20, 8, 24, 12, 28};
  static_assert(kRowsAtOnce % 8 == 0);
  return of_modules(
      tensors, [&](const std::string& module, const RawTensor& words, QuantizedMatrix& m) {
        m.bits = 4;
        m.columns = words.shape[0];
        m.rows = words.shape[1] * 8;
        m.group = settings.group("group_size", m.columns);
        const RawTensor& scales = scales_of(tensors, module, m.group_count(), m.rows);
        const RawTensor& zeros = zeros_of(tensors, module, m.group_count(), words.shape[1]);
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
      });
}

std::vector<QuantizedMatrix> gptq_matrices(const QuantizerConfig& settings, RawTensors& tensors) {
  const int bits = bits_of(settings, "bits");
  const bool second =
      settings.expect({"checkpoint_format", "format"}, {"gptq", "gptq_v2"}) == "gptq_v2";
  settings.expect({"pack_dtype"}, {"int32"});
  const int64_t in_word = 32 / bits;
  const uint32_t mask = (1u << bits) - 1;
  // in the first version zeros lie one below what they are: one is added to the whole word, as
  // those who wrote it took it away
  const uint32_t ones = second ? 0 : bits == 4 ? 0x11111111u : 0x01010101u;
  return of_modules(tensors, [&](const std::string& module, const RawTensor& words,
                                 QuantizedMatrix& m) {
    m.bits = bits;
    m.columns = words.shape[0] * in_word;
    m.rows = words.shape[1];
    m.group = settings.group("group_size", m.columns);
    const RawTensor& scales = scales_of(tensors, module, m.group_count(), m.rows);
    const int64_t zero_words = parts_of(m.rows, in_word);
    const RawTensor& zeros = zeros_of(tensors, module, m.group_count(), zero_words);
    if (const RawTensor* g_idx = tensors.find(module + ".g_idx")) {
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
  });
}

}  // namespace tessera::convert
