#include "tessera/kernels/weights/codebooks.h"

#include "tessera/kernels/weights/codebooks_inl.h"

namespace tessera::kernels {

constinit const CodeBooks kCodeBooks = made_code_books();

}  // namespace tessera::kernels
