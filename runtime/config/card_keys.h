// Keys that say how cards are used, in a job that uses none.
//
//   const std::string keys = card_keys_without_effect(job);   // "loader.cards and loader.cpu_fraction"; empty: none
//
// Pure. Their default values do not count: nobody has written those.
#pragma once

#include <string>

#include "runtime/config/job.h"

namespace penstock {

std::string card_keys_without_effect(const Job& job);

}  // namespace penstock
