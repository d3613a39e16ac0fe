# The standard library's headers and the JSON library's, precompiled once: a fifth of all compiling is reading them. Files
# still include what they use, and the preset `analysis` compiles them without these.
#
#   penstock_precompile(penstock_datasets library)   # -fPIC
#   penstock_precompile(pack_test test)             # -fPIE, with doctest
#   penstock_precompile(lanes_test optimised_test)  # the same, for tests compiled with -O1
#   penstock_plain_program(bench_simulate)          # -fPIE and -O1, without doctest: a program whose own loops do not matter
#
# gcc takes a precompiled header only for the position independence it was made for, and with optimisation or without.
set(PENSTOCK_STANDARD_HEADERS <algorithm> <array> <atomic> <charconv> <chrono> <cmath> <condition_variable> <cstdint> <cstdio>
  <cstdlib> <cstring> <deque> <exception> <filesystem> <functional> <map> <memory> <mutex> <optional> <random> <set> <span>
  <stdexcept> <string> <string_view> <thread> <tuple> <utility> <variant> <vector>
  <nlohmann/json.hpp>)

set(nothing ${PROJECT_BINARY_DIR}/nothing.cpp)
file(CONFIGURE OUTPUT ${nothing} CONTENT "")
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/main.cpp CONTENT "int main() {}\n")

# With it ccache sees which precompiled header a file was compiled with; clang's would else hold when its headers were
# written, and be refused in the next clone's build.
function(penstock_trust_precompiled target)
  if(PENSTOCK_CCACHE)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fpch-preprocess>
      "$<$<COMPILE_LANG_AND_ID:CXX,Clang>:SHELL:-Xclang -fno-pch-timestamp>")
  endif()
endfunction()

add_library(penstock_precompiled_library OBJECT ${nothing})
target_precompile_headers(penstock_precompiled_library PRIVATE ${PENSTOCK_STANDARD_HEADERS})
penstock_trust_precompiled(penstock_precompiled_library)

add_executable(penstock_precompiled_program EXCLUDE_FROM_ALL ${PROJECT_BINARY_DIR}/main.cpp)
target_precompile_headers(penstock_precompiled_program PRIVATE ${PENSTOCK_STANDARD_HEADERS})
target_compile_options(penstock_precompiled_program PRIVATE $<$<CONFIG:Release>:-O1>)
penstock_trust_precompiled(penstock_precompiled_program)

if(PENSTOCK_TESTS AND NOT PENSTOCK_FUZZ)
  foreach(kind test optimised_test)
    set(target penstock_precompiled_${kind})
    add_executable(${target} ${nothing})
    target_precompile_headers(${target} PRIVATE ${PENSTOCK_STANDARD_HEADERS} <doctest/doctest.h>)
    target_link_libraries(${target} PRIVATE penstock_test_main)  # an executable, for -fPIE: it needs a main
    penstock_trust_precompiled(${target})
  endforeach()
  target_compile_options(penstock_precompiled_test PRIVATE $<$<CONFIG:Release>:-O0>)
  target_compile_options(penstock_precompiled_optimised_test PRIVATE $<$<CONFIG:Release>:-O1>)
endif()

function(penstock_precompile target kind)
  target_precompile_headers(${target} REUSE_FROM penstock_precompiled_${kind})
  penstock_trust_precompiled(${target})
endfunction()

function(penstock_plain_program target)
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
  penstock_precompile(${target} program)
endfunction()
