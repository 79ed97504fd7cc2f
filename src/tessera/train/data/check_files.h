// Checks common to all kinds of data files. Torch-free.
#pragma once

#include <string>

#include "tessera/base/error.h"

namespace tessera::train {

/// Throws Error(spec) without training files, or with two ways of validation.
template <class Data>
void check_files(const Data& data, const std::string& where) {
  if (data.train.empty())
    fail(ErrorKind::spec, where + ".train", "no files; expected at least one");
  if (!data.valid.empty() && data.valid_fraction > 0)
    fail(ErrorKind::spec, where + ".valid_fraction",
         "given together with {}.valid; expected one of them", where);
}

}  // namespace tessera::train
