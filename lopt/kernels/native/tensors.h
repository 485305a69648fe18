// Operands, positions and strides of tensors, and scratch rows.

#pragma once

#include <cstdint>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace {

namespace ffi = xla::ffi;
using Integers = ffi::Span<const int64_t>;

constexpr int64_t kLine = 64 / sizeof(float);

// An operand: one tensor, or one for each batch member.
struct Operand {
  const float* data;
  Integers shape;   // of one member
  int64_t stride;   // between members; 0 if they share the operand

  const float* Of(int64_t member) const { return data + member * stride; }
};

// Multi-dimensional index of an element.
class Position {
 public:
  Position(Integers shape, int64_t element) : shape_(shape), index_(shape.size()) {
    for (size_t i = shape.size(); i-- > 0; element /= shape[i])
      index_[i] = element % shape[i];
  }
  int64_t operator[](size_t i) const { return index_[i]; }

  // Number of elements up to the end of the last dimension.
  int64_t rest() const { return shape_[shape_.size() - 1] - index_.back(); }

  // Advances by `num` elements, at most `rest()`.
  void Advance(int64_t num) {
    index_.back() += num;
    for (size_t i = shape_.size(); i-- > 1 && index_[i] == shape_[i];)
      index_[i] = 0, ++index_[i - 1];
  }

 private:
  Integers shape_;
  std::vector<int64_t> index_;
};

// Strides of an array that is broadcast to the shape `whole`.
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

// Scratch rows in one allocation, the first of which is aligned to a cache line.
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

}  // namespace
