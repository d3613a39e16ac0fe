# Parsers of what a user names: files that hold samples, their index, the job file.
foreach(name tar pixel_files csv mds tfrecord index pack)
  penstock_fuzzer(fuzz_${name} SOURCES fuzz_${name}.cpp PARTS datasets process base LIBS PkgConfig::HWLOC)
endforeach()
penstock_fuzzer(fuzz_job SOURCES fuzz_job.cpp ../job/fake_catalog.cpp PARTS job base
                LIBS yaml-cpp nlohmann_json::nlohmann_json)
# What other processes of the job say, and files of states.
penstock_fuzzer(fuzz_protocol SOURCES fuzz_protocol.cpp ../../runtime/client/state_file.cpp PARTS protocol base
                LIBS nlohmann_json::nlohmann_json)
