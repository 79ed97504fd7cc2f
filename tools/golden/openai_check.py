"""What OpenAI's own client and an evaluation harness's arithmetic make of `tessera serve`.

    python tools/golden/openai_check.py TESSERA MODEL.gguf

Needs the package `openai` (3.x or 2.x). Starts the server on a free port, asks it as people do, and exits with 1 at the first
difference; 77 where the package is absent.
"""
import json
import math
import os
import subprocess
import sys
import threading
import urllib.request

try:
    import openai
except ImportError:
    print("openai is not installed", file=sys.stderr)
    sys.exit(77)


def check(holds, what):
    if not holds:
        sys.exit(f"openai_check: {what}")


class Server:
    def __init__(self, program, *arguments):
        environment = dict(os.environ, TESSERA_API_KEY="secret")
        self.process = subprocess.Popen([program, "serve", *arguments, "--port", "0", "--log", "none"], stdout=subprocess.PIPE,
                                        text=True, env=environment)
        self.address = self.process.stdout.readline().strip()
        check(self.address.startswith("http://"), "the server does not say where it is")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        status = self.process.wait(timeout=60)
        if sys.exc_info()[0] is None:
            check(status == 143, f"the server ended with {status}; expected 143")


def chats(client, model):
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    whole = client.chat.completions.create(model=model, messages=messages, temperature=0, max_tokens=12, logprobs=True, top_logprobs=2)
    choice = whole.choices[0]
    check("Paris" in choice.message.content, f"an answer without Paris: {choice.message.content}")
    check(choice.finish_reason in ("stop", "length"), choice.finish_reason)
    check(whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens, "tokens do not add up")
    for token in choice.logprobs.content:
        check(token.logprob <= 0 and len(token.top_logprobs) == 2, "logarithms")
        check(abs(token.logprob - token.top_logprobs[0].logprob) < 1e-9, "greedy takes the likeliest")
    text, usage = "", None
    for event in client.chat.completions.create(model=model, messages=messages, temperature=0, max_tokens=12, stream=True,
                                                stream_options={"include_usage": True}):
        if event.choices:
            text += event.choices[0].delta.content or ""
        usage = event.usage or usage
    check(text == choice.message.content, "a stream says something else")
    check(usage == whole.usage or usage.completion_tokens == whole.usage.completion_tokens, "a stream counts otherwise")
    one = client.chat.completions.create(model=model, messages=messages, seed=5, n=2, max_tokens=8)
    two = client.chat.completions.create(model=model, messages=messages, seed=5, n=2, max_tokens=8)
    check([c.message.content for c in one.choices] == [c.message.content for c in two.choices], "a seed repeats")
    stopped = client.chat.completions.create(model=model, messages=messages, temperature=0, max_tokens=20, stop=["Paris"])
    check("Paris" not in stopped.choices[0].message.content and stopped.choices[0].finish_reason == "stop", "stop")


def scores(client, model):
    """As lm-evaluation-harness asks: the prompt's own logarithms, of a text and of its beginning."""
    context, rest = "The capital of France is", " Paris"
    whole = client.completions.create(model=model, prompt=[context + rest, context], max_tokens=0, echo=True, logprobs=1)
    a, b = (choice.logprobs for choice in whole.choices)
    begin = len(b.tokens)
    check(a.tokens[:begin] == b.tokens, "a beginning is a beginning")
    check(a.token_logprobs[0] is None and a.top_logprobs[0] is None, "the first token follows nothing")
    for i in range(1, begin):
        check(a.token_logprobs[i] == b.token_logprobs[i], "what follows changes nothing before it")
    likely = sum(a.token_logprobs[begin:])
    check(-20 < likely < 0, f"ln p of Paris is {likely}")
    check("".join(a.tokens) == context + rest, "tokens make up the text")
    check(all(len(text[:offset]) == offset for text, offset in ((context + rest, o) for o in a.text_offset)), "offsets")
    greedy = [max(top, key=top.get) == token for token, top in zip(a.tokens[1:], a.top_logprobs[1:])]
    check(any(greedy) and not all(greedy), "the likeliest of each place")
    # with one new token beside, as harnesses ask that cannot say 0
    more = client.completions.create(model=model, prompt=context + rest, max_tokens=1, temperature=0, echo=True, logprobs=1, seed=1)
    check(more.choices[0].logprobs.token_logprobs[1:len(a.tokens)] == a.token_logprobs[1:], "a new token changes what was scored")
    check(math.isfinite(more.choices[0].logprobs.token_logprobs[-1]), "the new token has its own")


def refusals(client, model, address):
    for wrong, kind in ((dict(model="none"), openai.NotFoundError), (dict(model=model, temperature=99), openai.BadRequestError),
                        (dict(model=model, extra_body={"tempratur": 1}), openai.BadRequestError)):
        try:
            client.chat.completions.create(messages=[{"role": "user", "content": "x"}], **wrong)
        except kind as error:
            check(error.body is not None and error.body.get("code"), "an error has a code")
        else:
            sys.exit(f"openai_check: {wrong} passes")
    try:
        openai.OpenAI(base_url=address + "/v1", api_key="other", max_retries=0).models.list()
    except openai.AuthenticationError:
        pass
    else:
        sys.exit("openai_check: any key passes")


def many(client, model):
    """The same question from 8 threads, among others."""
    said = []

    def ask(i):
        said.append(client.completions.create(model=model, prompt="Once upon a time", max_tokens=12, seed=3).choices[0].text)
        client.completions.create(model=model, prompt=f"Number {i}", max_tokens=6)

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check(len(said) == 8 and len(set(said)) == 1, "the answer turns on the load")


def main():
    program, path = sys.argv[1:3]
    with Server(program, path, "--alias", "model", "--pooling", "mean") as server:
        client = openai.OpenAI(base_url=server.address + "/v1", api_key="secret", max_retries=0, timeout=300)
        models = client.models.list().data
        check([m.id for m in models] == ["model"], "the list of models")
        check(client.models.retrieve("model").id == "model", "one model")
        chats(client, "model")
        scores(client, "model")
        refusals(client, "model", server.address)
        many(client, "model")
        vectors = client.embeddings.create(model="model", input=["a cat", "a kitten", "tax law"]).data  # as base64
        dot = lambda x, y: sum(p * q for p, q in zip(vectors[x].embedding, vectors[y].embedding))
        check(abs(dot(0, 0) - 1) < 1e-4 and dot(0, 1) > dot(0, 2), "vectors")
        request = urllib.request.Request(server.address + "/metrics", headers={"Authorization": "Bearer secret"})
        metrics = urllib.request.urlopen(request).read().decode()
        check("tessera_generated_tokens_total" in metrics, "metrics")
        try:
            from prometheus_client.parser import text_string_to_metric_families
        except ImportError:
            pass
        else:
            names = [family.name for family in text_string_to_metric_families(metrics)]
            check("tessera_time_to_first_token_seconds" in names, "Prometheus reads the metrics")
    print(json.dumps({"openai": openai.__version__}))


main()
