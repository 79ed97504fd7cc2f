# Finds libtorch in TESSERA_TORCH (the folder named "torch" of a wheel or of an installed package),
# by default where scripts/setup.sh unpacks it. Defines the imported target Torch::Torch (CPU part);
# the CUDA part is loaded at run time, so that one binary serves both. A target with the property
# TESSERA_DELAYED_TORCH links only Torch::C10: it opens libtorch_cpu when it runs (tessera_delay_torch).
#
# Not torch's own find_package file: that one demands a CUDA toolkit.
set(TESSERA_TORCH "$ENV{TESSERA_TORCH}" CACHE PATH "folder 'torch' of a libtorch or PyPI torch, 2.11 to 2.15")
if(NOT TESSERA_TORCH)
  set(_cache "$ENV{TESSERA_CACHE}")
  if(NOT _cache)
    set(_cache "$ENV{HOME}/.cache/tessera")
  endif()
  set(TESSERA_TORCH "${_cache}/libtorch/torch")
endif()

find_path(Torch_INCLUDE_DIR ATen/ATen.h PATHS ${TESSERA_TORCH}/include NO_DEFAULT_PATH)
find_library(Torch_LIBRARY torch_cpu PATHS ${TESSERA_TORCH}/lib NO_DEFAULT_PATH)
find_library(Torch_C10_LIBRARY c10 PATHS ${TESSERA_TORCH}/lib NO_DEFAULT_PATH)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Torch
  REQUIRED_VARS Torch_LIBRARY Torch_C10_LIBRARY Torch_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "run scripts/setup.sh, or set TESSERA_TORCH to the folder of an installed torch")
if(Torch_FOUND AND NOT TARGET Torch::Torch)
  add_library(Torch::C10 UNKNOWN IMPORTED)
  set_target_properties(Torch::C10 PROPERTIES IMPORTED_LOCATION ${Torch_C10_LIBRARY})
  add_library(Torch::Cpu UNKNOWN IMPORTED)
  set_target_properties(Torch::Cpu PROPERTIES IMPORTED_LOCATION ${Torch_LIBRARY})
  add_library(Torch::Torch INTERFACE IMPORTED)
  # -idirafter: torch ships its own newer fmt, which must not hide the system's.
  set_target_properties(Torch::Torch PROPERTIES
    INTERFACE_COMPILE_OPTIONS "SHELL:-idirafter ${Torch_INCLUDE_DIR};SHELL:-idirafter ${Torch_INCLUDE_DIR}/torch/csrc/api/include"
    INTERFACE_COMPILE_DEFINITIONS "_GLIBCXX_USE_CXX11_ABI=1"
    INTERFACE_LINK_LIBRARIES
      "$<$<NOT:$<BOOL:$<TARGET_PROPERTY:TESSERA_DELAYED_TORCH>>>:Torch::Cpu>;Torch::C10")
endif()
