#include "runtime/card/cards.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "runtime/card/cuda_component.h"
#include "runtime/card/host_card.h"

namespace penstock {

std::vector<int> chosen_cards(const CardChoice& choice, int total) {
  std::vector<int> numbers;
  for (int k = 0; k < std::min(choice.count, total); ++k) {
    numbers.push_back(total - 1 - (choice.taker * choice.count + k) % total);
  }
  return numbers;
}

std::vector<std::unique_ptr<Card>> open_cards(const CardChoice& choice) {
  const char* const value = std::getenv("PENSTOCK_CARDS");
  const std::string_view said = value != nullptr ? value : "";
  std::vector<std::unique_ptr<Card>> cards;
  if (said == "none") {
    throw Error(ErrorKind::runtime, "no card can be used: PENSTOCK_CARDS=none is in the environment",
                "unset it, or say loader.executor: cpu");
  }
  if (said == "host") {
    for (int k = 0; k < choice.count; ++k) cards.push_back(open_host_card(k, size_t{1} << 30));
    return cards;
  }
  const int total = cuda_cards();
  if (total == 0) {
    throw Error(ErrorKind::runtime, "no card can be used: the driver counts none",
                "see CUDA_VISIBLE_DEVICES and nvidia-smi, or say loader.executor: cpu");
  }
  for (const int number : chosen_cards(choice, total)) cards.push_back(open_cuda_card(number));
  return cards;
}

}  // namespace penstock
