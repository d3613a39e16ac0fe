// Scan scripts of progressive files: libjpeg's usual one is jpeg_simple_progression(); these are the others.
//
//   JpegSpec spec{.progressive = true, .scans = random_script(random, 3)};
#pragma once

#include <algorithm>
#include <deque>
#include <random>
#include <utility>
#include <vector>

#include "tests/decode/jpeg_files.h"

namespace penstock_test {

using Script = std::vector<jpeg_scan_info>;

inline jpeg_scan_info scan(std::vector<int> components, int first, int last, int high, int low) {
  jpeg_scan_info info{static_cast<int>(components.size()), {}, first, last, high, low};
  std::copy(components.begin(), components.end(), info.component_index);
  return info;
}

// Bands of AC coefficients: 1 to 63 cut at random places.
inline std::vector<std::pair<int, int>> random_bands(std::mt19937& random) {
  std::vector<std::pair<int, int>> bands;
  for (int first = 1; first <= 63;) {
    const int last = draw(random, 0, 1) == 0 ? 63 : draw(random, first, std::min(63, first + 12));
    bands.emplace_back(first, last);
    first = last + 1;
  }
  return bands;
}

// Any legal script that ends with all bits known. What depends on each other stands in one queue; the queues are mixed.
inline Script random_script(std::mt19937& random, int components) {
  Script script;
  std::vector<std::deque<jpeg_scan_info>> queues;
  const int way = components == 1 ? 0 : draw(random, 0, 2);  // all DC together, each alone, luma and chroma
  std::vector<std::vector<int>> groups;
  for (int c = 0; c < components; ++c) {
    if (c == 0 || way == 1 || (way == 2 && c == 1)) groups.emplace_back();
    groups.back().push_back(c);
  }
  const int dc_low = draw(random, 0, 2);
  for (const auto& group : groups) {
    script.push_back(scan(group, 0, 0, 0, dc_low));
    std::deque<jpeg_scan_info> queue;
    for (int low = dc_low; low > 0; --low) queue.push_back(scan(group, 0, 0, low, low - 1));
    queues.push_back(queue);
  }
  std::shuffle(script.begin(), script.end(), random);
  for (int c = 0; c < components; ++c) {
    const int low = draw(random, 0, 3);
    const auto bands = random_bands(random);
    if (draw(random, 0, 1) == 0) {  // each band goes its own way
      for (const auto& [first, last] : bands) {
        const int own = draw(random, 0, 3);
        std::deque<jpeg_scan_info> queue{scan({c}, first, last, 0, own)};
        for (int bit = own; bit > 0; --bit) queue.push_back(scan({c}, first, last, bit, bit - 1));
        queues.push_back(queue);
      }
      continue;
    }
    std::deque<jpeg_scan_info> queue;
    for (const auto& [first, last] : bands) queue.push_back(scan({c}, first, last, 0, low));
    for (int bit = low; bit > 0; --bit) {
      for (const auto& [first, last] : random_bands(random)) queue.push_back(scan({c}, first, last, bit, bit - 1));
    }
    queues.push_back(queue);
  }
  while (!queues.empty()) {
    const size_t q = random() % queues.size();
    if (queues[q].empty()) {
      queues.erase(queues.begin() + static_cast<std::ptrdiff_t>(q));
      continue;
    }
    script.push_back(queues[q].front());
    queues[q].pop_front();
  }
  return script;
}

// What mozjpeg's encoder chooses for most photos.
inline Script mozjpeg_script(int components) {
  Script script{components == 1 ? scan({0}, 0, 0, 0, 0) : scan({0, 1, 2}, 0, 0, 0, 0), scan({0}, 1, 8, 0, 2),
                scan({0}, 9, 63, 0, 2), scan({0}, 1, 63, 2, 1), scan({0}, 1, 63, 1, 0)};
  for (int c = 1; c < components; ++c) {
    script.push_back(scan({c}, 1, 8, 0, 0));
    script.push_back(scan({c}, 9, 63, 0, 0));
  }
  return script;
}

inline JpegSpec random_progressive(std::mt19937& random, int max_side) {
  JpegSpec spec = random_spec(random, max_side);
  spec.progressive = true;
  if (draw(random, 0, 3) == 0) return spec;
  const int components = spec.grey ? 1 : 3;
  spec.scans = draw(random, 0, 4) == 0 ? mozjpeg_script(components) : random_script(random, components);
  return spec;
}

}  // namespace penstock_test
