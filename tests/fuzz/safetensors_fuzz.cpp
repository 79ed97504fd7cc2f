#include "tensors.h"

#include "tessera/format/safetensors.h"

using namespace tessera;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = fuzz::bytes_of(data, size);
  return fuzz::run([&] { fuzz::check_tensors(format::read_safetensors(bytes, "fuzz"), bytes); });
}
