// How a job under `penstock launch --run` ended, from what its ranks say: a state machine without sockets or processes.
//
//   JobOutcome end({.ranks = 4, .grace_s = 5, .lost_after_s = 10}, clock.now());
//   end.began(2, "node1", now);  end.running(2, now);  end.ended(2, 0, "", now);  end.hung_up(2, now);   // end_channel.h
//   if (const std::string why = end.stuck(now); !why.empty()) ...   // mpirun is to be ended: the ranks cannot
//   return end.code();                                              // of the job
//
// Purpose: with recovery mpirun goes on when a rank dies, and then says 0 to everything, a failed program included. So
//   the ranks' own word counts, and launch, not mpirun, ends what would wait for ever:
//
//     starting --one running--> running --rank 0 ended--> leaving --all gone--> over
//         |                        |                         |                    |
//         |                        '--rank 0 hung up--------^      |                    |
//         '- some rank left:                                       '- too long:         '- mpirun is still there,
//            stuck after 5 s (10 s                                    stuck                10 s later: stuck (2 s, if
//            behind the limit of the                                                       a rank was lost, or left,
//            last one, where it had                                                        or left MPI as it was)
//            waited in vain);
//            none was heard of,
//            or none met the others:
//            stuck after their limits
//
//   A rank 0 that is stopped (SIGSTOP, a hung file system) hears nothing, and one whose host is lost is not heard. The
//   others notice by silence and leave. Once they are all gone, or a trainer is that says why, rank 0 has the time in
//   which it would have noticed that, awake: then stuck.
//   A rank 0 that hangs up without a word was killed. The programs that are left are asked to end (wants_an_end()), and
//   who is there after the grace is ended, and not said to have been silent: it may only not have noticed yet.
//
// Whose word counts: rank 0's, which coordinates and speaks for all; where it is gone without one, that of the first
//   trainer that left with an error. A loader's counts only where no trainer has one, because the job may have gone on
//   without that loader. A rank that hung up without a word was killed, or its host was lost.
// Thread-safety: none; one owner. Failure: none; ranks that are none of the job's are ignored.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/clock.h"

namespace penstock {

std::string first_line(const std::string& text);  // of an error, without its help

class JobOutcome {
 public:
  struct Spec {
    int ranks = 1;
    double begin_s = 60;                  // until mpirun has started the first rank, and after it the others
    double start_s = 300;                 // mpi.start_timeout_s: a rank's own limit for each step of the start
    double grace_s = 5;                   // trainer.grace_s
    double lost_after_s = 10;             // balancer.lost_after_s: some ranks notice a loss by silence only
    std::vector<std::string> hosts = {};  // where each rank is to be; empty: not known
  };
  JobOutcome(const Spec& spec, Nanoseconds now) : spec_(spec), last_change_(now) {}

  void began(int rank, const std::string& host, Nanoseconds now);
  // It is connected to all others. A loader has no program that would need the grace.
  void running(int rank, Nanoseconds now, bool loads = false);
  // How it will end, said before it ends its program: mpirun may kill it meanwhile.
  void will_end(int rank, int exit_code, const std::string& why, Nanoseconds now);
  // `mpi_ended`: it called MPI_Finalize; mpirun waits in vain for one that has not.
  void ended(int rank, int exit_code, const std::string& why, Nanoseconds now, bool mpi_ended = true);
  // `status`: as of waitpid(), if it is known.
  void hung_up(int rank, Nanoseconds now, std::optional<int> status = {});
  // Loaders that were lost and joined again, as rank 0 names them.
  void came_back(const std::string& loaders) { back_ = loaders; }
  // It is known to be dead, and was not heard of: it died while the others came.
  void died_unheard(int rank, const std::string& host);

  // Why those that are left have to be ended from outside; empty: they do not.
  std::string stuck(Nanoseconds now) const;
  // Whether rank 0 is gone without a word while trainers are there, whose programs are to be asked to end: on other hosts
  // they would notice by silence only.
  bool wants_an_end(Nanoseconds now) const;
  bool began_on(int rank, const std::string& host) const;
  bool lost_rank_0() const;  // it hung up without a word, and was not ended from outside
  // Who has begun and is not gone: "rank 3 (host b) and 2 more"; empty: nobody.
  std::string left() const;
  // Who has not begun a while after others, who wait for it; empty: nobody waits.
  std::vector<int> late(Nanoseconds now) const;
  // The same after a good while, in words.
  std::string awaited(Nanoseconds now) const;
  // They are being: what they still say is of that. One that the job was running without is silent, because it is
  // stopped or cut off, for otherwise it would have been heard.
  void ended_from_outside(Nanoseconds now);

  bool any() const noexcept { return !ranks_.empty(); }
  bool any_running() const;  // or has been
  // Whether one that began has neither said how it ends nor hung up. What is said after an end from outside is none.
  bool awaits_last_words() const;
  // 0 to 5, as the ranks mean it (runtime/base/error.h); 5 where no rank said how the job ended.
  int code() const;
  // One line for people about how it ended: cause, rank, host; empty after a good end with all ranks, none of them
  // lost meanwhile.
  std::string summary() const;

 private:
  struct Rank {
    std::string host;
    Nanoseconds began_at = 0;
    bool running = false;
    bool loads = false;
    bool gone = false;
    bool silent = false;           // ended from outside
    std::optional<int> exit_code;  // its own word, by will_end() or ended()
    Nanoseconds left_at = 0;       // when it was gone
    std::optional<int> status;     // of its process, if it is known
    std::string why;
  };
  // The rank whose word counts; null: none gave one.
  const std::pair<const int, Rank>* speaker() const;
  std::string name(int rank) const;
  std::vector<int> killed() const;
  std::vector<int> failed_alone() const;        // of a complete job: by an error of their own
  double meet_s() const;                        // until a rank has met all others
  bool waited_in_vain(const Rank& rank) const;  // for the others, while the job was starting
  bool all_waited_in_vain() const;              // who has left by itself
  Nanoseconds last_began_after(const Rank& rank) const;
  std::vector<int> silent() const;
  std::vector<int> unheard() const;  // that did not begin
  std::string unheard_text() const;  // "rank 2 (host b) and 3 more"
  bool lost_a_rank() const;

  Spec spec_;
  std::map<int, Rank> ranks_;
  std::vector<int> left_;  // in order
  std::string back_;
  bool ended_from_outside_ = false;
  bool mpi_ended_ = true;
  Nanoseconds last_change_ = 0;
  std::optional<Nanoseconds> first_left_;
  std::optional<Nanoseconds> rank_0_left_;
};

}  // namespace penstock
