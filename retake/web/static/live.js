// Reloads the parts of the page when the server says that something has changed, and shows a lost connection.
"use strict";
(() => {
  const AGAIN_MS = 3000;
  let source = null;
  let lost = false;
  let missed = false;  // whether something has changed that the page does not show yet
  let away = document.hidden;  // whether the page was out of sight, and may be out of date

  const say = (text) => {
    const at = document.getElementById("live");
    if (at && at.textContent !== text) at.textContent = text;
  };
  const WAITS = "· something has changed, and shows once the form is sent or left unchanged";
  const tell = () => say(lost ? "· connection lost" : missed ? WAITS : "");
  const lose = () => { lost = true; tell(); };
  const isEdited = (it) => it.tagName === "SELECT"
    ? [...it.options].some((option) => option.selected !== option.defaultSelected)
    : it.tagName === "INPUT" && (it.checked !== it.defaultChecked || it.value !== it.defaultValue);
  const isBusy = () => document.activeElement?.closest("#parts form")
    || [...document.querySelectorAll("#parts form")].some((form) => [...form.elements].some(isEdited));
  const refresh = () => {
    missed = Boolean(isBusy());
    tell();
    if (!missed) htmx.trigger(document.body, "changed");
  };
  const catchUp = () => setTimeout(() => { if (missed) refresh(); });  // later, once the focus has moved

  // A page out of sight does not watch: the server reads the bucket again and again as long as anybody does.
  const connect = () => {
    source?.close();
    if (document.hidden) return;
    source = new EventSource("/events");
    source.addEventListener("changed", refresh);
    source.onopen = () => {
      const back = lost || away;
      lost = away = false;
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
    else if (event.detail.xhr.status === 409) {  // an invalid document, which the page names
      Object.assign(event.detail, {shouldSwap: true, isError: false});
    }
  });
  document.body.addEventListener("htmx:afterSwap", () => {
    lost = lost && source?.readyState !== EventSource.OPEN;  // makes up for an update that failed
    tell();
  });
  for (const name of ["focusout", "change", "input", "reset"]) document.body.addEventListener(name, catchUp);
  document.body.addEventListener("htmx:responseError", (event) => {
    if (event.detail.elt.getAttribute("hx-target") !== "#main") lose();  // else the page itself says so
  });
  document.body.addEventListener("htmx:sendError", lose);
  addEventListener("online", connect);
  document.addEventListener("visibilitychange", () => { away ||= document.hidden; connect(); });
  connect();
})();
