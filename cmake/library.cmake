# libpenstock: client, embedded loader, sampler, pipeline, balancer and simulator. Neither MPI nor CUDA is linked.
set(PENSTOCK_PARTS base sampler transport decode pixels transforms job process datasets sample gpu balancer protocol report coordinator
    loader receiver embedded ranks client serving simulate)
add_library(penstock SHARED)
foreach(part IN LISTS PENSTOCK_PARTS)
  if(TARGET penstock_${part})
    target_link_libraries(penstock PRIVATE penstock_${part})
    penstock_precompile(penstock_${part} library)
    penstock_unity(penstock_${part} 12)
  endif()
endforeach()
# What is called once a message, a batch or a job need not be inlined as much, and is compiled sooner so.
foreach(part job process datasets protocol report coordinator loader receiver embedded ranks client serving)
  target_compile_options(penstock_${part} PRIVATE $<$<COMPILE_LANG_AND_ID:CXX,Clang>:SHELL:-mllvm -inline-threshold=40>)
endforeach()
add_library(penstock::penstock ALIAS penstock)
target_include_directories(penstock PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>
                                           $<INSTALL_INTERFACE:include/penstock>)
target_link_libraries(penstock PUBLIC Threads::Threads)
target_compile_features(penstock PUBLIC cxx_std_20)
# A program that defines the same templates of the standard library, perhaps without optimisation, would otherwise have the library
# call those instead of its own.
target_link_options(penstock PRIVATE LINKER:-Bsymbolic-functions)
# A wheel has no links: the library would stand in it once for each of its names.
set(version ${PROJECT_VERSION})
if(SKBUILD)
  set(version 0)
endif()
# BUILD_RPATH: the MPI component is looked for beside the library, by dlopen.
set_target_properties(penstock PROPERTIES VERSION ${version} SOVERSION 0 LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}
                      BUILD_RPATH "$ORIGIN" INSTALL_RPATH "$ORIGIN")

# What Python processes run lies beside the library in the build folder, as in a Python package (python_worker_script()).
foreach(script _worker.py _fork_server.py _parquet.py)
  configure_file(${PROJECT_SOURCE_DIR}/bindings/python/penstock/${script} ${PROJECT_BINARY_DIR}/${script} COPYONLY)
endforeach()
