// Figures as they stand in sentences and tables.
#pragma once

#include <cstdio>
#include <string>

namespace penstock {

inline std::string printed(const char* format, double value) {
  char text[64];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

inline std::string percent_text(double share) {
  return printed("%.1f %%", 100 * share);
}

}  // namespace penstock
