# PENSTOCK_PORTABLE: what launch/wheel.sh builds for machines of which nothing is known but that they have a C library of
# 2021 or later.
#
# - libstdc++ is inside: the library, the program, the module and the components have each its own. So the machine's, which
#   may be older than this compiler, does not matter, nor does what a program's other libraries (torch) bring. What of it
#   nobody calls is left out (--gc-sections): it is most of it, and its random_device would want arc4random of glibc 2.36.
# - Libraries show the names of penstock alone (cmake/exports.map). An inline function of the standard library may use what is
#   libstdc++'s own (std::call_once does), so no library may call another's.
# - Exceptions go from one to the other all the same: types are compared by name, and all use the machine's libgcc_s. It is
#   not inside, because gcc's manual wants one unwinder where exceptions cross, and this one's would want glibc 2.35.
# - MPI is not linked: transport/mpi_component.cpp opens Open MPI's library where a job needs it.
# - Libraries in C++ that libpenstock links (yaml-cpp, Highway) are to be static ones, found by CMAKE_PREFIX_PATH and
#   PKG_CONFIG_PATH. Those in C may be shared; auditwheel puts them into the wheel.
option(PENSTOCK_PORTABLE "For a wheel: libstdc++ inside, MPI looked for at run time (launch/wheel.sh)" OFF)
if(PENSTOCK_PORTABLE)
  add_link_options(-static-libstdc++ LINKER:--gc-sections)
  # What the libraries in C need is found there first, too: the system's libLerc would bring libstdc++ to the program's link.
  foreach(prefix IN LISTS CMAKE_PREFIX_PATH)
    add_link_options(LINKER:-rpath-link,${prefix}/lib)
  endforeach()
  # By this name Open MPI 4.1 and 5 have the same interface.
  set(PENSTOCK_MPI_LIBRARY libmpi.so.40)
endif()

# What others may see of a library, a module or a component.
function(penstock_portable target)
  if(PENSTOCK_PORTABLE)
    set(map ${PROJECT_SOURCE_DIR}/cmake/exports.map)
    target_link_options(${target} PRIVATE LINKER:--version-script=${map})
    set_property(TARGET ${target} APPEND PROPERTY LINK_DEPENDS ${map})
  endif()
endfunction()
