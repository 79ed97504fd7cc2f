// The temporary name of a file or folder that is being written: NAME.<process>-<n>.partial in the
// same folder, unique per writer. The last rename wins.
//
// A writer holds an advisory lock (flock) on its file until it is renamed or removed. Files of
// killed writers have no lock: remove_leftovers() deletes them, and the first writer of a process
// in a folder calls it.
#pragma once

#include <filesystem>

namespace tessera {

class PartialPath {
 public:
  enum class Kind { file, folder };
  PartialPath() = default;
  /// Creates it, empty. Throws Error(resource) on failure.
  PartialPath(const std::filesystem::path& target, Kind kind);
  /// Removes it unless it was renamed.
  ~PartialPath();
  PartialPath(PartialPath&& other) noexcept;
  PartialPath& operator=(PartialPath&& other) noexcept;

  bool empty() const { return path_.empty(); }
  const std::filesystem::path& path() const { return path_; }
  /// Opens the file for writing; the caller owns the descriptor. -1 with errno if none is left.
  int open_again() const;
  /// Renames it, replacing an existing file. Returns 0, or errno.
  int rename_to(const std::filesystem::path& target) noexcept;
  void remove() noexcept;

 private:
  void release() noexcept;

  std::filesystem::path path_;  // empty once renamed or removed
  int descriptor_ = -1;         // holds the lock
};

/// Removes unlocked temporary files and folders in `folder`. Errors are ignored.
void remove_leftovers(const std::filesystem::path& folder) noexcept;

}  // namespace tessera
