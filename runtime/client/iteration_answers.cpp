#include "runtime/client/iteration_answers.h"

#include <iterator>
#include <utility>

namespace penstock {

uint64_t stream_of(const ClientMessage& message) {
  if (const auto* batch = std::get_if<ClientBatch>(&message)) return batch->stream;
  if (const auto* end = std::get_if<ClientEnd>(&message)) return end->stream;
  if (const auto* failed = std::get_if<ClientFailed>(&message)) return failed->stream;
  return 0;
}

std::optional<ClientMessage> IterationAnswers::take(uint64_t stream) {
  auto node = kept_.extract(stream);
  if (!node) return std::nullopt;
  return std::move(node.mapped());
}

std::optional<ClientRelease> IterationAnswers::keep(uint64_t stream, ClientMessage answer) {
  arrived(stream);
  if (stopped_.count(stream) == 0) {
    kept_.emplace(stream, std::move(answer));
    return std::nullopt;
  }
  const auto* batch = std::get_if<ClientBatch>(&answer);
  return batch == nullptr ? std::nullopt : std::optional(ClientRelease{batch->pool, batch->batch_buffer});
}

std::vector<ClientRelease> IterationAnswers::drop_stopped() {
  std::vector<ClientRelease> back;
  for (const uint64_t stream : stopped_) {
    const auto node = kept_.extract(stream);
    if (!node) continue;
    if (const auto* batch = std::get_if<ClientBatch>(&node.mapped()))
      back.push_back({batch->pool, batch->batch_buffer});
  }
  // Only streams with an answer under way need to be remembered.
  std::erase_if(stopped_, [&](uint64_t stream) { return asked_.count(stream) == 0; });
  return back;
}

}  // namespace penstock
