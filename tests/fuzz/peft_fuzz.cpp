// An adapter in the two files of PEFT, adapter_config.json and adapter_model.safetensors, beside a
// model with the names of a family.
#include "files.h"

#include "tessera/convert/peft.h"
#include "tessera/nn/registry.h"

using namespace tessera;

namespace {

/// What reading an adapter asks of a model: no tensors.
convert::Checkpoint small_llama() {
  nn::register_mechanisms();
  convert::Checkpoint checkpoint;
  checkpoint.spec = model::read_model_spec(spec::parse_json(
      R"({"tessera": 1, "arch": "decoder", "vocab": 8, "d_model": 4, "context": 16, "norm": "rms_norm",
          "layers": [{"mixer": {"type": "attention", "n_heads": 2, "n_kv_heads": 1,
                                "position": {"type": "rope"}}}],
          "ffn": {"type": "glu", "d_hidden": 8}, "head": "linear"})",
      "spec"));
  checkpoint.spec_json = model::resolve(checkpoint.spec);
  checkpoint.family = "llama";
  return checkpoint;
}

}  // namespace

TESSERA_FUZZ_TARGET(peft) {
  static const convert::Checkpoint base = small_llama();
  static const fuzz::Folder folder;
  const auto parts = fuzz::parts_of<2>(input);
  folder.put(convert::kPeftConfig, parts[0]);
  folder.put(convert::kPeftTensors, parts[1]);
  fuzz::run(
      [&] {
        for (const convert::AdapterTensors& one : convert::read_peft(folder.path(), base)) {
          fuzz::check(!one.weight.empty() && !one.parts.empty(), "something beside a weight");
          const auto a = one.parts.find("lora_a"), b = one.parts.find("lora_b");
          fuzz::check((a == one.parts.end()) == (b == one.parts.end()), "a whole product");
          if (a == one.parts.end()) continue;
          fuzz::check(a->second.shape.size() == 2 && b->second.shape.size() == 2, "matrices");
          fuzz::check(a->second.shape[0] == b->second.shape[1], "one rank");
        }
      },
      {ErrorKind::file, ErrorKind::usage});
}
