// What user threads, TensorFlow's executors and the engine thread share: slots, their waiters and the submission queues.
//
// Laws: every member is guarded by `mutex`; no callback and no release of a framework's tensor runs under it; a slot
// goes FREE -> SUBMITTED -> DONE or FAILED -> FREE, and only the engine thread moves it from SUBMITTED.
#pragma once
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <vector>

#include "slots.h"

namespace fusionctl {

inline int64_t now_ns() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

class Board {
  public:
    // -- user threads ------------------------------------------------------------------------------------------
    int submit(int id, int dtype, int ndim, const int64_t* shape, const void* src, void* dst, void* owner_src,
               void* owner_dst, const Allocator* allocator = nullptr, const std::vector<int64_t>& splits = {}) {
        std::unique_lock<std::mutex> lock(mutex_);
        if (id < 0 || id >= (int)slots_.size()) return refuse(USAGE, "unknown slot " + std::to_string(id));
        Slot& slot = slots_[id];
        const Lane& lane = lane_of(slot);
        if (!lane.open) return refuse(lane.status, "tensor '" + slot.name + "': " + lane.message);
        if (slot.state == Slot::SUBMITTED)
            return refuse(DUPLICATE, "tensor '" + slot.name +
                                         "' is still in flight on this rank: wait for it before submitting it again, "
                                         "or give the second tensor a name of its own");
        if (slot.peers > 0 || any_rows(slot)) {
            const std::string problem = take_rows(slot, ndim, shape, splits);
            if (!problem.empty()) return refuse(USAGE, "tensor '" + slot.name + "' " + problem);
        }
        Group& group = groups_[slot.group];
        if (slot.arrived) start_round(group);  // an earlier round was abandoned half-way
        if (slot.dtype != dtype || !same_shape(slot, ndim, shape)) {
            const bool any = any_rows(slot);
            slot.dtype = dtype;
            slot.shape.assign(shape, shape + ndim);
            if (any) slot.shape[0] = ANY_ROWS;
            group.restated = group.held = true;
        }
        slot.allocator = allocator;
        Result abandoned;  // of a submission that nobody waited for
        std::swap(abandoned, slot.result);
        slot.count = 1;
        for (int i = 0; i < ndim; i++) slot.count *= (size_t)shape[i];
        slot.src = src;
        slot.dst = dst;
        slot.owners[0] = owner_src;
        slot.owners[1] = owner_dst;
        slot.state = Slot::SUBMITTED;
        slot.submitted_ns = now_ns();
        slot.arrived = true;
        const bool refused = !enqueue(id, slot, group);
        if (++group.arrived == group.members.size()) end_round(slot.group, group);
        lock.unlock();
        abandoned.discard();
        if (refused) drop(owner_src, owner_dst);
        return OK;
    }

    int wait(const int* ids, int n, WaitDone callback, void* arg) {
        Waiter* waiter = new Waiter{callback, arg, 0, OK, {}, Results(n)};
        {
            std::lock_guard<std::mutex> lock(mutex_);
            for (int i = 0; i < n; i++) {
                Slot& slot = slots_[ids[i]];
                if (slot.state != Slot::SUBMITTED || slot.waiter == nullptr) slot.place = i;
                if (slot.state == Slot::SUBMITTED && slot.waiter == nullptr) {
                    slot.waiter = waiter;
                    waiter->remaining++;
                } else if (slot.state == Slot::SUBMITTED) {
                    blame(waiter, USAGE, "tensor '" + slot.name + "' is waited for twice");
                } else {
                    consume(slot, waiter);
                }
            }
            if (waiter->remaining > 0) return OK;
        }
        fire(waiter);
        return OK;
    }

    void ring() {
        std::lock_guard<std::mutex> lock(mutex_);
        wake();
    }

    // -- registration (any thread) -----------------------------------------------------------------------------
    int add_group(int lane, bool held) {
        std::lock_guard<std::mutex> lock(mutex_);
        make_lane(lane);
        groups_.emplace_back();
        groups_.back().lane = lane;
        groups_.back().held = held;
        return (int)groups_.size() - 1;
    }

    int add_slot(int group, const std::string& name, int dtype, const std::vector<int64_t>& shape, int peers) {
        std::lock_guard<std::mutex> lock(mutex_);
        slots_.emplace_back();
        Slot& slot = slots_.back();
        slot.name = name;
        slot.group = group;
        slot.dtype = dtype;
        slot.shape = shape;
        slot.peers = peers;
        groups_[group].members.push_back((int)slots_.size() - 1);
        return (int)slots_.size() - 1;
    }

    void restate(int id, int dtype, const std::vector<int64_t>& shape) {
        std::lock_guard<std::mutex> lock(mutex_);
        slots_[id].dtype = dtype;
        slots_[id].shape = shape;
        lane_of(slots_[id]).stale.push_back(id);
        wake();
    }

    void hold(int group) {
        std::lock_guard<std::mutex> lock(mutex_);
        groups_[group].held = true;
    }

    // -- engine thread -----------------------------------------------------------------------------------------
    void open(int lane) {
        std::lock_guard<std::mutex> lock(mutex_);
        make_lane(lane);
        lanes_[lane].open = true;
    }

    // From now on submissions to this lane are refused with this status and message.
    void close(int lane, int status, const std::string& message) {
        std::lock_guard<std::mutex> lock(mutex_);
        lanes_[lane].open = false;
        lanes_[lane].status = status;
        lanes_[lane].message = message;
    }

    // Slots that no longer fit what was agreed for them, submitted slots, and groups whose submissions restated them;
    // the first come first, since they may be among the second.
    void take(int lane, std::vector<int>& stale, std::vector<int>& submitted, std::vector<int>& restated) {
        std::lock_guard<std::mutex> lock(mutex_);
        stale.clear();
        submitted.clear();
        restated.clear();
        stale.swap(lanes_[lane].stale);
        submitted.swap(lanes_[lane].submitted);
        restated.swap(lanes_[lane].restated);
    }

    void take_stale(int lane, std::vector<int>& stale) {
        std::lock_guard<std::mutex> lock(mutex_);
        stale.clear();
        stale.swap(lanes_[lane].stale);
    }

    // Whether there may be something to take, in some lane, since this was last asked.
    bool take_bell() {
        std::lock_guard<std::mutex> lock(mutex_);
        const bool rung = bell_;
        bell_ = false;
        return rung;
    }

    void doze(int64_t ns) {
        std::unique_lock<std::mutex> lock(mutex_);
        dozing_ = true;
        bell_cv_.wait_for(lock, std::chrono::nanoseconds(ns), [this] { return bell_; });
        dozing_ = false;
    }

    // Growth moves no slot (deque), and a SUBMITTED one belongs to the engine: what is behind the reference needs no lock.
    Slot& slot(int id) {
        std::lock_guard<std::mutex> lock(mutex_);
        return slots_[id];
    }

    bool busy(int id) {
        std::lock_guard<std::mutex> lock(mutex_);
        return slots_[id].state == Slot::SUBMITTED;
    }

    void bunch(const std::vector<int>& ids) {
        std::lock_guard<std::mutex> lock(mutex_);
        Bunch* bunch = new Bunch{(int)ids.size(), 0};
        for (int id : ids) {
            slots_[id].bunch = bunch;
            bunch->submitted += slots_[id].state == Slot::SUBMITTED;
        }
    }

    void unbunch(const std::vector<int>& ids) {
        std::lock_guard<std::mutex> lock(mutex_);
        if (!ids.empty()) delete slots_[ids[0]].bunch;
        for (int id : ids) slots_[id].bunch = nullptr;
    }

    // The data plane has these slots from now on: a verdict on their group no longer reaches them.
    void begin(const std::vector<int>& ids) {
        std::lock_guard<std::mutex> lock(mutex_);
        for (int id : ids) slots_[id].executing = true;
    }

    void complete(const std::vector<int>& ids, int status, const std::string& message) {
        std::vector<Waiter*> ready;
        std::vector<void*> owners;
        Results failed;
        Release release;
        {
            std::lock_guard<std::mutex> lock(mutex_);
            for (int id : ids) settle(slots_[id], status, message, ready, owners, failed);
            release = release_;
        }
        for (void* owner : owners) release(owner);
        for (Result& result : failed) result.discard();
        for (Waiter* waiter : ready) fire(waiter);
    }

    // The ranks refused this group: fails what is here now and what still belongs to the current or next round.
    // Returns the members that were pending.
    std::vector<int> fail_group(int id, int status, const std::string& message) {
        std::vector<int> pending;
        {
            std::lock_guard<std::mutex> lock(mutex_);
            Group& group = groups_[id];
            for (int member : group.members)
                if (slots_[member].state == Slot::SUBMITTED && !slots_[member].executing) pending.push_back(member);
            auto failed = [&](int slot) { return std::find(pending.begin(), pending.end(), slot) != pending.end(); };
            std::vector<int>& queue = lanes_[group.lane].submitted;
            queue.erase(std::remove_if(queue.begin(), queue.end(), failed), queue.end());
            if (group.arrived > 0 || pending.empty()) {
                group.failure = status;
                group.message = message;
            }
        }
        complete(pending, status, message);
        return pending;
    }

    std::vector<int> pending(int lane) {
        std::lock_guard<std::mutex> lock(mutex_);
        std::vector<int> ids;
        for (size_t id = 0; id < slots_.size(); id++)
            if (slots_[id].state == Slot::SUBMITTED && groups_[slots_[id].group].lane == lane) ids.push_back((int)id);
        return ids;
    }

    void set_release(Release release) { release_ = release; }
    static const char* error() { return last_error().c_str(); }

  private:
    static std::string& last_error() {
        static thread_local std::string text;
        return text;
    }

    static int refuse(int status, const std::string& message) {
        last_error() = message;
        return status;
    }

    static bool same_shape(const Slot& slot, int ndim, const int64_t* shape) {
        if ((int)slot.shape.size() != ndim) return false;
        for (int i = 0; i < ndim; i++)
            if (slot.shape[i] != shape[i] && slot.shape[i] != ANY_ROWS) return false;
        return true;
    }

    static bool any_rows(const Slot& slot) { return !slot.shape.empty() && slot.shape[0] == ANY_ROWS; }

    // Notes how many rows came and how they are split; says what is wrong with them.
    static std::string take_rows(Slot& slot, int ndim, const int64_t* shape, const std::vector<int64_t>& splits) {
        if (ndim == 0) return "is a scalar; give it at least one dimension";
        slot.rows = shape[0];
        if (slot.peers == 0) return "";
        const std::string has = "has " + std::to_string(slot.rows) + " rows, ";
        if (splits.empty()) {
            if (slot.rows % slot.peers != 0)
                return has + "which " + std::to_string(slot.peers) + " ranks can not share equally; give splits";
            slot.splits.assign(slot.peers, slot.rows / slot.peers);
            return "";
        }
        int64_t total = 0;
        for (int64_t split : splits) {
            if (split < 0) return "has the negative split " + std::to_string(split);
            total += split;
        }
        if ((int)splits.size() != slot.peers)
            return "has " + std::to_string(splits.size()) + " splits for " + std::to_string(slot.peers) + " ranks";
        if (total != slot.rows) return has + "but its splits sum to " + std::to_string(total);
        slot.splits = splits;
        return "";
    }

    void start_round(Group& group) {
        for (int member : group.members) slots_[member].arrived = false;
        group.arrived = 0;
    }

    // False when the ranks have refused the group already: the slot fails at once.
    bool enqueue(int id, Slot& slot, Group& group) {
        if (group.failure != OK) {
            slot.state = Slot::FAILED;
            slot.status = group.failure;
            slot.message = group.message;
            slot.owners[0] = slot.owners[1] = nullptr;
            return false;
        }
        if (group.held) return true;
        queue(id, slot);
        if (slot.bunch == nullptr || ++slot.bunch->submitted >= slot.bunch->size) wake();
        return true;
    }

    void queue(int id, Slot& slot) {
        lane_of(slot).submitted.push_back(id);
        slot.queued = true;
    }

    void drop(void* owner_src, void* owner_dst) {
        if (owner_src != nullptr) release_(owner_src);
        if (owner_dst != nullptr) release_(owner_dst);
    }

    void end_round(int id, Group& group) {
        start_round(group);
        group.failure = OK;
        if (!group.held) return;
        for (int member : group.members)
            if (slots_[member].state == Slot::SUBMITTED && !slots_[member].queued) queue(member, slots_[member]);
        if (group.restated) {
            Lane& lane = lanes_[group.lane];
            lane.restated.push_back(id);
            lane.stale.insert(lane.stale.end(), group.members.begin(), group.members.end());
        }
        group.restated = false;
        wake();
    }

    Lane& lane_of(const Slot& slot) { return lanes_[groups_[slot.group].lane]; }

    void make_lane(int lane) {
        while ((int)lanes_.size() <= lane) lanes_.emplace_back();
    }

    void wake() {
        bell_ = true;
        if (dozing_) bell_cv_.notify_one();
    }

    void settle(Slot& slot, int status, const std::string& message, std::vector<Waiter*>& ready,
                std::vector<void*>& owners, Results& failed) {
        slot.state = status == OK ? Slot::DONE : Slot::FAILED;
        slot.status = status;
        if (status != OK && slot.result.handle != nullptr) {
            failed.emplace_back();
            std::swap(failed.back(), slot.result);
        }
        slot.queued = slot.executing = false;
        if (status != OK) slot.message = message;
        if (slot.bunch != nullptr) slot.bunch->submitted--;
        for (void*& owner : slot.owners) {
            if (owner != nullptr) owners.push_back(owner);
            owner = nullptr;
        }
        Waiter* waiter = slot.waiter;
        slot.waiter = nullptr;
        if (waiter == nullptr) return;
        consume(slot, waiter);
        if (--waiter->remaining == 0) ready.push_back(waiter);
    }

    static void consume(Slot& slot, Waiter* waiter) {
        if (slot.state == Slot::FAILED) blame(waiter, slot.status, slot.message);
        if (slot.state == Slot::DONE) std::swap(waiter->results[slot.place], slot.result);
        slot.state = Slot::FREE;
    }

    static void blame(Waiter* waiter, int status, const std::string& message) {
        if (waiter->status != OK) return;  // the first cause is the one to tell
        waiter->status = status;
        waiter->message = message;
    }

    static void fire(Waiter* waiter) {
        waiter->callback(waiter->arg, waiter->status, waiter->message.c_str(), waiter->results);
        for (Result& result : waiter->results) result.discard();
        delete waiter;
    }

    std::mutex mutex_;
    std::condition_variable bell_cv_;
    std::deque<Slot> slots_;
    std::deque<Group> groups_;
    std::deque<Lane> lanes_;
    bool bell_ = false;
    bool dozing_ = false;
    Release release_ = nullptr;
};

}  // namespace fusionctl
