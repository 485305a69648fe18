// Elementwise functions of the parameters of a tensor, in one pass over it.
//
// XLA calls the handler on CPUs; __init__.py registers it. A function is a list of
// instructions, compiled by program.py. Each instruction is executed on one block of
// elements at a time: intermediate results stay in the L1 cache, and main memory is
// read and written once.

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "instructions.h"
#include "layers.h"
#include "tensors.h"
#include "xla/ffi/api/ffi.h"

namespace {

constexpr int64_t kCache = 28 * 1024 / sizeof(float);  // floats in all rows of a block
constexpr int64_t kShare = 4096;  // elements of a share, the unit of work of a thread

// A function and its operands. Places are numbered in this order: arrays, scalars among
// the weights, constants, and rows that instructions write to.
struct Function {
  Integers shape, scalars, layers, instructions, results;
  ffi::Span<const float> constants;
  int64_t num_arrays, num_places, size, num_members;
  std::vector<Operand> operands;
  bool is_reduction;
  float* out;

  int64_t num_shares() const { return (size + kShare - 1) / kShare; }  // per member
  int64_t first_row() const {
    return num_arrays + scalars.size() + constants.size();
  }
  int64_t widest() const {
    int64_t widest = 0;
    for (size_t i = 2; i < layers.size(); i += 2)
      widest = std::max(widest, operands[layers[i]].shape[1]);
    return widest;
  }
  bool is_whole(int64_t array) const {
    int64_t num = 1;
    for (int64_t n : operands[array].shape) num *= n;
    return num == size;
  }
  int64_t block() const {
    int64_t num_rows = 1 + num_places;
    for (int64_t i = 0; i < num_arrays; ++i) num_rows -= is_whole(i);
    const int64_t most = std::min(kCache / num_rows, std::min(kShare, size));
    return std::max<int64_t>(1, most / kTile) * kTile;
  }
};

// Evaluates a function on ranges of elements, in one thread.
class Worker {
 public:
  explicit Worker(const Function& function)
      : function_(function),
        block_(function.block()),
        places_(function.num_places, block_),
        hidden_{Rows(function.widest(), kTile), Rows(function.widest(), kTile)},
        now_(places_.get(), places_.get() + function.num_places),
        filled_(function.num_arrays),
        layers_(function.layers.size() / 2) {
    for (int64_t i = 0; i < function.num_arrays; ++i) {
      strides_.emplace_back(function.operands[i].shape, function.shape);
      (function.is_whole(i) ? whole_ : partial_).push_back(i);
    }
    const int64_t first = function.first_row() - function.constants.size();
    for (size_t i = 0; i < function.constants.size(); ++i)
      std::fill_n(places_[first + i], block_, function.constants[i]);
  }

  // Writes the results for a range of elements of one member, or adds their squares to
  // `sums`.
  void Run(int64_t member, int64_t begin, int64_t end, double* sums) {
    if (member != member_) Take(member);
    Position position(function_.shape, begin);
    while (begin < end) {
      int64_t size = end - begin;
      size = size < kTile ? size : std::min(block_, size / kTile * kTile);
      Read(begin, position, size);
      Block(begin, size, sums);
      begin += size;
    }
  }

 private:
  void Take(int64_t member) {
    member_ = member;
    for (size_t i = 0; i < function_.scalars.size(); ++i)
      std::fill_n(places_[function_.num_arrays + i], block_,
                  *function_.operands[function_.scalars[i]].Of(member));
    for (size_t i = 0; i < layers_.size(); ++i) {
      const Operand& kernel = function_.operands[function_.layers[2 * i]];
      const Operand& bias = function_.operands[function_.layers[2 * i + 1]];
      layers_[i] = {kernel.Of(member), bias.Of(member), kernel.shape[0],
                    kernel.shape[1]};
    }
  }

  // Points to a block of every array, or copies it, and advances the position. Blocks
  // smaller than a tile are copied. The rest of their tile holds stale values, whose
  // results are discarded.
  void Read(int64_t begin, Position& position, int64_t size) {
    for (int64_t i : whole_) {
      const float* from = function_.operands[i].Of(member_) + begin;
      if (size < kTile) std::memcpy(places_[i], from, size * sizeof(float));
      now_[i] = size < kTile ? places_[i] : const_cast<float*>(from);  // never written
    }
    if (size >= kTile && size <= position.rest()) {
      for (int64_t i : partial_) {
        const float* from = Find(i, position);
        const bool is_constant = strides_[i].is_constant();
        if (is_constant && filled_[i] != from)
          std::fill_n(places_[i], block_, *from), filled_[i] = from;
        now_[i] = is_constant ? places_[i] : const_cast<float*>(from);
      }
      return position.Advance(size);
    }
    for (int64_t num, done = 0; done < size; done += num, position.Advance(num)) {
      num = std::min(size - done, position.rest());
      for (int64_t i : partial_) {
        const float* from = Find(i, position);
        if (strides_[i].is_constant())
          std::fill_n(places_[i] + done, num, *from);
        else
          std::memcpy(places_[i] + done, from, num * sizeof(float));
      }
    }
    for (int64_t i : partial_) now_[i] = places_[i], filled_[i] = nullptr;
  }

  const float* Find(int64_t array, const Position& position) const {
    return function_.operands[array].Of(member_) + strides_[array].Find(position);
  }

  void Block(int64_t begin, int64_t size, double* sums) {
    const int64_t result = function_.results[0];
    float* out = function_.is_reduction ? nullptr
                                   : function_.out + member_ * function_.size + begin;
    // Write the result directly to the output, without a copy.
    const bool in_place = out && size >= kTile && result >= function_.first_row();
    if (in_place) now_[result] = out;
    for (const int64_t* at = function_.instructions.begin();
         at < function_.instructions.end(); at += 3 + at[1] + at[2])
      Execute(at[0], at + 3, at[1], at + 3 + at[1], at[2], std::max(size, kTile));
    if (in_place) now_[result] = places_[result];
    if (out && !in_place) std::memcpy(out, now_[result], size * sizeof(float));
    if (function_.is_reduction)
      for (size_t i = 0; i < function_.results.size(); ++i)
        sums[i] += SumOfSquares(now_[function_.results[i]], size);
  }

  void Execute(int64_t operation, const int64_t* in, int64_t num_in, const int64_t* out,
               int64_t num_out, int64_t size) {
    if (operation != kLayers)
      return Compute(operation, now_[in[0]], now_[in[num_in - 1]], now_[out[0]], size);
    in_.clear(), out_.clear();
    for (int64_t i = 0; i < num_in; ++i) in_.push_back(now_[in[i]]);
    for (int64_t i = 0; i < num_out; ++i) out_.push_back(now_[out[i]]);
    for (int64_t at = 0; at < size; at += kTile) Network(at);
  }

  // Applies all layers to one tile.
  void Network(int64_t at) {
    Input in{in_.data(), at};
    const Output out{out_.data(), at};
    const size_t num = layers_.size();
    const bool is_joined = num > 1 && out_.size() <= 3;
    for (size_t i = 0; i + 1 + is_joined < num; ++i) {
      float* const* rows = hidden_[i % 2].get();
      Apply<true>(layers_[i], in, {rows, 0});
      in = {rows, 0};
    }
    if (!is_joined) return Apply<false>(layers_[num - 1], in, out);
    const Layer &hidden = layers_[num - 2], &last = layers_[num - 1];
    switch (out_.size()) {
      case 1: return ApplyLast<1>(hidden, last, in, out);
      case 2: return ApplyLast<2>(hidden, last, in, out);
      default: return ApplyLast<3>(hidden, last, in, out);
    }
  }

  const Function& function_;
  const int64_t block_;
  const Rows places_, hidden_[2];
  std::vector<float*> now_;           // address of each place for this block
  std::vector<const float*> filled_;  // source of a constant row, or null
  std::vector<Layer> layers_;
  std::vector<Strides> strides_;
  std::vector<int64_t> whole_, partial_;  // full-size and broadcast arrays
  std::vector<const float*> in_;
  std::vector<float*> out_;
  int64_t member_ = -1;
};

// --------------------------------------------------------------------------- Threads

// Work queue: threads take shares until none is left.
class Job {
 public:
  explicit Job(Function function)
      : function_(std::move(function)),
        num_(function_.num_members * function_.num_shares()),
        sums_(function_.is_reduction ? num_ * function_.results.size() : 0) {}

  void Help() {
    int64_t i = next_++;
    if (i >= num_) return;  // buffers may have been freed by now
    Worker worker(function_);
    for (; i < num_; i = next_++) {
      const int64_t begin = i % function_.num_shares() * kShare;
      worker.Run(i / function_.num_shares(), begin,
                 std::min(begin + kShare, function_.size),
                 sums_.data() + i * function_.results.size());
      if (++num_done_ == num_) {
        std::lock_guard lock(mutex_);
        done_.notify_all();
      }
    }
  }

  void Wait() {
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return num_done_ == num_; });
  }

  // Adds the sums of all shares in a fixed order, independent of threads.
  void WriteMeans() const {
    const int64_t num = function_.results.size(), num_shares = function_.num_shares();
    for (int64_t member = 0; member < function_.num_members; ++member)
      for (int64_t j = 0; j < num; ++j) {
        double sum = 0.0;
        for (int64_t i = 0; i < num_shares; ++i)
          sum += sums_[(member * num_shares + i) * num + j];
        function_.out[member * num + j] = sum / function_.size;
      }
  }

 private:
  const Function function_;
  const int64_t num_;
  std::vector<double> sums_;
  std::atomic<int64_t> next_{0}, num_done_{0};
  std::mutex mutex_;
  std::condition_variable done_;
};

ffi::Error Run(ffi::ThreadPool pool, ffi::RemainingArgs args,
               ffi::Result<ffi::Buffer<ffi::F32>> out, Integers shape,
               Integers is_batched, Integers scalars, Integers layers,
               Integers instructions, ffi::Span<const float> constants,
               Integers results, int64_t num_arrays, int64_t num_places,
               int64_t num_members, bool is_reduction) {
  Function function{shape, scalars, layers, instructions, results, constants,
                    num_arrays, num_places, 1, num_members, {}, is_reduction,
                    out->typed_data()};
  for (int64_t n : shape) function.size *= n;
  for (size_t i = 0; i < args.size(); ++i) {
    auto found = args.get<ffi::Buffer<ffi::F32>>(i);
    if (!found) return found.error();
    const Integers whole = found->dimensions();
    const int64_t stride = is_batched[i] ? found->element_count() / num_members : 0;
    const Integers one(whole.begin() + is_batched[i], whole.size() - is_batched[i]);
    function.operands.push_back({found->typed_data(), one, stride});
  }
  const int64_t num_threads =
      std::min(pool.num_threads(), num_members * function.size / (2 * kShare));
  // Helpers that start after all shares are taken return at once. `Wait` waits for
  // shares, not for helpers.
  auto job = std::make_shared<Job>(std::move(function));
  for (int64_t i = 1; i < num_threads; ++i) pool.Schedule([job] { job->Help(); });
  job->Help();
  job->Wait();
  if (is_reduction) job->WriteMeans();
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(LoptElementwise, Run,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .RemainingArgs()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Attr<Integers>("shape")
                                  .Attr<Integers>("is_batched")
                                  .Attr<Integers>("scalars")
                                  .Attr<Integers>("layers")
                                  .Attr<Integers>("instructions")
                                  .Attr<ffi::Span<const float>>("constants")
                                  .Attr<Integers>("results")
                                  .Attr<int64_t>("num_arrays")
                                  .Attr<int64_t>("num_places")
                                  .Attr<int64_t>("num_members")
                                  .Attr<bool>("is_reduction"));
