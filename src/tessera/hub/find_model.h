// Finds the model of a path or of a name in the cache (cache.h). Read-only;
// nothing is downloaded.
#pragma once

#include <filesystem>
#include <string>

namespace tessera::hub {

struct FoundModel {
  std::string path;  // what a loader opens: a folder, or a GGUF file (the first of its parts)
  std::string name;  // by which it is in the cache: "org/name:Q4_K_M"; "" = the text was a path
};

/// A path that exists wins, and so does what can only be a path (absolute, beginning with a point,
/// with the ending of a model file): it is returned as it is. A folder of the cache itself,
/// models--org--name, is its revision main. FOLDER:Q4_K_M chooses a GGUF file in a folder.
/// Else the text is a name (model_name.h), in the cache at `cache`. Throws Error(file), one line:
/// not in the cache (with the command that downloads it), several GGUF files (with the choices), a
/// part of one or of a shard that is missing, links that lead out of the cache.
FoundModel find_model(const std::string& text, const std::filesystem::path& cache);
/// In the cache of the environment.
FoundModel find_model(const std::string& text);

/// Whether a file of this path makes the folder that it is relative to a model: weights that are no
/// GGUF file, or the config of an adapter.
bool makes_folder_a_model(const std::string& path);
/// Whether the text is a name of a model that the environment's cache has, in any revision.
bool is_cached(const std::string& text);

}  // namespace tessera::hub
