// Values to JSON and back, for wire.cc alone: a struct is the array of its members in the order in
// which visit_members() names them; a list of numbers is one binary string.
#pragma once

#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "engine/wire.h"

namespace rota::wire {

using Json = nlohmann::json;

// --- The structs: their members, once for both directions. T is the struct or const of it. ---

template <typename T, typename Struct>
concept Is = std::is_same_v<std::remove_const_t<T>, Struct>;

template <Is<SamplingParams> T, typename Visit>
void visit_members(T& it, Visit&& visit) {
  visit(it.temperature), visit(it.top_k), visit(it.top_p), visit(it.min_p);
  visit(it.presence_penalty), visit(it.frequency_penalty), visit(it.repetition_penalty);
  visit(it.logit_bias), visit(it.seed), visit(it.max_tokens), visit(it.min_tokens);
  visit(it.ignore_eos), visit(it.stop_token_ids), visit(it.logprobs), visit(it.prompt_logprobs);
}
template <Is<EngineRequest> T, typename Visit>
void visit_members(T& it, Visit&& visit) {
  visit(it.id), visit(it.prompt), visit(it.sampling), visit(it.priority);
  visit(it.cache_salt), visit(it.trace_experts), visit(it.generated);
}
template <Is<OutputToken> T, typename Visit>
void visit_members(T& it, Visit&& visit) {
  visit(it.id), visit(it.logprobs), visit(it.experts);
}
template <Is<RequestOutput> T, typename Visit>
void visit_members(T& it, Visit&& visit) {
  visit(it.id), visit(it.tokens), visit(it.prompt_logprobs), visit(it.finish_reason);
  visit(it.stop_token), visit(it.cached_tokens), visit(it.status);
}
template <Is<EngineInfo> T, typename Visit>
void visit_members(T& it, Visit&& visit) {
  visit(it.model_type), visit(it.vocab_size), visit(it.max_model_len), visit(it.kv_tokens);
  visit(it.eos_token_ids), visit(it.moe_layers), visit(it.experts), visit(it.top_k);
  visit(it.choices), visit(it.max_sequence_tokens), visit(it.max_num_seqs), visit(it.max_waiting);
  visit(it.default_sampling), visit(it.topology);
}
template <Is<EngineTopology> T, typename Visit>
void visit_members(T& it, Visit&& visit) {
  visit(it.tensor_parallel), visit(it.data_parallel), visit(it.expert_parallel);
  visit(it.transport), visit(it.expert_placement), visit(it.experts_move);
  visit(it.redundant_experts), visit(it.ranks);
}
template <Is<RankPlace> T, typename Visit>
void visit_members(T& it, Visit&& visit) {
  visit(it.rank), visit(it.data_rank), visit(it.tensor_rank), visit(it.host), visit(it.pid);
  visit(it.threads), visit(it.cpus), visit(it.experts);
}
template <Is<Histogram> T, typename Visit>
void visit_members(T& it, Visit&& visit) {
  visit(it.bounds), visit(it.counts), visit(it.sum);
}
template <Is<RankStats> T, typename Visit>
void visit_members(T& it, Visit&& visit) {
  visit(it.rank), visit(it.running), visit(it.waiting), visit(it.kv_usage), visit(it.tokens);
  visit(it.steps), visit(it.dummy_steps), visit(it.header_bytes), visit(it.payload_bytes);
  visit(it.operations), visit(it.step_seconds), visit(it.communication_seconds);
  visit(it.header_seconds);
  visit(it.expert_tokens);
}
template <Is<ExpertBalance> T, typename Visit>
void visit_members(T& it, Visit&& visit) {
  visit(it.looks), visit(it.moves), visit(it.imbalance), visit(it.held);
}
template <Is<EngineStats> T, typename Visit>
void visit_members(T& it, Visit&& visit) {
  visit(it.running), visit(it.waiting), visit(it.kv_usage), visit(it.prefix_queries);
  visit(it.prefix_hits), visit(it.preemptions), visit(it.prompt_tokens);
  visit(it.generation_tokens), visit(it.steps), visit(it.replayed_steps), visit(it.eager_steps);
  visit(it.captured_steps), visit(it.step_seconds), visit(it.major_faults);
  visit(it.iteration_tokens), visit(it.queue_time), visit(it.prefill_time);
  visit(it.decode_time), visit(it.expert_tokens), visit(it.ranks);
  visit(it.balance);
}
template <Is<Start> T, typename Visit>
void visit_members(T& it, Visit&& visit) {
  visit(it.options);
}
template <Is<Submit> T, typename Visit>
void visit_members(T& it, Visit&& visit) {
  visit(it.request);
}
template <Is<Cancel> T, typename Visit>
void visit_members(T& it, Visit&& visit) {
  visit(it.id);
}
template <Is<Hello> T, typename Visit>
void visit_members(T& it, Visit&& visit) {
  visit(it.info);
}
template <Is<Failed> T, typename Visit>
void visit_members(T& it, Visit&& visit) {
  visit(it.status);
}
template <Is<Outputs> T, typename Visit>
void visit_members(T& it, Visit&& visit) {
  visit(it.outputs);
}
template <Is<Heartbeat> T, typename Visit>
void visit_members(T& it, Visit&& visit) {
  visit(it.seconds_since_step), visit(it.stats);
}

// --- The kinds of values. ---

// Travels as its bytes in a list.
template <typename T>
inline constexpr bool kIsPlain =
    (std::is_arithmetic_v<T> && !std::is_same_v<T, bool>) || std::is_same_v<T, TokenLogprob>;
static_assert(sizeof(TokenLogprob) == 16 && std::is_trivially_copyable_v<TokenLogprob>);

template <typename Enum>
inline constexpr Enum kLastOf{};
template <>
inline constexpr FinishReason kLastOf<FinishReason> = FinishReason::kError;
template <>
inline constexpr StatusCode kLastOf<StatusCode> = StatusCode::kInternal;

template <typename T>
struct Codec {  // structs
  static Json pack(const T& value) {
    Json json = Json::array();
    visit_members(value, [&](const auto& member) {
      json.push_back(Codec<std::remove_cvref_t<decltype(member)>>::pack(member));
    });
    return json;
  }
  static bool unpack(const Json& json, T& value) {
    if (!json.is_array()) return false;
    size_t index = 0;
    bool good = true;
    visit_members(value, [&](auto& member) {
      good = good && index < json.size() &&
             Codec<std::remove_cvref_t<decltype(member)>>::unpack(json[index], member);
      ++index;
    });
    return good && index == json.size();
  }
};

template <typename T>
  requires std::is_arithmetic_v<T>
struct Codec<T> {
  static Json pack(T value) { return value; }
  static bool unpack(const Json& json, T& value) {
    if constexpr (std::is_same_v<T, bool>) {
      if (!json.is_boolean()) return false;
    } else if constexpr (std::is_floating_point_v<T>) {
      if (!json.is_number()) return false;
    } else {
      if (!json.is_number_integer()) return false;
      // MessagePack's unsigned numbers beyond int64 would turn negative.
      if (json.is_number_unsigned() && !std::in_range<T>(json.get<uint64_t>())) return false;
      if (!json.is_number_unsigned() && !std::in_range<T>(json.get<int64_t>())) return false;
    }
    value = json.get<T>();
    return true;
  }
};

template <typename T>
  requires std::is_enum_v<T>
struct Codec<T> {
  static Json pack(T value) { return static_cast<int64_t>(value); }
  static bool unpack(const Json& json, T& value) {
    int64_t number = 0;
    if (!Codec<int64_t>::unpack(json, number)) return false;
    if (number < 0 || number > static_cast<int64_t>(kLastOf<T>)) return false;
    value = static_cast<T>(number);
    return true;
  }
};

// Binary, not text: a cache salt may be any bytes.
template <>
struct Codec<std::string> {
  static Json pack(const std::string& value) {
    return Json::binary(std::vector<uint8_t>(value.begin(), value.end()));
  }
  static bool unpack(const Json& json, std::string& value) {
    if (!json.is_binary()) return false;
    value.assign(json.get_binary().begin(), json.get_binary().end());
    return true;
  }
};

template <typename T>
struct Codec<std::optional<T>> {
  static Json pack(const std::optional<T>& value) {
    return value ? Codec<T>::pack(*value) : Json(nullptr);
  }
  static bool unpack(const Json& json, std::optional<T>& value) {
    value.reset();
    return json.is_null() || Codec<T>::unpack(json, value.emplace());
  }
};

template <typename A, typename B>
struct Codec<std::pair<A, B>> {
  static Json pack(const std::pair<A, B>& value) {
    return Json::array({Codec<A>::pack(value.first), Codec<B>::pack(value.second)});
  }
  static bool unpack(const Json& json, std::pair<A, B>& value) {
    return json.is_array() && json.size() == 2 && Codec<A>::unpack(json[0], value.first) &&
           Codec<B>::unpack(json[1], value.second);
  }
};

template <typename T>
struct Codec<std::vector<T>> {
  static Json pack(const std::vector<T>& values) {
    Json json = Json::array();
    for (const T& value : values) json.push_back(Codec<T>::pack(value));
    return json;
  }
  static bool unpack(const Json& json, std::vector<T>& values) {
    if (!json.is_array()) return false;
    values.clear();
    for (const Json& element : json) {
      if (!Codec<T>::unpack(element, values.emplace_back())) return false;
    }
    return true;
  }
};

template <typename T>
  requires kIsPlain<T>
struct Codec<std::vector<T>> {
  static Json pack(const std::vector<T>& values) {
    std::vector<uint8_t> bytes(values.size() * sizeof(T));
    if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
    return Json::binary(std::move(bytes));
  }
  static bool unpack(const Json& json, std::vector<T>& values) {
    if (!json.is_binary() || json.get_binary().size() % sizeof(T) != 0) return false;
    const std::vector<uint8_t>& bytes = json.get_binary();
    values.resize(bytes.size() / sizeof(T));
    if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
    return true;
  }
};

template <>
struct Codec<TokenIds> {
  static Json pack(const TokenIds& ids) { return Codec<std::vector<int32_t>>::pack(ids.vector()); }
  static bool unpack(const Json& json, TokenIds& ids) {
    std::vector<int32_t> values;
    if (!Codec<std::vector<int32_t>>::unpack(json, values)) return false;
    ids = std::move(values);
    return true;
  }
};

template <>
struct Codec<Status> {
  static Json pack(const Status& status) {
    return Json::array(
        {Codec<StatusCode>::pack(status.code()), Codec<std::string>::pack(status.message())});
  }
  static bool unpack(const Json& json, Status& status) {
    StatusCode code{};
    std::string message;
    if (!json.is_array() || json.size() != 2 || !Codec<StatusCode>::unpack(json[0], code) ||
        !Codec<std::string>::unpack(json[1], message)) {
      return false;
    }
    status = Status(code, std::move(message));
    return true;
  }
};

}  // namespace rota::wire
