# One target a format: the same program, which looks at files of its format alone.
set(formats jpeg png pnm bmp gif)
if(PENSTOCK_WEBP)
  list(APPEND formats webp)
endif()
if(PENSTOCK_TIFF)
  list(APPEND formats tiff)
endif()
foreach(format IN LISTS formats)
  penstock_fuzzer(fuzz_${format} SOURCES decode_fuzz.cpp PARTS decode base LIBS PkgConfig::HWY
                  DEFINES PENSTOCK_FUZZ_FORMAT=${format})
endforeach()
penstock_fuzzer(fuzz_progressive SOURCES fuzz_progressive.cpp PARTS decode base LIBS PkgConfig::HWY PkgConfig::JPEG)
