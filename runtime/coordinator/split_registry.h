// The splits that programs have open, and what loaders see of them: from OpenSplit to SplitOpened or SplitRefused.
//
//   SplitRegistry splits(options, clock, send, notice, in_use, background);
//   SplitAsked asked = splits.parse(m);                    // Error: the description is no good
//   if (asked.reads) asked = read_numbers(asked);          // Error: its sampler's file is; may take long, on any thread
//   splits.open({receiver, m.split}, program_number, m, std::move(asked));
//   splits.loader_joined(peer);  splits.prepared(peer, m);  splits.loader_lost(peer);
//   splits.tick();                                         // several times a second
//   OpenedSplit* split = splits.find(fingerprint);         // nullptr: it was not opened
//
// A description (canonical JSON) may stand for several lists of files, one for each look that loaders had at them:
//
//   opened first ----> asked of every loader ----> known ----> opened again: asked once more, `like` the known one
//                             |                      ^                |                         |
//                             v                      +--- all say "the same" --- merged         | files differ
//                          failed: refused; the next opening asks anew                          v
//                                                                   a list of its own; who has the older one open keeps
//                                                                   it
//
// A loader whose listing hangs says that it lives, and answers nothing. People are told of it after 10 s. When
//   go_on_after_ns have passed since it was asked, and since the first answer of another one, the split is opened without
//   it. From its answer on it takes part: OpenedSplit::same_list is who may be granted leases. Where nobody else has some
//   of the samples (dataset.local), it is waited for all the same; and where nobody who lives has the split open, for
//   listing_ns since it was asked, because it is all that there is.
// A loader that cannot open a split which another one has listed is left out, and asked again after a while: it must not
//   cost them the split. Only at the start, before any iteration has begun, what cannot be opened is a mistake about the
//   data, which refuses the split, unless it is trouble that may pass. Where nobody can open it, it is refused with what
//   the first of them said, when all have answered or are not waited for any longer.
// Where no loader is left that can read a split, its openings wait as the balancer's lease streams do: for all_lost_ns
//   after the last loss. A loader that comes back meanwhile is asked like any that joins.
// Invariants: at most one list of a description is looked at again at a time; the n-th opening by each replica's
//   program gets one list, whatever happens to the files meanwhile.
// Thread-safety: none; the coordinator's. Ownership: references and pointers that it gives hold until the next call.
// Failure: what is wrong with a split is answered to the receivers that wait for it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/coordinator/plan_cache.h"
#include "runtime/coordinator/sample_placement.h"
#include "runtime/job/job.h"
#include "runtime/job/sampler_file.h"
#include "runtime/protocol/messages.h"
#include "runtime/protocol/sample_sizes.h"

namespace penstock {

struct SplitRegistryOptions {
  size_t receivers = 0;            // in the job
  size_t loaders = 0;              // that are to join
  int chunk_samples = 0;           // 0: chosen
  bool embedded = false;           // see BalancerOptions
  std::vector<std::string> hosts;  // of every peer; empty: they are all on one
  Nanoseconds go_on_after_ns = 10 * kSecond;
  Nanoseconds all_lost_ns = 0;  // since the last loss; for so long one that was lost may come back
  Nanoseconds listing_ns = 0;   // for so long a loader may list files, or try again, where no other has the split open
};

// What an OpenSplit asks for.
struct SplitAsked {
  Fingerprint described = 0;
  ResolvedSplit resolved;
  std::shared_ptr<const SamplerNumbers> numbers;  // of the sampler's file; none where the registry has them
  bool reads = false;                             // they are to be read
};
// Pure but for the file.
SplitAsked read_numbers(SplitAsked asked);

// One that loaders have seen.
struct OpenedSplit {
  ResolvedSplit resolved;
  SplitPrepared prepared;  // the first good answer
  int32_t num_replicas = 1;
  int32_t max_chunk_samples = 1;
  PlanCache plans;
  SampleSizes sizes;
  LoaderDisks disks;           // dataset.local
  std::set<PeerId> same_list;  // loaders that have it open, with the data set of `prepared`

  bool local() const noexcept { return resolved.split.dataset.local; }
};

class SplitRegistry {
 public:
  using Send = std::function<void(PeerId, const ControlMessage&)>;
  using Notice = std::function<void(const std::string&)>;
  using InUse = std::function<bool(Fingerprint)>;  // has lease streams
  using Opening = std::pair<PeerId, int32_t>;      // receiver, and its number for the split

  // `clock` and `background` must outlive it.
  SplitRegistry(const SplitRegistryOptions& options, const Clock& clock, Send send, Notice notice, InUse in_use,
                BackgroundWork& background)
      : options_(options),
        clock_(clock),
        send_(std::move(send)),
        notice_(std::move(notice)),
        in_use_(std::move(in_use)),
        background_(background) {}

  SplitAsked parse(const OpenSplit& m);
  // program_number: how many programs the receiver had fed before this one.
  void open(const Opening& opening, size_t program_number, const OpenSplit& m, SplitAsked asked);
  void close(const Opening& opening);
  void prepared(PeerId loader, const SplitPrepared& m);
  void sizes_told(PeerId loader, const SizesTold& m);
  void loader_joined(PeerId loader);
  void loader_lost(PeerId loader);
  // Names the loaders that are waited for, goes on without those that have been for too long, and refuses what no lost
  // loader has come back for in time.
  void tick();
  // All loaders are dead: openings wait for none to come back.
  void nobody_returns();
  OpenedSplit* find(Fingerprint fingerprint);
  // Was the loader asked to prepare the split, and may its answer still be waited for?
  bool will_answer(PeerId loader, Fingerprint fingerprint) const;
  // What living loaders said that cannot open it, or see other files, and since when others have said nothing; empty:
  // there are none.
  std::string why_not_open(Fingerprint fingerprint) const;
  // What waited for a placement that was being made goes on.
  void resume();
  // Is there a split open with samples that no loader but this one, and those in `leaving`, has on its disks?
  bool is_last_holder(PeerId loader, const std::set<PeerId>& leaving);

  // Programs that open one split after the other must not fill memory, here or at loaders: what nobody has open goes.
  void forget_closed();
  void iteration_begins() { any_iteration_ = true; }
  // No program is left at any receiver: the next one starts anew.
  void programs_gone() {
    looks_.clear();
    any_iteration_ = false;
  }

 private:
  struct Wait {
    Nanoseconds since = 0;
    bool named = false;  // in a notice
  };
  struct LeftOut {
    Nanoseconds since = 0;
    SplitPrepared answer;
    bool named = false;  // in a notice
  };
  struct Split {
    OpenedSplit opened;
    Fingerprint fingerprint = 0;
    Fingerprint described = 0;  // of its description
    int64_t number = 0;         // the newest of a description is the largest
    Fingerprint like = 0;       // while loaders look whether it is the same as this one
    std::set<PeerId> same_at;   // loaders that said so
    int32_t looked_at = 0;      // so many are looked for by `like`
    std::string json;
    std::shared_ptr<const SamplerNumbers> numbers;
    std::set<PeerId> asked;
    std::map<PeerId, Wait> waiting_for;  // loaders that have not answered PrepareSplit
    std::map<PeerId, LeftOut> left_out;  // loaders that could not open it
    Nanoseconds answered_ns = -1;        // when the first loader answered; -1: none has
    std::set<Opening> waiting;           // for an answer
    std::set<Opening> open_at;           // those who have it open, or asked for it
    PeerId sizes_from = -1;              // who is asked for samples' sizes; -1: nobody, or all was said
    int64_t sizes_until = 0;             // those of so many samples are known
    bool known = false;                  // the dataset's size is
    bool failed = false;
    SplitPrepared problem;
    std::map<PeerId, std::string> lacking;  // dataset.local: what loaders said of it
  };
  // What openings got, until every receiver has had the same one; by description, number of the program, of the
  // opening.
  using LookKey = std::tuple<Fingerprint, size_t, int32_t>;
  struct Look {
    Fingerprint split = 0;
    std::set<PeerId> receivers;
  };

  std::string name(PeerId loader) const;
  void prepare_at(PeerId loader, Split& split);
  void prepare_everywhere(Split& split);
  bool may_leave_out(const SplitPrepared& answer, const Split& split) const;
  void name_left_out(Split& split);
  void fail_by(PeerId loader, const SplitPrepared& answer, Split& split) const;
  void ask_left_out(Split& split, Nanoseconds after);
  void ask_sizes(Split& split, PeerId loader);
  void ask_another_for_sizes(Split& split);
  Split* newest(Fingerprint described);
  Fingerprint& looked_for(PeerId receiver, const LookKey& key);
  Split& choose(Fingerprint& looked, const OpenSplit& m, SplitAsked& asked);
  Split& add(const OpenSplit& m, SplitAsked& asked);
  std::set<Opening> forget_failed(Fingerprint fingerprint);
  void decide(Split& split);
  void settle(Split& split);
  bool nobody_has(const Split& split) const;
  bool is_late(const Split& split, const Wait& wait) const;
  bool must_wait(const Split& split) const;
  bool nobody_can(const Split& split) const;
  void end_waits_for_lost();
  bool may_return() const;
  void name_the_late(Split& split);
  std::string names(const std::set<PeerId>& loaders) const;
  std::set<std::string> silences(const Split& split) const;
  bool is_placed(Split& split);
  IndexRanges missing(OpenedSplit& opened);
  void judge(Split& split);
  void check_placement(Split& split);
  void answer(Split& split);

  SplitRegistryOptions options_;
  const Clock& clock_;
  Send send_;
  Notice notice_;
  InUse in_use_;
  BackgroundWork& background_;
  std::set<PeerId> living_;  // loaders
  std::set<PeerId> lost_;
  Nanoseconds last_loss_ns_ = 0;
  std::map<Fingerprint, Split> splits_;
  int64_t last_number_ = 0;  // of splits
  std::map<LookKey, Look> looks_;
  bool any_iteration_ = false;  // has begun
  Fingerprint last_look_ = 0;
};

}  // namespace penstock
