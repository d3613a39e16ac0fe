# Whether the CUDA component is built (runtime/cuda), and with what: PENSTOCK_CUDA, PENSTOCK_NVCC, PENSTOCK_CUDART,
# PENSTOCK_CUDA_INCLUDE. PENSTOCK_NVJPEG_INCLUDE: the folder of nvjpeg.h, where there is one; the library is found when a
# loader runs.
# nvcc is called as a program, not as a CMake language: a toolkit from PyPI (launch/install_cuda.sh) has another layout
# than CMake's tests of a CUDA compiler expect, and one source file needs none of them.
set(PENSTOCK_CUDA AUTO CACHE STRING "Build the CUDA component: AUTO (where nvcc is found), ON or OFF")
set_property(CACHE PENSTOCK_CUDA PROPERTY STRINGS AUTO ON OFF)
set(PENSTOCK_CUDA_ARCHITECTURES "80;90" CACHE STRING
    "Cards to compile for, newer ones by PTX of the last: 80 is A100, 90 H100 and H200")
# As the host compiles: no product and sum are fused behind our back (runtime/base/host_device.h).
set(PENSTOCK_NVCC_FLAGS -std=c++20 -O2 -fmad=false)

set(PENSTOCK_BUILD_CUDA FALSE)
set(PENSTOCK_BUILD_NVJPEG FALSE)
if(PENSTOCK_CUDA AND NOT PENSTOCK_FUZZ)
  set(fetched ${PROJECT_SOURCE_DIR}/build/cuda/nvidia/cu13)
  find_program(PENSTOCK_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATH_SUFFIXES bin
               PATHS /usr/local/cuda/bin ${fetched}/bin)
  set(why "no nvcc was found (launch/install_cuda.sh fetches one)")
  if(PENSTOCK_NVCC)
    get_filename_component(nvcc ${PENSTOCK_NVCC} REALPATH)
    get_filename_component(folder ${nvcc} DIRECTORY)
    # The static runtime: it loads the driver when it is first called, so the component loads without one, and says so.
    find_library(PENSTOCK_CUDART cudart_static HINTS ${folder}/.. /usr/local/cuda PATH_SUFFIXES lib64 lib)
    execute_process(COMMAND ${PENSTOCK_NVCC} --version OUTPUT_VARIABLE version ERROR_QUIET)
    string(REGEX MATCH "release ([0-9]+\\.[0-9]+)" found "${version}")
    set(version ${CMAKE_MATCH_1})
    if(NOT found OR version VERSION_LESS 12.0)
      set(why "${PENSTOCK_NVCC} is not nvcc 12 or later")
    elseif(NOT PENSTOCK_CUDART)
      set(why "libcudart_static.a was not found beside ${PENSTOCK_NVCC}")
    else()
      set(PENSTOCK_BUILD_CUDA TRUE)
      set(hints HINTS ${folder}/../include ${folder}/../targets/x86_64-linux/include ${folder}/../targets/sbsa-linux/include)
      find_path(PENSTOCK_CUDA_INCLUDE cuda_runtime_api.h ${hints})
      find_path(PENSTOCK_NVJPEG_INCLUDE nvjpeg.h ${hints} PATHS ${fetched}/include)
      set(nvjpeg "without nvJPEG, whose header was not found (launch/install_cuda.sh fetches it)")
      if(PENSTOCK_CUDA_INCLUDE AND PENSTOCK_NVJPEG_INCLUDE)
        set(PENSTOCK_BUILD_NVJPEG TRUE)
        set(nvjpeg "nvJPEG by ${PENSTOCK_NVJPEG_INCLUDE}/nvjpeg.h")
      endif()
      message(STATUS "CUDA component: on, ${PENSTOCK_NVCC} ${version}; ${nvjpeg}")
    endif()
  endif()
  if(NOT PENSTOCK_BUILD_CUDA AND NOT PENSTOCK_CUDA STREQUAL AUTO)
    message(FATAL_ERROR "PENSTOCK_CUDA=${PENSTOCK_CUDA}, but ${why}")
  elseif(NOT PENSTOCK_BUILD_CUDA)
    message(STATUS "CUDA component: off, ${why}")
  endif()
else()
  message(STATUS "CUDA component: off, as this build was asked for")
endif()
