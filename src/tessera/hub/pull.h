// Downloads a model into the cache (cache.h), so that huggingface_hub finds it as if it had done
// so:
//
//   GET ENDPOINT/api/models/NAME/revision/REVISION?blobs=true      the commit, its files, hashes
//   GET ENDPOINT/NAME/resolve/COMMIT/PATH                          each file, also by Range
//
// Several files at a time. A file goes to blobs/HASH.incomplete, under the lock that
// huggingface_hub takes for it, and becomes a blob when its length and hash are those of the list.
// The snapshot appears when all of its files are there, then the reference. Stopped in any way, the
// same call continues where the files end. Connections that are cut, silent or refused, and answers
// 408, 429 and 5xx are tried again, after the time in Retry-After.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "tessera/base/cancel.h"
#include "tessera/hub/listing.h"
#include "tessera/hub/model_name.h"

namespace tessera::hub {

struct HubSettings {
  std::filesystem::path cache;
  std::string endpoint = "https://huggingface.co";
  std::string token;
  bool offline = false;  // HF_HUB_OFFLINE: nothing is downloaded
};
/// HF_ENDPOINT; HF_TOKEN, else the file HF_TOKEN_PATH, HF_HOME/token or ~/.cache/huggingface/token,
/// unless HF_HUB_DISABLE_IMPLICIT_TOKEN; HF_HUB_OFFLINE; the cache as cache_folder() has it.
HubSettings settings_of_environment();

struct PullProgress {
  size_t files = 0, files_done = 0;    // 0 files: they are not known yet
  uint64_t bytes = 0, bytes_done = 0;  // of the files that are not in the cache yet
  std::string waiting;                 // why nothing happens; "" = it does
};

struct PullOptions {
  HubSettings hub;
  Wanted wanted;
  int parallel = 4;           // files at a time
  int attempts = 6;           // of a request, without a byte between them
  double first_wait = 1;      // seconds before the second attempt; twice as long for each further
  double longest_wait = 300;  // that a server may ask for
  double stall_seconds = 30;  // without a byte
  const CancelToken* cancel = nullptr;
  /// Is called in the caller's thread, some times a second.
  std::function<void(const PullProgress&)> progress = {};
};

struct Pulled {
  std::filesystem::path snapshot;
  std::string commit;
  size_t files = 0;
  uint64_t bytes = 0;       // of these files
  uint64_t downloaded = 0;  // by this call
};

/// Throws Error(usage) where what is asked for is not clear, Error(file) for a server that does not
/// do what it should or does not give the model, Error(resource) where the disk has no room,
/// Error(cancelled). Whatever it throws, the cache is a whole one.
Pulled pull(const ModelName& name, const PullOptions& options);

}  // namespace tessera::hub
