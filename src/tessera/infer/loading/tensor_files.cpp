#include "tessera/infer/loading/tensor_files.h"

#include <cstring>

#include "tessera/format/safetensors.h"
#include "tessera/ops/weights/weight.h"

namespace tessera::infer {

Tensor tensor_or_undefined(const format::TensorFile& file, const std::string& name) {
  const format::TensorView* view = file.find(name);
  if (view == nullptr) return {};
  if (is_block_type(view->dtype))
    fail(ErrorKind::input, "tensor", "{}: \"{}\" is of block type {}", file.file(), name,
         name_of(view->dtype));
  Tensor out = at::empty(view->shape, ops::scalar_type_of(view->dtype));
  if (!view->data.empty()) std::memcpy(out.data_ptr(), view->data.data(), view->data.size());
  return out;
}

void write_tensors(const std::filesystem::path& path,
                   const std::vector<std::pair<std::string, Tensor>>& tensors,
                   const format::StringMap& metadata) {
  std::vector<Tensor> keep;
  std::vector<format::TensorView> views;
  for (const auto& [name, tensor] : tensors) {
    Tensor t = tensor.detach().to(at::kCPU);
    if (t.is_floating_point()) t = t.to(at::kFloat);
    keep.push_back(t.contiguous());
    const Tensor& held = keep.back();
    views.push_back(
        {name,
         ops::dtype_of(held.scalar_type()),
         held.sizes().vec(),
         {static_cast<const std::byte*>(held.const_data_ptr()), static_cast<size_t>(held.nbytes())},
         nullptr});
  }
  format::write_safetensors(path, views, metadata);
}

}  // namespace tessera::infer
