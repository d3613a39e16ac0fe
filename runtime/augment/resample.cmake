# Sources of resampling, in the order they are read best; runtime/augment/CMakeLists.txt includes this file.
set(PENSTOCK_RESAMPLE_SOURCES
    ${CMAKE_CURRENT_LIST_DIR}/resample_taps.cpp
    ${CMAKE_CURRENT_LIST_DIR}/resample_reference.cpp
    ${CMAKE_CURRENT_LIST_DIR}/resample_kernels.cpp
    ${CMAKE_CURRENT_LIST_DIR}/row_resampler.cpp
    ${CMAKE_CURRENT_LIST_DIR}/resample.cpp)
