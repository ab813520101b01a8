/* Links to another look at the same page take what was changed in the address since it came. */
document.addEventListener("click", (event) => {
  const link = event.target.closest("a[data-keep]");
  if (!link) return;
  const to = new URL(link.href), now = new URL(location.href);
  for (const key of ["x", "mean", "zoom", "hide", "theme", "chart", "log", "clip"]) {
    to.searchParams.delete(key);
    for (const value of now.searchParams.getAll(key)) to.searchParams.append(key, value);
  }
  link.href = to.href;
});
