// Reloads the parts of the page when the server says that something has changed, and shows a lost connection.
"use strict";
(() => {
  const AGAIN_MS = 3000;
  let source = null;
  let lost = false;

  const say = (text) => {
    const at = document.getElementById("live");
    if (at && at.textContent !== text) at.textContent = text;
  };
  const tell = () => say(lost ? "· connection lost" : "");
  const lose = () => { lost = true; tell(); };
  const refresh = () => {
    const busy = document.activeElement && document.activeElement.closest("#parts form");  // being filled in
    if (!busy) htmx.trigger(document.body, "changed");
  };

  const connect = () => {
    source = new EventSource("/events");
    source.addEventListener("changed", refresh);
    source.onopen = () => {
      const back = lost;
      lost = false;
      tell();
      if (back) refresh();
    };
    source.onerror = () => {
      lose();
      if (source.readyState === EventSource.CLOSED) setTimeout(connect, AGAIN_MS);  // refused: the browser gives up
    };
  };

  document.body.addEventListener("htmx:beforeSwap", (event) => {
    if (!event.detail.serverResponse.includes('id="parts"')) event.detail.shouldSwap = false;
  });
  document.body.addEventListener("htmx:afterSwap", tell);
  document.body.addEventListener("htmx:responseError", lose);
  document.body.addEventListener("htmx:sendError", lose);
  addEventListener("online", () => { source.close(); connect(); });
  connect();
})();
