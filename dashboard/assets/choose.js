/* What is chosen stands in the address: a select[data-address] sets that part of it. */
(function () {
  "use strict";
  document.addEventListener("change", (event) => {
    const select = event.target.closest("select[data-address]");
    if (!select) return;
    const to = new URL(location.href);
    to.searchParams.delete(select.dataset.address);
    if (select.value) to.searchParams.set(select.dataset.address, select.value);
    location.assign(to);
  });
})();
