# Compiler flags for every target. -ffp-contract=off: draws and filter taps must be equal for any compiler and CPU, so
# no multiply and add may be fused behind our back.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET default)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

find_program(PENSTOCK_CCACHE ccache)
if(PENSTOCK_CCACHE)
  # It goes by what the compiler says it has read, so that an empty cache costs no second preprocessing. It takes precompiled
  # headers (cmake/precompiled.cmake) only where it is told that their times and macros may be trusted.
  set(launcher ${CMAKE_COMMAND} -E env CCACHE_DEPEND=1
    CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime ${PENSTOCK_CCACHE})
  set(CMAKE_C_COMPILER_LAUNCHER ${launcher})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${launcher})
endif()

add_compile_options(-Wall -Wextra -Wpedantic -Wshadow -ffp-contract=off -fno-math-errno)
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O1 -g1")
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  # Who touches a guarded member without its lock is an error in every build.
  add_compile_options(-Wthread-safety -Werror=thread-safety -Wno-missing-field-initializers)
else()
  # gcc 12 sees uninitialised strings in moved-from variants, and overlaps and overruns in string concatenations, that are none;
  # and a mistake where it inlines only one of a test's own operator new and delete.
  add_compile_options(-Wno-missing-field-initializers -Wno-maybe-uninitialized -Wno-restrict -Wno-array-bounds -Wno-stringop-overflow
    -Wno-mismatched-new-delete)
  # gcc collects its garbage from the first 128 MB on, which takes a tenth of the time of files that need 500.
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:--param=ggc-min-heapsize=1000000>)
endif()
if(PENSTOCK_SANITIZE)
  add_compile_options(-fsanitize=${PENSTOCK_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${PENSTOCK_SANITIZE})
endif()
if(PENSTOCK_FUZZ)
  set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g1")  # built once, executed ten million times
  add_compile_options(-fsanitize=fuzzer-no-link)  # coverage in everything; only the targets get libFuzzer's main
endif()

include_directories(${PROJECT_SOURCE_DIR})
