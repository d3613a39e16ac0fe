# The component "torch" of find_package(penstock): penstock::torch, which is penstock::penstock with a libtorch, for
# programs that include bindings/torch/data_loader.h. Which libtorch, the first of these:
#   1. that of find_package(Torch), where the project has called it before;
#   2. PENSTOCK_TORCH_ROOT (a variable, or one of the environment): a folder with include/ and lib/, such as an unpacked
#      libtorch or a virtual environment's site-packages/torch. Its TorchConfig.cmake, which looks for CUDA, is not
#      asked;
#   3. what find_package(Torch) finds;
#   4. Debian's libtorch-dev.
# Headers and libraries have to be of one root: with libtorch-dev installed, the TorchConfig.cmake of another libtorch
# finds Debian's libraries for its own headers, and such a program crashes. That is refused, and so is another C++ ABI
# than libpenstock's. Without any libtorch the component is not found.

# The folder that include/ is in, of the include directory with torch/csrc; empty where there is none.
function(penstock_torch_root_of_headers result)
  set(${result} "" PARENT_SCOPE)
  foreach(folder IN LISTS ARGN)
    if(EXISTS "${folder}/torch/csrc/api/include/torch/torch.h")
      get_filename_component(root "${folder}/.." REALPATH)
      set(${result} "${root}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
endfunction()

# Ends the configuration unless each of these libraries lies in the root's lib folder.
function(penstock_torch_check_root root)
  foreach(file IN LISTS ARGN)
    get_filename_component(folder "${file}" REALPATH)
    get_filename_component(folder "${folder}" DIRECTORY)
    set(good FALSE)
    foreach(lib IN ITEMS lib lib64 "lib/${CMAKE_LIBRARY_ARCHITECTURE}")
      get_filename_component(own "${root}/${lib}" REALPATH)
      if(folder STREQUAL own)
        set(good TRUE)
      endif()
    endforeach()
    if(NOT good)
      message(FATAL_ERROR "penstock: two libtorch are mixed: the headers are of '${root}', and ${file} is another's. "
        "A program built so crashes.\n"
        "help: configure anew (without CMakeCache.txt) with -DPENSTOCK_TORCH_ROOT=${root} and without "
        "find_package(Torch) before find_package(penstock); or remove one of the two (apt-get remove libtorch-dev)")
    endif()
  endforeach()
endfunction()

function(penstock_torch_check_abi abi where)
  if(NOT abi EQUAL PENSTOCK_CXX11_ABI)
    message(FATAL_ERROR "penstock: libtorch in '${where}' was compiled with _GLIBCXX_USE_CXX11_ABI=${abi}, and "
      "libpenstock with ${PENSTOCK_CXX11_ABI}: their strings differ.\n"
      "help: take a libtorch of the same ABI (\"cxx11 ABI\"; PyPI's since 2.7), or build penstock with "
      "-DCMAKE_CXX_FLAGS=-D_GLIBCXX_USE_CXX11_ABI=${abi}")
  endif()
endfunction()

# 1 and 3: the target `torch`, and what its package said beside it.
function(penstock_torch_from_package)
  get_target_property(includes torch INTERFACE_INCLUDE_DIRECTORIES)
  penstock_torch_root_of_headers(root ${TORCH_INCLUDE_DIRS} ${includes})
  if(NOT root)
    message(FATAL_ERROR "penstock: the target 'torch' has no include directory with "
      "torch/csrc/api/include/torch/torch.h\n"
      "help: name the folder of a libtorch: -DPENSTOCK_TORCH_ROOT=FOLDER")
  endif()
  set(libraries ${TORCH_LIBRARIES})
  if(NOT libraries)
    set(libraries torch)
  endif()
  set(files "")
  foreach(one IN LISTS libraries TORCH_LIBRARY ITEMS torch torch_cpu torch_cuda c10 c10_cuda)
    if(TARGET ${one})
      get_target_property(kind ${one} TYPE)
      get_target_property(imported ${one} IMPORTED)
      if(imported AND NOT kind STREQUAL INTERFACE_LIBRARY)
        get_target_property(one ${one} LOCATION)
      endif()
    endif()
    if(one MATCHES "/lib(torch|c10)[^/]*$")
      list(APPEND files "${one}")
    endif()
  endforeach()
  penstock_torch_check_root("${root}" ${TORCH_LIBRARY} ${files})
  if("${TORCH_CXX_FLAGS}" MATCHES "_GLIBCXX_USE_CXX11_ABI=([01])")
    penstock_torch_check_abi(${CMAKE_MATCH_1} "${root}")
  endif()
  add_library(penstock::torch INTERFACE IMPORTED)
  target_link_libraries(penstock::torch INTERFACE penstock::penstock ${libraries})
  target_include_directories(penstock::torch INTERFACE ${TORCH_INCLUDE_DIRS})
  separate_arguments(flags UNIX_COMMAND "${TORCH_CXX_FLAGS}")
  target_compile_options(penstock::torch INTERFACE ${flags})
  set(PENSTOCK_TORCH_FOUND_ROOT "${root}" PARENT_SCOPE)
endfunction()

# 2 and 4: by paths alone.
function(penstock_torch_from_root root missing)
  get_filename_component(root "${root}" REALPATH)
  set(lacks "")
  if(NOT EXISTS "${root}/include/torch/csrc/api/include/torch/torch.h")
    list(APPEND lacks "include/torch/csrc/api/include/torch/torch.h")
  endif()
  foreach(name IN ITEMS torch torch_cpu c10 torch_cuda c10_cuda)
    unset(file)
    foreach(lib IN ITEMS lib lib64 "lib/${CMAKE_LIBRARY_ARCHITECTURE}")
      if(NOT file AND EXISTS "${root}/${lib}/lib${name}.so")
        set(file "${root}/${lib}/lib${name}.so")
      endif()
    endforeach()
    if(file)
      set(${name} "${file}")
    elseif(NOT name MATCHES "cuda")
      list(APPEND lacks "lib/lib${name}.so")
    endif()
  endforeach()
  if(lacks)
    string(REPLACE ";" ", " lacks "${lacks}")
    set(${missing} "${lacks}" PARENT_SCOPE)
    return()
  endif()
  set(${missing} "" PARENT_SCOPE)
  penstock_torch_check_root("${root}" ${torch} ${torch_cpu} ${c10} ${torch_cuda} ${c10_cuda})
  # Its package says with which ABI it was compiled, where that is not the compiler's usual one.
  set(abi 1)
  if(EXISTS "${root}/share/cmake/Torch/TorchConfig.cmake")
    file(STRINGS "${root}/share/cmake/Torch/TorchConfig.cmake" said REGEX "_GLIBCXX_USE_CXX11_ABI=0")
    if(said)
      set(abi 0)
    endif()
  endif()
  penstock_torch_check_abi(${abi} "${root}")
  add_library(penstock::torch INTERFACE IMPORTED)
  # libtorch.so is kept although no symbol is taken from it: it is what loads libtorch_cuda.so.
  target_link_libraries(penstock::torch INTERFACE penstock::penstock ${torch_cuda} ${c10_cuda} ${torch_cpu} ${c10}
    "-Wl,--push-state,--no-as-needed,${torch},--pop-state")
  target_include_directories(penstock::torch INTERFACE "${root}/include" "${root}/include/torch/csrc/api/include")
  if(NOT abi)
    target_compile_definitions(penstock::torch INTERFACE _GLIBCXX_USE_CXX11_ABI=0)
  endif()
  set(PENSTOCK_TORCH_FOUND_ROOT "${root}" PARENT_SCOPE)
endfunction()

# A macro, so that find_package(Torch) leaves its variables where the project looks for them.
macro(penstock_find_torch)
  set(penstock_torch_FOUND TRUE)
  if(NOT TARGET penstock::torch)
    if(NOT PENSTOCK_TORCH_ROOT AND DEFINED ENV{PENSTOCK_TORCH_ROOT})
      # Kept, so that a later configuration without the variable stays with it.
      set(PENSTOCK_TORCH_ROOT "$ENV{PENSTOCK_TORCH_ROOT}" CACHE PATH "the folder of a libtorch")
    endif()
    if(TARGET torch)
      penstock_torch_from_package()
    elseif(PENSTOCK_TORCH_ROOT)
      penstock_torch_from_root("${PENSTOCK_TORCH_ROOT}" _penstock_torch_missing)
      if(_penstock_torch_missing)
        message(FATAL_ERROR "penstock: PENSTOCK_TORCH_ROOT is '${PENSTOCK_TORCH_ROOT}', which has no "
          "${_penstock_torch_missing}\n"
          "help: name the folder that include/ and lib/ are in: an unpacked libtorch, site-packages/torch, or /usr for "
          "libtorch-dev")
      endif()
    else()
      find_package(Torch QUIET)
      if(TARGET torch)
        penstock_torch_from_package()
      else()
        penstock_torch_from_root(/usr _penstock_torch_missing)
        if(_penstock_torch_missing)
          set(penstock_torch_FOUND FALSE)
          string(CONCAT penstock_NOT_FOUND_MESSAGE "the component 'torch' needs a libtorch, and none was found: "
            "install libtorch-dev, or name the folder of another: -DPENSTOCK_TORCH_ROOT=FOLDER")
        endif()
      endif()
    endif()
    if(penstock_torch_FOUND AND NOT penstock_FIND_QUIETLY)
      message(STATUS "penstock: libtorch of ${PENSTOCK_TORCH_FOUND_ROOT}")
    endif()
  endif()
endmacro()
