# Several files a compilation: a build from nothing takes half the time, one after a change to a file a little more.
#
#   penstock_unity(penstock_datasets 12)   # at most so many
#
# Names that a folder's files keep to themselves, in anonymous namespaces, must therefore differ. What a file includes by
# itself is seen by the presets that compile each alone: debug, fuzz and analysis. Files that are compiled once for each
# set of vectors, or with options of their own, stay alone (SKIP_UNITY_BUILD_INCLUSION, COMPILE_OPTIONS).
function(penstock_unity target files)
  if(PENSTOCK_UNITY)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${files})
    # A local name may shadow another file's; a class's field is of a type that is its own file's alone.
    target_compile_options(${target} PRIVATE -Wno-shadow $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
  endif()
endfunction()
