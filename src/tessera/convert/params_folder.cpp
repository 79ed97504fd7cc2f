#include "tessera/convert/params_folder.h"

#include <algorithm>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/mapped_file.h"
#include "tessera/convert/foreign_config.h"
#include "tessera/convert/tensor_ops.h"
#include "tessera/format/file_source.h"
#include "tessera/format/tensor_folder.h"

namespace tessera::convert {
namespace {

namespace fs = std::filesystem;

constexpr const char* kParams = "params.json";
constexpr size_t kMaxParamsBytes = size_t{1} << 20;
constexpr size_t kMaxRanks = 64;

fs::path consolidated_file(const fs::path& folder, size_t rank) {
  return folder / fmt::format("consolidated.{:02}.pth", rank);
}

std::vector<fs::path> consolidated_files(const fs::path& folder) {
  std::vector<fs::path> parts;
  std::error_code ignored;
  while (parts.size() < kMaxRanks && fs::exists(consolidated_file(folder, parts.size()), ignored))
    parts.push_back(consolidated_file(folder, parts.size()));
  // a rank that is missing among the others would leave matrices that are too small
  for (size_t rank = parts.size(); rank < kMaxRanks; ++rank)
    if (fs::exists(consolidated_file(folder, rank), ignored))
      fail(ErrorKind::file, folder.string(), "holds {} and no {}; expected all parts of the model",
           consolidated_file(folder, rank).filename().string(),
           consolidated_file(folder, parts.size()).filename().string());
  return parts;
}

/// One tensor of the model from the parts of it in every file.
TensorView joined_parts(const std::vector<format::TensorFile>& files,
                        const std::string& name,
                        int64_t width) {
  std::vector<TensorView> parts;
  for (const format::TensorFile& file : files) {
    parts.push_back(file.at(name));
    if (parts.back().shape != parts.front().shape)
      fail(ErrorKind::file, file.file(), "tensor {} has shape {}; {} has {}",
           format::in_quotes(name), format::shape_text(parts.back().shape), files.front().file(),
           format::shape_text(parts.front().shape));
  }
  const Shape& shape = parts.front().shape;
  if (files.size() == 1) return parts.front();
  if (shape.size() != 2) {
    for (size_t i = 1; i < parts.size(); ++i)
      if (!equal_values(parts[i], parts.front()))
        fail(ErrorKind::file, files[i].file(),
             "tensor {} differs from that of {}; expected equal ones", format::in_quotes(name),
             files.front().file());
    return parts.front();
  }
  if (shape[0] == width && shape[1] == width)
    fail(ErrorKind::file, files.front().file(),
         "tensor {} is {} in each of {} files, which may be rows or columns of it; expected one "
         "file, or a Hugging Face folder",
         format::in_quotes(name), format::shape_text(shape), files.size());
  TensorView whole = joined(parts, shape[1] == width ? 0 : 1);
  whole.name = name;
  return whole;
}

}  // namespace

bool holds_params(const fs::path& folder) {
  std::error_code ignored;
  return fs::exists(folder / kParams, ignored) && fs::exists(consolidated_file(folder, 0), ignored);
}

ParamsFolder read_params_folder(const fs::path& folder) {
  ParamsFolder out;
  out.file = (folder / kParams).string();
  out.config = parse_hf_config(read_text_file(folder / kParams, kMaxParamsBytes), out.file);
  const auto dim = out.config.find("dim");
  if (dim == out.config.end() || !dim->is_number_integer())
    fail(ErrorKind::file, out.file, "\"dim\" is {}; expected the width of the model",
         dim == out.config.end() ? "missing" : dim->dump());
  std::vector<format::TensorFile> files;
  for (const fs::path& part : consolidated_files(folder))
    files.push_back(format::open_tensor_file(part));
  std::vector<TensorView> tensors;
  for (const TensorView& tensor : files.front().tensors())
    tensors.push_back(joined_parts(files, tensor.name, dim->get<int64_t>()));
  for (const format::TensorFile& file : files) {
    if (file.tensors().size() != tensors.size())
      fail(ErrorKind::file, file.file(), "holds {} tensors; {} holds {}", file.tensors().size(),
           files.front().file(), tensors.size());
    for (const format::UnsupportedTensor& tensor : file.unsupported())
      fail(ErrorKind::file, file.file(), "tensor {} has type {}, which is not supported here",
           format::in_quotes(tensor.name), tensor.type);
  }
  out.tensors = format::TensorFile("torch", folder.string(), std::move(tensors));
  return out;
}

}  // namespace tessera::convert
