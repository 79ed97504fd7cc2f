// The files of a model on a hub: the answer to
//   GET ENDPOINT/api/models/ORG/NAME/revision/REVISION?blobs=true
// and which of these files a download takes. The answer is hostile until it is read here: paths
// stay below the snapshot, none is another's folder, hashes are hashes, and there are limits of
// files and bytes. Errors: Error(file), one line.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::hub {

struct RemoteFile {
  std::string path;
  uint64_t bytes = 0;
  /// 64 digits: the content's SHA-256 (LFS); 40: git's hash of it (git_hash.h). It is what the
  /// cache calls the blob.
  std::string hash;
};

struct Listing {
  std::string commit;
  std::vector<RemoteFile> files;  // sorted by path
};

/// `where` is the place in messages.
Listing read_listing(std::string_view json, std::string_view where);

struct Wanted {
  std::vector<std::string>
      include;               // globs of paths (*, ?, [...]; '*' crosses '/'); several add up
  std::string quantization;  // of the GGUF files
};

/// The files that a download takes. With globs those that match one. With a quantization its GGUF
/// files. Else all that a loader may open: not the same weights for other programs (ONNX,
/// TensorFlow, Flax, ..., and PyTorch's pickles next to safetensors), no images; the GGUF files
/// where there are no other weights, and then they have to be of one quantization. Throws
/// Error(usage) with the choices where it is not clear or nothing fits. `repo` is for messages.
std::vector<RemoteFile> wanted_files(const Listing& listing,
                                     const Wanted& wanted,
                                     const std::string& repo);

/// "4.9 GB"
std::string readable_bytes(uint64_t bytes);

}  // namespace tessera::hub
