# The CUDA kernels (src/tessera/cuda/kernels.cu), compiled by nvcc where it is installed and embedded in
# what links the layer `cuda`. Nothing links to CUDA: cuda/driver.h opens the driver at run time.
option(TESSERA_CUDA_KERNELS "compile the CUDA kernels where nvcc is installed" ON)
# code for GPUs of 8.x and 9.0; PTX, which a driver compiles, for later ones
set(TESSERA_CUDA_TARGETS "sm_80, sm_90, compute_80")
set(_cuda_flags -std=c++20 -O3 -Xfatbin -compress-all -gencode "arch=compute_80,code=[sm_80,compute_80]" -gencode "arch=compute_90,code=sm_90")

# Whether nvcc compiles with these flags and the host's compiler, in TESSERA_CUDA_COMPILES.
set(_cuda_compiles OFF)
if(TESSERA_CUDA_KERNELS)
  find_program(TESSERA_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
  if(TESSERA_NVCC AND NOT DEFINED TESSERA_CUDA_COMPILES)
    file(WRITE ${CMAKE_BINARY_DIR}/generated/cuda/empty.cu "extern \"C\" __global__ void empty() {}\n")
    execute_process(COMMAND ${TESSERA_NVCC} ${_cuda_flags} -fatbin -o ${CMAKE_BINARY_DIR}/generated/cuda/empty.fatbin
                            ${CMAKE_BINARY_DIR}/generated/cuda/empty.cu
                    RESULT_VARIABLE _result OUTPUT_QUIET ERROR_VARIABLE _error)
    if(_result EQUAL 0)
      set(TESSERA_CUDA_COMPILES ON CACHE INTERNAL "nvcc compiles")
    else()
      message(WARNING "CUDA kernels are left out: ${TESSERA_NVCC} fails: ${_error}")
      set(TESSERA_CUDA_COMPILES OFF CACHE INTERNAL "nvcc compiles")
    endif()
  endif()
  if(TESSERA_NVCC AND TESSERA_CUDA_COMPILES)
    set(_cuda_compiles ON)
  endif()
endif()
if(NOT _cuda_compiles)
  set(TESSERA_CUDA_TARGETS "")
endif()

# tessera_cuda_module(<out>): the source that holds the compiled kernels; without nvcc none of them.
# generated/cuda/ptxas.txt has the registers and spills of each kernel.
function(tessera_cuda_module out)
  set(folder ${CMAKE_BINARY_DIR}/generated/cuda)
  set(source ${folder}/compiled_kernels.cpp)
  if(NOT _cuda_compiles)
    file(CONFIGURE OUTPUT ${source} CONTENT "#include \"tessera/cuda/driver.h\"

namespace tessera::cuda {

std::span<const unsigned char> compiled_kernels() {
  return {};
}
const char* compiled_targets() {
  return \"\";
}

}  // namespace tessera::cuda
" @ONLY)
    file(REMOVE ${folder}/ptxas.txt)
  else()
    file(GLOB_RECURSE inputs CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/tessera/cuda/*.cuh)
    set(script ${CMAKE_SOURCE_DIR}/cmake/cuda_kernels.sh)
    set(kernels ${CMAKE_SOURCE_DIR}/src/tessera/cuda)
    set(weights ${CMAKE_SOURCE_DIR}/src/tessera/kernels/weights)
    set(books ${weights}/codebooks.h ${weights}/codebooks_inl.h ${weights}/codebooks_data.inc ${weights}/blocks.h ${weights}/block_codes.h)
    add_custom_command(OUTPUT ${source} BYPRODUCTS ${folder}/ptxas.txt
      COMMAND ${script} ${source} ${TESSERA_CUDA_TARGETS} ${TESSERA_NVCC} ${_cuda_flags} -I${CMAKE_SOURCE_DIR}/src ${kernels}/kernels.cu
      DEPENDS ${script} ${inputs} ${kernels}/kernels.cu ${kernels}/kernels.h ${kernels}/kernels.def ${kernels}/packed_formats.def ${kernels}/block.h ${kernels}/launch.h ${books}
      COMMENT "Compiling CUDA kernels" VERBATIM)
  endif()
  set(${out} ${source} PARENT_SCOPE)
endfunction()
