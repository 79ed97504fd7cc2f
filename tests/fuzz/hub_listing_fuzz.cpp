// What a hub answers to the question for a model's files.
#include "fuzz.h"

#include <map>
#include <set>

#include "tessera/hub/gguf_files.h"
#include "tessera/hub/listing.h"
#include "tessera/hub/model_name.h"

using namespace tessera;

namespace {

void check_file(const hub::RemoteFile& file) {
  const std::string& path = file.path;
  fuzz::check(!path.empty() && path.front() != '/' && path.back() != '/' &&
                  ("/" + path + "/").find("/../") == path.npos &&
                  ("/" + path + "/").find("/./") == path.npos && path.find("//") == path.npos &&
                  path.find('\0') == path.npos,
              "a path stays below its folder");
  fuzz::check(file.hash.size() == 40 || file.hash.size() == 64, "a hash has its length");
  fuzz::check(file.hash.find_first_not_of("0123456789abcdef") == file.hash.npos,
              "the name of a blob is of digits");
}

}  // namespace

TESSERA_FUZZ_TARGET(hub_listing) {
  fuzz::run(
      [&] {
        const hub::Listing listing = hub::read_listing(fuzz::text_of(input), "pull");
        fuzz::check(hub::is_commit(listing.commit), "a commit is one");
        std::set<std::string> paths;
        uint64_t bytes = 0;
        for (const hub::RemoteFile& file : listing.files) {
          check_file(file);
          fuzz::check(paths.insert(file.path).second, "no path twice");
          bytes += file.bytes;
        }
        fuzz::check(bytes <= uint64_t{1} << 50, "a sum that fits");
        for (const hub::Wanted& wanted :
             {hub::Wanted{}, hub::Wanted{{"*"}, ""}, hub::Wanted{{}, "Q4_K_M"}}) {
          try {
            for (const hub::RemoteFile& file : hub::wanted_files(listing, wanted, "org/name"))
              fuzz::check(paths.count(file.path) == 1, "what is wanted is listed");
          } catch (const Error& error) {
            fuzz::check(error.kind() == ErrorKind::usage || error.kind() == ErrorKind::file,
                        "a choice that is not clear");
          }
        }
      },
      {ErrorKind::file});
}
