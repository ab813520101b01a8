/* Title and icon of the tab; and new alarms, which are read aloud. */
(function () {
  "use strict";
  let alarms = null;
  window.dash_clientside.lldscope.news = (news) => {
    if (!news) return;
    document.title = news.title;
    const link = document.querySelector("link[rel=icon]");
    if (link && link.href !== news.icon) link.href = news.icon;
    /* What fires when the page opens is no news. */
    const fresh = Object.entries(news.alarms).filter(([alarm]) => alarms && !(alarm in alarms));
    if (fresh.length) {
      const text = fresh.map(([alarm, message]) => `New alarm: ${alarm}. ${message}`).join(" ");
      document.getElementById("announcement").textContent = text;
    }
    alarms = news.alarms;
  };
})();
