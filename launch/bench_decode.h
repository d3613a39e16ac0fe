// `penstock bench decode`: how fast CPU or GPUs make a split's images out of files, stage by stage.
//
//   add_bench_decode(*bench, chosen);      // as command.h's, under `penstock bench`
#pragma once

#include "launch/command.h"

namespace penstock {

void add_bench_decode(CLI::App& bench, Chosen& chosen);

}  // namespace penstock
