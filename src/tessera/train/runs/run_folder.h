// The folder of a run and its checkpoints, safe against crashes, full disks and second trainers.
// Torch-free.
//
//   lock            held while a trainer works here
//   step-N/         a checkpoint after N updates; complete, or absent
//   latest          link to the newest
//   best            link to the one that did best at its evaluation (checkpoint.best)
//   log.jsonl, log.csv, recipe.json, cache/
//   written.json    the recipe without defaults, as its author wrote it
//   events.out.tfevents.tessera   the log for TensorBoard (tensorboard_file.h)
//
// A checkpoint is written to step-N.partial/, flushed to disk, listed in manifest.json with the
// size and SHA-256 of every file, and renamed. Errors: Error(resource) for disk and lock,
// Error(file) for damage.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace tessera::train {

/// Exclusive use of a run folder, which is created if need be. Ends with the object, or with the
/// process.
class RunLock {
 public:
  /// Throws Error(resource) that names the process that holds it.
  explicit RunLock(const std::filesystem::path& folder);
  /// Takes a folder that it has made away again, with those around it that are empty then, unless
  /// that was to be kept: a run whose data are refused leaves no files.
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  void keep() { made_.clear(); }

 private:
  std::vector<std::filesystem::path> made_;  // the run's first, then those around it
  int descriptor_ = -1;
};

/// Whether a trainer of this machine holds the folder now, without touching its lock; false where
/// the system does not say (/proc/locks).
bool is_held(const std::filesystem::path& folder);

/// A checkpoint being written. Dropped before commit(), it leaves no files.
class PendingCheckpoint {
 public:
  PendingCheckpoint(std::filesystem::path run, int64_t step);
  ~PendingCheckpoint();
  PendingCheckpoint(const PendingCheckpoint&) = delete;
  PendingCheckpoint& operator=(const PendingCheckpoint&) = delete;

  /// Where its files go; the writer flushes them.
  const std::filesystem::path& folder() const { return partial_; }
  /// Manifest, rename, and tidy_checkpoints(). Returns the checkpoint's folder.
  std::filesystem::path commit(int64_t keep, const std::vector<int64_t>& best = {});

 private:
  std::filesystem::path run_, partial_;
  int64_t step_;
};

/// Steps of the checkpoints in a run folder, ascending; none when it does not exist.
std::vector<int64_t> checkpoint_steps(const std::filesystem::path& run);
std::filesystem::path checkpoint_folder(const std::filesystem::path& run, int64_t step);

/// What follows from a checkpoint's name: `latest` points to the newest and `best` to the first of
/// `best`, and all but the newest `keep` (0 = all) and those of `best` go. A process killed in
/// between left that to the next.
void tidy_checkpoints(const std::filesystem::path& run,
                      int64_t keep,
                      const std::vector<int64_t>& best);

/// Throws Error(file) that names the first file which is missing or differs from the manifest.
void verify_checkpoint(const std::filesystem::path& checkpoint);

/// What an interrupted trainer left of checkpoints it never finished. Call with the lock held.
void remove_partial_checkpoints(const std::filesystem::path& run);

}  // namespace tessera::train
