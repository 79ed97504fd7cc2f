// Names of the verbs of tessera-tensors, for the help of tessera.
#pragma once

namespace tessera::cli {

struct VerbName {
  const char* name;
  const char* summary;
};

inline constexpr VerbName kTensorVerbs[] = {
    {"generate", "Text from a model"},
    {"chat", "A conversation with a model"},
    {"serve", "Models over HTTP: chats, completions, embeddings, as OpenAI's clients ask for them"},
    {"forward", "Logits or hidden states of a batch, file to file"},
    {"embed", "Vectors of texts"},
    {"index", "Folders of texts as passages with vectors, to be found by questions"},
    {"search", "The passages of an index that are nearest to a question"},
    {"eval", "Negative log-likelihood, perplexity, bits per byte of a text"},
    {"classify", "Classes of texts or words, numbers, answers to questions"},
    {"train", "Trains a model from a recipe"},
    {"finetune", "Goes on with a model on a file of labels, texts or conversations"},
    {"bench", "Measures prefill and decode speed of a model, or the cost of every mechanism"},
    {"verify", "Whole, chunked and token by token: the largest difference"},
    {"doctor", "Reports the processor, libtorch and what tessera makes of them"},
};

}  // namespace tessera::cli
