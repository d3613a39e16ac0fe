# Before project(): clang where it is installed and nobody has chosen a compiler (CXX=g++, -DCMAKE_CXX_COMPILER=g++).
# It compiles in two thirds of gcc 12's time, analyses who holds which lock as it compiles (flags.cmake), and its pixels and
# resampling take less CPU time (bench/results/2026-11-27-compilers.md).
if(NOT DEFINED CMAKE_CXX_COMPILER AND NOT DEFINED ENV{CXX} AND NOT DEFINED CMAKE_TOOLCHAIN_FILE)
  find_program(PENSTOCK_CLANGXX clang++)
  find_program(PENSTOCK_CLANG clang)
  if(PENSTOCK_CLANGXX AND PENSTOCK_CLANG)
    execute_process(COMMAND ${PENSTOCK_CLANGXX} -dumpversion OUTPUT_VARIABLE version OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    if(version VERSION_GREATER_EQUAL 14)
      set(CMAKE_C_COMPILER ${PENSTOCK_CLANG} CACHE FILEPATH "the C compiler")
      set(CMAKE_CXX_COMPILER ${PENSTOCK_CLANGXX} CACHE FILEPATH "the C++ compiler")
    endif()
  endif()
endif()
