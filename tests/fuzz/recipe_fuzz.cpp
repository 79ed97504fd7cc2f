// A training recipe, then base.json, which it may extend.
#include "files.h"

#include "tessera/train/recipe/recipe.h"

using namespace tessera;

TESSERA_FUZZ_TARGET(recipe) {
  static const fuzz::Folder folder;
  const auto parts = fuzz::parts_of<2>(input);
  const auto file = folder.put("recipe.json", parts[0]);
  folder.put("base.json", parts[1]);
  fuzz::run(
      [&] {
        const spec::Json resolved = train::resolve(train::load_recipe(file));
        fuzz::check(train::resolve(train::read_recipe(resolved, "")) == resolved,
                    "a resolved recipe reads back as itself");
        fuzz::check(train::differing_key(resolved, resolved).empty(), "a recipe equals itself");
      },
      {ErrorKind::file, ErrorKind::spec});
}
