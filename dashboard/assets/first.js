/* What Dash asks for first is in the page already: app.py. */
(function () {
  "use strict";
  const ask = window.fetch;
  window.fetch = function (address, ...rest) {
    const name = String(address.url || address).split("/").pop();
    const given = name.startsWith("_dash-") && document.getElementById(name);
    if (!given) return ask.call(this, address, ...rest);
    const headers = { "Content-Type": "application/json" };
    return Promise.resolve(new Response(given.textContent, { headers }));
  };
})();
