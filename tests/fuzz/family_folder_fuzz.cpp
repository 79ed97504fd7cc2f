// The folder of --families: a family file and a fragment in shared/, beside those built in.
#include "files.h"

#include "tessera/convert/family.h"

using namespace tessera;

TESSERA_FUZZ_TARGET(family_folder) {
  static const fuzz::Folder folder;
  const auto parts = fuzz::parts_of<2>(input);
  folder.put("family.json", parts[0]);
  folder.put("shared/fragment.json", parts[1]);
  fuzz::run(
      [&] {
        auto families = convert::FamilySet::load(folder.path());
        families.metadata_keys("hf");
        for (const char* dialect : {"hf", "gguf", "pth"}) families.types(dialect);
        families.of_type("hf", "fuzz", spec::Json::object(), "fuzz");
      },
      {ErrorKind::file, ErrorKind::spec});
}
