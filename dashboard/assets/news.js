/* Title and icon of the tab, from the page's [data-news]; and notices of alarms that are new, if the
   reader has asked for them. */
(function () {
  "use strict";
  let shown = "", alarms = null;
  const possible = "Notification" in window && window.isSecureContext;
  const stored = () => { try { return localStorage.getItem("lldscope-notices"); } catch (e) { return null; } };
  const wanted = () => possible && Notification.permission === "granted" && stored() === "on";

  function tell(news) {
    document.title = news.title;
    const link = document.querySelector("link[rel=icon]");
    if (link && link.href !== news.icon) link.href = news.icon;
    /* What fires when the page opens is no news. */
    for (const [alarm, text] of Object.entries(news.alarms)) {
      if (alarms && !(alarm in alarms) && wanted()) new Notification(alarm, { body: text, tag: alarm });
    }
    alarms = news.alarms;
  }

  function look() {
    const told = document.querySelector("[data-news]");
    if (told) {
      if (told.dataset.news !== shown) tell(JSON.parse(shown = told.dataset.news));
      return;
    }
    const head = document.querySelector("main h1");
    const title = head ? `${head.firstChild.textContent} – lldscope` : "lldscope";
    if (document.title !== title) document.title = title;
  }
  new MutationObserver(look).observe(document.documentElement, {
    childList: true, subtree: true, attributeFilter: ["data-news"],
  });

  function label() {
    const button = document.getElementById("notices");
    if (!button) return;
    button.dataset.labelled = "yes";
    button.hidden = !possible;
    button.setAttribute("aria-pressed", String(wanted()));
    const text = wanted() ? "Notices on" : "Notify me";
    if (button.textContent !== text) button.textContent = text;
  }
  document.addEventListener("click", async (event) => {
    if (event.target.id !== "notices") return;
    const on = !wanted();
    if (on && Notification.permission !== "granted") await Notification.requestPermission();
    try { localStorage.setItem("lldscope-notices", on ? "on" : "off"); } catch (e) { /* private */ }
    label();
  });
  /* Once: to ask for the permission takes the browser long. */
  new MutationObserver(() => {
    if (document.querySelector("#notices:not([data-labelled])")) label();
  }).observe(document.documentElement, { childList: true, subtree: true });
})();
