#include "runtime/gpu/cards.h"

#include <algorithm>
#include <optional>
#include <string_view>

#include "runtime/base/switches.h"
#include "runtime/gpu/cuda_component.h"
#include "runtime/gpu/played/host_card.h"

namespace penstock {

std::vector<int> chosen_cards(const CardChoice& choice, int total) {
  std::vector<int> numbers;
  for (int k = 0; k < std::min(choice.count, total); ++k) {
    numbers.push_back(total - 1 - (choice.taker * choice.count + k) % total);
  }
  return numbers;
}

namespace {

constexpr size_t kHostCardBytes = size_t{1} << 30;

// How many the driver counts; none: cards are this CPU.
std::optional<int> count_cards() {
  const std::string said = switches().cards;
  if (said == "none") {
    throw Error(ErrorKind::runtime, "no card can be used: PENSTOCK_CARDS=none is in the environment",
                "unset it, or say loader.executor: cpu");
  }
  if (said == "host") return std::nullopt;
  const int total = cuda_cards();
  if (total == 0) {
    throw Error(ErrorKind::runtime, "no card can be used: the driver counts none",
                "see CUDA_VISIBLE_DEVICES and nvidia-smi, or say loader.executor: cpu");
  }
  return total;
}

}  // namespace

std::string why_no_card() {
  try {
    (void)count_cards();
    return {};
  } catch (const Error& error) {
    return error.message();
  }
}

std::unique_ptr<Card> open_trainers_card(int number) {
  return count_cards() ? open_cuda_card(number) : open_host_card(number, kHostCardBytes);
}

std::vector<std::unique_ptr<Card>> open_cards(const CardChoice& choice) {
  std::vector<std::unique_ptr<Card>> cards;
  const std::optional<int> counted = count_cards();
  if (!counted) {
    for (int k = 0; k < choice.count; ++k) cards.push_back(open_host_card(k, kHostCardBytes));
    return cards;
  }
  const int total = *counted;
  for (const int number : chosen_cards(choice, total)) cards.push_back(open_cuda_card(number));
  return cards;
}

}  // namespace penstock
