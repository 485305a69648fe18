// Functions that treat every parameter of a tensor alone, in one pass over it.
//
// XLA calls this on CPUs, by way of native.py. A function is a list of instructions,
// as program.py makes them. Each is carried out for a block of parameters at a time:
// what is in between stays in the fastest cache, and memory is read and written once.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace {

namespace ffi = xla::ffi;
using Integers = ffi::Span<const int64_t>;

// A tile is what registers hold: sums of a few outputs for a few vectors of parameters.
#ifdef __AVX512F__
constexpr int kLanes = 16, kOutputs = 8;
#else
constexpr int kLanes = 8, kOutputs = 4;
#endif
constexpr int kVectors = 3;
constexpr int64_t kTile = kLanes * kVectors;
constexpr int64_t kCache = 28 * 1024 / sizeof(float);  // for all rows of a block
constexpr int64_t kShare = 4096;  // parameters that a thread takes at a time
constexpr int64_t kLine = 64 / sizeof(float);

// ---------------------------------------------------------------------------- Layers

using Vector = float __attribute__((vector_size(4 * kLanes)));
using Unaligned = float __attribute__((vector_size(4 * kLanes), aligned(4)));

Vector Load(const float* from) { return *reinterpret_cast<const Unaligned*>(from); }
void Store(float* to, Vector x) { *reinterpret_cast<Unaligned*>(to) = x; }
Vector Fill(float x) { return x - Vector{}; }

struct Layer {
  const float* kernel;  // (outputs, inputs)
  const float* bias;
  int64_t num_outputs, num_inputs;
};

// Where a tile is: rows of parameters, and the first of them.
template <typename Number>
struct Place {
  Number* const* rows;
  int64_t at;
  Number* operator()(int64_t row, int vector) const {
    return rows[row] + at + vector * kLanes;
  }
};
using Input = Place<const float>;
using Output = Place<float>;

// Calls `use(unit, vector, sum)` for the units of a layer, a few of them at a time.
template <typename Use>
__attribute__((always_inline)) inline void ForEachUnit(const Layer& layer, Input in,
                                                       Use use) {
  const int64_t num_inputs = layer.num_inputs;
  for (int64_t first = 0; first < layer.num_outputs; first += kOutputs) {
    // The last few are computed again where there are not enough of them.
    const int64_t num = std::min<int64_t>(kOutputs, layer.num_outputs - first);
    const float* weights[kOutputs];
    Vector sums[kOutputs][kVectors];
    for (int j = 0; j < kOutputs; ++j) {
      const int64_t unit = first + std::min<int64_t>(j, num - 1);
      weights[j] = layer.kernel + unit * num_inputs;
      for (int v = 0; v < kVectors; ++v) sums[j][v] = Fill(layer.bias[unit]);
    }
    for (int64_t i = 0; i < num_inputs; ++i) {
      Vector x[kVectors];
      for (int v = 0; v < kVectors; ++v) x[v] = Load(in(i, v));
      for (int j = 0; j < kOutputs; ++j) {
        const Vector weight = Fill(weights[j][i]);
        for (int v = 0; v < kVectors; ++v) sums[j][v] += weight * x[v];
      }
    }
    for (int j = 0; j < kOutputs; ++j)
      if (j < num)
        for (int v = 0; v < kVectors; ++v) use(first + j, v, sums[j][v]);
  }
}

// What is not a number remains so.
Vector Relu(Vector x) { return x < 0.0f ? Vector{} : x; }

template <bool relu>
__attribute__((noinline)) void Apply(const Layer& layer, Input in, Output out) {
  ForEachUnit(layer, in, [&](int64_t unit, int v, Vector sum) {
    Store(out(unit, v), relu ? Relu(sum) : sum);
  });
}

// Applies the last two layers, of which the second has `n` outputs: units between them
// are used up as they come.
template <int n>
__attribute__((noinline)) void ApplyLast(const Layer& hidden, const Layer& last,
                                         Input in, Output out) {
  Vector sums[n][kVectors];
  for (int j = 0; j < n; ++j)
    for (int v = 0; v < kVectors; ++v) sums[j][v] = Fill(last.bias[j]);
  ForEachUnit(hidden, in, [&](int64_t unit, int v, Vector sum) {
    const Vector x = Relu(sum);
    for (int j = 0; j < n; ++j)
      sums[j][v] += Fill(last.kernel[j * last.num_inputs + unit]) * x;
  });
  for (int j = 0; j < n; ++j)
    for (int v = 0; v < kVectors; ++v) Store(out(j, v), sums[j][v]);
}

// ---------------------------------------------------------------------- Instructions

// In the order of `OPERATIONS` in program.py.
enum Operation { kLayers, kAdd, kSub, kMul, kDiv, kMax, kMin, kNeg, kAbs, kSqrt,
                 kRsqrt, kExp };

float Exp(float x) {
  x = x < -104.0f ? -104.0f : x > 89.0f ? 89.0f : x;
  const float shifted = x * 1.44269504f + 12582912.0f;  // rounds: 1.5 * 2^23
  const float whole = shifted - 12582912.0f;
  const float rest = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;
  float y = 1.9875691500e-4f;
  y = y * rest + 1.3981999507e-3f;
  y = y * rest + 8.3334519073e-3f;
  y = y * rest + 4.1665795894e-2f;
  y = y * rest + 1.6666665459e-1f;
  y = y * rest + 5.0000001201e-1f;
  y = y * rest * rest + rest + 1.0f;
  // A power of two in two factors, each of them in range.
  const int32_t exponent = static_cast<int32_t>(x == x ? whole : 0.0f);
  const int32_t half = exponent >> 1;
  const auto power = [](int32_t n) {
    const int32_t bits = (n + 127) << 23;
    float found;
    std::memcpy(&found, &bits, sizeof(found));
    return found;
  };
  return y * power(half) * power(exponent - half);
}

template <typename Function>
void Each(Function function, const float* __restrict a, const float* __restrict b,
          float* __restrict out, int64_t size) {
  for (int64_t i = 0; i < size; ++i) out[i] = function(a[i], b[i]);
}

void Compute(int64_t operation, const float* a, const float* b, float* out,
             int64_t size) {
  const auto each = [&](auto function) { Each(function, a, b, out, size); };
  // The largest and the smallest of two are not numbers if one of them is not.
  switch (operation) {
    case kAdd: return each([](float x, float y) { return x + y; });
    case kSub: return each([](float x, float y) { return x - y; });
    case kMul: return each([](float x, float y) { return x * y; });
    case kDiv: return each([](float x, float y) { return x / y; });
    case kMax: return each([](float x, float y) { return x < y || y != y ? y : x; });
    case kMin: return each([](float x, float y) { return y < x || y != y ? y : x; });
    case kNeg: return each([](float x, float) { return -x; });
    case kAbs: return each([](float x, float) { return std::fabs(x); });
    case kSqrt: return each([](float x, float) { return std::sqrt(x); });
    case kRsqrt: return each([](float x, float) { return 1.0f / std::sqrt(x); });
    case kExp: return each([](float x, float) { return Exp(x); });
  }
}

double SumOfSquares(const float* x, int64_t size) {
  float lanes[kTile] = {};
  int64_t i = 0;
  for (; i + kTile <= size; i += kTile)
    for (int lane = 0; lane < kTile; ++lane) lanes[lane] += x[i + lane] * x[i + lane];
  double sum = 0.0;
  for (float lane : lanes) sum += lane;
  for (; i < size; ++i) sum += x[i] * x[i];
  return sum;
}

// --------------------------------------------------------------------------- Tensors

// An operand: one tensor, or as many as there are members.
struct Operand {
  const float* data;
  Integers shape;   // of one
  int64_t stride;   // from one member to the next

  const float* Of(int64_t member) const { return data + member * stride; }
};

// Where an element is, counted along each dimension of the tensor.
class Position {
 public:
  Position(Integers shape, int64_t element) : shape_(shape), index_(shape.size()) {
    for (size_t i = shape.size(); i-- > 0; element /= shape[i])
      index_[i] = element % shape[i];
  }
  int64_t operator[](size_t i) const { return index_[i]; }

  // How many elements there are to the end of the last dimension.
  int64_t rest() const { return shape_[shape_.size() - 1] - index_.back(); }

  // Goes on; at most to that end.
  void Advance(int64_t num) {
    index_.back() += num;
    for (size_t i = shape_.size(); i-- > 1 && index_[i] == shape_[i];)
      index_[i] = 0, ++index_[i - 1];
  }

 private:
  Integers shape_;
  std::vector<int64_t> index_;
};

// Where the elements of an array are that does not change along some dimensions.
class Strides {
 public:
  Strides(Integers shape, Integers whole) : strides_(whole.size()) {
    int64_t size = 1;
    for (size_t i = whole.size(); i-- > 0; size *= shape[i])
      strides_[i] = shape[i] == 1 && whole[i] != 1 ? 0 : size;
  }
  int64_t Find(const Position& position) const {
    int64_t offset = 0;
    for (size_t i = 0; i < strides_.size(); ++i) offset += position[i] * strides_[i];
    return offset;
  }
  bool is_constant() const { return strides_.back() == 0; }  // along the last dimension

 private:
  std::vector<int64_t> strides_;
};

// Rows of numbers that begin where cache lines do.
class Rows {
 public:
  Rows(int64_t num, int64_t size) : memory_(num * size + kLine) {
    const auto address = reinterpret_cast<uintptr_t>(memory_.data()) / sizeof(float);
    float* row = memory_.data() + (kLine - address % kLine) % kLine;
    for (int64_t i = 0; i < num; ++i, row += size) rows_.push_back(row);
  }
  float* operator[](int64_t i) const { return rows_[i]; }
  float* const* get() const { return rows_.data(); }

 private:
  std::vector<float> memory_;
  std::vector<float*> rows_;
};

// What is to be computed. Places are, one after the other: arrays, scalars among the
// weights, constants, and rows that instructions write to.
struct Function {
  Integers shape, scalars, layers, instructions, results;
  ffi::Span<const float> constants;
  int64_t num_arrays, num_places, size, num_members;
  std::vector<Operand> operands;
  bool is_mean;
  float* out;

  int64_t num_shares() const { return (size + kShare - 1) / kShare; }  // of a member
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

// Calls a function on parts of tensors, in one thread.
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

  // Writes the results for elements of one member, or adds up their squares.
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

  // Finds a block of every array, or copies it, and moves the position behind it. Less
  // than a tile is copied, in front of what was there before, which does no harm.
  void Read(int64_t begin, Position& position, int64_t size) {
    for (int64_t i : whole_) {
      const float* from = function_.operands[i].Of(member_) + begin;
      if (size < kTile) std::memcpy(places_[i], from, size * sizeof(float));
      now_[i] = size < kTile ? places_[i] : const_cast<float*>(from);  // only read
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
    float* out = function_.is_mean ? nullptr
                                   : function_.out + member_ * function_.size + begin;
    // The last instruction writes where the result is to be.
    const bool in_place = out && size >= kTile && result >= function_.first_row();
    if (in_place) now_[result] = out;
    for (const int64_t* at = function_.instructions.begin();
         at < function_.instructions.end(); at += 3 + at[1] + at[2])
      Execute(at[0], at + 3, at[1], at + 3 + at[1], at[2], std::max(size, kTile));
    if (in_place) now_[result] = places_[result];
    if (out && !in_place) std::memcpy(out, now_[result], size * sizeof(float));
    if (function_.is_mean)
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
  std::vector<float*> now_;           // where each place is, for this block
  std::vector<const float*> filled_;  // what a row is full of, if it is of one number
  std::vector<Layer> layers_;
  std::vector<Strides> strides_;
  std::vector<int64_t> whole_, partial_;  // arrays as large as the tensor, and others
  std::vector<const float*> in_;
  std::vector<float*> out_;
  int64_t member_ = -1;
};

// --------------------------------------------------------------------------- Threads

// Work that threads take shares of until none is left.
class Job {
 public:
  explicit Job(Function function)
      : function_(std::move(function)),
        num_(function_.num_members * function_.num_shares()),
        sums_(function_.is_mean ? num_ * function_.results.size() : 0) {}

  void Help() {
    int64_t i = next_++;
    if (i >= num_) return;  // what the function points to may be gone by now
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

  // Adds up the sums of all shares in their order, whoever computed them.
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
               int64_t num_members, bool is_mean) {
  Function function{shape, scalars, layers, instructions, results, constants,
                    num_arrays, num_places, 1, num_members, {}, is_mean,
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
  // Helpers that come when all is taken find nothing to do: nobody waits for them.
  auto job = std::make_shared<Job>(std::move(function));
  for (int64_t i = 1; i < num_threads; ++i) pool.Schedule([job] { job->Help(); });
  job->Help();
  job->Wait();
  if (is_mean) job->WriteMeans();
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(LoptPointwise, Run,
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
                                  .Attr<bool>("is_mean"));
