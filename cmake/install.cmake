# What `cmake --install` puts where: the program, libpenstock with the MPI component beside it, the headers of a C++
# user, and the package that find_package(penstock) finds. tests/install builds a separate project against it.
include(CMakePackageConfigHelpers)
include(CheckCXXSourceCompiles)

install(TARGETS penstock_program RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(TARGETS penstock penstock_c EXPORT penstockTargets
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(TARGET penstock_mpi)
  # Loaded by name, from beside libpenstock. An MPI outside the system's folders is kept in its search path.
  set_target_properties(penstock_mpi PROPERTIES INSTALL_RPATH "$ORIGIN" INSTALL_RPATH_USE_LINK_PATH ON)
  install(TARGETS penstock_mpi LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()
if(TARGET penstock_opencv)
  install(TARGETS penstock_opencv LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()
if(TARGET penstock_cuda)
  install(TARGETS penstock_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()

install(FILES ${PROJECT_SOURCE_DIR}/bindings/python/penstock/_worker.py
              ${PROJECT_SOURCE_DIR}/bindings/python/penstock/_fork_server.py
              ${PROJECT_SOURCE_DIR}/bindings/python/penstock/_parquet.py
        DESTINATION ${CMAKE_INSTALL_DATADIR}/penstock)

# Man pages and bash completion, which docs/generate.py writes from --help.
file(GLOB PENSTOCK_MAN_PAGES ${PROJECT_SOURCE_DIR}/docs/man/*.1)
install(FILES ${PENSTOCK_MAN_PAGES} DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
install(FILES ${PROJECT_SOURCE_DIR}/docs/completion/penstock.bash
        DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME penstock)

# Include paths stay rooted as in the repository: #include "runtime/client/data_loader.h".
set(PENSTOCK_PUBLIC_HEADERS
  bindings/c/penstock.h
  bindings/mpi/join.h
  runtime/base/memory.h
  runtime/embedded/receiver_host.h
  runtime/process/placement.h
  runtime/ranks/joined_rank.h
  runtime/pixels/finish.h
  runtime/base/arithmetic.h
  runtime/base/error.h
  runtime/base/fields.h
  runtime/serving/preprocessor.h
  runtime/client/data_loader.h
  # Compiled in a program that has libtorch: COMPONENTS torch.
  bindings/torch/data_loader.h
  bindings/torch/dataset.h)
foreach(header IN LISTS PENSTOCK_PUBLIC_HEADERS)
  get_filename_component(folder ${header} DIRECTORY)
  install(FILES ${PROJECT_SOURCE_DIR}/${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/penstock/${folder})
endforeach()

set(PENSTOCK_PACKAGE_FOLDER ${CMAKE_INSTALL_LIBDIR}/cmake/penstock)
install(EXPORT penstockTargets NAMESPACE penstock:: DESTINATION ${PENSTOCK_PACKAGE_FOLDER})
# libpenstock's ABI, for penstock-torch.cmake: a libtorch of the other ABI cannot be in one program with it.
unset(PENSTOCK_HAS_CXX11_ABI CACHE)  # flags may have changed since
check_cxx_source_compiles("#include <string>
#if !_GLIBCXX_USE_CXX11_ABI
#error the ABI before C++11
#endif
int main() {}" PENSTOCK_HAS_CXX11_ABI)
set(PENSTOCK_CXX11_ABI 0)
if(PENSTOCK_HAS_CXX11_ABI)
  set(PENSTOCK_CXX11_ABI 1)
endif()
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/penstock-config.cmake.in
  ${PROJECT_BINARY_DIR}/package/penstock-config.cmake INSTALL_DESTINATION ${PENSTOCK_PACKAGE_FOLDER})
# Before 1.0 the interface may change with every minor version.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/package/penstock-config-version.cmake
  VERSION ${PROJECT_VERSION} COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/package/penstock-config.cmake
              ${PROJECT_BINARY_DIR}/package/penstock-config-version.cmake
              ${CMAKE_CURRENT_LIST_DIR}/penstock-torch.cmake
        DESTINATION ${PENSTOCK_PACKAGE_FOLDER})
