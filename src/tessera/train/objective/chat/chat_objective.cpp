#include "tessera/train/objective/chat/chat_objective.h"

#include "tessera/text/chat/chat_formats.h"
#include "tessera/train/objective/chat/chat_source.h"
#include "tessera/train/objective/next_token/next_token_objective.h"

namespace tessera::train {
namespace {

class ChatObjective final : public ObjectiveOf<ChatRecipe> {
 public:
  using ObjectiveOf::ObjectiveOf;

  void check(const ModelPlan& plan) const override {
    check_predicts_tokens(plan.spec, type());
    if (plan.spec.arch != model::Arch::decoder)
      fail(ErrorKind::spec, "spec.arch", "\"{}\" with objective \"chat\"; expected \"decoder\"",
           name_of(plan.spec.arch));
    if (plan.data.task() != nullptr)
      fail(ErrorKind::spec, "data.type",
           "a task with objective \"chat\"; expected files of messages");
    const TextData& data = plan.data.files();
    if (!data.mix.empty())
      fail(ErrorKind::spec, "data.mix", "given with objective \"chat\"; expected files in train");
    if (plan.train.curriculum.steps > 0)
      fail(ErrorKind::spec, "train.curriculum",
           "conversations have the length that they have; expected steps 0");
    if (data.source_key)
      fail(ErrorKind::spec, "data.source_key",
           "given with objective \"chat\", which reads messages; leave it out");
    if (!has_keys(data.format))
      fail(ErrorKind::spec, "data.format",
           "found \"{}\"; objective \"chat\" reads \"jsonl\", \"csv\" or \"tsv\"",
           spec::enum_name(data.format));
    if (plan.train.windows == WindowOrder::carried)
      fail(ErrorKind::spec, "train.windows",
           "\"carried\" continues documents, but conversations are independent; use \"isolated\"");
    if (!keys_.plain()) prompts_of(keys_, open_tokenizer(plan.data));
  }

  std::unique_ptr<Dataset> open(const DataPlan& plan,
                                const std::filesystem::path&,
                                const CancelToken* cancel) const override {
    return open_chats(plan, keys_, open_tokenizer(plan.data), cancel);
  }

  /// A tokenizer without the format's template or its stop tokens.
  void write_settings(const ModelPlan& plan,
                      const std::filesystem::path& checkpoint) const override {
    write_chat_format(keys_, plan.data.files(), checkpoint);
  }
};

}  // namespace

std::vector<ObjectiveKind> chat_kinds() {
  return {objective_kind<ChatObjective, ChatRecipe>()};
}

}  // namespace tessera::train
