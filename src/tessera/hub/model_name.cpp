#include "tessera/hub/model_name.h"

#include <algorithm>
#include <cctype>

#include "tessera/format/file_source.h"

namespace tessera::hub {
namespace {

constexpr std::string_view kFolderStart = "models--", kFolderSeparator = "--";
constexpr size_t kMostInNamePart = 96, kMostInPathPart = 255, kMostInPath = 4000;

bool is_name_part(std::string_view part) {
  const auto word = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
  };
  return !part.empty() && part.size() <= kMostInNamePart && word(part.front()) &&
         word(part.back()) && std::all_of(part.begin(), part.end(), [&](char c) {
           return word(c) || c == '-' || c == '.';
         });
}

/// The name in an address of the hub's pages, as https://huggingface.co/org/name,
/// .../tree/REVISION or .../blob/REVISION/FILE; any other text as it is.
std::string without_address(std::string_view text) {
  std::string_view rest = text;
  for (const char* scheme : {"https://", "http://", "hf://"})
    if (rest.starts_with(scheme)) rest.remove_prefix(std::string_view(scheme).size());
  const bool plain = text.starts_with("hf://");
  bool of_hub = plain;
  for (const char* host : {"huggingface.co/", "www.huggingface.co/", "hf.co/"})
    if (!plain && rest.starts_with(host)) {
      rest.remove_prefix(std::string_view(host).size());
      of_hub = true;
      break;
    }
  if (!of_hub) return std::string(text);
  rest = rest.substr(0, rest.find_first_of("?#"));
  while (rest.ends_with('/')) rest.remove_suffix(1);
  for (const char* page : {"/tree/", "/blob/", "/resolve/"}) {
    const size_t at = rest.find(page);
    if (at == rest.npos) continue;
    const std::string_view behind = rest.substr(at + std::string_view(page).size());
    const size_t slash = std::min(behind.find('/'), behind.size());
    std::string out(rest.substr(0, at));
    if (behind.substr(0, slash) != kMainRevision) out.append("@").append(behind.substr(0, slash));
    if (slash < behind.size()) out.append(":").append(behind.substr(slash + 1));
    return out;
  }
  return std::string(rest);
}

}  // namespace

std::string ModelName::text() const {
  std::string out = repo;
  if (revision != kMainRevision) out += "@" + revision;
  if (!selection.empty()) out += ":" + selection;
  return out;
}

std::string ModelName::folder() const {
  std::string out(kFolderStart);
  for (const char c : repo) out += c == '/' ? std::string(kFolderSeparator) : std::string(1, c);
  return out;
}

bool is_repo_id(std::string_view text) {
  if (text.find("--") != text.npos || text.find("..") != text.npos || text.ends_with(".git"))
    return false;
  const size_t slash = text.find('/');
  if (slash == text.npos) return is_name_part(text);
  return is_name_part(text.substr(0, slash)) && is_name_part(text.substr(slash + 1));
}

std::optional<std::string> repo_of_folder(std::string_view folder) {
  if (!folder.starts_with(kFolderStart)) return std::nullopt;
  std::string repo(folder.substr(kFolderStart.size()));
  if (const size_t at = repo.find(kFolderSeparator); at != repo.npos)
    repo.replace(at, kFolderSeparator.size(), "/");
  if (!is_repo_id(repo)) return std::nullopt;
  return repo;
}

bool is_safe_path(std::string_view path) {
  // printable() leaves what is harmless as it is
  if (path.empty() || path.size() > kMostInPath || format::printable(path, path.size()) != path ||
      path.find('\\') != path.npos)
    return false;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const std::string_view part = path.substr(begin, end - begin);
    if (part.empty() || part == "." || part == ".." || part.size() > kMostInPathPart) return false;
    begin = end + 1;
  }
  return true;
}

bool is_revision(std::string_view text) {
  // as git refuses names of branches
  return is_safe_path(text) && text.find_first_of(" ~^:?*[@") == text.npos &&
         text.find("..") == text.npos;
}

bool is_commit(std::string_view text) {
  return text.size() == 40 && text.find_first_not_of("0123456789abcdef") == text.npos;
}

std::optional<ModelName> parse_model_name(std::string_view given) {
  const std::string without = without_address(given);
  const std::string_view text = without;
  ModelName name;
  const size_t colon = text.find(':');
  std::string_view head = text.substr(0, colon);
  if (colon != text.npos) {
    name.selection = text.substr(colon + 1);
    if (!is_safe_path(name.selection)) return std::nullopt;
  }
  if (const size_t at = head.find('@'); at != head.npos) {
    name.revision = head.substr(at + 1);
    if (!is_revision(name.revision)) return std::nullopt;
    head = head.substr(0, at);
  }
  // a number is one that was meant for another option
  if (!is_repo_id(head) || head.find_first_not_of("0123456789") == head.npos) return std::nullopt;
  name.repo = head;
  return name;
}

}  // namespace tessera::hub
