// Files of torch.save: pytorch_model.bin, .pt, .pth, .ckpt. Torch-free, and no code of theirs runs.
//
// Both forms are read: the zip archive of today and the stream of pickles before PyTorch 1.6
// ("legacy"). Of the pickle only what dictionaries of tensors need is understood (format/pickle.h,
// and the names that is_torch_name() lists); everything else is refused by name, at least wherever
// torch.load(weights_only=True) refuses it. tests/golden/formats/torch_files.json holds what
// PyTorch reads of a hundred files.
//
// Tensors are views of the file; those whose strides are not those of their shape are copied, once
// for each such view, at most four times the bytes of the file. Tensors that share a storage share
// its bytes. Checksums of zip entries are compared, which reads the file once.
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/format/tensor_view.h"

namespace tessera::format {

/// Whether a file begins as one of torch.save does: a zip archive, or a pickle.
bool begins_as_torch(std::string_view text);

/// The tensors of a file, in its order. Its root is a dictionary: that of the weights, or one that
/// has it as "state_dict", "model_state_dict", "model" or "module" (the first of them that holds
/// tensors), or as the only member that holds any; such keys do not stand in the names.
/// Dictionaries and lists within give names with dots; numbers and texts are left out. A line in
/// `notes` names the other members that hold tensors (optimizer states). Types tessera does not
/// compute with are in unsupported(), by the names of safetensors. Throws Error(file), one line.
TensorFile open_torch_file(const std::filesystem::path& path,
                           std::vector<std::string>* notes = nullptr);

/// The same from memory; `file` is named in messages, `owner` is kept by every view.
TensorFile read_torch_file(std::span<const std::byte> bytes,
                           std::string_view file,
                           std::shared_ptr<const void> owner = {},
                           std::vector<std::string>* notes = nullptr);

/// Whether a pickle may name this ("torch.FloatStorage").
bool is_torch_name(std::string_view global);

}  // namespace tessera::format
