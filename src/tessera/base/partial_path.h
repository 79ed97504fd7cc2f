// The temporary name of a file or folder that is being written: NAME.<process>-<n>.partial beside
// it, one for each writer, so that two who write the same target never write into one another. The
// last who renames wins.
//
// A writer holds an advisory lock (flock) on what it writes until it is renamed or removed. What is
// left of writers that were killed has no lock any more: remove_leftovers() takes it away, and the
// first writer of a process in a folder calls it.
#pragma once

#include <filesystem>

namespace tessera {

class PartialPath {
 public:
  enum class Kind { file, folder };
  PartialPath() = default;
  /// Creates it, empty. Throws Error(resource) where that cannot be.
  PartialPath(const std::filesystem::path& target, Kind kind);
  /// Removes it unless it was renamed.
  ~PartialPath();
  PartialPath(PartialPath&& other) noexcept;
  PartialPath& operator=(PartialPath&& other) noexcept;

  bool empty() const { return path_.empty(); }
  const std::filesystem::path& path() const { return path_; }
  /// Of the file, for writing; the caller's. -1 with errno where there is none left.
  int open_again() const;
  /// Gives it its name, in place of a file that has it. 0, or errno.
  int rename_to(const std::filesystem::path& target) noexcept;
  void remove() noexcept;

 private:
  void let_go() noexcept;

  std::filesystem::path path_;  // empty once it was renamed or removed
  int descriptor_ = -1;         // holds the lock
};

/// Removes temporary files and folders in `folder` that nobody writes any more. Errors are passed
/// over: what cannot be removed stays.
void remove_leftovers(const std::filesystem::path& folder) noexcept;

}  // namespace tessera
