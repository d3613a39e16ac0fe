#include "runtime/job/card_keys.h"

#include "runtime/base/arithmetic.h"
#include "runtime/job/suggest.h"

namespace penstock {

std::string card_keys_without_effect(const Job& job) {
  const LoaderSpec usual;
  if (job.loader.executor != ExecutorKind::cpu) {
    if (job.loader.nvjpeg != usual.nvjpeg && arithmetic_of(job.arithmetic) == Arithmetic::exact) {
      return "without effect, because arithmetic is exact: loader.nvjpeg";
    }
    if (job.loader.card_links != usual.card_links && job.loader.card_share_mb == 0) {
      return "without effect, because loader.card_share_mb is 0: loader.card_links";
    }
    return {};
  }
  std::vector<std::string> keys;
  if (job.loader.cards != usual.cards) keys.emplace_back("loader.cards");
  if (job.loader.card_memory_mb != usual.card_memory_mb) keys.emplace_back("loader.card_memory_mb");
  if (job.loader.card_duty != usual.card_duty) keys.emplace_back("loader.card_duty");
  if (job.loader.card_share_mb != usual.card_share_mb) keys.emplace_back("loader.card_share_mb");
  if (job.loader.card_links != usual.card_links) keys.emplace_back("loader.card_links");
  if (job.loader.nvjpeg != usual.nvjpeg) keys.emplace_back("loader.nvjpeg");
  if (job.loader.card_entropy != usual.card_entropy) keys.emplace_back("loader.card_entropy");
  if (job.loader.cpu_fraction.given()) keys.emplace_back("loader.cpu_fraction");
  return keys.empty() ? "" : "without effect, because loader.executor is cpu: " + list_of(keys, "and");
}

}  // namespace penstock
