// Hugging Face folders whose matrices another program has quantized: AWQ, GPTQ, compressed-tensors,
// and floats of eight bits by blocks as DeepSeek has them.
//
// A module's packed weight, scales and zero points become one tensor under the name that the module
// has in a plain folder, [out, in], of a storage type that holds d (code - z) of every number
// exactly, with d in float32 (dtype.h): q4_0 or q8_0 where no zero point differs from the middle
// and the scales fit float16, in all of the folder; else scaled_u4, scaled_i8, scaled_e4m3. Columns
// whose groups do not follow each other (act-order) are held by groups (format::ColumnOrder).
// Matrices that no such type holds become float32, with a remark: groups or rows that are no
// multiple of 32. Formats: autoawq 0.2.9
// (gemm), auto-gptq 0.7.1 and gptqmodel 7.7 (gptq, gptq_v2), compressed-tensors 0.20 (pack-, int-,
// float-, naive-quantized), transformers 5.23 (fp8).
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tessera/format/tensor_view.h"
#include "tessera/spec/json.h"

namespace tessera::convert {

struct QuantizedFolder {
  format::TensorFile tensors;
  std::set<std::string, std::less<>> packed;  // names of weights that stand for several tensors
  std::vector<std::string> remarks;           // what a user should know, one line each
};

/// Reads `file` by the config, whose "quantization_config" (or "compression_config") is taken
/// away; nothing where there is none, or one that a family reads (mxfp4, bitnet). `where` names the
/// config. Throws Error(file) for other methods, options that change the mathematics, and tensors
/// that are missing or of another type or shape than by the config.
std::optional<QuantizedFolder> read_quantized_folder(spec::Json& config,
                                                     const std::string& where,
                                                     const format::TensorFile& file);

}  // namespace tessera::convert
