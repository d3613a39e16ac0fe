// The two ends of the channel in one process: what ranks say arrives, and what strangers say does not.
#include "launch/end_channel.h"

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "runtime/base/json_text.h"
#include "runtime/process/tree.h"

namespace penstock {
namespace {

constexpr JobOutcome::Spec kSpec{.ranks = 2, .grace_s = 1, .lost_after_s = 1};

// Reads until `done`, or for twenty seconds.
template <class Done>
bool hears(EndListener& listener, const Done& done) {
  const MonotonicClock clock;
  for (const Nanoseconds deadline = clock.now() + 20 * kSecond; clock.now() < deadline;) {
    listener.read(clock.now());
    if (done(listener.job())) return true;
    std::vector<pollfd> fds;
    listener.collect_fds(fds);
    (void)::poll(fds.data(), fds.size(), 50);
  }
  return false;
}

EndReporter reporter_of(const EndListener& listener, const char* rank, const std::string& token) {
  ::setenv(kEndChannelVariable, listener.address().c_str(), 1);
  ::setenv(kEndTokenVariable, token.c_str(), 1);
  ::setenv("OMPI_COMM_WORLD_RANK", rank, 1);
  return EndReporter::from_environment();
}

UniqueFd raw_connection(const EndListener& listener) {
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  name.sin_port = htons(static_cast<uint16_t>(std::stoi(listener.address().substr(listener.address().find(':') + 1))));
  REQUIRE(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&name), sizeof name) == 0);
  return fd;
}

TEST_CASE("ranks are heard, also through the second of two addresses, and programs they start are not") {
  EndListener listener(kSpec, true, 0);
  EndReporter zero = reporter_of(listener, "0", listener.token());
  CHECK(std::getenv(kEndChannelVariable) == nullptr);
  CHECK(std::getenv(kEndTokenVariable) == nullptr);
  EndReporter nobody = EndReporter::from_environment();
  nobody.ended(4, "nothing is said");

  EndListener near(kSpec, false, 0);
  ::setenv(kEndChannelVariable, ("192.0.2.1," + near.address()).c_str(), 1);
  ::setenv(kEndTokenVariable, near.token().c_str(), 1);
  EndReporter one = EndReporter::from_environment();
  one.running(true);
  one.ended(4, "broken \xff text");
  CHECK(hears(near, [](const JobOutcome& job) { return job.any() && job.code() == 4; }));
  CHECK(near.job().summary().find("broken") != std::string::npos);

  zero.running(false);
  zero.ended(0, "");
  CHECK(hears(listener, [](const JobOutcome& job) { return job.any() && job.code() == 0; }));
}

TEST_CASE("a rank that does not reach launch says where it looked for it") {
  ::setenv(kEndChannelVariable, "127.0.0.1:1", 1);
  ::setenv(kEndTokenVariable, "x", 1);
  ::setenv("OMPI_COMM_WORLD_RANK", "1", 1);
  EndReporter one = EndReporter::from_environment();
  CHECK(one.problem().starts_with("rank 1 (host "));
  CHECK(one.problem().find("cannot connect to `penstock launch` at 127.0.0.1:1 (TCP)") != std::string::npos);
  CHECK_FALSE(one.report("text"));
}

TEST_CASE("which loaders are back is heard of rank 0 alone") {
  EndListener listener(kSpec, false, 0);
  EndReporter zero = reporter_of(listener, "0", listener.token());
  EndReporter one = reporter_of(listener, "1", listener.token());
  zero.came_back("rank 1 (loader)");
  one.came_back("rank 7 (loader)");
  one.ended(0, "");
  zero.ended(0, "");
  CHECK(hears(listener, [](const JobOutcome& job) { return job.left().empty() && job.any() && job.code() == 0; }));
  CHECK(listener.job().summary() == "the job is complete; lost for a while, and back: rank 1 (loader)");
}

TEST_CASE("the report of rank 0 arrives whole, and no other rank's does") {
  EndListener listener(kSpec, false, 0);
  EndReporter zero = reporter_of(listener, "0", listener.token());
  EndReporter one = reporter_of(listener, "1", listener.token());
  CHECK(zero.problem() == "");
  const std::string text = std::string(200'000, 'x') + "\n";
  CHECK(one.report("another"));
  one.ended(0, "");
  bool sent = false;
  std::thread rank([&] {
    sent = zero.report(text);
    zero.ended(0, "");
  });
  CHECK(hears(listener, [](const JobOutcome& job) { return job.left().empty() && job.any() && job.code() == 0; }));
  rank.join();
  CHECK(sent);
  CHECK(listener.report() == text);
  CHECK_FALSE(EndReporter::from_environment().report(text));  // nobody asks
}

TEST_CASE("a launch that is stopped for a while as the job ends gets the report and the end") {
  EndListener listener(kSpec, false, 0);
  EndReporter zero = reporter_of(listener, "0", listener.token());
  const std::string text(5'000'000, 'x');  // more than the sockets hold
  std::thread rank([&] {
    (void)zero.report(text);
    zero.ended(0, "");
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(5300));
  CHECK(hears(listener, [](const JobOutcome& job) { return job.any() && job.code() == 0; }));
  rank.join();
  CHECK(listener.report() == text);
}

TEST_CASE("a rank that is killed hangs up without a word") {
  EndListener listener(kSpec, false, 0);
  {
    const EndReporter zero = reporter_of(listener, "0", listener.token());
    REQUIRE(hears(listener, [](const JobOutcome& job) { return job.any(); }));
  }
  CHECK(hears(listener, [](const JobOutcome& job) { return job.summary().find("killed") != std::string::npos; }));
  CHECK(listener.job().code() == 5);
}

TEST_CASE("the signal that ended a rank of this host is told, and of a process that only says to be one it is not") {
  for (const bool knows : {true, false}) {
    EndListener listener(kSpec, false, 0);
    const std::string token = std::string(kEndTokenVariable) + "=" + (knows ? listener.token() : "another");
    const pid_t rank = ::fork();
    if (rank == 0) {
      std::string sleep = "sleep";
      std::string seconds = "100";
      std::string variable = token;
      const std::array<char*, 3> words{sleep.data(), seconds.data(), nullptr};
      const std::array<char*, 2> environment{variable.data(), nullptr};
      ::execve("/bin/sleep", words.data(), environment.data());
      ::_exit(127);
    }
    const MonotonicClock clock;
    for (const Nanoseconds limit = clock.now() + 20 * kSecond; clock.now() < limit && !process_has(rank, token);) {
      ::usleep(1000);
    }
    REQUIRE(process_has(rank, token));
    {
      const UniqueFd fd = raw_connection(listener);
      const std::string said =
          json_text_replacing({{"token", listener.token()}, {"rank", 0}, {"host", "a"}, {"pid", rank}}) + "\n";
      REQUIRE(::send(fd.get(), said.data(), said.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(said.size()));
      REQUIRE(hears(listener, [](const JobOutcome& job) { return job.any(); }));
      ::kill(rank, SIGKILL);
      for (const Nanoseconds limit = clock.now() + 20 * kSecond; clock.now() < limit && !status_left_by(rank);) {
        ::usleep(1000);
      }
    }
    CHECK(hears(listener, [](const JobOutcome& job) { return job.summary().find("killed") != std::string::npos; }));
    CHECK((listener.job().summary().find("killed by SIGKILL: rank 0 (host a)") != std::string::npos) == knows);
    REQUIRE(::waitpid(rank, nullptr, 0) == rank);
  }
}

TEST_CASE("last words that are late are waited for, and those that do not come only until the limit") {
  const MonotonicClock clock;
  EndListener listener(kSpec, false, 0);
  EndReporter zero = reporter_of(listener, "0", listener.token());
  REQUIRE(hears(listener, [](const JobOutcome& job) { return job.any(); }));
  const Nanoseconds start = clock.now();
  std::thread network([&zero] {
    ::usleep(300'000);
    zero.ended(0, "");
  });
  listener.read_last_words(clock, start + 60 * kSecond);
  CHECK(listener.job().code() == 0);
  CHECK(clock.now() - start < 30 * kSecond);
  network.join();

  {
    const EndReporter one = reporter_of(listener, "1", listener.token());
    REQUIRE(hears(listener, [](const JobOutcome& job) { return job.awaits_last_words(); }));
    const Nanoseconds limit = clock.now() + 100 * kMillisecond;
    listener.read_last_words(clock, limit);
    CHECK(clock.now() >= limit);
    CHECK(listener.job().awaits_last_words());
  }
  const Nanoseconds hung_up = clock.now();
  listener.read_last_words(clock, hung_up + 60 * kSecond);
  CHECK(clock.now() - hung_up < 30 * kSecond);
  CHECK(listener.job().summary().find("killed, or cut off with its host: rank 1") != std::string::npos);
}

TEST_CASE("who does not know the token says nothing") {
  EndListener listener(kSpec, false, 0);
  EndReporter stranger = reporter_of(listener, "0", std::string(64, '0'));
  stranger.ended(0, "");
  EndReporter one = reporter_of(listener, "1", listener.token());
  one.ended(2, "");
  CHECK(hears(listener, [](const JobOutcome& job) { return job.any(); }));
  CHECK(listener.job().code() == 2);
}

TEST_CASE("a second word for a rank, and ranks the job does not have, are not heard, whatever they know") {
  EndListener listener(kSpec, false, 0);
  EndReporter zero = reporter_of(listener, "0", listener.token());
  REQUIRE(hears(listener, [](const JobOutcome& job) { return job.any(); }));
  for (const char* rank : {"0", "2", "-1"}) {
    EndReporter impostor = reporter_of(listener, rank, listener.token());
    impostor.ended(4, "an impostor");
    listener.read(0);
  }
  for (const std::string rank : {"4294967296", "18446744073709551615", "1.0"}) {  // 0, where digits are lost
    const UniqueFd fd = raw_connection(listener);
    const std::string said =
        R"({"token":")" + listener.token() + R"(","rank":)" + rank + R"(,"host":"a"})" + "\n{\"end\":4}\n";
    (void)!::send(fd.get(), said.data(), said.size(), MSG_NOSIGNAL);
    listener.read(0);
  }
  zero.ended(3, "its own");
  CHECK(hears(listener, [](const JobOutcome& job) { return job.code() == 3; }));
  EndReporter late = reporter_of(listener, "0", listener.token());
  late.ended(0, "");
  CHECK(hears(listener, [](const JobOutcome& job) { return job.code() == 3; }));
  CHECK(listener.job().summary().find("killed") == std::string::npos);
}

TEST_CASE("who connects and says nothing does not take the descriptors") {
  EndListener listener(kSpec, false, 0);
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 500; ++i) {
    silent.push_back(raw_connection(listener));
    listener.read(0);
  }
  std::vector<pollfd> fds;
  listener.collect_fds(fds);
  CHECK(fds.size() < 100);
  EndReporter zero = reporter_of(listener, "0", listener.token());
  zero.ended(2, "");
  CHECK(hears(listener, [](const JobOutcome& job) { return job.any() && job.code() == 2; }));
}

TEST_CASE("where no descriptors are left nobody spins, and ranks are heard once there are some") {
  EndListener listener(kSpec, false, 0);
  EndReporter zero = reporter_of(listener, "0", listener.token());
  zero.ended(2, "");
  std::vector<UniqueFd> all;
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  const rlimit few{64, before.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &few) == 0);
  for (UniqueFd fd(::dup(0)); fd; fd = UniqueFd(::dup(0))) all.push_back(std::move(fd));
  listener.read(0);
  std::vector<pollfd> fds;
  listener.collect_fds(fds);
  CHECK(fds.empty());
  all.clear();
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
  CHECK(hears(listener, [](const JobOutcome& job) { return job.any() && job.code() == 2; }));
}

TEST_CASE("noise is hung up on, and takes little memory") {
  constexpr uint32_t kSeed = 7;
  MESSAGE("seed " << kSeed);
  std::mt19937 random(kSeed);
  EndListener listener(kSpec, false, 0);
  const std::string good =
      "{\"token\":\"" + listener.token() + "\",\"rank\":1,\"host\":\"a\"}\n{\"end\":3,\"why\":\"x\"}\n";
  for (int i = 0; i < 300; ++i) {
    std::string bytes = good;
    for (int hits = 1 + static_cast<int>(random() % 4); hits > 0; --hits) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    const UniqueFd fd = raw_connection(listener);
    (void)!::send(fd.get(), bytes.data(), random() % 2 ? bytes.size() : random() % bytes.size(), MSG_NOSIGNAL);
    listener.read(0);
  }
  const UniqueFd endless = raw_connection(listener);
  const std::string line(size_t{1} << 20, 'x');
  (void)!::send(endless.get(), line.data(), line.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  EndReporter zero = reporter_of(listener, "0", listener.token());
  zero.ended(0, "");
  CHECK(hears(listener, [](const JobOutcome& job) { return job.any() && job.code() == 0; }));
  std::vector<pollfd> fds;
  CHECK(hears(listener, [&](const JobOutcome&) {
    fds.clear();
    listener.collect_fds(fds);
    return fds.size() == 1;  // only the listening one is left
  }));
}

}  // namespace
}  // namespace penstock
