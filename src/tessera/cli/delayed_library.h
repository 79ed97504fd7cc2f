// Delay loading of a shared library: it is opened at the first call of one of its functions.
//
// cmake/delayed_library.sh generates a jump for each function of the library that the program's own
// code calls, so that the program does not name the library to the dynamic loader. A jump leads to
// open() at first, afterwards to the function of the library.
#pragma once

#include <cstddef>

namespace tessera::cli::delayed {

/// Opens the library for the whole process (RTLD_GLOBAL); more than once does nothing more. Any
/// thread may call it. Throws Error(file) if it cannot be opened.
void open();

/// Until the library is open, calls of `function` go to `instead`, which has the same type. Both
/// are addresses of code. Call it before other threads start.
void replace(const void* function, const void* instead);

/// What open() calls once the functions of the library can be called.
void when_open(void (*call)());

}  // namespace tessera::cli::delayed
