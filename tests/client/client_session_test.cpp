// The client's side of the conversation with a receiver that has said everything in advance: whose answer is whose, how
// long is waited, and what goes back. One thread, one pair of sockets.
#include "runtime/client/client_session.h"

#include <doctest/doctest.h>

#include <functional>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/embedded/embedded.h"
#include "tests/support/error_of.h"

namespace penstock {
namespace {

ClientBatch batch_of(uint64_t iteration, int32_t batch_buffer) {
  ClientBatch batch;
  batch.iteration = iteration;
  batch.pool = 1;
  batch.batch_buffer = batch_buffer;
  return batch;
}

TEST_CASE("answers: asked once, kept for their iteration, and back where the iteration is over") {
  IterationAnswers answers;
  CHECK(iteration_of(batch_of(7, 0)) == 7);
  CHECK(iteration_of(ClientEnd{8}) == 8);
  CHECK(iteration_of(ClientFailed{1, "", "", 9}) == 9);
  CHECK(iteration_of(ClientStatsJson{}) == 0);
  CHECK(answers.ask(1));
  CHECK_FALSE(answers.ask(1));  // the wait was interrupted: it is asked
  answers.arrived(1);
  CHECK(answers.ask(1));
  CHECK_FALSE(answers.keep(1, batch_of(1, 3)));
  CHECK(std::get<ClientBatch>(*answers.take(1)).batch_buffer == 3);
  CHECK_FALSE(answers.take(1));
  // Over while its answer is under way.
  CHECK(answers.ask(1));
  answers.stop(1);
  CHECK(answers.drop_stopped().empty());
  CHECK(answers.keep(1, batch_of(1, 4))->batch_buffer == 4);
  CHECK_FALSE(answers.take(1));
  // Over while its answer lies here; an answer that is no batch has nothing to give back.
  CHECK(answers.ask(2));
  CHECK_FALSE(answers.keep(2, batch_of(2, 5)));
  CHECK(answers.ask(3));
  CHECK_FALSE(answers.keep(3, ClientEnd{3}));
  answers.stop(2);
  answers.stop(3);
  const auto back = answers.drop_stopped();
  REQUIRE(back.size() == 1);
  CHECK(back[0].batch_buffer == 5);
  CHECK(answers.drop_stopped().empty());
}

TEST_CASE("wait limit: the loaders' time does not run while the program holds all batches") {
  using WaitOutcome = WaitDeadline::WaitOutcome;
  ManualClock clock;
  WaitDeadline wait_deadline(clock, 60 * kSecond);
  CHECK_FALSE(wait_deadline.callback_due());
  clock.advance(59 * kSecond);
  CHECK(wait_deadline.callback_due());
  CHECK_FALSE(wait_deadline.callback_due());
  CHECK(wait_deadline.look(false, true) == WaitOutcome::wait);
  CHECK(wait_deadline.look(true, true) == WaitOutcome::wait);
  clock.advance(59 * kSecond);
  CHECK(wait_deadline.look(true, true) == WaitOutcome::wait);
  CHECK(wait_deadline.look(false, true) == WaitOutcome::wait);
  clock.advance(61 * kSecond);
  CHECK(wait_deadline.look(false, true) == WaitOutcome::loaders_late);
  CHECK(wait_deadline.look(true, true) == WaitOutcome::program_late);
  // A program that has given none of the iteration back has less time; but never more than trainer.timeout_s.
  for (const auto& [timeout, limit] : {std::pair{60 * kSecond, 5 * kSecond}, std::pair{kSecond, kSecond}}) {
    WaitDeadline never(clock, timeout);
    CHECK(never.look(true, false) == WaitOutcome::wait);
    clock.advance(limit);
    CHECK(never.look(true, false) == WaitOutcome::wait);
    clock.advance(1);
    CHECK(never.look(true, false) == WaitOutcome::program_late);
  }
}

TEST_CASE("wait limit: a program waits for batches longer than its job waits for lost loaders") {
  Job job;
  job.trainer.timeout_s = 20;
  job.balancer.lost_after_s = 10;
  job.balancer.wait_s = 300;
  CHECK(job.longest_wait_ns() == 20 * kSecond);
  job.balancer.on_all_lost = AllLostPolicy::wait;
  CHECK(job.longest_wait_ns() == 330 * kSecond);
  CHECK(coordinator_options(job).listing_ns == 297 * kSecond);  // the coordinator names whom it waits for before that
}

TEST_CASE("batches given back: of the pool for room, of the iteration for the time that a program has") {
  ReturnedBatches returned;
  returned.begin(1, 7);
  CHECK_FALSE(returned.still_all_held(1));
  returned.all_held(1);
  returned.all_held(9);  // an iteration that nobody began
  CHECK(returned.still_all_held(1));
  CHECK_FALSE(returned.still_all_held(9));
  returned.count(2, 8);  // a batch elsewhere makes no room
  CHECK(returned.still_all_held(1));
  returned.count(0, 7);  // an earlier iteration's does
  CHECK_FALSE(returned.still_all_held(1));
  CHECK_FALSE(returned.any_of(1));
  returned.all_held(1);
  returned.count(1, 7);
  CHECK(returned.any_of(1));
  CHECK_FALSE(returned.still_all_held(1));
  returned.all_held(1);
  returned.delivered(1);
  CHECK_FALSE(returned.still_all_held(1));
  returned.end(1);
  CHECK_FALSE(returned.any_of(1));
  returned.begin(2, 7);
  CHECK_FALSE(returned.any_of(2));
}

// A session, and its receiver's end of the socket.
struct Talk {
  explicit Talk(Nanoseconds timeout_ns = 10 * kSecond, std::optional<Nanoseconds> answer_timeout_ns = {}) {
    auto [mine, theirs] = packet_socket_pair();
    receiver = PacketSocket(std::move(theirs));
    ClientSession::Options options;
    options.split = "train";
    options.hold = 2;
    options.server = "`penstock run`";
    options.timeout_ns = timeout_ns;
    options.answer_timeout_ns = answer_timeout_ns.value_or(timeout_ns);
    options.on_warning = [this](const std::string& text) { warned.push_back(text); };
    options.while_waiting = [this] {
      if (interrupt) throw std::runtime_error("interrupted");
      if (const auto now = meanwhile) now();
    };
    session.emplace(PacketSocket(std::move(mine)), options);
    ClientOpened opened;
    opened.split_id = 4;
    opened.replica = 3;
    opened.batch_size = 4;
    send(opened);
    session->open({});
    (void)received<ClientOpen>();
  }
  void send(const ClientMessage& message, int fd = -1) { receiver.send(encode_client(message), fd); }
  // The next thing that the client said; of another kind: fails.
  template <class T>
  T received() {
    Packet packet;
    REQUIRE(receiver.receive(packet));
    const ClientMessage message = decode_client(packet.bytes);
    REQUIRE(std::holds_alternative<T>(message));
    return std::get<T>(message);
  }
  bool silent() {
    Packet packet;
    return !receiver.receive(packet);
  }
  uint64_t begin(uint64_t iteration) {
    const bool first = !memory.valid;
    if (first) memory = {true, SharedMemory::create("test-batch-buffers", 4096)};
    send(ClientIteration{iteration, 1, 16, 256, first}, first ? memory.pages.fd() : -1);
    const uint64_t begun = session->begin(0, 0, {});
    CHECK(received<ClientIterate>().split_id == 4);
    return begun;
  }

  struct Memory {
    bool valid = false;
    SharedMemory pages;
  };
  Memory memory;
  PacketSocket receiver;
  std::vector<std::string> warned;
  bool interrupt = false;
  std::function<void()> meanwhile;  // while the session waits, by the thread that does
  std::optional<ClientSession> session;
};

TEST_CASE("iterations side by side: each gets its own answers, in any order") {
  Talk talk;
  const uint64_t one = talk.begin(11);
  const uint64_t two = talk.begin(12);
  talk.interrupt = true;
  CHECK_THROWS_AS((void)talk.session->next(two), std::runtime_error);
  talk.interrupt = false;
  CHECK(talk.received<ClientNext>().iteration == 12);
  talk.send(batch_of(12, 5));
  talk.send(ClientNotice{"slow", 0});
  talk.send(batch_of(11, 6));
  CHECK(talk.session->next(one)->info.batch_buffer == 6);
  CHECK(talk.received<ClientNext>().iteration == 11);
  CHECK(talk.warned == std::vector<std::string>{"slow"});
  CHECK(talk.session->take_warnings() == talk.warned);
  CHECK(talk.session->next(two)->info.batch_buffer == 5);  // it lay here
  CHECK(talk.silent());
  talk.send(ClientEnd{11});
  CHECK_FALSE(talk.session->next(one));
}

TEST_CASE("a batch that lies nowhere is none") {
  Talk talk;
  const uint64_t iteration = talk.begin(11);
  ClientBatch batch = batch_of(11, 5);
  batch.samples = batch.num_valid = 4;
  SUBCASE("its pool") {
    batch.pool = 2;
  }
  SUBCASE("its batch buffer") {
    batch.batch_buffer = 16;
  }
  SUBCASE("a negative one") {
    batch.batch_buffer = -1;
  }
  SUBCASE("more samples than a batch buffer has") {
    batch.samples = 5;
  }
  SUBCASE("more valid ones than there are") {
    batch.num_valid = 5;
  }
  talk.send(batch);
  CHECK_THROWS_WITH_AS((void)talk.session->next(iteration), doctest::Contains("something else than was asked"), Error);
}

TEST_CASE("images on GPUs: within their memory, or by an error that says what became of it") {
  Talk talk;
  const uint64_t iteration = talk.begin(11);
  const SharedMemory pages = SharedMemory::create("test-exported", 4096);
  ClientBatch batch = batch_of(11, 5);
  batch.samples = batch.num_valid = 4;
  batch.buffer_ranges = {{7, 1, 3, 1024, 3072}};
  bool gone = false;
  bool fits = false;
  talk.send(ClientExport{7, 4096, false}, pages.fd());
  SUBCASE("within") {
    fits = true;
  }
  SUBCASE("bytes beyond") {
    ++batch.buffer_ranges[0].bytes;
  }
  SUBCASE("a place beyond") {
    batch.buffer_ranges[0].at = ~uint64_t{0};
  }
  SUBCASE("samples beyond") {
    batch.buffer_ranges[0].first = 2;
  }
  SUBCASE("samples before") {
    batch.buffer_ranges[0].first = -1;
  }
  SUBCASE("gone meanwhile") {
    gone = true;
    talk.send(ClientExportGone{7});
  }
  talk.send(batch);
  if (fits) {
    CHECK(talk.session->next(iteration)->buffer_ranges.size() == 1);
    return;
  }
  CHECK_THROWS_WITH_AS(
      (void)talk.session->next(iteration),
      doctest::Contains(gone ? "on the GPU of a loader that is lost" : "something else than was asked"), Error);
  (void)talk.received<ClientNext>();
  if (gone) CHECK(talk.received<ClientRelease>().batch_buffer == 5);  // nobody has it
}

TEST_CASE("a session that ends says goodbye: what lies unread is nobody's") {
  Talk talk;
  const uint64_t iteration = talk.begin(11);
  talk.interrupt = true;
  CHECK_THROWS_AS((void)talk.session->next(iteration), std::runtime_error);
  (void)talk.received<ClientNext>();
  talk.send(batch_of(11, 8));
  talk.session.reset();
  (void)talk.received<ClientGoodbye>();
}

TEST_CASE("a batch that comes for an iteration that is over goes back") {
  Talk talk;
  const uint64_t iteration = talk.begin(11);
  talk.interrupt = true;
  CHECK_THROWS_AS((void)talk.session->next(iteration), std::runtime_error);
  (void)talk.received<ClientNext>();
  talk.session->stop(iteration);
  CHECK(talk.received<ClientStop>().iteration == 11);
  talk.send(batch_of(11, 8));
  talk.send(ClientStatsJson{"{}"});
  CHECK(talk.session->stats() == "{}");
  (void)talk.received<ClientStats>();
  CHECK(talk.received<ClientRelease>().batch_buffer == 8);
}

TEST_CASE("an interrupted begin() or stats() leaves nothing behind, and later questions get their own answers") {
  Talk talk;
  talk.interrupt = true;
  CHECK_THROWS_AS((void)talk.session->begin(0, 0, {}), std::runtime_error);
  CHECK_THROWS_AS((void)talk.session->stats(), std::runtime_error);
  CHECK_THROWS_AS((void)talk.session->begin(1, 0, {}), std::runtime_error);
  talk.interrupt = false;
  const SharedMemory pages = SharedMemory::create("test-batch-buffers", 4096);
  talk.send(ClientIteration{21, 1, 1, 4096, true}, pages.fd());
  talk.send(ClientStatsJson{"{\"old\": 1}"});
  talk.send(ClientFailed{static_cast<int32_t>(ErrorKind::usage), "no such epoch", "", 0});
  talk.send(ClientIteration{22, 1, 1, 4096, false});  // the pool's memory came with the iteration that nobody has
  CHECK(talk.session->begin(2, 0, {}) == 22);
  for (int i = 0; i < 2; ++i) {
    (void)talk.received<ClientIterate>();
    if (i == 0) (void)talk.received<ClientStats>();
  }
  CHECK(talk.received<ClientIterate>().epoch == 2);
  CHECK(talk.received<ClientStop>().iteration == 21);
  talk.send(batch_of(22, 0));
  CHECK(talk.session->next(22)->pool != nullptr);
}

// A thread that is interrupted, and one that asks meanwhile: the lock is free while the first one's callback runs.
TEST_CASE("questions of two threads get their own answers") {
  Talk talk;
  bool asked = false;
  const SharedMemory pages = SharedMemory::create("test-batch-buffers", 4096);
  talk.send(ClientIteration{30, 2, 1, 4096, true}, pages.fd());
  CHECK(talk.session->begin(0, 0, {}) == 30);
  std::string stats;
  std::thread other;
  talk.meanwhile = [&] {
    if (std::exchange(asked, true)) return;
    other = std::thread([&] { stats = talk.session->stats(); });
    // Its question is behind ours, and so are the answers.
    Packet packet;
    while (!talk.receiver.receive(packet) || !std::holds_alternative<ClientStats>(decode_client(packet.bytes)))
      std::this_thread::yield();
    talk.send(ClientIteration{31, 2, 1, 4096, false});
    talk.send(ClientStatsJson{"{\"new\": 1}"});
  };
  CHECK(talk.session->begin(1, 0, {}) == 31);
  other.join();
  CHECK(stats == "{\"new\": 1}");
}

TEST_CASE("a begin() that is interrupted when another thread has received its answer leaves no iteration behind") {
  Talk talk;
  const SharedMemory pages = SharedMemory::create("test-batch-buffers", 4096);
  talk.meanwhile = [&] {
    talk.meanwhile = {};
    talk.send(ClientIteration{41, 1, 1, 4096, true}, pages.fd());
    talk.send(ClientStatsJson{"{}"});
    CHECK(talk.session->stats() == "{}");  // as another thread would, while the lock is free
    throw std::runtime_error("interrupted");
  };
  CHECK_THROWS_AS((void)talk.session->begin(0, 0, {}), std::runtime_error);
  (void)talk.received<ClientIterate>();
  (void)talk.received<ClientStats>();
  CHECK(talk.received<ClientStop>().iteration == 41);
  talk.send(ClientIteration{42, 1, 1, 4096, false});
  CHECK(talk.session->begin(1, 0, {}) == 42);
}

TEST_CASE("a receiver that says nothing is given up, and stays so; one that hangs up is gone at once") {
  Talk talk(20 * kMillisecond);
  const uint64_t iteration = talk.begin(11);
  const Error late = error_of([&] { (void)talk.session->stats(); });
  CHECK(late.kind() == ErrorKind::peer_lost);
  CHECK(late.message() == "trainer 3 waited 0.02 s for statistics of split 'train'");
  CHECK(error_of([&] { (void)talk.session->next(iteration); }).message() == late.message());
  Talk gone;
  gone.receiver.close();
  const Error hung_up = error_of([&] { (void)gone.session->stats(); });
  CHECK(hung_up.message().find("the receiver of trainer 3 on host ") == 0);
  CHECK(hung_up.remedy() == "see the messages of `penstock run`");
}

TEST_CASE("a batch that does not come in time ends its wait alone: where it comes after all it is the next call's") {
  Talk talk(20 * kMillisecond);
  const uint64_t iteration = talk.begin(11);
  for (int again = 0; again < 2; ++again) {
    const Error late = error_of([&] { (void)talk.session->next(iteration); });
    CHECK(late.kind() == ErrorKind::peer_lost);
    CHECK(late.message() == "trainer 3 waited 0.02 s for the next batch of split 'train'");
    CHECK(late.remedy() ==
          "see the loaders' messages; the program's timeout_s, else trainer.timeout_s, sets the limit");
  }
  CHECK(talk.received<ClientNext>().iteration == 11);
  talk.send(batch_of(11, 5));
  talk.send(ClientStatsJson{"{}"});
  CHECK(talk.session->stats() == "{}");  // the batch came first, and is no answer to this
  (void)talk.received<ClientStats>();
  CHECK(talk.session->next(iteration)->info.batch_buffer == 5);
  CHECK(talk.silent());  // it was asked for once
}

TEST_CASE(
    "a short limit for batches is none for what the receiver answers itself, whose silence would end the session") {
  Talk talk(20 * kMillisecond, 10 * kSecond);
  talk.meanwhile = [&] {  // later than that
    talk.meanwhile = nullptr;
    talk.send(ClientStatsJson{"{}"});
  };
  CHECK(talk.session->stats() == "{}");
}

TEST_CASE("a program that holds all batches and asks on is told so; what the receiver refuses comes as it is") {
  Talk talk(20 * kMillisecond);
  const uint64_t iteration = talk.begin(11);
  talk.send(ClientNotice{"the program holds all 3 batches", 11});
  const Error held = error_of([&] { (void)talk.session->next(iteration); });
  CHECK(held.kind() == ErrorKind::usage);
  CHECK(held.message() == "the program holds all batches of split 'train', and asks for another");
  CHECK(held.remedy().find("trainer.hold (2)") != std::string::npos);
  talk.send(ClientFailed{static_cast<int32_t>(ErrorKind::dataset), "unusable sample", "repair it", 11});
  CHECK(error_of([&] { (void)talk.session->next(iteration); }).remedy() == "repair it");
}

// What a program does in its first epoch says nothing about the second, where it keeps all.
TEST_CASE("a program that holds all batches hears so within seconds, after iterations that it took as it should, too") {
  Talk talk(40 * kSecond);
  const uint64_t first = talk.begin(11);
  for (int32_t batch_buffer = 0; batch_buffer < 2; ++batch_buffer) {
    talk.send(batch_of(11, batch_buffer));
    talk.session->release(talk.session->next(first)->info);
  }
  talk.session->stop(first);
  while (!talk.silent()) {
  }
  const uint64_t second = talk.begin(12);
  talk.send(batch_of(12, 0));
  const auto kept = talk.session->next(second);
  talk.send(ClientNotice{"the program holds all 3 batches", 12});
  const MonotonicClock clock;
  const Nanoseconds begun = clock.now();
  CHECK(error_of([&] { (void)talk.session->next(second); }).kind() == ErrorKind::usage);
  CHECK(clock.now() - begun < 15 * kSecond);
}

}  // namespace
}  // namespace penstock
