// What no fleet can exceed: each part alone, in images a second, and which of them is least. The naive formula that
// simulation is compared with, and the reason where a target is out of reach.
//
//   const Bounds bounds = bounds_of(spec);    // bounds.images_per_s, bounds.limit: "the loaders' threads"
//
// Pure.
#pragma once

#include <string>
#include <vector>

#include "runtime/simulate/fleet/fleet_spec.h"

namespace penstock {

struct Bounds {
  struct Part {
    std::string name;
    double images_per_s = 0;
  };
  std::vector<Part> parts;  // those that limit at all
  double images_per_s = 0;  // the least of them
  std::string limit;        // its name
};

Bounds bounds_of(const FleetSpec& spec);

}  // namespace penstock
