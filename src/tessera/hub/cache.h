// The cache of the Hugging Face hub, as huggingface_hub lays it out, read and written:
//
//   HUB/models--org--name/
//     refs/main                     the commit that a branch or tag was last seen at
//     snapshots/COMMIT/PATH         a relative link to a blob, for every file of that commit
//     blobs/ETAG                    contents: by SHA-256 where they are large (LFS), else git's
//     SHA-1 blobs/ETAG.incomplete         what is being downloaded
//   HUB/.locks/models--org--name/ETAG.lock
//
// Nothing here writes but remove_model(). What lies there may come from anybody: links that lead
// out of the cache, references that are no commits and lists without an end are refused, by
// Error(file) on one line.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "tessera/hub/model_name.h"

namespace tessera::hub {

/// HF_HOME, else XDG_CACHE_HOME/huggingface, else ~/.cache/huggingface. It need not exist.
std::filesystem::path home_folder();
/// The folder of the cache: HF_HUB_CACHE, else hub in home_folder(). It need not exist.
std::filesystem::path cache_folder();

struct SnapshotFile {
  std::string path;            // within the snapshot
  std::filesystem::path blob;  // what it leads to, canonical
  uint64_t bytes = 0;
};
/// A snapshot's files by their paths, all there and all within the cache, sorted. Throws where a
/// link leads nowhere or out of `cache`.
std::vector<SnapshotFile> snapshot_files(const std::filesystem::path& cache,
                                         const std::filesystem::path& snapshot);

/// The folder of a model's snapshot at its revision: a reference, a commit, or the beginning of the
/// only commit that begins so (7 digits or more). Throws where the cache has none, naming the
/// command that gets it.
std::filesystem::path snapshot_folder(const std::filesystem::path& cache, const ModelName& name);

struct CachedRevision {
  std::string commit;
  std::vector<std::string> refs;
  std::filesystem::path folder;
};
struct CachedModel {
  std::string repo;
  std::filesystem::path folder;
  std::vector<CachedRevision> revisions;  // sorted by commit; that of main first
  uint64_t bytes = 0;                     // of its blobs, and of files that lie in snapshots
  uint64_t incomplete_bytes = 0;          // of downloads that have not ended
  std::string damage = {};  // what is wrong with its refs, of which none is then known; "" = nothing
};
/// The models of a cache by name; datasets and spaces are none. An empty list where there is no
/// cache.
std::vector<CachedModel> cached_models(const std::filesystem::path& cache);

struct Removed {
  uint64_t bytes = 0;
  size_t files = 0;
};
/// What remove_model() would remove.
Removed removable(const std::filesystem::path& cache, const ModelName& name, bool whole);
/// Removes a model (`whole`), or one revision of it with the blobs that no other one uses.
/// References go first and blobs last, so that what is left when it is stopped is a cache. Throws
/// Error(usage) where the model's folder is a link or lies elsewhere, Error(resource) while it is
/// being downloaded.
Removed remove_model(const std::filesystem::path& cache, const ModelName& name, bool whole);

}  // namespace tessera::hub
