// A family file with what it is for: the family, a config.json and a safetensors file of that
// model. Whatever loads is written again as well.
#include "fuzz.h"

#include "tessera/convert/foreign_config.h"
#include "tessera/convert/mapping.h"
#include "tessera/format/safetensors.h"

using namespace tessera;

TESSERA_FUZZ_TARGET(family) {
  static convert::FamilySet families = convert::FamilySet::load();
  const auto parts = fuzz::parts_of<3>(input);
  fuzz::run(
      [&] {
        spec::JsonLimits limits;
        limits.comments = true;
        const convert::Family family =
            convert::compile_family(spec::parse_json(parts[0], "family", limits), "family");
        const std::string tensors(parts[2]);  // as aligned as a mapped file
        const format::TensorFile file =
            format::read_safetensors(std::as_bytes(std::span(tensors)), "tensors");
        const convert::Foreign foreign{"hf", convert::parse_hf_config(parts[1], "config"), &file,
                                       "config"};
        convert::Importer importer(family, foreign, families);
        convert::Checkpoint checkpoint;
        checkpoint.spec = model::read_model_spec(importer.spec_json());
        checkpoint.spec_json = model::resolve(checkpoint.spec);
        importer.read_tensors(checkpoint);
        for (const auto& [name, dialect] : family.dialects)
          convert::export_checkpoint(family, name, checkpoint, families, false);
      },
      {ErrorKind::file, ErrorKind::spec, ErrorKind::resource, ErrorKind::usage});
}
