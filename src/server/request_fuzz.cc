// libFuzzer target: the bodies of API requests, as any client may send them.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "engine/request.h"
#include "server/api/api_request.h"
#include "server/api/json_fields.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace rota;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const Result<OrderedJson> body = parse_request_json(text);
  if (!body.ok()) {
    ROTA_CHECK(body.status().code() == StatusCode::kInvalidArgument,
               "bad JSON is the client's fault");
    return 0;
  }
  const SamplingParams defaults;
  for (const auto& request :
       {parse_completion_request(*body, defaults), parse_chat_request(*body, defaults)}) {
    if (!request.ok()) {
      ROTA_CHECK(!request.status().message().empty(), "an error says what is wrong");
      continue;
    }
    // What passed is in range: nothing but the vocabulary is left for the engine to check.
    ROTA_CHECK(request->n >= 1 && request->n <= kMaxChoices, "n is checked");
    ROTA_CHECK(request->sampling.temperature >= 0 && request->sampling.temperature <= 2,
               "temperature is checked");
    ROTA_CHECK(request->sampling.top_p > 0 && request->sampling.top_p <= 1, "top_p is checked");
  }
  return 0;
}
