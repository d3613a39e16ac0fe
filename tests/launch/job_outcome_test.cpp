// What a job's ranks say of its end, and when launch has to end it.
#include "launch/job_outcome.h"

#include <doctest/doctest.h>
#include <signal.h>

namespace penstock::job_outcome_test {
namespace {

constexpr Nanoseconds kHour = 3600 * kSecond;
constexpr JobOutcome::Spec kSpec{.ranks = 3, .grace_s = 5, .lost_after_s = 10};

// Ranks 0 to 2 have found each other.
JobOutcome running_job() {
  JobOutcome job(kSpec, 0);
  for (int rank = 0; rank < 3; ++rank) {
    job.began(rank, rank == 2 ? "b" : "a", 0);
    job.running(rank, 0);
  }
  return job;
}

TEST_CASE("a good end with all ranks needs no words") {
  JobOutcome job = running_job();
  for (int rank = 0; rank < 3; ++rank) job.ended(rank, 0, "", kSecond);
  CHECK(job.code() == 0);
  CHECK(job.summary() == "");
}

TEST_CASE("a rank that is known to have died before it was heard of is named, and not waited for") {
  JobOutcome job(kSpec, 0);
  CHECK(job.late(kHour).empty());  // nobody waits
  job.began(0, "a", 0);
  job.began(1, "a", 0);
  CHECK(job.late(kSecond).empty());
  CHECK(job.late(5 * kSecond) == std::vector<int>{2});
  job.died_unheard(2, "a");
  CHECK(job.late(kHour).empty());
  CHECK(job.awaited(kHour) == "");
  CHECK(job.stuck(5 * kSecond) == "");
  CHECK(job.stuck(6 * kSecond) == "rank 2 (host a) left while the job was starting");
  CHECK(job.code() == 5);
  CHECK(
      job.summary() ==
      "the job failed with exit code 5: no rank said how it ended; killed, or cut off with its host: rank 2 (host a)");
}

TEST_CASE("a loader that was killed on the way does not spoil the job, and is named") {
  JobOutcome job = running_job();
  job.hung_up(2, kSecond);
  CHECK(job.stuck(kHour) == "");  // the others go on for as long as they like
  job.ended(0, 0, "", 2 * kHour);
  CHECK(job.stuck(2 * kHour + 7 * kSecond) == "");
  CHECK(job.stuck(2 * kHour + 9 * kSecond) == "rank 1 (host a) is still there after rank 0 has left");
  job.ended(1, 0, "", 2 * kHour);
  CHECK(job.code() == 0);
  CHECK(job.summary() == "the job is complete; killed, or cut off with its host: rank 2 (host b)");
}

TEST_CASE("loaders that were lost and are back are named behind those that are gone, where the job is complete") {
  JobOutcome job = running_job();
  job.came_back("rank 1 (loader)");
  for (const int rank : {0, 1}) job.ended(rank, 0, "", kSecond);
  JobOutcome all = job;
  all.ended(2, 0, "", kSecond);
  CHECK(all.summary() == "the job is complete; lost for a while, and back: rank 1 (loader)");
  job.hung_up(2, kSecond, SIGKILL);
  CHECK(job.summary() ==
        "the job is complete; killed by SIGKILL: rank 2 (host b); lost for a while, and back: rank 1 (loader)");
}

TEST_CASE("how a rank ended is said where its host's kernel has told") {
  JobOutcome job = running_job();
  job.hung_up(1, kSecond, SIGKILL);
  job.hung_up(2, kSecond, SIGSEGV);
  job.ended(0, 0, "", 2 * kSecond);
  CHECK(job.summary() == "the job is complete; killed by SIGKILL: rank 1 (host a); killed by SIGSEGV: rank 2 (host b)");

  JobOutcome other = running_job();
  other.hung_up(1, kSecond, 3 << 8);  // as waitpid() has it
  other.hung_up(2, kSecond);
  other.ended(0, 0, "", 2 * kSecond);
  CHECK(other.summary() ==
        "the job is complete; killed, or cut off with its host: rank 2 (host b); left without a word, with status 3: "
        "rank 1 (host a)");
}

TEST_CASE("what rank 0 says of its end counts also where it is killed on the way there") {
  JobOutcome job = running_job();
  job.will_end(0, 5, "lost a trainer", kSecond);
  CHECK(job.stuck(kHour) == "");  // it gives its program the grace, however long that is
  job.ended(2, 5, "", 2 * kHour);
  job.hung_up(0, 2 * kHour, SIGKILL);
  job.hung_up(1, 2 * kHour);
  CHECK(job.code() == 5);
  CHECK(job.summary() ==
        "the job failed with exit code 5, says rank 0 (host a): lost a trainer; killed, or cut off with its host: rank "
        "1 (host a)");
  JobOutcome other = running_job();
  other.will_end(0, 3, "its word", kSecond);
  other.ended(0, 4, "another", kSecond, false);
  CHECK(other.summary().find("exit code 3, says rank 0 (host a): its word") != std::string::npos);
}

TEST_CASE("rank 0 speaks for all; without its word the first failure counts, and without any it is 5") {
  JobOutcome job = running_job();
  job.ended(1, 1, "an echo", 0);
  job.ended(0, 4, "bad sample 'x.jpg'\n  help: look at it", 0);
  job.ended(0, 0, "a second word", 0);
  CHECK(job.code() == 4);
  CHECK(job.summary() == "the job failed with exit code 4, says rank 0 (host a): bad sample 'x.jpg'");

  JobOutcome without = running_job();
  without.hung_up(0, 0);
  without.ended(2, 0, "", 0);
  CHECK(without.code() == 5);
  CHECK(
      without.summary() ==
      "the job failed with exit code 5: no rank said how it ended; killed, or cut off with its host: rank 0 (host a)");
  without.ended(1, 5, "lost trainer 0", 0);
  CHECK(without.code() == 5);
  CHECK(without.summary().find("says rank 1 (host a): lost trainer 0;") != std::string::npos);
}

TEST_CASE("where rank 0 says nothing, the error of a loader that the job went on without is not the job's") {
  JobOutcome job({.ranks = 4, .grace_s = 5, .lost_after_s = 10}, 0);
  for (int rank = 0; rank < 4; ++rank) {
    job.began(rank, "a", 0);
    job.running(rank, 0, rank >= 2);
  }
  job.ended(3, 1, "out of memory", kSecond);
  job.hung_up(0, kHour, SIGKILL);
  CHECK(job.code() == 1);  // there is no other word yet
  CHECK(job.summary().find("exit code 1, says rank 3 (host a): out of memory;") != std::string::npos);
  job.ended(2, 5, "lost the coordinator", kHour);
  job.ended(1, 5, "lost trainer 0", kHour);
  CHECK(job.code() == 5);
  CHECK(job.summary() ==
        "the job failed with exit code 5, says rank 1 (host a): lost trainer 0; killed by SIGKILL: rank 0 (host a)");
}

TEST_CASE("last words are awaited of ranks that began, until they say how they end or hang up") {
  JobOutcome job(kSpec, 0);
  CHECK_FALSE(job.awaits_last_words());
  for (int rank = 0; rank < 3; ++rank) job.began(rank, "a", 0);
  job.ended(0, 0, "", kSecond);
  job.hung_up(1, kSecond);
  CHECK(job.awaits_last_words());
  JobOutcome ended = job;
  ended.ended_from_outside(kSecond);
  CHECK_FALSE(ended.awaits_last_words());
  job.will_end(2, 1, "", kSecond);
  CHECK_FALSE(job.awaits_last_words());
}

TEST_CASE("a job of which no rank is heard, or whose ranks do not meet, has a limit of its own") {
  const JobOutcome::Spec spec{.ranks = 3, .begin_s = 60, .start_s = 285};
  JobOutcome none(spec, kSecond);
  CHECK(none.stuck(60 * kSecond) == "");
  CHECK(none.stuck(62 * kSecond) == "no rank was heard of within 60 s");
  CHECK(none.code() == 5);

  JobOutcome few(spec, 0);  // ranks that were killed before they could say anything, as far as launch can know
  few.began(0, "a", kSecond);
  CHECK(few.awaited(10 * kSecond) == "");
  CHECK(few.awaited(12 * kSecond) == "rank 1 and 1 more");
  CHECK(few.stuck(60 * kSecond) == "");
  CHECK(few.stuck(62 * kSecond) == "rank 1 and 1 more were not heard of within 60 s, while the others wait");
  few.began(1, "a", 2 * kSecond);
  few.ended(0, 1, "MPI did not start", 3 * kSecond);
  CHECK(few.summary() ==
        "the job failed with exit code 1, says rank 0 (host a): MPI did not start; rank 2 was never heard of");
  CHECK(few.awaited(100 * kSecond) == "");

  JobOutcome placed({.ranks = 3, .begin_s = 60, .hosts = {"a", "a", "b"}}, 0);
  for (int rank = 0; rank < 2; ++rank) placed.began(rank, "a", kSecond);
  CHECK(placed.awaited(12 * kSecond) == "rank 2 (host b)");
  CHECK(placed.stuck(62 * kSecond) == "rank 2 (host b) was not heard of within 60 s, while the others wait");

  JobOutcome apart(spec, 0);
  for (int rank = 0; rank < 3; ++rank) apart.began(rank, "b", 70 * kSecond);
  CHECK(apart.stuck(669 * kSecond) == "");
  CHECK(apart.stuck(671 * kSecond) == "the ranks did not meet within 600 s");
  apart.running(2, 671 * kSecond);
  CHECK(apart.stuck(kHour) == "");
}

TEST_CASE("a rank that was killed while the job was starting is named alone") {
  JobOutcome job(kSpec, 0);
  for (int rank = 0; rank < 3; ++rank) job.began(rank, "a", 0);
  job.hung_up(2, kSecond);
  CHECK(job.stuck(7 * kSecond) == "rank 2 (host a) left while the job was starting");
  job.ended_from_outside(7 * kSecond);
  job.ended(1, 5, "mpirun has ended", 8 * kSecond);  // for it was ended
  job.hung_up(0, 8 * kSecond);
  CHECK(job.code() == 5);
  CHECK(
      job.summary() ==
      "the job failed with exit code 5: no rank said how it ended; killed, or cut off with its host: rank 2 (host a)");
}

TEST_CASE("a loader that is silent is given no program's grace, and is not called killed") {
  JobOutcome job(kSpec, 0);
  for (int rank = 0; rank < 3; ++rank) {
    job.began(rank, "a", 0);
    job.running(rank, 0, rank == 2);
  }
  job.ended(0, 0, "", kSecond);
  CHECK(job.stuck(5 * kSecond) == "");  // rank 1 has a program
  job.ended(1, 0, "", kSecond);
  CHECK(job.stuck(3 * kSecond) == "");
  CHECK(job.stuck(5 * kSecond) == "rank 2 (host a) is still there after rank 0 has left");
  job.ended_from_outside(5 * kSecond);
  CHECK(job.code() == 0);
  CHECK(job.summary() == "the job is complete; silent until it was ended (stopped, or cut off): rank 2 (host a)");
}

TEST_CASE("a rank that leaves while the others wait in MPI_Init ends the job after a moment") {
  JobOutcome job(kSpec, 0);
  for (int rank = 0; rank < 3; ++rank) job.began(rank, "a", 0);
  CHECK(job.stuck(590 * kSecond) == "");  // none has left: MPI's own limits count
  job.ended(1, 3, "a bad job file", 590 * kSecond);
  CHECK(job.stuck(594 * kSecond) == "");
  CHECK(job.stuck(596 * kSecond) == "rank 1 (host a) left while the job was starting");
}

TEST_CASE("a rank that the others wait for in vain while the job starts is named, once all of them had their time") {
  JobOutcome job({.ranks = 4, .hosts = {"a", "a", "b", "b"}}, 0);
  for (int rank = 0; rank < 4; ++rank) job.began(rank, rank < 2 ? "a" : "b", rank == 1 ? 20 * kSecond : 0);
  job.ended(0, 5, "MPI did not start within 300 s", 300 * kSecond);
  job.ended(2, 5, "MPI did not start within 300 s", 302 * kSecond);
  CHECK(job.stuck(329 * kSecond) == "");  // rank 1 began later
  job.ended(1, 5, "MPI did not start within 300 s", 322 * kSecond);
  CHECK(job.stuck(305 * kSecond) == "");
  CHECK(job.stuck(311 * kSecond) == "rank 0 (host a) has waited for the others in vain while the job was starting");
  CHECK(job.summary() == "the job failed with exit code 5, says rank 0 (host a): MPI did not start within 300 s");
  job.ended_from_outside(331 * kSecond);
  CHECK(job.code() == 5);
  CHECK(job.summary() ==
        "the job failed with exit code 5, says rank 0 (host a): MPI did not start within 300 s; silent until it was "
        "ended (stopped, or cut off): rank 3 (host b)");

  // Rank 0 knows for whom it waits, and gives up some seconds before one that stands at the barrier behind it. A rank that
  // began since was waited for by nobody.
  JobOutcome barrier({.ranks = 4}, 0);
  for (int rank = 0; rank < 3; ++rank) barrier.began(rank, "a", 0);
  barrier.ended(0, 5, "rank 0 waited 295 s for rank 2 of this node, in vain", 295 * kSecond);
  barrier.began(3, "b", 299 * kSecond);
  barrier.ended(1, 5, "rank 1 waited 300 s for the other ranks to start", 302 * kSecond);
  CHECK(barrier.stuck(304 * kSecond) == "");
  CHECK(barrier.stuck(306 * kSecond) != "");
  barrier.ended_from_outside(306 * kSecond);
  CHECK(barrier.summary() ==
        "the job failed with exit code 5, says rank 0 (host a): rank 0 waited 295 s for rank 2 of this node, in vain; "
        "silent until it was ended (stopped, or cut off): rank 2 (host a)");

  JobOutcome at_once(kSpec, 0);  // it has not waited
  for (int rank = 0; rank < 3; ++rank) at_once.began(rank, "a", 0);
  at_once.ended(1, 5, "asked to end while the job was starting", kSecond);
  CHECK(at_once.stuck(7 * kSecond) == "rank 1 (host a) left while the job was starting");
  at_once.ended_from_outside(7 * kSecond);
  CHECK(at_once.summary() ==
        "the job failed with exit code 5, says rank 1 (host a): asked to end while the job was starting");

  JobOutcome mistake(kSpec, 0);  // whoever leaves for another reason was not waited for
  for (int rank = 0; rank < 3; ++rank) mistake.began(rank, "a", 0);
  mistake.ended(1, 3, "a bad job file", kSecond);
  mistake.ended_from_outside(7 * kSecond);
  CHECK(mistake.summary() == "the job failed with exit code 3, says rank 1 (host a): a bad job file");
}

TEST_CASE("where rank 0 is gone without a word, the programs are asked to end, and have the grace") {
  JobOutcome job(kSpec, 0);
  for (int rank = 0; rank < 3; ++rank) {
    job.began(rank, rank == 2 ? "b" : "a", 0);
    job.running(rank, 0, rank == 2);
  }
  CHECK_FALSE(job.wants_an_end(kHour));
  job.hung_up(0, 0, SIGKILL);
  CHECK(job.left() == "rank 1 (host a) and 1 more");
  CHECK_FALSE(job.wants_an_end(kSecond / 4));  // they may have noticed
  CHECK(job.wants_an_end(kSecond));
  CHECK(job.stuck(7 * kSecond) == "");
  CHECK(job.stuck(9 * kSecond) == "rank 0 (host a) is gone without a word, and rank 1 (host a) has not ended since");
  job.ended(1, 5, "lost trainer 0", 2 * kSecond);
  CHECK_FALSE(job.wants_an_end(2 * kSecond));  // a loader has no program
  CHECK(job.left() == "rank 2 (host b)");
  CHECK(job.stuck(2 * kSecond) == "");
  CHECK(job.stuck(4 * kSecond) == "rank 0 (host a) is gone without a word, and rank 2 (host b) has not ended since");

  JobOutcome all = job;
  all.ended(2, 5, "", 4 * kSecond);
  CHECK(all.stuck(5 * kSecond) == "");
  CHECK(all.stuck(7 * kSecond) == "all ranks have ended, and mpirun has not");

  job.ended_from_outside(4 * kSecond);  // it may not have noticed yet
  CHECK(job.left() == "");
  CHECK(job.summary() ==
        "the job failed with exit code 5, says rank 1 (host a): lost trainer 0; killed by SIGKILL: rank 0 (host a)");

  JobOutcome said = running_job();
  said.will_end(0, 5, "lost a trainer", kSecond);
  said.hung_up(0, kSecond);
  CHECK_FALSE(said.wants_an_end(kHour));  // who is left heard it from rank 0
}

TEST_CASE("mpirun has ten seconds to end by itself, and two where it lost a rank, or one left before the others") {
  JobOutcome good = running_job();
  for (int rank = 0; rank < 3; ++rank) good.ended(rank, 0, "", 0);
  CHECK(good.stuck(9 * kSecond) == "");
  CHECK(good.stuck(11 * kSecond) == "all ranks have ended, and mpirun has not");

  JobOutcome apart = running_job();  // some ranks do not reach each other, so that MPI cannot end
  for (int rank = 0; rank < 3; ++rank) apart.ended(rank, 0, "", 0, false);
  CHECK(apart.stuck(3 * kSecond) == "all ranks have ended, and mpirun has not");

  JobOutcome lost = running_job();
  lost.hung_up(2, 0);
  for (int rank = 0; rank < 2; ++rank) lost.ended(rank, 0, "", kSecond);
  CHECK(lost.stuck(2 * kSecond) == "");
  CHECK(lost.stuck(4 * kSecond) == "all ranks have ended, and mpirun has not");

  JobOutcome drained = running_job();
  for (const int rank : {2, 1, 0}) drained.ended(rank, 0, "", (2 - rank) * 3 * kSecond);
  CHECK(drained.stuck(7 * kSecond) == "");
  CHECK(drained.stuck(9 * kSecond) == "all ranks have ended, and mpirun has not");
}

TEST_CASE("a loader that could still say that it lost the others is named all the same") {
  JobOutcome job = running_job();
  job.ended(2, 5, "lost trainer 0", 0);
  job.ended(0, 0, "", kSecond);
  job.ended(1, 0, "", kSecond);
  CHECK(job.code() == 0);
  CHECK(job.summary() == "the job is complete; killed, or cut off with its host: rank 2 (host b)");
}

TEST_CASE("a rank that was never heard to leave was silent, when launch has ended what was there") {
  JobOutcome job = running_job();
  job.ended(0, 0, "", 0);
  job.ended(1, 0, "", 0);
  CHECK(job.stuck(9 * kSecond) == "rank 2 (host b) is still there after rank 0 has left");
  CHECK(job.summary() == "");
  job.ended_from_outside(9 * kSecond);
  CHECK(job.code() == 0);
  CHECK(job.summary() == "the job is complete; silent until it was ended (stopped, or cut off): rank 2 (host b)");
}

TEST_CASE("a rank 0 that stands is ended once the others have given it up and are gone") {
  JobOutcome job = running_job();
  job.ended(1, 5, "lost trainer 0", 20 * kSecond);
  CHECK(job.stuck(57 * kSecond) == "");  // it may still notice
  CHECK(job.stuck(59 * kSecond) == "rank 0 (host a) has not ended, though rank 1 (host a) left with exit code 5");
  job.ended(2, 5, "lost trainer 0", 21 * kSecond);
  CHECK(job.stuck(38 * kSecond) == "");  // it needs its silence and its grace
  CHECK(job.stuck(40 * kSecond) == "rank 0 (host a) was given up by the others, and has not ended");
  CHECK(job.code() == 5);
  CHECK(job.summary() == "the job failed with exit code 5, says rank 1 (host a): lost trainer 0");

  JobOutcome failed(kSpec, 0);  // it has told its loaders, and then stood
  for (int rank = 0; rank < 3; ++rank) {
    failed.began(rank, "a", 0);
    failed.running(rank, 0, rank > 0);
  }
  failed.will_end(0, 1, "its program failed", 20 * kSecond);
  failed.ended(1, 1, "", 21 * kSecond);
  CHECK(failed.stuck(kHour) == "");
  failed.ended(2, 1, "", 21 * kSecond);
  CHECK(failed.stuck(53 * kSecond) == "");  // silence, grace, and the end of MPI
  CHECK(failed.stuck(55 * kSecond) == "rank 0 (host a) has said that the job failed, and has not ended");

  JobOutcome alone = running_job();  // loaders were killed or asked to leave: it may wait, as it was told
  alone.hung_up(1, 0);
  alone.ended(2, 0, "", 0);
  CHECK(alone.stuck(kHour) == "");
}

TEST_CASE(
    "a rank 0 that is lost with other ranks of its host is not waited for, where a trainer says that it lost it") {
  JobOutcome job({.ranks = 4, .grace_s = 5, .lost_after_s = 10}, 0);
  for (int rank = 0; rank < 4; ++rank) {
    job.began(rank, rank < 2 ? "a" : "b", 0);
    job.running(rank, 0, rank % 2 == 1);
  }
  job.ended(3, 5, "lost the coordinator", 20 * kSecond);
  CHECK(job.stuck(kHour) == "");  // rank 0 may go on without a loader: what was lost may be the network between the two
  job.ended(2, 5, "lost trainer 0", 21 * kSecond);
  CHECK(job.stuck(58 * kSecond) == "");
  CHECK(job.stuck(60 * kSecond) == "rank 0 (host a) has not ended, though rank 2 (host b) left with exit code 5");
  job.ended_from_outside(60 * kSecond);
  CHECK(job.summary() ==
        "the job failed with exit code 5, says rank 2 (host b): lost trainer 0; silent until it was ended "
        "(stopped, or cut off): rank 0 (host a), rank 1 (host a)");

  JobOutcome cut_off = running_job();  // not its own word: it may be cut off from launch alone
  cut_off.hung_up(1, 0);
  CHECK(cut_off.stuck(kHour) == "");
}

TEST_CASE("a loader that ends by an error of its own is named after a complete job") {
  JobOutcome job = running_job();
  job.ended(2, 1, "out of memory\n  help: less", kSecond);
  job.ended(0, 0, "", 2 * kSecond);
  job.ended(1, 0, "", 2 * kSecond);
  CHECK(job.code() == 0);
  CHECK(job.summary() == "the job is complete; rank 2 (host b) ended with exit code 1: out of memory");
}

TEST_CASE("ranks that are none of the job's are not heard") {
  JobOutcome job(kSpec, 0);
  job.began(3, "a", 0);
  job.began(-1, "a", 0);
  job.ended(7, 0, "", 0);
  CHECK_FALSE(job.any());
  CHECK(job.code() == 5);
}

}  // namespace
}  // namespace penstock::job_outcome_test
