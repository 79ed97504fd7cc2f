// The search of a site that is opened as files (file://): browsers start no Worker from a file, so
// that its script runs in a hidden frame instead. Replaces what mkdocs-material would load for this
// from another host (tools/site/hooks.py).
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.srcdoc = "<script>postMessage = (data) => answer(data)</" + `script><script src="${url}"></` + "script>";
      this.frame = frame;
      this.loaded = new Promise((done) => {
        frame.addEventListener("load", () => {
          frame.contentWindow.answer = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
          done();
        });
      });
      document.body.append(frame);
    }
    postMessage(data) {
      this.loaded.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
    }
    terminate() {
      this.frame.remove();
    }
  };
}
