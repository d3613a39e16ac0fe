#include "runtime/client/iteration_answers.h"

#include <iterator>
#include <utility>

namespace penstock {

uint64_t iteration_of(const ClientMessage& message) {
  if (const auto* batch = std::get_if<ClientBatch>(&message)) return batch->iteration;
  if (const auto* end = std::get_if<ClientEnd>(&message)) return end->iteration;
  if (const auto* failed = std::get_if<ClientFailed>(&message)) return failed->iteration;
  return 0;
}

std::optional<ClientMessage> IterationAnswers::take(uint64_t iteration) {
  auto node = kept_.extract(iteration);
  if (!node) return std::nullopt;
  return std::move(node.mapped());
}

std::optional<ClientRelease> IterationAnswers::keep(uint64_t iteration, ClientMessage answer) {
  arrived(iteration);
  if (stopped_.count(iteration) == 0) {
    kept_.emplace(iteration, std::move(answer));
    return std::nullopt;
  }
  const auto* batch = std::get_if<ClientBatch>(&answer);
  return batch == nullptr ? std::nullopt : std::optional(ClientRelease{batch->pool, batch->batch_buffer});
}

std::vector<ClientRelease> IterationAnswers::drop_stopped() {
  std::vector<ClientRelease> back;
  for (const uint64_t iteration : stopped_) {
    const auto node = kept_.extract(iteration);
    if (!node) continue;
    if (const auto* batch = std::get_if<ClientBatch>(&node.mapped()))
      back.push_back({batch->pool, batch->batch_buffer});
  }
  // Only streams with an answer under way need to be remembered.
  std::erase_if(stopped_, [&](uint64_t iteration) { return asked_.count(iteration) == 0; });
  return back;
}

}  // namespace penstock
