// What Python threads wait on: both are opened by the callback of Board::wait, on the engine thread.
#pragma once
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>

#include "board.h"

namespace fusionctl {

// What a Python thread waits on: set once, by the callback of Board::wait.
class Latch {
  public:
    static void open(void* self, int status, const char* message, Results& results) {
        Latch* latch = static_cast<Latch*>(self);
        std::lock_guard<std::mutex> lock(latch->mutex_);
        latch->status = status;
        latch->message = message;
        latch->results.swap(results);
        latch->open_ = true;
        latch->cv_.notify_one();  // under the lock: the waiter may destroy the latch once it sees it open
    }

    bool wait(int64_t ns) {
        std::unique_lock<std::mutex> lock(mutex_);
        return cv_.wait_for(lock, std::chrono::nanoseconds(ns), [this] { return open_; });
    }

    int status = OK;
    std::string message;
    Results results;

  private:
    std::mutex mutex_;
    std::condition_variable cv_;
    bool open_ = false;
};

struct Outcome {
    int64_t token;
    int status;
    std::string message;
    Results results;
};

// Outcomes of asynchronous calls, for the Python thread that resolves their futures.
class Inbox {
  public:
    struct Entry {
        Inbox* inbox;
        int64_t token;
    };

    static void put(void* arg, int status, const char* message, Results& results) {
        Entry* entry = static_cast<Entry*>(arg);
        {
            std::lock_guard<std::mutex> lock(entry->inbox->mutex_);
            entry->inbox->outcomes_.push_back({entry->token, status, message, {}});
            entry->inbox->outcomes_.back().results.swap(results);
        }
        entry->inbox->cv_.notify_one();
        delete entry;
    }

    Entry* entry(int64_t token) { return new Entry{this, token}; }

    bool take(Outcome& out, int64_t ns) {
        std::unique_lock<std::mutex> lock(mutex_);
        if (!cv_.wait_for(lock, std::chrono::nanoseconds(ns), [this] { return !outcomes_.empty(); })) return false;
        out = std::move(outcomes_.front());
        outcomes_.pop_front();
        return true;
    }

  private:
    std::mutex mutex_;
    std::condition_variable cv_;
    std::deque<Outcome> outcomes_;
};

}  // namespace fusionctl
