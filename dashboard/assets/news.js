/* Title and icon of the tab, and notices of alarms that are new, if the reader has asked for them. */
(function () {
  "use strict";
  let alarms = null;
  const possible = "Notification" in window && window.isSecureContext;
  const stored = () => { try { return localStorage.getItem("lldscope-notices"); } catch (e) { return null; } };
  const wanted = () => possible && Notification.permission === "granted" && stored() === "on";

  Object.assign(window.dash_clientside.lldscope, {
    news(news) {
      if (!news) return;
      document.title = news.title;
      const link = document.querySelector("link[rel=icon]");
      if (link && link.href !== news.icon) link.href = news.icon;
      /* What fires when the page opens is no news. */
      for (const [alarm, text] of Object.entries(news.alarms)) {
        if (alarms && !(alarm in alarms) && wanted()) new Notification(alarm, { body: text, tag: alarm });
      }
      alarms = news.alarms;
    },

    async notices(clicks) {
      const button = document.getElementById("notices");
      button.hidden = !possible;
      if (clicks) {
        const on = !wanted();
        if (on && Notification.permission !== "granted") await Notification.requestPermission();
        try { localStorage.setItem("lldscope-notices", on ? "on" : "off"); } catch (e) { /* private */ }
      }
      button.setAttribute("aria-pressed", String(wanted()));
      return wanted() ? "Notices on" : "Notify me";
    },
  });
})();
