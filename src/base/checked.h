// Integer arithmetic that says when it overflows: for every number that a file or a request
// supplies.
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>

namespace rota {

template <std::integral T>
std::optional<T> checked_add(T a, T b) {
  T sum;
  if (__builtin_add_overflow(a, b, &sum)) return std::nullopt;
  return sum;
}

template <std::integral T>
std::optional<T> checked_mul(T a, T b) {
  T product;
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

}  // namespace rota
