// What the board keeps: slots and their results, the groups and lanes they belong to, and who waits for them.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace fusionctl {

enum Code { OK, DUPLICATE, MISMATCH, PEER, MPI_FAILED, NOT_INITIALISED, USAGE };

// Where memory for results comes from: `allocate` returns a handle and sets the address, or returns null.
struct Allocator {
    void* (*allocate)(int dtype, int ndim, const int64_t* shape, void** data);
    void (*release)(void* handle);
};

// What the engine allocates for a tensor whose shape this rank can not know beforehand; its waiter may take the handle.
struct Result {
    const Allocator* allocator = nullptr;
    void* handle = nullptr;
    void* data = nullptr;
    int dtype = -1;
    std::vector<int64_t> shape;
    std::vector<int64_t> rows;  // how many of them came from each rank

    void discard() {
        if (handle != nullptr) allocator->release(handle);
        *this = Result();
    }
};

typedef std::vector<Result> Results;  // of the slots waited for, in their order; empty ones for the slots that have none
typedef void (*WaitDone)(void* arg, int status, const char* message, Results& results);
typedef void (*Release)(void* handle);

constexpr int64_t ANY_ROWS = -2;  // a first dimension that may differ between ranks and calls

struct Waiter {
    WaitDone callback;
    void* arg;
    int remaining;
    int status;
    std::string message;
    Results results;
};

// Slots of one bucket: the engine need not wake before the last of them is here.
struct Bunch {
    int size;
    int submitted;
};

struct Slot {
    enum State { FREE, SUBMITTED, DONE, FAILED };
    std::string name;
    int group;
    int dtype;
    std::vector<int64_t> shape;
    int peers = 0;           // ranks that its rows are split over, for an all-to-all
    State state = FREE;
    bool arrived = false;    // in the group's current round
    bool queued = false;     // given to the engine thread
    bool executing = false;  // in the data plane's hands
    size_t count = 0;
    const void* src = nullptr;
    void* dst = nullptr;
    void* owners[2] = {nullptr, nullptr};
    int64_t rows = 0;                        // its first dimension, where that is ANY_ROWS
    std::vector<int64_t> splits;             // rows for each rank, for an all-to-all
    const Allocator* allocator = nullptr;    // for results whose size the engine learns
    Result result;
    int status = OK;
    std::string message;
    Waiter* waiter = nullptr;
    size_t place = 0;                        // among the slots that the waiter waits for
    Bunch* bunch = nullptr;
    int64_t submitted_ns = 0;
};

// What goes to the engine's part for one process set.
struct Lane {
    std::vector<int> stale;
    std::vector<int> submitted;
    std::vector<int> restated;
    bool open = false;
    int status = NOT_INITIALISED;  // of submissions while it is closed
    std::string message = "fusionctl is not initialised; call init() first";
};

// A round of a group is one submission of each member.
struct Group {
    int lane;
    std::vector<int> members;
    size_t arrived = 0;
    bool held = false;      // shapes are known at run time only: nothing is queued before the round is complete
    bool restated = false;  // a member came with another dtype or shape than was announced
    int failure = OK;       // the ranks' verdict on members that are still to arrive in this round
    std::string message;
};

}  // namespace fusionctl
