// The site's search looks for every word as the beginning of a word, "a" and "do" too, so that a
// question finds pages by these alone. A question goes to the search without such words.
const stopWords = new Set(
  ("a about an and any are as at be by can could did do does for from get has have how i if in into is it its me my " +
    "of on one or our own should so some than that the their them there this to too was we what when where which who " +
    "why will with would you your").split(" "),
);

function withoutStopWords(query) {
  if (query.includes('"')) return query; // a phrase
  const words = query.split(/\s+/).filter((word) => word && !stopWords.has(word.toLowerCase().replace(/[?!.,]+$/, "")));
  return words.length ? words.map((word) => word.replace(/[?!.,]+$/, "")).join(" ") : query;
}

{
  const kQuery = 2; // mkdocs-material's message: {type: 2, data: the text of the field}
  const post = Worker.prototype.postMessage;
  Worker.prototype.postMessage = function (message, ...rest) {
    const asked = message.type === kQuery ? { ...message, data: withoutStopWords(message.data) } : message;
    return post.call(this, asked, ...rest);
  };
}
