#include "tessera/format/llama2c.h"

#include "tessera/base/mapped_file.h"
#include "tessera/format/file_source.h"

namespace tessera::format {
namespace {

constexpr int64_t kHeaderBytes = 7 * sizeof(int32_t);

Llama2cHeader take_llama2c_header(ByteReader& reader) {
  const FileSource& source = reader.source();
  const auto take = [&](std::string_view name) -> int64_t {
    const auto value = reader.read<int32_t>("the header");
    if (value <= 0) source.fail("{} = {}; expected at least 1", name, value);
    return value;
  };
  Llama2cHeader h;
  h.dim = take("dim");
  h.hidden_dim = take("hidden_dim");
  h.n_layers = take("n_layers");
  h.n_heads = take("n_heads");
  h.n_kv_heads = take("n_kv_heads");
  const int64_t vocab = reader.read<int32_t>("the header");
  if (vocab == 0)
    source.fail("vocab_size = 0; expected another number, negative for an untied head");
  h.vocab_size = vocab < 0 ? -vocab : vocab;
  h.tied_head = vocab > 0;
  h.seq_len = take("seq_len");

  if (h.dim % h.n_heads != 0)
    source.fail("n_heads = {} does not divide dim = {}", h.n_heads, h.dim);
  if (h.n_heads % h.n_kv_heads != 0)
    source.fail("n_kv_heads = {} does not divide n_heads = {}", h.n_kv_heads, h.n_heads);
  if (h.head_size() % 2 != 0)
    source.fail("heads of {} numbers (dim {} / n_heads {}); expected an even size", h.head_size(),
                h.dim, h.n_heads);
  return h;
}

// One of the arrays; where n_layers > 0, that many follow one another.
struct Block {
  std::string_view name;
  std::vector<int64_t> shape;
  int64_t n_layers = 0;
};

std::vector<Block> layout(const Llama2cHeader& h) {
  const int64_t n = h.n_layers;
  std::vector<Block> blocks = {
      {"tok_embeddings.weight", {h.vocab_size, h.dim}},
      {"attention_norm.weight", {h.dim}, n},
      {"attention.wq.weight", {h.dim, h.dim}, n},
      {"attention.wk.weight", {h.kv_dim(), h.dim}, n},
      {"attention.wv.weight", {h.kv_dim(), h.dim}, n},
      {"attention.wo.weight", {h.dim, h.dim}, n},
      {"ffn_norm.weight", {h.dim}, n},
      {"feed_forward.w1.weight", {h.hidden_dim, h.dim}, n},
      {"feed_forward.w2.weight", {h.dim, h.hidden_dim}, n},
      {"feed_forward.w3.weight", {h.hidden_dim, h.dim}, n},
      {"norm.weight", {h.dim}},
      {"freq_cis_real", {h.seq_len, h.head_size() / 2}},
      {"freq_cis_imag", {h.seq_len, h.head_size() / 2}},
  };
  if (!h.tied_head) blocks.push_back({"output.weight", {h.vocab_size, h.dim}});
  return blocks;
}

// Every array has two int32 axes at most, hence fewer than 2^62 elements; times layers may
// overflow.
void check_size(const std::vector<Block>& blocks, const ByteReader& reader) {
  const FileSource& source = reader.source();
  int64_t total = 0;
  for (const Block& block : blocks) {
    std::vector<int64_t> axes = block.shape;
    axes.push_back(block.n_layers > 0 ? block.n_layers : 1);
    axes.push_back(sizeof(float));
    const auto bytes = checked_element_count(axes);
    if (!bytes || __builtin_add_overflow(total, *bytes, &total))
      source.fail("the header implies more than 2^63 bytes");
  }
  if (static_cast<uint64_t>(total) != reader.remaining())
    source.fail("{} bytes after the header of {}; its sizes imply {}", reader.remaining(),
                kHeaderBytes, total);
}

}  // namespace

Llama2cFile read_llama2c(std::span<const std::byte> bytes,
                         std::string_view file,
                         std::shared_ptr<const void> owner) {
  ByteReader reader(bytes, FileSource{"llama2c", file});
  Llama2cFile result;
  result.header = take_llama2c_header(reader);
  const std::vector<Block> blocks = layout(result.header);
  check_size(blocks, reader);

  std::vector<TensorView> tensors;
  const auto add = [&](std::string name, const std::vector<int64_t>& shape) {
    const int64_t size = storage_bytes(DType::f32, element_count(shape));
    const auto data = reader.take(static_cast<uint64_t>(size), "a tensor");
    tensors.push_back({std::move(name), DType::f32, shape, data, owner});
  };
  for (const Block& block : blocks) {
    if (block.n_layers == 0) add(std::string(block.name), block.shape);
    for (int64_t layer = 0; layer < block.n_layers; ++layer)
      add(fmt::format("layers.{}.{}", layer, block.name), block.shape);
  }
  result.tensors = TensorFile("llama2c", std::string(file), std::move(tensors));
  return result;
}

Llama2cFile open_llama2c(const std::filesystem::path& path) {
  auto file = MappedFile::open(path);
  const auto bytes = file->bytes();
  return read_llama2c(bytes, path.string(), std::move(file));
}

bool begins_as_llama2c(std::span<const std::byte> bytes) {
  ByteReader reader(bytes, FileSource{"llama2c", ""});
  try {
    take_llama2c_header(reader);
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace tessera::format
