// A quantised folder: a config and a safetensors file of any content; or, where the input begins
// with "=", a folder that is made of its bytes, written, and read as the numbers it was made of.
#include <cstring>

#include "fuzz.h"

#include "tessera/convert/quantized_folder.h"
#include "tessera/convert/tensor_ops.h"
#include "tessera/format/safetensors.h"

using namespace tessera;

namespace {

using format::TensorView;

void check_folder(const convert::QuantizedFolder& folder) {
  for (const std::string& name : folder.packed) {
    const TensorView& tensor = folder.tensors.at(name);
    const int64_t bytes = storage_bytes(tensor.dtype, format::element_count(tensor.shape));
    fuzz::check(static_cast<size_t>(bytes) == tensor.data.size(), "shape and type give the size");
    const TensorView floats = convert::as_float32(tensor);
    if (tensor.columns == nullptr) continue;
    fuzz::check(std::ssize(*tensor.columns) == tensor.shape.back(), "an order of every column");
    const std::vector<TensorView> twice = {tensor, tensor}, plain = {floats, floats};
    for (const int64_t axis : {0, 1})
      fuzz::check(convert::equal_values(convert::joined(twice, axis), convert::joined(plain, axis)),
                  "moves of ordered columns are those of their numbers");
  }
}

/// A folder of one module in GPTQ's form, its sizes and numbers out of the input.
void write_and_read(fuzz::Input input) {
  size_t at = 0;
  const auto next = [&] {
    return at < input.size() ? static_cast<uint8_t>(input[at++]) : uint8_t{0};
  };
  const int bits = next() % 2 == 0 ? 4 : 8;
  const int64_t in_word = 32 / bits, rows = in_word * (1 + next() % 4),
                columns = 8 * (1 + next() % 16);
  const int64_t groups = 1 + next() % 2, group = columns / groups;
  const bool second = next() % 2 == 1;
  const uint8_t kind = next() % 4;  // of order: theirs, any groups, as many of each as there were
  const int64_t top = (1 << bits) - 1;
  std::vector<uint32_t> words(static_cast<size_t>(columns / in_word * rows)),
      zeros(static_cast<size_t>(groups * rows / in_word));
  std::vector<float> scales(static_cast<size_t>(groups * rows)),
      want(static_cast<size_t>(rows * columns));
  std::vector<int32_t> order(static_cast<size_t>(columns)), zero(scales.size());
  for (int64_t c = 0; c < columns; ++c)
    order[static_cast<size_t>(c)] = static_cast<int32_t>(kind == 1 ? next() % groups : c / group);
  for (int swaps = kind == 3 ? next() : 0; swaps > 0; --swaps) {
    const size_t one = next() % order.size(), other = next() % order.size();
    std::swap(order[one], order[other]);
  }
  for (int64_t i = 0; i < groups * rows; ++i) {
    scales[static_cast<size_t>(i)] = static_cast<float>(next()) / 64;
    // the first version has no word for a zero of 0
    const int64_t z = second ? next() % (top + 1) : 1 + next() % top;
    zero[static_cast<size_t>(i)] = static_cast<int32_t>(z);
    const int64_t g = i / rows, r = i % rows;
    zeros[static_cast<size_t>((g * rows + r) / in_word)] |=
        static_cast<uint32_t>(z - (second ? 0 : 1)) << (bits * (r % in_word));
  }
  for (int64_t c = 0; c < columns; ++c)
    for (int64_t r = 0; r < rows; ++r) {
      const uint32_t code = next() & static_cast<uint32_t>(top);
      words[static_cast<size_t>(c / in_word * rows + r)] |= code << (bits * (c % in_word));
      const auto i = static_cast<size_t>(order[static_cast<size_t>(c)] * rows + r);
      want[static_cast<size_t>(r * columns + c)] =
          scales[i] * static_cast<float>(static_cast<int32_t>(code) - zero[i]);
    }
  const auto view = [](const char* name, DType type, std::vector<int64_t> shape, const auto& data) {
    return TensorView{name, type, std::move(shape), std::as_bytes(std::span(data))};
  };
  const std::vector<TensorView> tensors = {
      view("m.qweight", DType::i32, {columns / in_word, rows}, words),
      view("m.qzeros", DType::i32, {groups, rows / in_word}, zeros),
      view("m.scales", DType::f32, {groups, rows}, scales),
      view("m.g_idx", DType::i32, {columns}, order)};
  spec::Json config = {{"quantization_config",
                        {{"quant_method", "gptq"},
                         {"bits", bits},
                         {"group_size", group},
                         {"checkpoint_format", second ? "gptq_v2" : "gptq"}}}};
  const auto folder = convert::read_quantized_folder(
      config, "fuzz", format::TensorFile("safetensors", "fuzz", tensors));
  fuzz::check(folder.has_value() && folder->packed.contains("m.weight"), "what is written is read");
  check_folder(*folder);
  const TensorView& held = folder->tensors.at("m.weight");
  if (kind != 1 && columns % 32 == 0 && group % 32 == 0)
    fuzz::check(is_block_type(held.dtype), "groups of whole blocks are held in blocks");
  const TensorView found = convert::as_float32(held);
  fuzz::check(found.shape == std::vector{rows, columns}, "the shape it was made with");
  for (size_t i = 0; i < want.size(); ++i) {
    float value;
    std::memcpy(&value, found.data.data() + i * sizeof value, sizeof value);
    fuzz::check(value == want[i], "the number it was made of");
  }
}

}  // namespace

TESSERA_FUZZ_TARGET(quantized_folder) {
  if (fuzz::text_of(input).starts_with('='))
    return fuzz::run([&] { write_and_read(input.subspan(1)); });
  const auto parts = fuzz::parts_of<2>(input);
  fuzz::run(
      [&] {
        spec::Json config = {{"quantization_config", spec::parse_json(parts[0], "fuzz")}};
        const auto file = format::read_safetensors(std::as_bytes(std::span(parts[1])), "fuzz");
        if (const auto folder = convert::read_quantized_folder(config, "fuzz", file))
          check_folder(*folder);
      },
      {ErrorKind::file, ErrorKind::spec});
}
