// Marks pixel functions that host and GPU both compile.
//
//   PENSTOCK_HOST_DEVICE inline uint8_t clip(int v) { ... }
//
// Such functions live in plain headers and call nothing but each other. They use integers; where another library's
// floats are to be met, +, -, * and / of IEEE floats in a fixed order, unfused (-ffp-contract=off, on a GPU
// -fmad=false). So every compiler gives the same bytes. They name the source of their semantics.
#pragma once

#if defined(__CUDACC__) || defined(__HIPCC__)
#define PENSTOCK_HOST_DEVICE __host__ __device__
#else
#define PENSTOCK_HOST_DEVICE
#endif
