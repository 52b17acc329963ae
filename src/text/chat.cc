#include "text/chat.h"

#include "text/chat_template.h"
#include "text/harmony/format.h"
#include "text/template_format.h"

namespace rota {

Result<std::unique_ptr<ChatFormat>> ChatFormat::load(const std::filesystem::path& model_dir,
                                                     std::shared_ptr<const Tokenizer> tokenizer) {
  if (const auto vocabulary = harmony::Vocabulary::of(*tokenizer)) {
    return std::unique_ptr<ChatFormat>(
        std::make_unique<harmony::HarmonyFormat>(std::move(tokenizer), *vocabulary));
  }
  ROTA_ASSIGN_OR_RETURN(ChatTemplates templates, ChatTemplates::load(model_dir));
  return std::unique_ptr<ChatFormat>(
      std::make_unique<TemplateFormat>(std::move(templates), std::move(tokenizer)));
}

}  // namespace rota
