/* What is chosen stands in the address: a select[data-address] sets that part of it, and a link with
   data-keep takes the parts that it names along. */
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
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-keep]");
    if (!link) return;
    const to = new URL(link.href), now = new URL(location.href);
    for (const key of link.dataset.keep.split(" ")) {
      to.searchParams.delete(key);
      for (const value of now.searchParams.getAll(key)) to.searchParams.append(key, value);
    }
    link.href = to.href;
  });
})();
