/* Dash calls its lists of radio buttons and boxes listboxes, with options that hold the real
   controls, and leaves them without a name. Here the roles go: what remains is what HTML says of
   radio buttons and boxes, in a group that the page names. */
(function () {
  "use strict";
  const CLAIMED = ".dash-options-list[role], .dash-options-list-option:is([role], [aria-selected])";
  function tidy() {
    for (const claimed of document.querySelectorAll(CLAIMED)) {
      claimed.removeAttribute("role");
      claimed.removeAttribute("aria-selected");
    }
  }
  const watched = { childList: true, subtree: true, attributeFilter: ["aria-selected"] };
  new MutationObserver(tidy).observe(document.documentElement, watched);
})();
